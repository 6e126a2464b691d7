"""`lockkeeper access-changes` on Kubernetes: the resources fit each other, the settings, the image and the code."""

from pathlib import Path
from typing import Any

import pytest

from streaming.settings import access_changes_settings, load_settings, variables
from tests.deploy.files import instruction, parse_command
from tests.deploy.kustomize import build, key
from tests.deploy.test_kubernetes import BASE, PRODUCTION

NAME = "lockkeeper-access-changes"

both = pytest.mark.parametrize("folder", [BASE, PRODUCTION], ids=lambda folder: folder.name)


def _of(folder: Path) -> dict[str, Any]:
    """Its resources by kind."""
    return {kind: resource for (kind, name), resource in _all(folder).items() if name == NAME}


def _all(folder: Path) -> dict[tuple[str, str], Any]:
    return {key(resource): resource for resource in build(folder)}


def _pod(folder: Path) -> tuple[Any, Any]:
    pod = _of(folder)["Deployment"]["spec"]["template"]
    [container] = pod["spec"]["containers"]
    return pod, container


@both
def test_one_replica_runs_the_command_under_its_own_name(folder: Path) -> None:
    """A second one would fence it, also one that starts for an update."""
    _, container = _pod(folder)
    deployment = _of(folder)["Deployment"]["spec"]
    assert (deployment["replicas"], deployment["strategy"]) == (1, {"type": "Recreate"})
    assert parse_command(container["args"]) == "access-changes"
    values = {entry["name"]: entry.get("value", "secret") for entry in container["env"]}
    ours = {name: text for name, text in values.items() if name.startswith("LOCKKEEPER_")}
    assert ours.keys() <= variables().keys()
    settings = load_settings(BASE / "lockkeeper.yaml", ours)
    assert settings.kafka["sasl.username"] == access_changes_settings(settings).job_name == NAME
    assert settings.kafka["security.protocol"] == ("SASL_SSL" if folder == PRODUCTION else "SASL_PLAINTEXT")
    files = [container["args"][-1], *([settings.kafka["ssl.ca.location"]] if folder == PRODUCTION else [])]
    assert {str(Path(file).parent) for file in files} == {mount["mountPath"] for mount in container["volumeMounts"]}
    assert [port["containerPort"] for port in container["ports"]] == [settings.metrics.port]


@both
def test_what_it_refers_to_is_there_and_selects_its_pods_alone(folder: Path) -> None:
    resources, everything, (pod, container) = _of(folder), _all(folder), _pod(folder)
    volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == volumes.keys()
    assert ("ConfigMap", volumes["settings"]["configMap"]["name"]) in everything
    named = [entry["valueFrom"]["secretKeyRef"]["name"] for entry in container["env"] if "valueFrom" in entry]
    assert named == [NAME]
    assert ("KafkaUser", NAME) in everything
    labels = pod["metadata"]["labels"]
    assert resources["Deployment"]["spec"]["selector"]["matchLabels"] == labels
    assert resources["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"] == labels
    assert resources["Service"]["spec"]["selector"] == labels
    monitored = resources["ServiceMonitor"]["spec"]["selector"]["matchLabels"]
    assert monitored.items() <= resources["Service"]["metadata"]["labels"].items()


@both
def test_only_prometheus_reaches_it_and_the_probes_ask_where_it_answers(folder: Path) -> None:
    [rule] = _of(folder)["NetworkPolicy"]["spec"]["ingress"]
    assert rule["from"]
    assert [port["port"] for port in rule["ports"]] == ["metrics"]
    _, container = _pod(folder)
    probes = {kind: container[f"{kind}Probe"]["httpGet"] for kind in ("startup", "liveness", "readiness")}
    assert {(probe["path"], probe["port"]) for probe in probes.values()} == {
        *(("/healthz", "metrics"), ("/readyz", "metrics"))
    }
    assert probes["readiness"]["path"] == "/readyz"


@both
def test_it_runs_as_the_images_user_without_rights_that_it_does_not_need(folder: Path) -> None:
    user, group = map(int, instruction("USER").split(":"))
    pod, container = _pod(folder)
    security = pod["spec"]["securityContext"]
    assert (security["runAsUser"], security["runAsGroup"], security["runAsNonRoot"]) == (user, group, True)
    assert pod["spec"]["automountServiceAccountToken"] is False
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
