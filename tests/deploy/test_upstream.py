"""The manifests against the schemas that the operators themselves publish, which a cluster checks resources with.

LOCKKEEPER_TEST_CRDS names a folder with their CustomResourceDefinitions, as .github/workflows/ci.yml fetches them. The
kinds of Kubernetes itself, and the same without a network, are in schemas.py.
"""

import os
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from tests.deploy.files import DEPLOY, ROOT, read_yaml
from tests.deploy.kustomize import Resource, build

FOLDER = os.environ.get("LOCKKEEPER_TEST_CRDS", "")
CUSTOM = ("spark.apache.org/", "kafka.strimzi.io/", "monitoring.coreos.com/")

KINDS = ("SparkApplication", "KafkaTopic", "KafkaUser", "ServiceMonitor")

Kind = tuple[str, str]


@pytest.fixture(scope="module")
def definitions() -> dict[Kind, Any]:
    """The schemas by API version and kind."""
    if not FOLDER:
        pytest.skip("LOCKKEEPER_TEST_CRDS names no folder with the operators' CustomResourceDefinitions")
    return {
        (f"{spec['group']}/{version['name']}", spec["names"]["kind"]): _strict(version["schema"]["openAPIV3Schema"])
        for path in sorted(Path(FOLDER).rglob("*.yaml"))
        for spec in _specs(path)
        for version in spec["versions"]
    }


def _specs(path: Path) -> list[Any]:
    text = path.read_text(encoding="utf-8")
    if not any(f"\n    kind: {kind}\n" in text for kind in KINDS):
        return []
    documents = [document for document in yaml.safe_load_all(text) if document]
    return [document["spec"] for document in documents if document["kind"] == "CustomResourceDefinition"]


def _strict(schema: Any) -> Any:
    """A field that a definition does not have is an error: a cluster would drop it, and say nothing."""
    if isinstance(schema, list):
        return [_strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    strict = {name: _strict(value) for name, value in schema.items()}
    if "properties" in strict and not strict.get("x-kubernetes-preserve-unknown-fields"):
        strict.setdefault("additionalProperties", False)
    if strict.get("x-kubernetes-int-or-string"):
        strict.pop("type", None)
    return strict


def _errors(resource: Resource, definitions: dict[Kind, Any]) -> list[str]:
    schema = definitions[resource["apiVersion"], resource["kind"]]
    # Kubernetes adds these to every definition.
    whole = {**schema, "properties": {**schema["properties"], "apiVersion": {}, "kind": {}, "metadata": {}}}
    return [error.message for error in jsonschema.Draft7Validator(whole).iter_errors(resource)]


@pytest.mark.parametrize("folder", ["base", "production"])
def test_the_operators_definitions_accept_the_manifests(folder: str, definitions: dict[Kind, Any]) -> None:
    resources = [each for each in build(DEPLOY / "kubernetes" / folder) if each["apiVersion"].startswith(CUSTOM)]
    assert {each["kind"] for each in resources} == {*KINDS}
    for resource in resources:
        assert _errors(resource, definitions) == [], resource["metadata"]["name"]
        resource["spec"]["misspelt"] = True
        assert _errors(resource, definitions) != []


def test_ci_fetches_the_definitions_of_these_operators() -> None:
    [job] = read_yaml(ROOT / ".github" / "workflows" / "ci.yml")["jobs"].values()
    fetched = [step["with"] for step in job["steps"] if "repository" in step.get("with", {})]
    assert len(fetched) == len(CUSTOM)
    [given] = [step["env"]["LOCKKEEPER_TEST_CRDS"] for step in job["steps"] if step.get("run") == ".ci/run"]
    for definitions in fetched:
        assert re.fullmatch(r"[0-9a-f]{40}", definitions["ref"])
        assert given == f"${{{{ github.workspace }}}}/{Path(definitions['path']).parent}"
