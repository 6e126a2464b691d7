"""What is deployed fits the code: the sample settings, policies and requests, docker-compose.yml, the image."""

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from policy import compile_documents
from policy.files import read_documents
from policy.systems import all_systems
from streaming.publish import refusals
from streaming.settings import Settings, load_settings, variables
from tests.cli.lockkeeper import Command

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
POLICIES = DEPLOY / "policies"
OURS = ("topics", "policies", "enforcer")


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    """docker-compose.yml."""
    told: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
    return told


def test_the_sample_settings_are_all_settings_with_their_defaults() -> None:
    file = DEPLOY / "lockkeeper.yaml"
    settings = load_settings(file, {})
    default = Settings()
    assert settings.topics.policies == default.topics.policy_topics()
    assert {topic: settings.trust_of(topic) for topic in settings.trust} == {
        topic: default.trust_of(topic) for topic in default.topics.requests
    }
    topics = msgspec.structs.replace(settings.topics, policies={})
    assert msgspec.structs.replace(settings, topics=topics, trust={}) == default
    assert set(yaml.safe_load(file.read_text(encoding="utf-8"))) == set(Settings.__struct_fields__)


def test_the_sample_policies_can_be_published_without_a_warning_and_show_every_system() -> None:
    documents = read_documents(POLICIES)
    assert refusals(documents, Settings().limits.document) == []
    assert compile_documents(document for _, document in documents).warnings == ()
    assert {document["system"] for _, document in documents} == set(all_systems())


def test_the_sample_requests_get_the_answers_that_their_ids_name(lockkeeper: Command) -> None:
    shown = lockkeeper("decide", "--policies", str(POLICIES), "--requests", str(DEPLOY / "requests.jsonl"))
    answers = {record["request_id"]: record["context"]["outcome"] for record in shown.records}
    assert set(answers) == {f"{system}-{outcome}" for system in all_systems() for outcome in ("allow", "deny")}
    assert all(name.endswith(f"-{outcome}") for name, outcome in answers.items())


def test_the_services_run_commands_that_exist_with_settings_that_exist(
    compose: dict[str, Any], lockkeeper: Command
) -> None:
    known = set(variables())
    for name in OURS:
        service = compose["services"][name]
        assert lockkeeper(*service["command"], "--help").code == 0, name
        assert set(service["environment"]) <= known


def test_the_services_and_this_machine_reach_the_broker_at_addresses_it_advertises(compose: dict[str, Any]) -> None:
    kafka = compose["services"]["kafka"]
    environment = kafka["environment"]
    advertised = dict(item.split("://") for item in environment["KAFKA_ADVERTISED_LISTENERS"].split(","))
    listening = dict(item.split("://:") for item in environment["KAFKA_LISTENERS"].split(","))
    for name in OURS:
        assert compose["services"][name]["environment"]["LOCKKEEPER_BOOTSTRAP_SERVERS"] == advertised["INSIDE"]
    assert advertised["INSIDE"] == f"kafka:{listening['INSIDE']}"
    assert advertised["OUTSIDE"] == Settings().bootstrap_servers == f"localhost:{listening['OUTSIDE']}"
    assert kafka["ports"] == [f"127.0.0.1:{listening['OUTSIDE']}:{listening['OUTSIDE']}"]
    protocols = dict(item.split(":") for item in environment["KAFKA_LISTENER_SECURITY_PROTOCOL_MAP"].split(","))
    assert set(protocols) == set(listening)
    assert kafka["healthcheck"]["test"][-1] == f"localhost:{listening['OUTSIDE']}"


def test_the_services_start_in_order_broker_topics_policies_job(compose: dict[str, Any]) -> None:
    waits = {name: compose["services"][name]["depends_on"] for name in OURS}
    assert waits == {
        "topics": {"kafka": {"condition": "service_healthy"}},
        "policies": {"topics": {"condition": "service_completed_successfully"}},
        "enforcer": {"policies": {"condition": "service_completed_successfully"}},
    }


def test_every_mounted_file_exists_and_the_named_ones_are_what_the_commands_read(compose: dict[str, Any]) -> None:
    services = compose["services"]
    bound = [volume.split(":") for name in OURS for volume in services[name].get("volumes", ()) if volume[0] == "."]
    assert bound
    assert all((ROOT / source).exists() for source, *_ in bound)
    targets = {target for _, target, *_ in bound}
    assert services["policies"]["command"][-1] in targets
    assert services["enforcer"]["command"][-1] in targets


def test_the_broker_is_of_the_version_that_the_tests_run(compose: dict[str, Any]) -> None:
    jars = (ROOT / "streaming" / "runtime" / "jars.toml").read_text(encoding="utf-8")
    version = re.search(r"kafka_2\.13[\"':, a-z=]*?([0-9]+\.[0-9]+\.[0-9]+)", jars)
    assert version is not None
    assert compose["services"]["kafka"]["image"] == f"apache/kafka:{version[1]}"


def test_the_image_holds_files_that_exist_and_keeps_the_checkpoint_on_the_volume(compose: dict[str, Any]) -> None:
    dockerfile = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    sources = [name for line in re.findall(r"^COPY (.+) \S+$", dockerfile, re.MULTILINE) for name in line.split()]
    assert sorted(sources) == ["LICENSE", "README.md", "policy", "pyproject.toml", "streaming", "uv.lock"]
    assert all((ROOT / source).exists() for source in sources)
    entry = re.search(r"^ENTRYPOINT (.+)$", dockerfile, re.MULTILINE)
    assert entry is not None
    assert json.loads(entry[1]) == ["lockkeeper"]
    workdir = re.findall(r"^WORKDIR (.+)$", dockerfile, re.MULTILINE)[-1]
    assert not Path(Settings().checkpoint).is_absolute()
    assert f"checkpoint:{workdir}" in compose["services"]["enforcer"]["volumes"]
    assert compose["services"]["enforcer"]["build"] == {"context": ".", "dockerfile": "deploy/Dockerfile"}
