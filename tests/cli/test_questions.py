"""Questions about decisions, requests, the job and the policies in force, on a broker without a job."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from streaming.commit.offsets import CommitMetadata
from streaming.enforcer.evaluator import EvaluationContext, Evaluator, Source
from streaming.kafka.clients import topic_ids
from streaming.kafka.committed import committed_records
from streaming.kafka.publish import publish
from streaming.settings import Settings, load_settings
from streaming.snapshots.at_offsets import read_document_log
from streaming.topics import TopicNames, dead_letters_of
from tests.cli.documents import readers_folder, request
from tests.cli.lockkeeper import Command

pytestmark = pytest.mark.stream

READERS = {
    "system": "lenses6",
    "kind": "Role",
    "name": "readers",
    "spec": {"statements": [{"effect": "allow", "action": "kafka:Get*", "resource": "kafka:topic:prod/main/orders"}]},
}
STAFF = {
    "system": "lenses6",
    "kind": "Group",
    "name": "staff",
    "spec": {"roles": ["readers"], "members": ["user:dana"]},
}


class Decided:
    """Requests on Kafka, and their answers as the job writes them: by its evaluator, without Spark."""

    def __init__(self, settings: Settings, admin: AdminClient, topics: TopicNames, topic: str = "") -> None:
        self._settings, self._admin, self._names = settings, admin, topics
        self._topic = topic or topics.requests[0]
        self._producer = Producer({"bootstrap.servers": settings.bootstrap_servers, "linger.ms": "0"})
        self._decided = 0

    def send(self, *requests: dict[str, Any] | bytes) -> None:
        """Produce requests to one partition."""
        for one in requests:
            value = one if isinstance(one, bytes) else json.dumps(one).encode()
            self._producer.produce(self._topic, value, b"k", partition=0)
        assert self._producer.flush(30) == 0

    def decide(
        self, trust: frozenset[str] | None = None, write: Callable[[bytes], bytes] = lambda value: value
    ) -> None:
        """One batch: what was sent since the last one, by the policies of now. `trust`: other than the topic's.

        `write`: what becomes of a record before it is written.
        """
        topic, facts = self._topic, self._names.facts
        trust = self._settings.trust_of(topic) if trust is None else trust
        log = read_document_log(self._settings)
        offsets = {one: {"0": log.end(one) - 1} for one in self._names.policy_topics().values()}
        snapshot = log.snapshot_at(offsets, None)
        evaluator = Evaluator(snapshot, self._settings.limits).for_partition(
            Source(topic, 0, topic_ids(self._admin, [topic])[topic], trust, 1),
            EvaluationContext(snapshot.version, offsets, -1, {**offsets, facts: {"0": -1}}, 0),
        )
        for message in committed_records(self._settings, [topic]):
            offset = message.offset() or 0
            if offset >= self._decided:
                answer = evaluator.decide(message.key(), message.value(), None, offset, message.timestamp()[1])
                number, key, value, headers = answer
                to = dead_letters_of(topic) if number else self._names.decisions
                self._producer.produce(to, write(value), key, headers=list(headers or []))
                self._decided = offset + 1
        assert self._producer.flush(30) == 0
        self._commit()

    def _commit(self) -> None:
        metadata = msgspec.json.encode(CommitMetadata("checkpoint-1", 4, "")).decode()
        committed = TopicPartition(self._topic, 0, self._decided, metadata)
        consumer = Consumer(
            {"bootstrap.servers": self._settings.bootstrap_servers, "group.id": self._settings.job_name}
        )
        consumer.commit(offsets=[committed], asynchronous=False)
        consumer.close()


@pytest.fixture
def decided(settings: Settings, topics: TopicNames, admin: AdminClient) -> Decided:
    """Dana is allowed, then her role loses its statement; erik claims her group, and somebody sent no request."""
    made = Decided(settings, admin, topics)
    publish(settings, [READERS, STAFF])
    claim = request("user:erik", id="r-3")
    claim["subject"]["properties"] = {"groups": ["staff"]}
    made.send(request(id="r-1"), b"no request", claim)
    made.decide()
    publish(settings, [{**READERS, "spec": {"statements": []}}])
    made.send(request(id="r-4"), request(id="r-5", evaluations=[{}, {"action": {"name": "kafka:DeleteTopic"}}]))
    made.decide()
    made.send(request(id="r-6"))
    return made


@pytest.fixture
def ask(lockkeeper: Command, config: Path) -> Callable[..., Any]:
    """The command with the settings of the test."""
    return lambda *arguments: lockkeeper(*arguments, "--config", str(config))


@pytest.mark.usefixtures("decided")
def test_past_decisions_are_found_explained_and_traced(
    ask: Callable[..., Any], config: Path, admin: AdminClient, tmp_path: Path
) -> None:
    """In one go, for topics are slow to make: each part reads them alone."""
    _decisions_are_found(ask)
    _a_past_decision_is_explained_by_the_policies_of_its_time(ask, config, tmp_path)
    _requests_are_traced(ask)
    _the_state_is_shown(ask)
    _policies_in_force_answer_questions(ask, load_settings(config, {}), tmp_path)
    _what_retention_took_is_said(ask, admin, load_settings(config, {}))


def test_an_error_for_want_of_policies_is_explained_as_one(
    ask: Callable[..., Any], settings: Settings, topics: TopicNames, admin: AdminClient
) -> None:
    """The policies of its offsets would have allowed it."""
    world = Decided(settings, admin, topics)
    publish(settings, [READERS, STAFF])
    demand = {"min_policy_offsets": {topics.policy_topics()["lenses6"]: {"0": 1000}}}
    world.send(request(id="r-1", context=demand), request(id="r-2", context=demand, evaluations=[{}, {}]))
    world.decide()
    ids = {decision["request_id"]: decision["id"] for decision in ask("decisions", "--json").records}
    for name, trees in (("r-1", 1), ("r-2", 2)):
        shown = ask("explain", "--decision", ids[name])
        assert shown.code == 0
        assert shown.out.count("? error: user:dana") == trees
        assert shown.out.count("offset 1000 of") == trees
        assert "✔ allow:" not in shown.out
        [explained] = ask("explain", "--decision", ids[name], "--json").records
        assert ([tree["held"] for tree in explained["trees"]], explained["nearest"]) == ([None] * trees, [None] * trees)


def _decisions_are_found(ask: Callable[..., Any]) -> None:
    found = ask("decisions", "--json").records
    assert [one["request_id"] for one in found] == ["r-1", "r-3", "r-4", "r-5"]
    assert [one["request_id"] for one in ask("decisions", "--outcome", "deny", "--json").records] == ["r-4", "r-5"]
    assert [one["request_id"] for one in ask("decisions", "--subject", "user:e*", "--json").records] == ["r-3"]
    # One evaluation of the batch is about this action.
    assert [one["request_id"] for one in ask("decisions", "--action", "kafka:DeleteTopic", "--json").records] == ["r-5"]
    limited = ask("decisions", "--limit", "1")
    assert limited.lines[0].split()[1:5] == ["DENY", "batch", "of", "2"]
    assert "older decisions that fit: 3;" in limited.err
    for nobody in ("user:x", "user:\udcff"):  # the second is what Python makes of an argument that is no UTF-8
        assert "no decision fits from" in ask("decisions", "--subject", nobody).err
    assert "no decision" in ask("explain", "--decision", "\udcff").err
    assert ask("decisions", "--until", "2026-01-01T00:00:00Z", "--since", "2025-12-31T00:00:00Z").lines == []
    assert ask("decisions", "--outcome", "denied").code == 2
    assert ask("decisions", "--since", "yesterday").code == 2


def _a_past_decision_is_explained_by_the_policies_of_its_time(
    ask: Callable[..., Any], config: Path, tmp_path: Path
) -> None:
    ids = {one["request_id"]: one["id"] for one in ask("decisions", "--json").records}
    shown = ask("explain", "--decision", ids["r-1"])
    assert (shown.code, shown.lines[-1][:28]) == (0, "equal to the stored decision")
    assert "✔ allow: user:dana" in shown.out
    assert "allowed by lenses6/Role/readers statement 0" in shown.out
    assert "✘ deny: user:dana" in ask("explain", "--decision", ids["r-4"]).out
    [record] = ask("explain", "--decision", ids["r-5"], "--json").records
    assert (record["equal"], [tree["held"] for tree in record["trees"]]) == (True, [False, False])
    assert "rests on what the request claims: groups" in ask("explain", "--decision", ids["r-3"]).out
    missing = ask("explain", "--decision", f"{ids['r-1']}9")
    assert (missing.code, "it was deleted by retention, or the id is wrong" in missing.err) == (1, True)
    refused = ask("explain", "--decision", f"{ids['r-1'].rpartition('-')[0]}-1")  # the record "no request"
    assert refused.code == 1
    assert re.search(
        r"no decision \S+: its record is no request\. It was refused, \S+\.dlq-0 at offset 0: ", refused.err
    )
    assert ask("explain", "--decision", ids["r-1"], "--live").code == 2
    before = config.read_text()
    config.write_text(f"{before}\nconsole: {{url: 'https://console.example.com'}}\n")
    assert f"https://console.example.com/decisions/{ids['r-1']}" in ask("explain", "--decision", ids["r-1"]).lines[-1]
    config.write_text(before)
    # The topic was trusted for groups then.
    changed = tmp_path / "other-trust.yaml"
    changed.write_text(f"{config.read_text()}\ntrust: {{{load_settings(config, {}).topics.requests[0]}: []}}\n")
    before, config_text = config.read_text(), changed.read_text()
    config.write_text(config_text)
    shown = ask("explain", "--decision", ids["r-3"])
    config.write_text(before)
    assert shown.code == 0
    assert re.search(r"equal if \S+ was trusted for groups then, as shown; it is trusted for nothing now", shown.err)


def _requests_are_traced(ask: Callable[..., Any]) -> None:
    shown = ask("doctor", "r-4")
    assert shown.code == 0
    place, committed, decided, *_ = shown.lines
    assert re.fullmatch(r"produced to \S+-0 at offset 3, \S+", place)
    assert committed == "the job has decided up to offset 4, batch 4; lag: 1 records"
    assert decided.startswith("decided after ")
    waiting = ask("doctor", "r-6")
    assert (waiting.code, waiting.lines[-1][:36]) == (1, "not decided yet: 0 records of its pa")
    [record] = ask("doctor", "r-6", "--json").records
    assert (record["lag"], record["ahead"], record["decision"]) == (1, 0, None)
    assert ask("doctor", "r-7").code == 1
    assert "no request r-7" in ask("doctor", "r-7").err


def _the_state_is_shown(ask: Callable[..., Any]) -> None:
    shown = ask("status", "--json")
    [status] = shown.records
    assert (shown.code, status["job"]["batch"], status["job"]["checkpoint"]) == (1, 4, "checkpoint-1")
    requests = status["job"]["topics"][0]
    assert (requests["committed"], requests["end"]) == (5, 6)
    assert any("has committed nothing within 1 s: is it running?" in problem for problem in status["problems"])
    assert any("monitor" in problem for problem in status["problems"])
    assert status["decided"] is not None
    lines = ask("status", "--metrics", "http://127.0.0.1:1").lines
    assert any(re.match(r"newest document of \S+: \S+, 0 h 0 min", line) for line in lines)
    assert any(line.startswith("metrics endpoint: no answer from http://127.0.0.1:1/readyz") for line in lines)


def _policies_in_force_answer_questions(ask: Callable[..., Any], settings: Settings, tmp_path: Path) -> None:
    named = ("--action", "kafka:GetTopicDetails", "--resource", "kafka:topic:prod/main/orders")
    asked = (*named, "--system", "lenses6")
    assert ask("who-can", *asked, "--live", "--allow-unknown").lines == []
    topic = settings.topics.policy_topics()["lenses6"]
    for offset, code in ((0, 0), (1_000, 1)):
        context = json.dumps({"min_policy_offsets": {topic: {"0": offset}}})
        assert ask("who-can", *asked, "--live", "--allow-unknown", "--context", context).code == code
    policies = str(readers_folder(tmp_path / "policies"))
    assert ask("who-can", *asked, "-p", policies).lines[0] == "user:dana"
    assert ask("who-can", *asked).code == 2
    assert ask("who-can", *asked, "-p", policies, "--live").code == 2
    shown = ask("what-can", "--subject", "user:dana", "--system", "lenses6", "-p", policies)
    assert shown.lines == [
        "allow kafka:Get* on kafka:topic:prod/main/orders "
        "[lenses6/Role/order-readers statement 0; user:dana → group:readers → role:order-readers]"
    ]
    nothing = ask("what-can", "--subject", "user:dana", "--system", "lenses6", "--live")
    assert (nothing.lines, "no statement applies to it" in nothing.err) == ([], True)


def _what_retention_took_is_said(ask: Callable[..., Any], admin: AdminClient, settings: Settings) -> None:
    """First the requests, with their claims; then decisions."""
    ids = {one["request_id"]: one["id"] for one in ask("decisions", "--json").records}
    assert "retention" not in ask("doctor", "nobody").err
    _delete_all(admin, settings.topics.requests[0], 5)
    assert f"deleted it: it has taken requests of {settings.topics.requests[0]} before" in ask("doctor", "r-1").err
    shown = ask("explain", "--decision", ids["r-1"])
    assert (shown.code, "the request's record is no longer there" in shown.err) == (0, True)
    shown = ask("explain", "--decision", ids["r-3"])
    assert (shown.code, "rests on what the request claimed (groups)" in shown.err) == (1, True)
    for partition in (0, 1):
        _delete_all(admin, settings.topics.decisions, -1, partition)
    shown = ask("decisions")
    assert shown.lines == []
    assert f"{settings.topics.decisions}: decisions before" in shown.err
    assert "may have been deleted by the topic's retention" in shown.err


def _delete_all(admin: AdminClient, topic: str, before: int, partition: int = 0) -> None:
    [deleted] = admin.delete_records([TopicPartition(topic, partition, before)]).values()
    deleted.result(30)
