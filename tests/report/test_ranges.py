"""Reading a range of a topic: from the first record in it to the last, and nothing beside."""

import time

import pytest
from confluent_kafka import Producer

from streaming.report.answered import Range
from streaming.report.ranges import Topics
from streaming.report.span import Span
from tests.brokers import TestBroker
from tests.stream.world import World

pytestmark = pytest.mark.stream

HOUR = 3_600_000
START = time.time_ns() // 1_000_000 - 20 * HOUR  # the broker takes nothing from the future, and keeps nothing old


@pytest.fixture(scope="module")
def world(broker: TestBroker, tmp_path_factory: pytest.TempPathFactory) -> World:
    """Ten records in each of two partitions of the decisions topic, an hour apart, every third one aborted."""
    made = World(broker, f"ranges-{START}", str(tmp_path_factory.mktemp("ranges") / "checkpoint"))
    for number in range(10):
        _write(made, START + number * HOUR, number % 3 != 2)
    return made


def _write(world: World, at: int, commit: bool) -> None:
    """Two transactional records: each takes an offset, and so does the end of the transaction."""
    producer = Producer(
        {"bootstrap.servers": world.broker.bootstrap_servers, "transactional.id": world.settings.job_name}
    )
    producer.init_transactions(30)
    producer.begin_transaction()
    for partition in (0, 1):
        producer.produce(world.names.decisions, b"value", b"key", partition, timestamp=at, headers=[("h", b"v")])
    assert producer.flush(30) == 0
    (producer.commit_transaction if commit else producer.abort_transaction)(30)


def test_a_range_is_read_from_its_first_record_to_its_last_in_every_partition(world: World) -> None:
    topics, span = Topics(world.settings, world.admin), Span(START + 3 * HOUR, START + 7 * HOUR)
    found = [(r.partition, (r.at - START) // HOUR) for r in topics.in_span([world.names.decisions], span)]
    assert sorted(found) == [(partition, hour) for partition in (0, 1) for hour in (3, 4, 6)]


def test_a_record_comes_whole(world: World) -> None:
    [record, _] = Topics(world.settings, world.admin).in_span([world.names.decisions], Span(START, START + 1))
    assert (record.key, record.value, record.headers) == (b"key", b"value", (("h", b"v"),))
    assert (record.topic, record.offset, record.at) == (world.names.decisions, 0, START)


@pytest.mark.parametrize("shift", [-20, 20], ids=["before all records", "after all records"])
def test_a_range_without_records_is_empty(world: World, shift: int) -> None:
    span = Span(START + shift * HOUR, START + (shift + 1) * HOUR)
    assert list(Topics(world.settings, world.admin).in_span([world.names.decisions], span)) == []


def test_what_came_before_a_moment_is_read_from_the_beginning(world: World) -> None:
    found = Topics(world.settings, world.admin).up_to([world.names.decisions], START + 2 * HOUR)
    assert sorted((r.partition, r.offset) for r in found) == [(0, 0), (0, 2), (1, 0), (1, 2)]


def test_records_are_read_at_offsets_as_far_as_they_are_there(world: World) -> None:
    """Beyond the end there is nothing, nor in a partition that does not exist; nothing asked, nothing read."""
    topics, name = Topics(world.settings, world.admin), world.names.decisions
    found = topics.at({(name, 0): Range(2, 4), (name, 1): Range(18, 10**9), (name, 7): Range(0, 5)})
    assert sorted((r.partition, r.offset) for r in found) == [(0, 2), (1, 18)]
    assert list(topics.at({})) == []
