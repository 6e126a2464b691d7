"""What is deployed as a sample fits the code: settings, policies and requests."""

from pathlib import Path

import msgspec
import pytest
import yaml

from policy import compile_documents
from policy.store.publishable import refusals
from policy.store.repository import read_documents
from policy.systems import all_systems
from streaming.settings import Settings, load_settings
from tests.cli.lockkeeper import Command

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
POLICIES = DEPLOY / "policies"


def test_the_sample_settings_are_all_settings_with_their_defaults_but_for_the_topic_of_answers() -> None:
    file = DEPLOY / "lockkeeper.yaml"
    settings = load_settings(file, {})
    default = Settings()
    assert settings.topics.policies == default.topics.policy_topics()
    assert {topic: settings.trust_of(topic) for topic in settings.trust} == {
        topic: default.trust_of(topic) for topic in default.topics.requests
    }
    assert settings.topics.answered == ("authz.answered.v1",)
    topics = msgspec.structs.replace(settings.topics, policies={}, answered=default.topics.answered)
    assert msgspec.structs.replace(settings, topics=topics, trust={}) == default
    assert set(yaml.safe_load(file.read_text(encoding="utf-8"))) == set(Settings.__struct_fields__)


def test_the_sample_policies_can_be_published_without_a_warning_and_show_every_system() -> None:
    documents = read_documents(POLICIES)
    assert refusals(documents, Settings().limits.document) == []
    assert compile_documents(document for _, document in documents).warnings == ()
    assert {document["system"] for _, document in documents} == set(Settings().systems)


def test_the_sample_requests_get_the_answers_that_their_ids_name(lockkeeper: Command) -> None:
    shown = lockkeeper("decide", "--policies", str(POLICIES), "--requests", str(DEPLOY / "requests.jsonl"))
    answers = {record["request_id"]: record["context"]["outcome"] for record in shown.records}
    assert set(answers) == {f"{system}-{outcome}" for system in Settings().systems for outcome in ("allow", "deny")}
    assert all(name.endswith(f"-{outcome}") for name, outcome in answers.items())


@pytest.mark.parametrize("system", sorted(set(all_systems()) - set(Settings().systems)))
def test_a_system_without_topics_by_default_has_samples_of_its_own(lockkeeper: Command, system: str) -> None:
    """`policy apply deploy/policies` must not ask for topics that a cluster does not have."""
    samples = DEPLOY / "examples" / system
    documents = read_documents(samples / "policies")
    assert {document["system"] for _, document in documents} == {system}
    assert compile_documents(document for _, document in documents).warnings == ()
    shown = lockkeeper("decide", "--policies", str(samples / "policies"), "--requests", str(samples / "requests.jsonl"))
    answers = {record["request_id"]: record["context"]["outcome"] for record in shown.records}
    assert answers == {f"{system}-{outcome}": outcome for outcome in ("allow", "deny")}
