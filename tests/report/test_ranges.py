"""Reading a range of a topic: from the first record in it to the last, and nothing beside."""

import time
from pathlib import Path

import pytest
from confluent_kafka import Producer

from streaming.history.ranges import Range, Topics
from streaming.history.span import Span
from tests.brokers import TestBroker
from tests.stream.world import World

pytestmark = pytest.mark.stream

HOUR = 3_600_000
START = time.time_ns() // 1_000_000 - 20 * HOUR  # the broker takes nothing from the future, and keeps nothing old


MINUTE = 60_000
ABORTED = 9


@pytest.fixture(scope="module")
def world(broker: TestBroker, tmp_path_factory: pytest.TempPathFactory) -> World:
    """Ten records in each of two partitions of the decisions topic, an hour apart, the last one aborted."""
    made = World(broker, f"ranges-{START}", str(tmp_path_factory.mktemp("ranges") / "checkpoint"))
    for number in range(ABORTED):
        _write(made, Producer(_to(made)), START + number * HOUR)
    aborting = Producer({**_to(made), "transactional.id": made.settings.job_name})
    aborting.init_transactions(30)
    aborting.begin_transaction()
    _write(made, aborting, START + ABORTED * HOUR)
    aborting.abort_transaction(30)  # the broker dates its marker, the last record, with the time of now
    return made


def _to(world: World) -> dict[str, str]:
    return {"bootstrap.servers": world.broker.bootstrap_servers}


def _write(world: World, producer: Producer, at: int) -> None:
    for partition in (0, 1):
        producer.produce(world.names.decisions, b"value", b"key", partition, timestamp=at, headers=[("h", b"v")])
    assert producer.flush(30) == 0


def _hours(world: World, span: Span) -> list[tuple[int, float]]:
    """The partition and time of each record found, in hours since the first."""
    found = Topics(world.settings, world.admin).in_span([world.names.decisions], span)
    return sorted((record.partition, (record.at - START) / HOUR) for record in found)


def test_a_range_is_read_from_its_first_record_to_its_last_in_every_partition(world: World) -> None:
    span = Span(START + 3 * HOUR, START + 7 * HOUR)
    assert _hours(world, span) == [(partition, hour) for partition in (0, 1) for hour in (3, 4, 5, 6)]


def test_what_was_aborted_is_not_read(world: World) -> None:
    assert _hours(world, Span(START + 8 * HOUR, START + 30 * HOUR)) == [(0, 8), (1, 8)]


def test_a_record_that_is_dated_before_one_ahead_of_it_is_found(broker: TestBroker, tmp_path: Path) -> None:
    """As where the end of another transaction lies before it: the index of times alone leads past it."""
    world = World(broker, f"disorder-{START}", str(tmp_path / "checkpoint"))
    for minutes in (0, 50, 61, 59, 120):
        _write(world, Producer(_to(world)), START + minutes * MINUTE)
    found = _hours(world, Span(START + 30 * MINUTE, START + 60 * MINUTE))
    assert [(partition, round(hours * 60)) for partition, hours in found] == [(p, m) for p in (0, 1) for m in (50, 59)]


def test_a_record_comes_whole(world: World) -> None:
    [record, _] = Topics(world.settings, world.admin).in_span([world.names.decisions], Span(START, START + 1))
    assert (record.key, record.value, record.headers) == (b"key", b"value", (("h", b"v"),))
    assert (record.topic, record.offset, record.at) == (world.names.decisions, 0, START)


@pytest.mark.parametrize("shift", [-20, 20], ids=["before all records", "after all records"])
def test_a_range_without_records_is_empty(world: World, shift: int) -> None:
    span = Span(START + shift * HOUR, START + (shift + 1) * HOUR)
    assert list(Topics(world.settings, world.admin).in_span([world.names.decisions], span)) == []


def test_what_came_before_a_moment_is_read_from_the_beginning(world: World) -> None:
    found = Topics(world.settings, world.admin).in_span([world.names.decisions], Span(0, START + 2 * HOUR))
    assert sorted((r.partition, r.offset) for r in found) == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_records_are_read_at_offsets_as_far_as_they_are_there(world: World) -> None:
    """Beyond the end there is nothing, nor in a partition that does not exist; nothing asked, nothing read."""
    topics, name = Topics(world.settings, world.admin), world.names.decisions
    found = topics.at({(name, 0): Range(2, 4), (name, 1): Range(8, 10**9), (name, 7): Range(0, 5)})
    assert sorted((r.partition, r.offset) for r in found) == [(0, 2), (0, 3), (1, 8)]
    assert list(topics.at({})) == []
