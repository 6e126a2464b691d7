"""`lockkeeper console` on Kubernetes: the resources fit each other, the settings, the image and the code."""

import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from starlette.testclient import TestClient

from streaming.console.health import health_routes
from streaming.console.live import console
from streaming.settings import Settings
from streaming.settings.console import ConsoleSettings, ProxySettings
from tests.brokers import TestBroker
from tests.deploy.deployed import Deployed
from tests.deploy.files import parse_command
from tests.deploy.kustomize import build, key
from tests.deploy.test_kubernetes import BASE, PRODUCTION
from tests.stream.world import World
from tests.waiting import wait_until

NAME, SIGN_IN = "lockkeeper-console", "lockkeeper-console-sign-in"
SIGNING_IN = {"url": "https://console.example.com", "issuer": "https://login.example.com", "client-id": "lockkeeper"}

both = pytest.mark.parametrize("folder", [BASE, PRODUCTION], ids=lambda folder: folder.name)


def _deployed(folder: Path) -> Deployed:
    return Deployed(folder, NAME)


def _settings(folder: Path) -> Settings:
    def secret(reference: dict[str, Any]) -> str:
        return SIGNING_IN.get(reference["key"], "a secret") if reference["name"] == SIGN_IN else "a password"

    return _deployed(folder).settings(secret)


@both
def test_it_starts_with_settings_by_which_viewers_sign_in(folder: Path) -> None:
    settings, container = _settings(folder), _deployed(folder).container
    assert parse_command(container["args"]) == "console"
    assert settings.console.signs_in
    assert not settings.console.anonymous
    assert settings.console.oidc.client_secret == "a secret"
    assert settings.kafka["sasl.username"] == NAME
    assert settings.kafka["security.protocol"] == ("SASL_SSL" if folder == PRODUCTION else "SASL_PLAINTEXT")
    mounted = {mount["mountPath"] for mount in container["volumeMounts"] if mount.get("readOnly")}
    files = [settings.console.access, container["args"][-1]]
    if folder == PRODUCTION:
        files.append(settings.kafka["ssl.ca.location"])
    assert {str(Path(file).parent) for file in files} == mounted


@both
def test_its_user_reads_what_it_shows_and_writes_nothing(folder: Path) -> None:
    resources = {key(resource): resource for resource in build(folder)}
    acls = resources["KafkaUser", NAME]["spec"]["authorization"]["acls"]
    operations = {operation for acl in acls for operation in acl["operations"]}
    assert operations <= {"Read", "Describe", "DescribeConfigs"}
    topics = _settings(folder).topics
    read = {acl["resource"]["name"] for acl in acls if "Read" in acl["operations"]}
    assert read >= {topics.decisions, topics.alerts, topics.changes, topics.history, *topics.requests}


@both
def test_what_it_refers_to_is_there(folder: Path) -> None:
    resources, container = {key(resource) for resource in build(folder)}, _deployed(folder).container
    volumes = {volume["name"]: volume for volume in _deployed(folder).pod["spec"]["volumes"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == volumes.keys()
    assert ("ConfigMap", volumes["settings"]["configMap"]["name"]) in resources
    secrets = {volume["secret"]["secretName"] for volume in volumes.values() if "secret" in volume}
    assert secrets <= {SIGN_IN, "kafka-cluster-ca-cert"}
    named = {entry["valueFrom"]["secretKeyRef"]["name"] for entry in container["env"] if "valueFrom" in entry}
    assert named == {SIGN_IN, NAME}
    assert ("KafkaUser", NAME) in resources


@both
def test_its_port_and_its_probes_are_those_of_the_program(folder: Path) -> None:
    settings, container = _settings(folder), _deployed(folder).container
    assert [(port["name"], port["containerPort"]) for port in container["ports"]] == [("http", settings.console.port)]
    [served] = _deployed(folder).resource("Service")["spec"]["ports"]
    assert (served["targetPort"], served["port"]) == ("http", settings.console.port)
    routes = {route.path for route in health_routes(lambda: True)}
    probes = {kind: container[f"{kind}Probe"]["httpGet"] for kind in ("startup", "liveness", "readiness")}
    assert {probe["path"] for probe in probes.values()} == routes
    assert probes["readiness"]["path"] == "/readyz"
    assert all(probe["httpHeaders"] == [{"name": "Host", "value": "localhost"}] for probe in probes.values())


@both
def test_everything_selects_its_pods_and_no_others(folder: Path) -> None:
    labels = _deployed(folder).pod["metadata"]["labels"]
    selectors = [
        _deployed(folder).resource("Deployment")["spec"]["selector"]["matchLabels"],
        _deployed(folder).resource("Service")["spec"]["selector"],
        _deployed(folder).resource("NetworkPolicy")["spec"]["podSelector"]["matchLabels"],
    ]
    assert all(selector == labels for selector in selectors)
    [rule] = _deployed(folder).resource("NetworkPolicy")["spec"]["ingress"]
    assert rule["from"]
    assert [port["port"] for port in rule["ports"]] == ["http"]


@both
def test_sessions_are_of_one_process(folder: Path) -> None:
    spec = _deployed(folder).resource("Deployment")["spec"]
    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})


@both
def test_it_runs_as_the_images_user_without_rights_that_it_does_not_need(folder: Path) -> None:
    _deployed(folder).check_rights()


@pytest.mark.stream
def test_probes_are_answered_without_a_viewer(broker: TestBroker, tmp_path: Path) -> None:
    """From an address that is no proxy's, under the name that the probes have. All else is refused to them."""
    access = tmp_path / "viewers.yaml"
    access.write_text("viewers: {a: {systems: ['*'], subjects: [olga]}}")
    proxy = ProxySettings(addresses=("10.0.0.7",), header="X-User")
    chosen = ConsoleSettings(access=str(access), proxy=proxy, url="https://console.example.com")
    world = World(broker, f"probes-{time.time_ns()}", (tmp_path / "checkpoint").as_uri())
    settings = msgspec.structs.replace(world.settings, console=chosen)
    with console(settings, threading.Event()) as app:
        client = TestClient(app, base_url="http://localhost:8090", raise_server_exceptions=False)
        assert client.get("/healthz").status_code == 200
        wait_until(lambda: client.get("/readyz").status_code == 200, "the policies are read")
        assert client.get("/overview").status_code == 403
        assert client.get("/healthz", headers={"host": "10.1.2.3:8090"}).status_code == 403
    away = msgspec.structs.replace(settings, bootstrap_servers="localhost:1")
    with console(away, threading.Event()) as app:
        client = TestClient(app, base_url="http://localhost:8090", raise_server_exceptions=False)
        assert (client.get("/healthz").status_code, client.get("/readyz").status_code) == (200, 503)
