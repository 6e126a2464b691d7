"""Input partitions of a job that has more than it has slots for share transactional ids, and may get others later."""

import json
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec
import pytest
from confluent_kafka.admin import NewPartitions

from streaming.commit.offsets import WITH_OWNER, Committed, read_committed
from streaming.commit.partition_sets import SETS_OF_A_SLOT, PartitionSets, sets_for
from streaming.kafka.clients import group_observer, partitions_of
from streaming.settings import MetricsSettings, Settings
from streaming.verify.cluster import verify
from tests.brokers import TestBroker, free_port
from tests.stream.running import running
from tests.stream.test_outage import Run
from tests.stream.world import World, group, request, role
from tests.waiting import wait_until

PARTITIONS, ADDED = 10, 12  # of one topic; local[2] and local[3] have 4 and 6 sets


def test_few_partitions_have_an_id_each_and_many_share_as_many_as_the_slots_can_take() -> None:
    few, many = sets_for("job", 2 * SETS_OF_A_SLOT, 2), sets_for("job", 2 * SETS_OF_A_SLOT + 1, 2)
    assert few.transactional_id(("orders", 7)) == "job/orders/7"
    assert few.owner(("orders", 7)) == "", "as before there were sets"
    ids = Counter(many.transactional_id((topic, number)) for topic in ("orders", "audit") for number in range(80))
    assert len(ids) == 2 * SETS_OF_A_SLOT
    assert set(ids.values()) == {160 // len(ids)}, "evenly"
    assert many.owner(("orders", 7)) == many.transactional_id(("orders", 7))


def test_no_set_has_the_id_of_a_partition_or_of_another_count_or_job() -> None:
    """Also where a job is called as a job with a topic after it."""
    partitions = [(topic, number) for topic in ("1", "a", "3-of-8") for number in range(8)]
    ids = [
        [PartitionSets(job, count).transactional_id(partition) for partition in partitions]
        for job in ("a", "a/1", "a/3-of-8")
        for count in (0, 4, 8)
    ]
    distinct = [set(each) for each in ids]
    assert sum(map(len, distinct)) == len(set().union(*distinct))


@pytest.fixture
def world(broker: TestBroker, fresh_name: Callable[[str], str], tmp_path: Path) -> World:
    """A world where dana may read about orders, with more partitions than two slots have sets."""
    created = World(broker, fresh_name("sets"), str(tmp_path / "checkpoint"), master="local[2]")
    _grow(created, PARTITIONS)
    created.publish(group("readers", "user:dana"))
    created.publish(role("readers", "kafka:topic:prod/main/orders"))
    return created


def _grow(world: World, partitions: int) -> None:
    topic = world.names.requests[0]
    world.admin.create_partitions([NewPartitions(topic, partitions)])[topic].result(30)
    wait_until(lambda: len(partitions_of(world.admin, [topic])) == partitions, f"{topic} has {partitions} partitions")


def _ask(world: World, numbers: Iterable[int]) -> None:
    world.send(request(f"r-{number}", "dana", ("orders", "payments")[number % 2]) for number in numbers)


def _committed(world: World, settings: Settings) -> dict[tuple[str, int], Committed]:
    consumer = group_observer(settings)
    try:
        return read_committed(consumer, partitions_of(world.admin, settings.topics.inputs))
    finally:
        consumer.close()


def _owners(world: World) -> set[str]:
    committed = _committed(world, world.settings).values()
    assert all(known.metadata is not None for known in committed)
    return {str(known.metadata.owner or "") for known in committed if known.metadata}


@pytest.mark.stream
@pytest.mark.long
def test_a_job_decides_each_request_once_as_its_slots_and_partitions_change(world: World) -> None:
    """Each start has other sets than the one before: first there are 4, then 6, then an id for each partition."""
    settings, decisions, count = world.settings, world.reader(world.names.decisions), 0

    def decided(more: int) -> None:
        nonlocal count
        _ask(world, range(count, count + more))
        count += more
        decisions.until(lambda found: len(found) >= count, f"{count} decisions", 120)

    with running(settings):
        decided(60)
        _grow(world, ADDED)
        decided(60)
    first = _owners(world)
    assert first == {f"{settings.job_name}/{number}-of-4" for number in range(4)}
    with running(msgspec.structs.replace(settings, master="local[3]")):
        decided(60)
        world.await_no_lag()
    moved = _owners(world)
    assert any(owner.endswith("-of-6") for owner in moved)
    with running(msgspec.structs.replace(settings, master="local[12]")):
        decided(60)
        world.await_no_lag()
    assert "" in _owners(world), "an id of its own"
    findings = verify(settings)
    assert not findings.violations, findings
    assert findings.requests == findings.decisions == count


@pytest.mark.stream
@pytest.mark.long
def test_idle_partitions_of_a_set_are_committed_again_and_fence_nobody(world: World) -> None:
    """Kafka forgets what is not committed again. One partition is asked about; the others lie idle beside it."""
    settings = world.settings
    decisions, asked = world.reader(world.names.decisions), 0

    def decided() -> None:
        nonlocal asked
        world.send([request(f"r-{asked}", "dana", "orders")], key="the same partition")
        asked += 1
        decisions.until(lambda found: len(found) >= asked, f"{asked} decisions", 60)

    with running(settings, idle_commit_seconds=1.0):
        decided()
        before = _committed(world, settings)

        def are_committed_again() -> bool:
            decided()
            return all(known != before[partition] for partition, known in _committed(world, settings).items())

        wait_until(are_committed_again, "each offset is committed again", 60)
    assert {known.metadata.format for known in before.values() if known.metadata} == {WITH_OWNER}
    findings = verify(settings)
    assert not findings.violations, findings
    assert findings.requests == findings.decisions == asked


@pytest.mark.stream
@pytest.mark.long
def test_a_partition_that_is_added_and_filled_within_a_batch_is_decided(world: World, tmp_path: Path) -> None:
    """Spark's next batch ends behind its records, and none before has it: a set would not own it."""
    settings = msgspec.structs.replace(world.settings, metrics=MetricsSettings(port=free_port()))
    topic, decisions, run = world.names.requests[0], world.reader(world.names.decisions), Run(settings, tmp_path)
    try:
        run.await_ready()
        run.pause_at("written", lambda: _ask(world, range(1)))
        _grow(world, ADDED)
        metadata = world.producer.list_topics(topic, timeout=30)
        for number in metadata.topics[topic].partitions:
            world.producer.produce(topic, json.dumps(request(f"added-{number}", "dana", "orders")), partition=number)
        assert world.producer.flush(30) == 0
        run.go_on()
        decisions.until(lambda found: len(found) > ADDED or run.process.poll() is not None, "a decision for each", 60)
        assert run.end() == 0, run.log()
    finally:
        run.kill()
    findings = verify(settings)
    assert not findings.violations, findings
    assert findings.requests == findings.decisions == 1 + ADDED
    assert _owners(world) == {f"{settings.job_name}/{number}-of-4" for number in range(4)}
