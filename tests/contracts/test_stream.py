"""Avro through the running job: requests in both encodings, decisions and alerts, a registry that comes and goes."""

import json
import time
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from policy import to_text
from streaming.client import AlertConsumer, Client, Connection, DecisionConsumer
from streaming.kafka.clients import log_ends
from streaming.kafka.topics import create_topics
from streaming.records.avro import Reader, Writer
from streaming.records.formats import JSON_ALONE
from streaming.records.schemas import Kind, read
from streaming.settings import SchemaRegistry
from streaming.settings.monitor import MonitorSettings, Rules
from tests.brokers import TestBroker, free_port
from tests.contracts.apicurio import HOST, Apicurio
from tests.contracts.door import Door
from tests.stream.running import Job, ServedJob, running
from tests.stream.world import World, group, request, role
from tests.waiting import wait_until

pytestmark = [pytest.mark.stream, pytest.mark.long]

CONTENT_TYPE = b"application/vnd.apache.avro; encoding=single-object"
DOOR = free_port()
NOBODYS_ID = 999_999


QUICK = MonitorSettings(partitions=2, rules=Rules(grace_seconds=1.0, episode_seconds=3.0))


@pytest.fixture(scope="module")
def world(broker: TestBroker, tmp_path_factory: pytest.TempPathFactory) -> World:
    """A world whose job writes Avro, and knows a registry behind a door that is shut; it reads answered records too."""
    name = f"avro-{time.time_ns()}"
    made = World(
        broker,
        name,
        str(tmp_path_factory.mktemp(name) / "checkpoint"),
        encoding="avro-single-object",
        schema_registry=SchemaRegistry(url=Apicurio(DOOR).url),
        monitor=QUICK,
    )
    made.names = msgspec.structs.replace(made.names, answered=(made.names.requests[0].replace("requests", "answered"),))
    made.settings = msgspec.structs.replace(made.settings, topics=made.names)
    create_topics(made.admin, made.names, partitions=2)
    made.publish(role("dana", "kafka:topic:prod/main/orders"))
    made.publish(group("dana", "user:dana"))
    return made


@pytest.fixture(scope="module")
def job(world: World) -> Iterator[Job | ServedJob]:
    """The job."""
    with running(world.settings) as started:
        yield started


def _avro(id_: str, schema_id: int | None = None) -> bytes:
    """A request in single-object encoding, or with an id in the Confluent wire format."""
    value = json.dumps(request(id_, "dana", "orders")).encode()
    writer = (
        Writer("request", "avro-single-object") if schema_id is None else Writer("request", "avro-confluent", schema_id)
    )
    return writer.encode(value)


def _decision(world: World, key: str) -> tuple[Any, list[Any]]:
    """The decision with a key, from Avro, and its headers."""
    found = world.reader(world.names.decisions).until(
        lambda messages: any(message.key() == key.encode() for message in messages), f"a decision {key}", 90.0
    )
    [message] = [message for message in found if message.key() == key.encode()]
    return _json("decision", message.value()), message.headers()


def _json(kind: Kind, value: bytes) -> Any:
    return json.loads(Reader(JSON_ALONE).transcode(kind, value))


def _dead_letters(world: World) -> dict[bytes, str]:
    """Why, by key."""
    messages = world.reader(f"{world.names.requests[0]}.dlq").to_the_end()
    name = "__connect.errors.exception.message"
    return {message.key(): dict(message.headers())[name].decode() for message in messages}


@pytest.mark.usefixtures("job")
def test_a_request_in_single_object_encoding_gets_a_decision_in_it(world: World) -> None:
    world.send([_avro("single")], key="single", headers=[("traceparent", b"00-ab-cd-01")])
    decision, headers = _decision(world, "single")
    assert sorted(headers) == [("content-type", CONTENT_TYPE), ("traceparent", b"00-ab-cd-01")]
    assert (decision["request_id"], decision["decision"]) == ("single", True)
    assert decision["context"]["reasons"][0]["document"] == "lenses6/Role/dana"
    assert decision["context"]["source"]["topic"] == world.names.requests[0]


@pytest.mark.usefixtures("job")
def test_json_beside_it_and_a_broken_document_are_answered_in_avro(world: World) -> None:
    world.send([request("json", "dana", "orders")])
    decision, headers = _decision(world, "json")
    assert decision["decision"] is True
    assert headers == [("content-type", CONTENT_TYPE)]
    world.publish(b"{", key="Role/broken")
    [message] = world.reader(world.names.alerts).until(lambda found: len(found) >= 1, "an alert")
    assert message.headers() == [("content-type", CONTENT_TYPE)]
    assert _json("alert", message.value())["subject"] == "lenses6/Role/broken"


def test_while_the_registry_is_away_requests_wait_and_then_are_decided(
    world: World, job: Job | ServedJob, registry: Apicurio
) -> None:
    """First it is out of reach; later it is so again, and what was read of it still holds."""
    id_ = registry.register("requests-value", read("avro/request.avsc"))
    begun = _batches_begun(job)
    world.send([_avro("waits", id_), _avro("nobody's", NOBODYS_ID)], key="waits")
    wait_until(lambda: _batches_begun(job) > begun, "a batch began", 60.0)
    assert _dead_letters(world) == {}
    with Door(HOST, DOOR, registry.port):
        decision, _ = _decision(world, "waits")
        assert (decision["request_id"], decision["decision"]) == ("waits", True)
        wait_until(lambda: len(_dead_letters(world)) == 1, "the other is refused", 60.0)  # perhaps by another batch
    world.send([_avro("cached", id_)], key="cached")
    decision, _ = _decision(world, "cached")
    assert decision["decision"] is True
    [why] = _dead_letters(world).values()
    assert f"the Avro schema with id {NOBODYS_ID} cannot be read by: the schema registry says" in why


def _batches_begun(job: Job | ServedJob) -> int:
    return sum(step["step"] == "policies-read" for step in job.reported)


@pytest.mark.usefixtures("job")
def test_the_python_client_reads_it_all_as_ever(world: World) -> None:
    connection = Connection.of(world.settings)
    with Client(connection) as client:
        decision = client.authorize(request("client", "dana", "orders"), 60.0)
        assert (decision.outcome, decision.request_id) == ("allow", "client")
    with DecisionConsumer(connection, world.settings.job_name + "-tests") as decisions:
        assert next(decisions).outcome == "allow"
    with AlertConsumer(connection, world.settings.job_name + "-tests") as alerts:
        assert next(alerts).subject == "lenses6/Role/broken"


@pytest.mark.usefixtures("job")
def test_an_unknown_fingerprint_is_a_dead_letter_that_names_the_fix(world: World) -> None:
    world.send([b"\xc3\x01" + bytes(8) + b"x"], key="unknown")
    wait_until(lambda: b"unknown" in _dead_letters(world), "a dead letter", 60.0)
    assert "avro/request.avsc" in _dead_letters(world)[b"unknown"]


def _answered(world: World, id_: str, **more: Any) -> bytes:
    """dana's request in Avro, with an allow by the newest policies, from a server of the same name."""
    ends = log_ends(world.admin, [(topic, 0) for topic in (world.policies, world.names.facts)])
    answer = {
        "by": id_,
        "time": to_text(time.time_ns() // 1_000_000),
        "decision": True,
        "outcome": "allow",
        "policy_version": "sha256:0",
        "policy_offsets": {world.policies: {"0": ends[world.policies, 0] - 1}},
        "facts_offset": -1,
        "freshness": {"kind": "bounded", "age_ms": 3, "max_ms": 15000},
        **more,
    }
    value = json.dumps({**request(id_, "dana", "orders"), "answered": answer}).encode()
    return Writer("request", "avro-single-object").encode(value)


@pytest.mark.usefixtures("job")
def test_answered_records_in_avro_are_decided_and_what_is_wrong_with_an_answer_is_an_alert_in_avro(
    world: World,
) -> None:
    """Through the job and the monitor, which reads its decisions. An answer that is right raises none."""
    late = to_text(time.time_ns() // 1_000_000 - 60_000)
    old = {"kind": "bounded", "age_ms": 16_000, "max_ms": 15_000}
    records = [
        _answered(world, "right"),
        _answered(world, "wrong", decision=False, outcome="deny"),
        _answered(world, "stale", freshness=old),
        _answered(world, "misdated", time=late),
    ]
    for record, key in zip(records, ("right", "wrong", "stale", "misdated"), strict=True):
        world.send([record], world.names.answered[0], key=key)
    found = {key: _decision(world, key)[0] for key in ("right", "wrong", "stale", "misdated")}
    assert {key: one["decision"] for key, one in found.items()} == dict.fromkeys(found, True)
    assert {key: one["answered"]["verified"] for key, one in found.items()} == dict.fromkeys(found, True)
    assert [found[key]["answered"]["agrees"] for key in found] == [True, False, True, True]
    assert (found["stale"]["answered"]["stale"], found["misdated"]["answered"]["misdated"]) == (True, True)
    expected = {("answer-contradicted", "wrong"), ("answer-stale", "stale"), ("answer-misdated", "misdated")}

    def alerts() -> set[tuple[str, str]]:
        values = [_json("alert", message.value()) for message in world.reader(world.names.alerts).to_the_end()]
        return {(one["kind"], one["subject"]) for one in values if one["kind"].startswith("answer-")}

    wait_until(lambda: alerts() >= expected, "the alerts of three answers", 60)
    assert alerts() == expected
