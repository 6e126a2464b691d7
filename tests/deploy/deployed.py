"""A Deployment of the manifests as tests look at it: its resources, its pod, its settings."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from streaming.settings import Settings, load_settings, variables
from tests.deploy.kustomize import Resource, build, key
from tests.deploy.test_kubernetes import BASE


class Deployed(NamedTuple):
    """The Deployment of a name in a folder of manifests, with what is beside it."""

    folder: Path
    name: str

    @property
    def everything(self) -> dict[tuple[str, str], Resource]:
        """All resources of the folder, by kind and name."""
        return {key(resource): resource for resource in build(self.folder)}

    def resource(self, kind: str) -> Resource:
        """Its own of a kind."""
        return self.everything[kind, self.name]

    @property
    def pod(self) -> Any:
        """The template of its pods."""
        return self.resource("Deployment")["spec"]["template"]

    @property
    def container(self) -> Any:
        """Their only container."""
        [container] = self.pod["spec"]["containers"]
        return container

    def settings(self, secret: Callable[[dict[str, Any]], str] = lambda _reference: "a password") -> Settings:
        """The settings of its program. `secret`: the value of a variable that has none itself."""
        values: dict[str, str] = {}
        for entry in self.container["env"]:
            text = entry["value"] if "value" in entry else secret(entry["valueFrom"]["secretKeyRef"])
            for variable, value in values.items():
                text = text.replace(f"$({variable})", value)
            values[entry["name"]] = text
        ours = {variable: value for variable, value in values.items() if variable.startswith("LOCKKEEPER_")}
        assert ours.keys() <= variables().keys()
        return load_settings(BASE / "lockkeeper.yaml", ours)

    def check_rights(self) -> None:
        """It runs as the image's user, or one that the platform chose, without rights that it does not need."""
        pod, own = self.pod["spec"], self.container["securityContext"]
        assert pod["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
        assert pod["automountServiceAccountToken"] is False
        assert own == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        # Kubernetes mounts none by itself, and Python's tempfile fails without one.
        assert {"name": "tmp", "mountPath": "/tmp"} in self.container["volumeMounts"]
        assert {"name": "tmp", "emptyDir": {}} in pod["volumes"]
