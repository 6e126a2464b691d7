"""`lockkeeper serve` on Kubernetes: the resources fit each other, the settings, the image and the code."""

from pathlib import Path

import pytest

from streaming.settings import Settings, load_settings
from tests.deploy.deployed import Deployed
from tests.deploy.files import parse_command
from tests.deploy.kustomize import build, key
from tests.deploy.test_kubernetes import BASE, PRODUCTION

NAME = "lockkeeper-serve"
MADE_BY_OPERATORS = {"lockkeeper-serve-callers", "lockkeeper-serve-tls", "kafka-cluster-ca-cert"}

both = pytest.mark.parametrize("folder", [BASE, PRODUCTION], ids=lambda folder: folder.name)


def _deployed(folder: Path) -> Deployed:
    return Deployed(folder, NAME)


def _settings(folder: Path) -> Settings:
    return _deployed(folder).settings()


@both
def test_it_starts_with_settings_that_ask_for_credentials_and_encrypt(folder: Path) -> None:
    settings, container = _settings(folder), _deployed(folder).container
    assert parse_command(container["args"]) == "serve"
    assert settings.serve.callers
    assert settings.serve.tls.certificate
    assert not settings.serve.allow_plaintext
    assert settings.kafka["sasl.username"] == NAME
    assert settings.kafka["security.protocol"] == ("SASL_SSL" if folder == PRODUCTION else "SASL_PLAINTEXT")
    mounted = {mount["mountPath"] for mount in container["volumeMounts"] if mount.get("readOnly")}
    files = [settings.serve.callers, settings.serve.tls.certificate, settings.serve.tls.key, container["args"][-1]]
    if folder == PRODUCTION:
        files.append(settings.kafka["ssl.ca.location"])
    assert {str(Path(file).parent) for file in files} == mounted


@both
def test_each_answer_is_recorded_where_the_job_reads_and_it_alone_may_write(folder: Path) -> None:
    settings, job = _settings(folder), load_settings(BASE / "lockkeeper.yaml", {})
    assert settings.serve.record == "all"
    [topic] = settings.topics.answered
    assert job.topics.answered == (topic,)
    resources = build(folder)
    assert topic in {r["spec"]["topicName"] for r in resources if r["kind"] == "KafkaTopic"}
    users = {r["metadata"]["name"]: r["spec"]["authorization"]["acls"] for r in resources if r["kind"] == "KafkaUser"}
    writers = {
        user
        for user, acls in users.items()
        for acl in acls
        if acl["resource"]["name"] == topic and "Write" in acl["operations"]
    }
    assert writers == {NAME}


@both
def test_what_it_refers_to_is_there(folder: Path) -> None:
    resources, container = {key(resource) for resource in build(folder)}, _deployed(folder).container
    volumes = {volume["name"]: volume for volume in _deployed(folder).pod["spec"]["volumes"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == volumes.keys()
    assert ("ConfigMap", volumes["settings"]["configMap"]["name"]) in resources
    secrets = {volume["secret"]["secretName"] for volume in volumes.values() if "secret" in volume}
    assert secrets <= MADE_BY_OPERATORS
    named = {entry["valueFrom"]["secretKeyRef"]["name"] for entry in container["env"] if "valueFrom" in entry}
    assert {("KafkaUser", name) for name in named} <= resources


@both
def test_its_ports_are_those_of_the_settings(folder: Path) -> None:
    settings, container = _settings(folder), _deployed(folder).container
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"https": settings.serve.port, "metrics": settings.metrics.port}
    service = _deployed(folder).resource("Service")["spec"]
    assert {port["targetPort"]: port["port"] for port in service["ports"]} == ports
    assert settings.serve.url == f"https://{NAME}:{ports['https']}"
    probes = {kind: container[f"{kind}Probe"]["httpGet"] for kind in ("startup", "liveness", "readiness")}
    assert {probe["port"] for probe in probes.values()} == {"metrics"}
    assert {kind: probe["path"] for kind, probe in probes.items()} == {
        "startup": "/healthz",
        "liveness": "/healthz",
        "readiness": "/readyz",
    }


@both
def test_everything_selects_its_pods_and_no_others(folder: Path) -> None:
    labels = _deployed(folder).pod["metadata"]["labels"]
    selectors = [
        _deployed(folder).resource("Deployment")["spec"]["selector"]["matchLabels"],
        _deployed(folder).resource("Service")["spec"]["selector"],
        _deployed(folder).resource("PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
        _deployed(folder).resource("NetworkPolicy")["spec"]["podSelector"]["matchLabels"],
    ]
    assert all(selector == labels for selector in selectors)
    monitored = _deployed(folder).resource("ServiceMonitor")["spec"]["selector"]["matchLabels"]
    assert monitored.items() <= _deployed(folder).resource("Service")["metadata"]["labels"].items()
    jobs = {key(resource): resource for resource in build(folder)}["Service", "lockkeeper"]["spec"]["selector"]
    assert not jobs.items() <= labels.items()


@both
def test_only_clients_reach_it_and_only_prometheus_its_metrics(folder: Path) -> None:
    ingress = _deployed(folder).resource("NetworkPolicy")["spec"]["ingress"]
    assert [[port["port"] for port in rule["ports"]] for rule in ingress] == [["https"], ["metrics"]]
    assert all(rule["from"] for rule in ingress)


@both
def test_an_update_or_a_drained_node_leaves_replicas_that_answer(folder: Path) -> None:
    deployment, settings = _deployed(folder).resource("Deployment")["spec"], _settings(folder)
    assert deployment["strategy"]["rollingUpdate"]["maxUnavailable"] == 0
    assert 0 < _deployed(folder).resource("PodDisruptionBudget")["spec"]["minAvailable"] < deployment["replicas"]
    readiness = _deployed(folder).container["readinessProbe"]
    assert settings.serve.drain_seconds > readiness["periodSeconds"]
    assert _deployed(folder).pod["spec"]["terminationGracePeriodSeconds"] > settings.serve.drain_seconds + 8


@both
def test_it_runs_as_the_images_user_without_rights_that_it_does_not_need(folder: Path) -> None:
    _deployed(folder).check_rights()
