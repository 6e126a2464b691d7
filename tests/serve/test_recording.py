"""What `lockkeeper serve` records of its answers, and that the job decides each of these records again."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from streaming.errors import CannotStart
from streaming.kafka.topics import create_topics
from streaming.serve.server import Server
from streaming.settings import ServeSettings, Settings
from streaming.verify.cluster import verify
from tests.brokers import TestBroker
from tests.contracts.schemas import faults
from tests.java_archive import embedded_broker
from tests.serve.test_serve import ASKED, PATH, serving
from tests.stream.running import running
from tests.stream.world import SYSTEM, World, group, role
from tests.waiting import wait_until

pytestmark = [pytest.mark.stream, pytest.mark.timeout(200)]

OTHER = {**ASKED, "resource": {"type": "lrn", "id": "kafka:topic:prod/main/payments"}}


@pytest.fixture
def world(broker: TestBroker, fresh_name: Callable[[str], str], tmp_path: Path) -> World:
    """Topics with a role that dana has, and a topic of answered requests."""
    made = World(broker, fresh_name("recording"), str(tmp_path / "checkpoint"))
    _with_topic(made)
    made.publish(role("readers", "kafka:topic:prod/main/orders"))
    made.publish(group("readers", "user:dana"))
    return made


def _with_topic(world: World) -> None:
    topic = world.names.requests[0].replace("requests", "answered")
    world.names = msgspec.structs.replace(world.names, answered=(topic,))
    world.settings = msgspec.structs.replace(world.settings, topics=world.names)
    create_topics(world.admin, world.names, partitions=2)


def _settings(world: World, **serve: Any) -> Settings:
    chosen = ServeSettings(port=0, default_system=SYSTEM, **serve)
    return msgspec.structs.replace(world.settings, serve=chosen)


def _recorded(world: World) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = world.everything(world.names.answered[0])
    return found


@pytest.mark.long
def test_every_answer_is_a_record_that_the_job_decides_once_with_the_same_result(world: World) -> None:
    """Across changes of the policies, also while the job does not run."""
    batch = {**ASKED, "evaluations": [{}, {"resource": OTHER["resource"]}]}
    with serving(_settings(world)) as served:
        for number in range(20):
            if number % 5 == 4:
                world.publish(role("readers", f"kafka:topic:prod/main/{('orders', 'payments')[number % 2]}"))
            for asked in (ASKED, OTHER):
                assert served.ask(PATH, asked, X_Request_ID=f"one-{number}-{asked is ASKED}")[0] == 200
        assert served.ask("/access/v1/evaluations", batch, X_Request_ID="batch")[0] == 200
    records = _recorded(world)
    assert len(records) == 41
    assert [fault for record in records for fault in faults("request.json", record)] == []
    with running(world.settings):
        decisions = world.reader(world.names.decisions)
        decisions.until(lambda found: len(found) >= 41, "a decision of each")
        world.await_no_lag()
    decided = world.everything(world.names.decisions)
    assert sorted(one["request_id"] for one in decided) == sorted(record["id"] for record in records)
    assert [one for one in decided if not (one["answered"]["verified"] and one["answered"]["agrees"])] == []
    assert {one["decision"] for one in decided} == {True, False}
    assert [fault for one in decided for fault in faults("decision.json", one)] == []
    assert world.everything(world.names.alerts) == []
    findings = verify(world.settings)
    assert (findings.violations, findings.requests, findings.verified) == ([], 41, 41), findings


def test_what_is_recorded_is_chosen_by_system(world: World) -> None:
    with serving(_settings(world, record="denials")) as served:
        assert served.ask(PATH, ASKED)[1]["decision"] is True
        assert served.ask(PATH, OTHER)[1]["decision"] is False
        items = {"evaluations": [OTHER, ASKED], "options": {"evaluations_semantic": "permit_on_first_permit"}}
        assert served.ask("/access/v1/evaluations", items)[0] == 200
        assert served.ask("/access/v1/evaluations", {"evaluations": [ASKED, ASKED]})[0] == 200
    assert sorted(record["answered"]["outcome"] for record in _recorded(world)) == ["allow", "deny"]
    with serving(_settings(world, record={SYSTEM: "none"})) as served:
        served.ask(PATH, OTHER)
    assert len(_recorded(world)) == 2
    with serving(_settings(world, record="durable")) as served:
        served.ask(PATH, ASKED)
        assert len(_recorded(world)) == 3  # before the answer is given


def test_an_answer_whose_record_took_until_after_the_deadline_is_no_allow(world: World) -> None:
    kafka = {**world.settings.kafka, "linger.ms": "1000"}
    settings = msgspec.structs.replace(_settings(world, record="durable"), kafka=kafka)
    with serving(settings) as served:
        now = time.time_ns() // 1_000_000
        assert served.ask(PATH, {**ASKED, "deadline": now + 60_000})[1]["decision"] is True
        batch = {**ASKED, "evaluations": [{}, {}]}
        for path, asked in ((PATH, ASKED), ("/access/v1/evaluations", batch)):
            now = time.time_ns() // 1_000_000
            status, body, _ = served.ask(path, {**asked, "deadline": now + 700})
            assert status == 200
            for answer in body.get("evaluations", [body]):
                assert (answer["decision"], answer["context"]["outcome"]) == (False, "error")
                assert answer["context"]["reasons"][0]["code"] == "deadline-exceeded"
    assert [record["answered"]["outcome"] for record in _recorded(world)] == ["allow"] * 3


def test_while_kafka_refuses_records_no_answer_is_given_without_one(world: World) -> None:
    """What was in the queue is lost, and counted; then answers wait for their records, until Kafka takes them again."""
    topic = world.names.answered[0]

    def set_largest_record(size: int) -> None:
        entry = ConfigEntry("max.message.bytes", str(size), incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        for altered in world.admin.incremental_alter_configs([resource]).values():
            altered.result(30)

    with serving(_settings(world)) as served:
        recorder = served.server._recorder
        assert recorder is not None
        assert served.ask(PATH, ASKED)[1]["decision"] is True
        set_largest_record(10)
        wait_until(lambda: served.ask(PATH, ASKED)[0] == 503, "a refusal")
        status, body, _ = served.ask(PATH, ASKED)
        assert (status, body["decision"]) == (503, False)
        assert body["context"]["reasons"][0]["code"] == "not-recorded"
        assert recorder.lost >= 3
        set_largest_record(1 << 20)
        wait_until(lambda: served.ask(PATH, ASKED)[0] == 200, "an answer")
        wait_until(lambda: recorder.queued == 0, "all is recorded")
        assert recorder.recorded == len(_recorded(world)) >= 2


def test_without_the_topic_it_does_not_start_and_says_what_to_do(world: World) -> None:
    names = msgspec.structs.replace(world.names, answered=())
    with pytest.raises(CannotStart, match=r"topics.answered names no topic.*serve.record: none"):
        Server(msgspec.structs.replace(_settings(world), topics=names))
    names = msgspec.structs.replace(world.names, answered=("not-there",))
    with pytest.raises(CannotStart, match=r"not-there.*does not exist.*lockkeeper topics create"):
        Server(msgspec.structs.replace(_settings(world), topics=names))


@pytest.mark.long
def test_a_full_queue_is_an_error_and_what_is_lost_is_counted(
    fresh_name: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streaming.pdp.recording.QUEUE", 3)
    with embedded_broker() as broker:
        world = World(TestBroker(broker.bootstrap_servers), fresh_name("full"), str(tmp_path / "c"))
        _with_topic(world)
        world.publish(role("readers", "kafka:topic:prod/main/orders"))
        world.publish(group("readers", "user:dana"))
        with (
            serving(_settings(world, max_staleness_seconds=100.0)) as queued,
            serving(_settings(world, record="durable", max_staleness_seconds=100.0)) as durable,
        ):
            for served in (queued, durable):
                assert served.decision() is True
            recorder = queued.server._recorder
            wait_until(lambda: recorder.queued == 0, "all is recorded")
            broker.stop()
            answers = [queued.ask(PATH, ASKED) for _ in range(6)]
            assert [status for status, _, _ in answers] == [200] * 3 + [503] * 3
            assert answers[-1][1]["decision"] is False
            assert answers[-1][1]["context"]["reasons"][0]["code"] == "not-recorded"
            assert recorder.lost == 3
            began = time.monotonic()
            assert durable.ask(PATH, ASKED)[0] == 503
            assert time.monotonic() - began < 20
            for served in (queued, durable):
                served.server._recorder.close(0.2)
            assert recorder.lost == 6
