"""What lockkeeper consists of: every component is there, with a licence that is allowed, in CycloneDX's form."""

import copy
import json
import tomllib
import zipfile
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest

from deploy.sbom import __main__ as sbom
from deploy.sbom import licences
from deploy.sbom.jars import jars_of_pyspark
from streaming import DISTRIBUTION
from streaming.runtime.java import pyspark_folder
from tests.deploy.files import ROOT

pytestmark = pytest.mark.long  # it looks into each package and jar

LOCK = tomllib.loads((ROOT / "streaming" / "runtime" / "jars.lock").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return sbom.bill()


def test_it_is_what_cyclonedx_defines_and_every_licence_is_allowed(document: dict[str, Any]) -> None:
    assert sbom.invalid(document) is None
    assert sbom.refused(document) == []
    component = document["metadata"]["component"]
    assert (component["name"], component["version"]) == (DISTRIBUTION, distribution(DISTRIBUTION).version)


def test_packages_are_those_of_the_extras_as_they_are_installed(document: dict[str, Any]) -> None:
    listed = {c["purl"] for c in document["components"] if c["purl"].startswith("pkg:pypi/")}
    for name in ("pyspark", "confluent-kafka", "cedarpy", "uvicorn", "starlette", "opentelemetry-sdk", "matplotlib"):
        assert f"pkg:pypi/{name}@{distribution(name).version}" in listed
    names = {purl.split("/")[1].split("@")[0] for purl in listed}
    assert not names & {"pytest", "mypy", "ruff", "mkdocs", "cyclonedx-bom", "zizmor", "hypothesis"}  # tools


def test_jars_are_those_of_the_lock_with_its_hashes(document: dict[str, Any]) -> None:
    listed = {c["purl"]: c["hashes"] for c in document["components"] if c["purl"].startswith("pkg:maven/")}
    locked = {
        "pkg:maven/{}/{}@{}".format(*jar["coordinate"].split(":")): [{"alg": "SHA-256", "content": jar["sha256"]}]
        for jars in LOCK.values()
        for jar in jars
    }
    assert listed == locked


def test_the_jars_of_spark_are_within_pyspark(document: dict[str, Any]) -> None:
    [pyspark] = [c for c in document["components"] if c["name"] == "pyspark"]
    assert len(pyspark["components"]) == len(list((pyspark_folder() / "jars").glob("*.jar")))
    purls = {c["purl"] for c in pyspark["components"]}
    assert {"pkg:maven/org.apache.spark/spark-core_2.13@4.2.0", "pkg:maven/org.apache.hive/hive-shims@2.3.10"} <= purls
    assert any(purl.endswith("?classifier=core") for purl in purls)


def test_dependencies_are_between_what_is_listed(document: dict[str, Any]) -> None:
    refs = {c["bom-ref"] for c in document["components"]} | {document["metadata"]["component"]["bom-ref"]}
    assert {d["ref"] for d in document["dependencies"]} <= refs
    needed = {ref for d in document["dependencies"] for ref in d["dependsOn"]}
    assert needed <= refs
    assert {c["bom-ref"] for c in document["components"] if c["purl"].startswith("pkg:maven/")} <= needed


@pytest.mark.parametrize(
    ("expression", "allowed"),
    [
        ("MIT", True),
        ("MIT OR GPL-3.0-only", True),
        ("MIT AND GPL-3.0-only", False),
        ("GPL-2.0-only", False),
        ("GPL-2.0-only WITH Classpath-exception-2.0", True),
        ("AGPL-3.0-or-later", False),
        ("(MIT OR AGPL-3.0-only) AND Apache-2.0", True),
        ("LGPL-2.1-only", False),
    ],
)
def test_one_of_several_that_can_be_chosen_suffices(expression: str, allowed: bool) -> None:
    assert licences.is_allowed(expression) is allowed


def test_a_component_with_another_licence_is_refused(document: dict[str, Any]) -> None:
    changed = copy.deepcopy(document)
    [pyspark] = [c for c in changed["components"] if c["name"] == "pyspark"]
    pyspark["components"][0]["licenses"] = [{"expression": "AGPL-3.0-only"}]
    assert sbom.refused(changed) == [f"{pyspark['components'][0]['bom-ref']}: AGPL-3.0-only"]


def test_a_component_that_names_no_licence_is_an_error() -> None:
    for declared in ([], ["License :: Other/Proprietary License"], ["MIT", "see the website"]):
        with pytest.raises(licences.UnknownLicence, match="new-package"):
            licences.of_package("new-package", declared)
        with pytest.raises(licences.UnknownLicence, match=r"com\.example:new-jar"):
            licences.of_jar("com.example", "new-jar", declared)
    assert licences.of_package("new-package", ["MIT", "Apache-2.0"]) == "MIT AND Apache-2.0"
    assert licences.of_jar("org.apache.new", "new-jar", []) == "Apache-2.0"
    with pytest.raises(licences.UnknownLicence):
        licences.of_jar("org.apachenot", "new-jar", [])


def test_a_document_that_is_none_of_cyclonedx_is_refused(document: dict[str, Any]) -> None:
    changed = {**document, "components": [{**document["components"][0], "kind": "library"}], "dependencies": []}
    assert sbom.invalid(changed) is not None


def test_the_table_has_no_line_that_nothing_needs(document: dict[str, Any]) -> None:
    everything = sbom.components(document)
    jars = {(c["group"], c["name"]) for c in everything if c["purl"].startswith("pkg:maven/")}
    named = {f"{group}:{name}" for group, name in jars}
    groups = {".".join(group.split(".")[:size]) for group, _ in jars for size in range(1, group.count(".") + 2)}
    assert licences.MAVEN.keys() <= named | groups
    assert licences.PYTHON.keys() <= {c["name"] for c in everything}
    used = json.dumps([c["licenses"] for c in everything])
    assert [licence for licence in licences.ALLOWED if licence not in used] == []


def test_spark_jars_without_a_name_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "jars").mkdir()
    with zipfile.ZipFile(tmp_path / "jars" / "new-jar-1.0.jar", "w") as archive:
        archive.writestr("a.class", b"")
    monkeypatch.setattr("deploy.sbom.jars.pyspark_folder", lambda: tmp_path)
    with pytest.raises(licences.UnknownLicence, match="new-jar"):
        jars_of_pyspark()
