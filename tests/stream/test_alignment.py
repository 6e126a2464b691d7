"""Up to when every partition is read, by the ends of a batch and what lies beyond them."""

import contextlib
import math
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from streaming.kafka.clients import last_stable_offsets
from streaming.monitor.intake import Alignment, Times
from tests.brokers import TestBroker, await_transaction_markers
from tests.stream.world import World

pytestmark = pytest.mark.stream

T0 = 1_795_000_000_000  # ms


@pytest.fixture
def world(broker: TestBroker, fresh_name: Callable[[str], str], tmp_path: Path) -> World:
    """A world whose topics are empty."""
    return World(broker, fresh_name("align"), str(tmp_path / "checkpoint"))


@pytest.fixture
def alignment(world: World) -> Iterator[Alignment]:
    """Of that world."""
    with contextlib.closing(Alignment(world.settings, world.admin)) as made:
        yield made


def _commit(world: World, *times: tuple[int, int]) -> None:
    """Decisions in one transaction: the partition and the timestamp (ms after T0) of each."""
    options = {"bootstrap.servers": world.settings.bootstrap_servers, "transactional.id": world.settings.job_name}
    producer = Producer(options)
    producer.init_transactions(30)
    producer.begin_transaction()
    for partition, at in times:
        producer.produce(world.names.decisions, b"{}", partition=partition, timestamp=T0 + at)
    producer.commit_transaction(30)
    await_transaction_markers(world.admin, [(world.names.decisions, partition) for partition, _ in times])


def test_time_advances_to_the_first_unread_record_of_any_partition_and_to_the_newest_once_all_are_read(
    world: World, alignment: Alignment
) -> None:
    """A partition of which nothing but the marker of a transaction is unread is read to its end."""
    first, second = ((world.names.decisions, number) for number in range(2))
    assert alignment.times({first: 0, second: 0}) == Times(0, math.inf, math.inf)
    _commit(world, (0, 10), (0, 20), (0, 500))
    _commit(world, (1, 30), (1, 40))
    for ends, unread in (((0, 0), 10), ((2, 0), 30), ((2, 2), 500)):
        times = alignment.times(dict(zip((first, second), ends, strict=True)))
        assert times.most == times.until == T0 + unread - 1
        assert times.reached(T0 + 500) == T0 + unread - 1
    times = alignment.times({first: 3, second: 2})
    assert times == Times(T0 + 500, math.inf, math.inf)
    assert times.reached(T0 + 40) == T0 + 500, "read ahead by a batch before"
    assert alignment.times(last_stable_offsets(world.admin, [first, second])) == Times(0, math.inf, math.inf)


def test_after_a_consumer_from_which_nothing_came_in_time_another_one_is_asked(
    world: World, alignment: Alignment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of librdkafka's may stand still for good after a restart of the broker."""
    ends = {(world.names.decisions, 0): 0}
    _commit(world, (0, 10))
    before = alignment._timestamps._consumer
    with monkeypatch.context() as patched:
        patched.setattr(alignment._timestamps, "_seconds", -1.0)
        with pytest.raises(TimeoutError, match="sent no records"):
            alignment.times(ends)
    with pytest.raises(RuntimeError, match="closed"):
        before.poll(0)
    assert alignment.times(ends).until == T0 + 9
