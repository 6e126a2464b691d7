"""`lockkeeper access-changes` on Kubernetes: the resources fit each other, the settings, the image and the code."""

from pathlib import Path

import pytest

from streaming.settings import access_changes_settings
from tests.deploy.deployed import Deployed
from tests.deploy.files import parse_command
from tests.deploy.test_kubernetes import BASE, PRODUCTION

NAME = "lockkeeper-access-changes"

both = pytest.mark.parametrize("folder", [BASE, PRODUCTION], ids=lambda folder: folder.name)


def _deployed(folder: Path) -> Deployed:
    return Deployed(folder, NAME)


@both
def test_one_replica_runs_the_command_under_its_own_name(folder: Path) -> None:
    """A second one would fence it, also one that starts for an update."""
    container = _deployed(folder).container
    deployment = _deployed(folder).resource("Deployment")["spec"]
    assert (deployment["replicas"], deployment["strategy"]) == (1, {"type": "Recreate"})
    assert parse_command(container["args"]) == "access-changes"
    settings = _deployed(folder).settings()
    assert settings.kafka["sasl.username"] == access_changes_settings(settings).job_name == NAME
    assert settings.kafka["security.protocol"] == ("SASL_SSL" if folder == PRODUCTION else "SASL_PLAINTEXT")
    files = [container["args"][-1], *([settings.kafka["ssl.ca.location"]] if folder == PRODUCTION else [])]
    mounted = {mount["mountPath"] for mount in container["volumeMounts"] if mount.get("readOnly")}
    assert {str(Path(file).parent) for file in files} == mounted
    assert [port["containerPort"] for port in container["ports"]] == [settings.metrics.port]


@both
def test_what_it_refers_to_is_there_and_selects_its_pods_alone(folder: Path) -> None:
    deployed, container = _deployed(folder), _deployed(folder).container
    volumes = {volume["name"]: volume for volume in deployed.pod["spec"]["volumes"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == volumes.keys()
    assert ("ConfigMap", volumes["settings"]["configMap"]["name"]) in deployed.everything
    named = [entry["valueFrom"]["secretKeyRef"]["name"] for entry in container["env"] if "valueFrom" in entry]
    assert named == [NAME]
    assert ("KafkaUser", NAME) in deployed.everything
    labels = deployed.pod["metadata"]["labels"]
    assert deployed.resource("Deployment")["spec"]["selector"]["matchLabels"] == labels
    assert deployed.resource("NetworkPolicy")["spec"]["podSelector"]["matchLabels"] == labels
    assert deployed.resource("Service")["spec"]["selector"] == labels
    monitored = deployed.resource("ServiceMonitor")["spec"]["selector"]["matchLabels"]
    assert monitored.items() <= deployed.resource("Service")["metadata"]["labels"].items()


@both
def test_only_prometheus_reaches_it_and_the_probes_ask_where_it_answers(folder: Path) -> None:
    [rule] = _deployed(folder).resource("NetworkPolicy")["spec"]["ingress"]
    assert rule["from"]
    assert [port["port"] for port in rule["ports"]] == ["metrics"]
    container = _deployed(folder).container
    probes = {kind: container[f"{kind}Probe"]["httpGet"] for kind in ("startup", "liveness", "readiness")}
    assert {(probe["path"], probe["port"]) for probe in probes.values()} == {
        *(("/healthz", "metrics"), ("/readyz", "metrics"))
    }
    assert probes["readiness"]["path"] == "/readyz"


@both
def test_it_runs_as_the_images_user_without_rights_that_it_does_not_need(folder: Path) -> None:
    _deployed(folder).check_rights()
