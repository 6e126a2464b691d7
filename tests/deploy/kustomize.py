"""As much of kustomize as the overlays use: resources, files to ConfigMaps, and JSON patches by kind and name."""

import re
from pathlib import Path
from typing import Any

import jsonpatch
import yaml

from tests.deploy.files import read_documents, read_yaml

Resource = dict[str, Any]


def build(folder: Path) -> list[Resource]:
    """The resources of a folder with `kustomization.yaml`; fails for a file, target or path that is not there."""
    kustomization = read_yaml(folder / "kustomization.yaml")
    resources = [resource for entry in kustomization["resources"] for resource in _read(folder / entry)]
    resources += [_config_map(folder, entry) for entry in kustomization.get("configMapGenerator", ())]
    for patch in kustomization.get("patches", ()):
        _apply(patch, folder, resources)
    for resource in resources:
        _label(resource, kustomization)
    return resources


def key(resource: Resource) -> tuple[str, str]:
    """What identifies a resource within a namespace."""
    return resource["kind"], resource["metadata"]["name"]


def _read(path: Path) -> list[Resource]:
    return build(path) if path.is_dir() else read_documents(path)


def _config_map(folder: Path, kustomization: Resource) -> Resource:
    data = {name: (folder / name).read_text(encoding="utf-8") for name in kustomization["files"]}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": kustomization["name"]}, "data": data}


def _label(resource: Resource, kustomization: Resource) -> None:
    metadata = resource["metadata"]
    for labels in kustomization.get("labels", ()):
        metadata["labels"] = {**metadata.get("labels", {}), **labels["pairs"]}
    if "namespace" in kustomization:
        metadata["namespace"] = kustomization["namespace"]
        for subject in resource.get("subjects", ()):
            subject["namespace"] = kustomization["namespace"]


def _apply(patch: Resource, folder: Path, resources: list[Resource]) -> None:
    kind, name = patch["target"]["kind"], patch["target"].get("name", ".*")
    found = [r for r in resources if r["kind"] == kind and re.fullmatch(name, r["metadata"]["name"])]
    assert found, f"{folder}: a patch of {kind} {name} has no target"
    operations = yaml.safe_load(patch["patch"]) if "patch" in patch else read_yaml(folder / patch["path"])
    for resource in found:
        jsonpatch.apply_patch(resource, operations, in_place=True)
