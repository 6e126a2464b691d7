"""A Deployment of the manifests as tests look at it: its resources, its pod, its settings."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from streaming.settings import Settings, load_settings, variables
from tests.deploy.files import instruction
from tests.deploy.kustomize import Resource, build, key
from tests.deploy.test_kubernetes import BASE


def named(folder: Path, kind: str, name: str) -> Resource:
    """The resource of a kind and name."""
    return {key(resource): resource for resource in build(folder)}[kind, name]


def pod_of(folder: Path, name: str) -> Any:
    """The template of its pods."""
    return named(folder, "Deployment", name)["spec"]["template"]


def container_of(folder: Path, name: str) -> Any:
    """Their only container."""
    [container] = pod_of(folder, name)["spec"]["containers"]
    return container


def settings_of(folder: Path, name: str, secret: Callable[[dict[str, Any]], str]) -> Settings:
    """The settings of its program. `secret`: the value of a variable that has none itself."""
    values: dict[str, str] = {}
    for entry in container_of(folder, name)["env"]:
        text = entry["value"] if "value" in entry else secret(entry["valueFrom"]["secretKeyRef"])
        for variable, value in values.items():
            text = text.replace(f"$({variable})", value)
        values[entry["name"]] = text
    assert {variable for variable in values if variable.startswith("LOCKKEEPER_")} <= variables().keys()
    return load_settings(BASE / "lockkeeper.yaml", values)


def check_rights(folder: Path, name: str) -> None:
    """It runs as the image's user, without rights that it does not need."""
    user, group = map(int, instruction("USER").split(":"))
    pod, own = pod_of(folder, name)["spec"], container_of(folder, name)["securityContext"]
    security = pod["securityContext"]
    assert (security["runAsUser"], security["runAsGroup"], security["fsGroup"]) == (user, group, group)
    assert security["runAsNonRoot"] is True
    assert pod["automountServiceAccountToken"] is False
    assert own["allowPrivilegeEscalation"] is False
    assert own["readOnlyRootFilesystem"] is True
    assert own["capabilities"] == {"drop": ["ALL"]}
