"""docker-compose.yml fits the code and itself: services, ports, files, commands, variables, health."""

import re
import shutil
import subprocess
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from streaming.serve.callers import load_callers
from streaming.settings import Settings, load_settings, variables
from tests.brokers import IMAGE
from tests.deploy.files import ROOT, instruction, parse_command, read_yaml

BUILT = "lockkeeper:local"
ONCE = ("topics", "policies")
CONDITIONS = {"service_healthy", "service_completed_successfully"}


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    """The services of docker-compose.yml."""
    found: dict[str, Any] = read_yaml(ROOT / "docker-compose.yml")["services"]
    return found


def _ours(services: dict[str, Any]) -> dict[str, Any]:
    return {name: service for name, service in services.items() if service["image"] == BUILT}


def test_everything_is_there_that_a_first_look_needs(services: dict[str, Any]) -> None:
    assert set(services) == {
        *("kafka", "schema-registry", "topics", "policies", "enforcer", "serve", "access-changes", "console"),
        *("producer", "consumer", "prometheus", "grafana"),
    }
    running = {"enforcer", "serve", "access-changes", "console", "producer", "consumer"}
    assert set(_ours(services)) == {"topics", "policies", *running}


def test_images_are_pinned_to_a_version_or_built_from_this_checkout(services: dict[str, Any]) -> None:
    for name, service in services.items():
        if service["image"] == BUILT:
            assert service["build"] == {"context": ".", "dockerfile": "deploy/Dockerfile"}
        else:
            assert re.fullmatch(r"[a-z/-]+:v?\d+\.\d+\.\d+", service["image"]), name


def test_the_broker_is_of_the_version_that_the_tests_run(services: dict[str, Any]) -> None:
    jars = (ROOT / "streaming" / "runtime" / "jars.toml").read_text(encoding="utf-8")
    version = re.search(r"kafka_2\.13:([0-9.]+)", jars)
    assert version is not None
    assert services["kafka"]["image"] == IMAGE == f"apache/kafka:{version[1]}"


def test_the_registry_is_of_the_version_that_the_tests_run(services: dict[str, Any]) -> None:
    lock = (ROOT / "tests" / "contracts" / "registry.toml").read_text(encoding="utf-8")
    version = re.search(r"apicurio-registry-app:([0-9.]+):", lock)
    assert version is not None
    assert services["schema-registry"]["image"] == f"apicurio/apicurio-registry:{version[1]}"


def test_whatever_runs_on_has_a_health_check_and_comes_back(services: dict[str, Any]) -> None:
    for name, service in services.items():
        if name in ONCE:
            assert "healthcheck" not in service
            assert "restart" not in service
        else:
            check = service["healthcheck"]
            assert check["test"][0] in ("CMD", "CMD-SHELL"), name
            assert {"interval", "timeout", "retries"} <= check.keys(), name
            # Else one that becomes unhealthy is reported only after as long as its start may take.
            assert check["retries"] * int(check["interval"].removesuffix("s")) <= 180, name
            assert service["restart"] == "unless-stopped", name


def test_services_wait_for_what_they_need(services: dict[str, Any]) -> None:
    for name, service in services.items():
        for other, wait in service.get("depends_on", {}).items():
            assert wait["condition"] in CONDITIONS, name
            assert (wait["condition"] == "service_completed_successfully") == (other in ONCE), name
    waits = {name: set(services[name].get("depends_on", ())) for name in services}
    assert waits["topics"] == {"kafka"}
    assert waits["policies"] == {"topics"}
    assert waits["enforcer"] == {"policies", "schema-registry"}
    assert waits["producer"] == {"enforcer"}
    assert waits["serve"] == waits["access-changes"] == waits["console"] == {"policies"}


def test_our_services_run_commands_that_exist(services: dict[str, Any]) -> None:
    commands = {name: parse_command(s["command"]) for name, s in _ours(services).items() if "entrypoint" not in s}
    assert commands == {
        "topics": "topics create",
        "policies": "policy apply",
        "enforcer": "run",
        "serve": "serve",
        "access-changes": "access-changes",
        "console": "console",
        "consumer": "tail",
    }
    check = services["consumer"]["healthcheck"]["test"]
    assert parse_command(check[check.index("lockkeeper") + 1 :]) == "tail"


def test_starting_the_stack_again_publishes_nothing_over_policies_that_have_changed(services: dict[str, Any]) -> None:
    assert "--if-empty" in services["policies"]["command"]


def test_each_of_our_services_has_the_same_settings(services: dict[str, Any]) -> None:
    """A system that is added in the file has topics, policies and decisions: not some of them."""
    for name, service in _ours(services).items():
        config = service["environment"]["LOCKKEEPER_CONFIG"]
        assert ("./deploy/lockkeeper.yaml", config) in _bound(service), name
        assert "--config" not in service["command"], name


def test_the_guides_file_for_a_separate_monitor_gives_both_services_the_mode(services: dict[str, Any]) -> None:
    """`extends` takes the service as docker-compose.yml has it, without what the guide's file sets for the job."""
    guide = (ROOT / "docs" / "pages" / "guides" / "deploy.md").read_text(encoding="utf-8")
    [block] = re.findall(r"^    services:\n(?:    .*\n)+", guide, re.MULTILINE)
    added = yaml.safe_load(block.replace("!reset ", ""))["services"]
    assert added["monitor"]["extends"] == {"file": "docker-compose.yml", "service": "enforcer"}
    assert {name: parse_command(service["command"]) for name, service in added.items() if "command" in service} == {
        "monitor": "monitor"
    }
    for name, service in added.items():
        environment = {**services["enforcer"]["environment"], **service.get("environment", {})}
        ours = {key: value for key, value in environment.items() if key in variables()}
        settings = load_settings(ROOT / "deploy" / "lockkeeper.yaml", ours)
        assert settings.monitor.mode == "separate", name


def test_our_services_write_to_their_volume_and_to_memory_alone(services: dict[str, Any]) -> None:
    for name, service in _ours(services).items():
        assert service["read_only"] is True, name
        assert service["tmpfs"] == ["/tmp"], name
    assert services["enforcer"]["environment"]["TMPDIR"] == instruction("WORKDIR")


def test_the_producers_script_asks_each_request_of_the_mounted_file(services: dict[str, Any]) -> None:
    producer = services["producer"]
    [script] = producer["command"]
    script = script.replace("$$", "$")
    assert subprocess.run([*producer["entrypoint"], f"set -n\n{script}"], check=False).returncode == 0
    asked = re.search(r"lockkeeper (.+)", script)
    assert asked is not None
    assert parse_command(asked[1].split()) == "request"
    read = re.search(r"done < (\S+)", script)
    assert read is not None
    assert ("./deploy/requests.jsonl", read[1]) in _bound(producer)
    touched = re.search(r"touch (\S+)", script)
    assert touched is not None
    assert touched[1] in producer["healthcheck"]["test"][1]


def test_our_services_set_variables_that_are_settings(services: dict[str, Any]) -> None:
    for name, service in _ours(services).items():
        assert set(service["environment"]) <= {*variables(), "LOCKKEEPER_CONFIG", "TMPDIR"}, name


def test_services_and_this_machine_reach_the_broker_at_addresses_it_advertises(services: dict[str, Any]) -> None:
    kafka = services["kafka"]
    environment = kafka["environment"]
    advertised = dict(item.split("://") for item in environment["KAFKA_ADVERTISED_LISTENERS"].split(","))
    listening = dict(item.split("://:") for item in environment["KAFKA_LISTENERS"].split(","))
    for service in _ours(services).values():
        assert service["environment"]["LOCKKEEPER_BOOTSTRAP_SERVERS"] == advertised["INSIDE"]
    assert services["schema-registry"]["environment"]["APICURIO_KAFKASQL_BOOTSTRAP_SERVERS"] == advertised["INSIDE"]
    assert advertised["INSIDE"] == f"kafka:{listening['INSIDE']}"
    assert advertised["OUTSIDE"] == Settings().bootstrap_servers == f"localhost:{listening['OUTSIDE']}"
    assert kafka["ports"] == [f"127.0.0.1:{listening['OUTSIDE']}:{listening['OUTSIDE']}"]
    protocols = dict(item.split(":") for item in environment["KAFKA_LISTENER_SECURITY_PROTOCOL_MAP"].split(","))
    assert set(protocols) == set(listening)
    assert kafka["healthcheck"]["test"][-1].endswith(f"/dev/tcp/localhost/{listening['OUTSIDE']}")


def test_the_job_reaches_the_registry_by_confluents_interface(services: dict[str, Any]) -> None:
    registry = services["schema-registry"]
    [port] = registry["ports"]
    address = urlsplit(services["enforcer"]["environment"]["LOCKKEEPER_SCHEMA_REGISTRY_URL"])
    assert (address.hostname, str(address.port)) == ("schema-registry", port.split(":")[-1])
    assert registry["healthcheck"]["test"][-1] == f"http://localhost:{address.port}{address.path}/subjects"
    assert address.path == "/apis/ccompat/v7"


def test_the_jobs_health_is_asked_where_it_serves_its_metrics(services: dict[str, Any]) -> None:
    enforcer = services["enforcer"]
    port = enforcer["environment"]["LOCKKEEPER_METRICS_PORT"]
    assert f"'http://localhost:{port}/readyz'" in enforcer["healthcheck"]["test"][-1]
    assert enforcer["ports"] == [f"127.0.0.1:{port}:{port}"]
    assert enforcer["environment"]["LOCKKEEPER_METRICS_ADDRESS"] == "0.0.0.0"


def test_the_server_starts_with_its_settings_and_takes_the_token_of_the_comment(services: dict[str, Any]) -> None:
    serve = services["serve"]
    mounted = {target: ROOT / source for source, target in _bound(serve)}
    environment = {**serve["environment"]}
    file = PurePosixPath(environment["LOCKKEEPER_SERVE_CALLERS"])
    callers = mounted[str(file.parent)] / file.name  # the folder: a mounted file stays the one that editors replace
    settings = load_settings(
        mounted[environment["LOCKKEEPER_CONFIG"]], {**environment, "LOCKKEEPER_SERVE_CALLERS": str(callers)}
    )
    [token] = re.findall(r"Bearer ([a-z-]+)'", (ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
    found = load_callers(settings).by_token(token.encode())
    assert found is not None
    assert set(found.rules.systems) == set(settings.systems)
    assert serve["ports"] == [f"127.0.0.1:{settings.serve.port}:{settings.serve.port}"]
    assert f"'http://localhost:{settings.metrics.port}/readyz'" in serve["healthcheck"]["test"][-1]


def test_the_console_is_for_browsers_of_this_machine(services: dict[str, Any]) -> None:
    found = services["console"]
    settings = load_settings(ROOT / "deploy" / "lockkeeper.yaml", found["environment"]).console
    assert settings.anonymous
    assert found["ports"] == [f"127.0.0.1:{settings.port}:{settings.port}"]
    assert f"{settings.url}/playground" in found["healthcheck"]["test"][-1]


def test_what_the_server_answers_is_recorded_on_a_topic_that_is_created_and_that_the_job_reads(
    services: dict[str, Any],
) -> None:
    file = ROOT / "deploy" / "lockkeeper.yaml"
    found = {name: load_settings(file, services[name]["environment"]) for name in ("topics", "enforcer", "serve")}
    assert {settings.topics.answered for settings in found.values()} == {("authz.answered.v1",)}
    assert [settings.serve.record for settings in found.values()] == ["all"] * 3


def test_nothing_is_open_to_other_machines(services: dict[str, Any]) -> None:
    ports = [port for service in services.values() for port in service.get("ports", ())]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)
    assert len({port.split(":")[1] for port in ports}) == len(ports)


def _bound(service: dict[str, Any]) -> list[tuple[str, str]]:
    volumes = [volume.split(":") for volume in service.get("volumes", ())]
    return [(source, target) for source, target, *_ in volumes if source.startswith(".")]


def test_mounted_files_exist_and_volumes_are_declared_and_used(services: dict[str, Any]) -> None:
    named = {v.split(":")[0] for s in services.values() for v in s.get("volumes", ()) if not v.startswith(".")}
    assert named == set(read_yaml(ROOT / "docker-compose.yml")["volumes"])
    for service in services.values():
        for source, _target in _bound(service):
            assert (ROOT / source).exists(), source
    assert services["policies"]["command"][2] in {target for _, target in _bound(services["policies"])}
    assert f"checkpoint:{instruction('WORKDIR')}" in services["enforcer"]["volumes"]


def _compose_or_skip() -> str:
    docker = shutil.which("docker")
    if docker is None or subprocess.run([docker, "compose", "version"], capture_output=True).returncode != 0:
        pytest.skip("no `docker compose` on this machine")
    return docker


def test_docker_compose_understands_the_file() -> None:
    docker = _compose_or_skip()
    shown = subprocess.run([docker, "compose", "config"], cwd=ROOT, capture_output=True, text=True)
    assert shown.returncode == 0, shown.stderr
    assert set(yaml.safe_load(shown.stdout)["services"]) == set(read_yaml(ROOT / "docker-compose.yml")["services"])


def test_the_producer_sends_each_line_as_it_is(services: dict[str, Any], tmp_path: Path) -> None:
    """Also with escapes, which the `echo` of Debian's shell would resolve, and the last line without an end."""
    lines = [r'{"id": "a\nb\\c"}', r'{"id": "\u0061"}', r"  {} \c more"]
    (tmp_path / "requests.jsonl").write_text("\n".join(lines))
    sent = tmp_path / "sent"
    for name, does in {"lockkeeper": f"cat >> {sent}", "sleep": f"[ $(wc -l < {sent}) -lt 3 ] || kill $PPID"}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{does}\n")
        (tmp_path / name).chmod(0o755)
    [loop] = services["producer"]["command"]
    for old, new in (("$$", "$"), ("/etc/lockkeeper", str(tmp_path)), ("/tmp/asked", str(tmp_path / "asked"))):
        loop = loop.replace(old, new)
    command = [*services["producer"]["entrypoint"], loop]
    subprocess.run(command, env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, timeout=60, check=False)
    assert sent.read_text() == "".join(f"{line}\n" for line in lines)
