"""A topic that was deleted and re-created, or shortened: nothing that was read of it counts, and the job stops."""

import contextlib
import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from confluent_kafka import TopicPartition

from policy.core.document import Key
from streaming.errors import CannotStart, JobStopped, TopicChanged
from streaming.kafka.clients import topic_ids
from streaming.kafka.reader import TopicReader, document_topics, find_logs
from streaming.settings import Settings
from streaming.snapshots.policies import Policies
from tests.brokers import TestBroker
from tests.chaos.processes import send
from tests.processes import descendants
from tests.stream.running import running, stopping
from tests.stream.world import SYSTEM, World, group, request, role
from tests.waiting import wait_until

pytestmark = pytest.mark.stream

SECONDS = 10.0


@pytest.fixture
def world(broker: TestBroker, fresh_name: Callable[[str], str], tmp_path: Path) -> World:
    """A world whose policy topic has five documents."""
    made = World(broker, fresh_name("reader"), str(tmp_path / "checkpoint"))
    _publish(made, 5)
    return made


@pytest.fixture
def reader(world: World) -> Iterator[TopicReader]:
    """A reader of the policy topic that has read it to its end."""
    with contextlib.closing(TopicReader(world.settings, [world.policies])) as made:
        assert _offsets(made) == [0, 1, 2, 3, 4]
        yield made


def _publish(world: World, count: int) -> None:
    for number in range(count):
        world.publish(role(f"role-{number}", "*"))


def _offsets(reader: TopicReader) -> list[int | None]:
    return [message.offset() for message in reader.read_to_end(SECONDS)]


@pytest.mark.parametrize("count", [0, 2, 5, 7])
def test_a_topic_deleted_and_re_created_is_never_read_on(world: World, reader: TopicReader, count: int) -> None:
    """Empty, or with fewer, as many or more records than the deleted one had."""
    world.recreate(world.policies)
    _publish(world, count)
    with pytest.raises(JobStopped, match=rf"topic {world.policies} was deleted and re-created: its topic id was "):
        _offsets(reader)


def test_a_topic_re_created_during_a_reading_fails_that_reading(world: World, reader: TopicReader) -> None:
    """What was read may be of both topics."""
    world.publish(role("added", "*"))
    reading = reader.read_to_end(SECONDS)
    assert next(reading).offset() == 5
    world.recreate(world.policies)
    with pytest.raises(JobStopped, match="was deleted and re-created"):
        list(reading)


def test_a_topic_deleted_and_not_re_created_is_named_with_what_fixes_it(world: World, reader: TopicReader) -> None:
    world.admin.delete_topics([world.policies])[world.policies].result(30)
    wait_until(lambda: world.policies not in world.admin.list_topics(timeout=30).topics, "it is deleted")
    with pytest.raises(
        JobStopped, match=rf"topic {world.policies} was deleted.*`lockkeeper topics create`.*policy apply"
    ):
        _offsets(reader)


def test_a_topic_whose_records_were_deleted_is_never_read_on(world: World, reader: TopicReader) -> None:
    """By kafka-delete-records: of what was read, and of what was not."""
    world.delete_records(world.policies, before=3)
    with pytest.raises(JobStopped, match=rf"records of topic {world.policies} below offset 3 were deleted"):
        _offsets(reader)


@pytest.mark.parametrize("before", [3, 5])
def test_a_log_is_read_from_where_it_starts(world: World, before: int) -> None:
    """Also where every record was deleted, so that there is no first record to wait for."""
    world.delete_records(world.policies, before=before)
    with contextlib.closing(TopicReader(world.settings, [world.policies])) as reader:
        assert _offsets(reader) == list(range(before, 5))
        _publish(world, 1)
        assert _offsets(reader) == [5]


@contextlib.contextmanager
def _policies(world: World, settings: Settings) -> Iterator[Policies]:
    """What a job knows of the documents once it has started; afterwards its transaction is written."""
    names = settings.topics
    logs = find_logs(world.admin, document_topics(names), (*names.requests, names.history))
    with contextlib.closing(Policies(settings, {}, logs=logs)) as policies:
        policies.catch_up(SECONDS)
        yield policies
        for topic, key, value, headers in policies.pending():
            world.producer.produce(topic, value, key, headers=headers)
        assert world.producer.flush(30) == 0


def _in_force(policies: Policies, name: str) -> bool:
    document_history = policies.store.histories.get(Key(SYSTEM, "Role", name))
    return document_history is not None and document_history.in_force is not None


def test_a_re_created_policy_topic_is_refused_at_the_start_until_it_is_accepted(world: World) -> None:
    """Kafka has forgotten what was committed for it. The last good version kept of a document is void: on the new
    topic the same document is refused at the offset of the version's successor.
    """
    world.publish(b"{", key="Role/role-0")
    with _policies(world, world.settings) as policies:
        assert _in_force(policies, "role-0")
    world.recreate(world.policies)
    for number in range(1, 6):
        world.publish(role(f"role-{number}", "*"))
    world.publish(b"{", key="Role/role-0")
    with pytest.raises(CannotStart, match=rf"topic {world.policies} was deleted and re-created") as refused:
        _policies(world, world.settings).__enter__()
    accepted = json.loads(str(refused.value).rpartition("=")[2].strip("'"))
    with _policies(world, msgspec.structs.replace(world.settings, accepted_topic_ids=tuple(accepted))) as policies:
        assert not _in_force(policies, "role-0")
        assert _in_force(policies, "role-1")
    with _policies(world, world.settings) as policies:
        assert not _in_force(policies, "role-0"), "it is accepted once and for all"
    [alert] = _recreated(world)
    assert (alert["severity"], alert["subject"]) == ("high", world.policies)
    [evidence] = alert["evidence"]
    assert (evidence["topic"], evidence["topic_id"]) == (world.policies, accepted[0])
    assert evidence["topic_id_before"] in str(refused.value)
    assert evidence["topic_id_before"] != accepted[0]


def _recreated(world: World) -> list[dict[str, Any]]:
    return [alert for alert in world.everything(world.names.alerts) if alert["kind"] == "topic-recreated"]


def test_a_policy_topic_whose_records_were_deleted_is_refused_until_it_is_accepted(world: World) -> None:
    with _policies(world, world.settings):
        pass
    world.delete_records(world.policies, before=3)
    with pytest.raises(CannotStart, match="below offset 3 were deleted") as refused:
        _policies(world, world.settings).__enter__()
    _publish(world, 1)
    accepted = json.loads(str(refused.value).rpartition("=")[2].strip("'"))
    with _policies(world, msgspec.structs.replace(world.settings, accepted_topic_ids=tuple(accepted))) as policies:
        assert [_in_force(policies, f"role-{number}") for number in range(5)] == [True, False, False, True, True]
    with _policies(world, world.settings):
        pass


@pytest.mark.parametrize("which", ["requests", "history"])
def test_other_topics_that_a_job_reads_are_watched_as_well(world: World, which: str) -> None:
    topic = world.names.requests[0] if which == "requests" else world.names.history
    with _policies(world, world.settings) as policies:
        world.recreate(topic)
        with pytest.raises(TopicChanged, match=rf"topic {topic} was deleted and re-created"):
            policies.catch_up(SECONDS)


@pytest.fixture
def orders(broker: TestBroker, fresh_name: Callable[[str], str], tmp_path: Path) -> World:
    """A world where dana may read about orders."""
    made = World(broker, fresh_name("recreated"), str(tmp_path / "checkpoint"))
    made.publish(group("readers", "user:dana"))
    made.publish(role("readers", "kafka:topic:prod/main/orders"))
    return made


def test_a_running_job_allows_nothing_by_documents_of_a_deleted_topic_and_stops(orders: World) -> None:
    """All is revoked by deleting the topic and creating it again, empty."""
    decisions = orders.reader(orders.names.decisions)
    with stopping(orders.settings, "TopicChanged", f"topic {orders.policies} was deleted"):
        orders.send([request("before", "dana", "orders")])
        assert decisions.answer("before", 60)["decision"] is True
        orders.recreate(orders.policies)
        orders.send(request(f"after-{number}", "dana", "orders") for number in range(200))
    assert [decision["request_id"] for decision in orders.everything(orders.names.decisions)] == ["before"]


@pytest.mark.long
def test_a_re_created_topic_of_requests_stops_the_job_and_once_accepted_is_decided_from_its_beginning(
    orders: World,
) -> None:
    """Filled with more than was decided of the deleted one: Spark alone would read on where that ended.

    The job may see that the topic is gone before it is there again.
    """
    topic, settings = orders.names.requests[0], orders.settings
    before, after = ([f"{when}-{number}" for number in range(count)] for when, count in (("before", 10), ("after", 50)))
    decisions = orders.reader(orders.names.decisions)
    with stopping(orders.settings, "TopicChanged", f"topic {topic} was deleted"):
        orders.send(request(id_, "dana", "orders") for id_ in before)
        decisions.until(lambda found: len(found) >= len(before), "a decision for each", 60)
        orders.recreate(topic)
        orders.send(request(id_, "dana", "orders") for id_ in after)
    accepted = topic_ids(orders.admin, [topic])[topic]
    fixed = {"accepted_topic_ids": (accepted,), "checkpoint": f"{settings.checkpoint}-new"}
    with running(msgspec.structs.replace(settings, **fixed)):
        decisions.until(lambda found: len(found) >= len(before + after), "a decision for each", 60)
    decided = [decision["request_id"] for decision in orders.everything(orders.names.decisions)]
    assert sorted(decided) == sorted(before + after)
    assert [alert["evidence"][0]["topic_id"] for alert in _recreated(orders)] == [accepted]


def test_requests_that_were_deleted_undecided_are_named_and_without_the_checkpoint_passed_over(orders: World) -> None:
    """As by retention, while the job was away: with its checkpoint Spark would fail over them with each start."""
    topic, settings = orders.names.requests[0], orders.settings
    why = f"the records of {topic}-0 from offset 1 up to 3 were deleted before they were decided"
    with stopping(settings, "CannotStart", why) as job:
        orders.send([request("before", "dana", "orders")], partition=0)
        orders.reader(orders.names.decisions).answer("before", 60)
        with _suspended({job.pid, *descendants(job.pid)}):
            orders.send([request(id_, "dana", "orders") for id_ in ("deleted-1", "deleted-2", "left")], partition=0)
            [deleted] = orders.admin.delete_records([TopicPartition(topic, 0, 3)]).values()
            deleted.result(30)
    with stopping(settings, "CannotStart", why) as job:
        pass
    assert f"`lockkeeper checkpoint archive {settings.checkpoint}`" in job.why
    with running(msgspec.structs.replace(settings, checkpoint=f"{settings.checkpoint}-new")):
        orders.reader(orders.names.decisions).answer("left", 60)
    decided = [decision["request_id"] for decision in orders.everything(orders.names.decisions)]
    assert sorted(decided) == ["before", "left"]


@contextlib.contextmanager
def _suspended(pids: set[int]) -> Iterator[None]:
    send(pids, signal.SIGSTOP)
    try:
        yield
    finally:
        send(pids, signal.SIGCONT)
