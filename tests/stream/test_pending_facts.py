"""Facts that the monitor has yet to derive, followed by its committed offsets and the end of the facts topic."""

import contextlib
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import NewPartitions

from streaming.commit.evaluation import Decided, SideOutput
from streaming.enforcer.pending_facts import (
    ALWAYS,
    EVERY,
    FACTS_HELD,
    SETS_HELD,
    FactLag,
    FactReads,
    PendingFacts,
    overlooked,
)
from streaming.enforcer.undecided_events import UndecidedEvents
from streaming.kafka.clients import Partition, admin_client, last_stable_offsets, log_ends, partitions_of
from streaming.kafka.topics import create_topics
from streaming.ops.tally import Tally
from streaming.records.audit import Lifecycle, encode_verdict
from streaming.settings import monitor_settings
from tests.brokers import TestBroker
from tests.stream.world import LOOKS_BACK, World
from tests.waiting import wait_until

pytestmark = pytest.mark.stream

SESSION = (LOOKS_BACK, "Session", "dana")
NOT_WAITED_SECONDS = 2.0


def test_the_facts_that_are_kept_are_bounded_and_beyond_that_all_are_pending() -> None:
    pending = PendingFacts()
    for number in range(FACTS_HELD + 1):
        pending.note((LOOKS_BACK, "Session", f"user-{number}"), 1000 + number)
    assert dict(pending) == {EVERY: 1000}
    assert pending.affects(LOOKS_BACK, [("name", "ActiveJob", "job:j")], 1000)
    assert not pending.affects(LOOKS_BACK, [("name", "ActiveJob", "job:j")], 999)
    reads = FactReads(PendingFacts())
    for number in range(FACTS_HELD + 1):
        assert not reads.is_pending(LOOKS_BACK, [("name", "Session", f"user-{number}")], 1000 + number)
    assert reads.newest == {EVERY: 1000 + FACTS_HELD}


@pytest.mark.parametrize(("read_at", "expected"), [(40, {}), (50, {EVERY: 50}), (60, {EVERY: 50, SESSION: 55})])
def test_a_batch_that_reads_a_fact_of_an_undecided_event_is_evaluated_again(
    read_at: int, expected: dict[Any, int]
) -> None:
    passed_on = [(SESSION, 55)] if read_at > 50 else []
    sides = [_side([], [(SESSION, read_at)]), _side(passed_on, [])]
    undecided = PendingFacts({EVERY: 50})
    assert dict(overlooked(sides, undecided, again=False)) == expected
    assert dict(overlooked(sides, undecided, again=True)) == ({EVERY: ALWAYS} if expected else {}), "it ends with that"
    assert dict(undecided) == {EVERY: 50}


def _side(passed_on: list[Any], fact_reads: list[Any]) -> SideOutput:
    tally = Tally("audit", [], 0, [], [], [])
    return SideOutput(tally, [], [], Decided(0, 0, 0, False, 0.0), [], passed_on, fact_reads)


def test_undecided_events_are_those_of_trusted_audit_topics_from_the_first_record_that_is_not_decided(
    world: World,
) -> None:
    [trusted] = world.names.audit
    other = f"{trusted}.agents"
    topics = msgspec.structs.replace(world.names, audit=(trusted, other))
    create_topics(world.admin, topics, partitions=1)
    first, second, untrusted = (trusted, 0), (trusted, 1), (other, 0)
    times: list[int] = []  # the broker's
    for topic, number in (untrusted, first, second, first):
        world.producer.produce(
            topic, b"{}", partition=number, on_delivery=lambda _, message: times.append(message.timestamp()[1])
        )
        assert world.producer.flush(30) == 0
        wait_until(lambda: time.time_ns() // 1_000_000 > times[-1], "the next record is later", 10)
    ends = {untrusted: 1, first: 2, second: 1}
    trust = {**world.settings.trust, other: frozenset({"time"})}
    events = UndecidedEvents(msgspec.structs.replace(world.settings, topics=topics, trust=trust))
    with contextlib.closing(events):
        events._timestamps._seconds = 60.0  # on a machine that does other things, too
        assert not events.pending_if_behind(ends, {}), "not before any was found"
        assert dict(events.pending(ends, {})) == {EVERY: times[1]}
        assert dict(events.pending_if_behind(ends, {first: 1})) == {EVERY: times[2]}
        assert dict(events.pending_if_behind(ends, {first: 1, second: 1})) == {EVERY: times[3]}
        assert not events.pending_if_behind(ends, {first: 2, second: 1})
        assert not events.pending_if_behind(ends, {}), "all was decided"


class Monitor:
    """In place of the monitor: commits that it has read the verdicts, and writes facts in a transaction."""

    def __init__(self, world: World) -> None:
        self._settings = monitor_settings(world.settings)
        servers, group = {"bootstrap.servers": self._settings.bootstrap_servers}, self._settings.job_name
        self._consumer = Consumer({**servers, "group.id": group, "enable.auto.commit": "false"})
        self.producer = Producer({**servers, "transactional.id": f"{group}-test"})
        self.producer.init_transactions(30)
        self.admin = admin_client(world.settings)
        self.verdicts, self.facts = (world.names.verdicts, 0), (world.names.facts, 0)

    def commit(self, offset: int, partition: Partition | None = None) -> None:
        """It has read up to, without it, this offset."""
        self._consumer.commit(offsets=[TopicPartition(*(partition or self.verdicts), offset)], asynchronous=False)

    def read_all(self) -> None:
        """It has read all verdicts."""
        self.commit(log_ends(self.admin, [self.verdicts])[self.verdicts])

    def facts_end(self) -> int:
        """Where a reader of committed facts gets to."""
        return last_stable_offsets(self.admin, [self.facts])[self.facts]

    def close(self) -> None:
        self._consumer.close()


@pytest.fixture
def world(broker: TestBroker, fresh_name: Callable[[str], str], tmp_path: Path) -> World:
    return World(broker, fresh_name("pending"), str(tmp_path / "checkpoint"))


@pytest.fixture
def monitor(world: World) -> Iterator[Monitor]:
    with contextlib.closing(Monitor(world)) as made:
        yield made


def _login(time: int = 5, **more: Any) -> bytes:
    event: dict[str, Any] = {"id": "v", "event_id": "e", "system": LOOKS_BACK, "event": "login", "subject": "dana"}
    return encode_verdict(Lifecycle(**event, time=time, **more))


def _pending(lag: FactLag, facts_end: int) -> dict[Any, int]:
    lag._next_poll = 0.0
    lag.poll()
    return dict(lag.pending(facts_end))


def test_a_start_finds_the_logins_that_the_monitor_has_not_read(world: World, monitor: Monitor) -> None:
    world.send([_login(), _login(3), _login(1, untrusted=("facts",))], world.names.verdicts)
    with contextlib.closing(FactLag(world.settings, monitor.admin)) as lag:
        assert _pending(lag, 0) == {SESSION: 3}
    monitor.commit(1)
    with contextlib.closing(FactLag(world.settings, monitor.admin)) as lag:
        assert _pending(lag, 0) == {SESSION: 3}
    monitor.read_all()
    with contextlib.closing(FactLag(world.settings, monitor.admin)) as lag:
        assert _pending(lag, 0) == {}


def test_a_start_waits_for_a_transaction_whose_end_is_under_way(world: World, monitor: Monitor) -> None:
    """A run before this one may have ended as soon as Kafka had answered to its commit; readers of committed verdicts
    get past it once its markers are written.
    """
    enforcer = Producer(
        {
            "bootstrap.servers": world.settings.bootstrap_servers,
            "transactional.id": f"{world.settings.job_name}-enforcer",
        }
    )
    enforcer.init_transactions(30)
    enforcer.begin_transaction()
    enforcer.produce(world.names.verdicts, _login())
    assert enforcer.flush(30) == 0
    with ThreadPoolExecutor(1) as threads:
        start = threads.submit(FactLag, world.settings, monitor.admin)
        with contextlib.suppress(TimeoutError):  # of one that does not wait
            start.result(NOT_WAITED_SECONDS)
        enforcer.commit_transaction(30)
        with contextlib.closing(start.result(60)) as lag:
            assert _pending(lag, 0) == {SESSION: 5}


def test_at_a_start_all_is_pending_while_the_end_of_a_transaction_with_facts_is_under_way(
    world: World, monitor: Monitor
) -> None:
    """Of what the monitor has read by its offsets, the facts may not be there yet."""
    world.send([_login()], world.names.verdicts)
    monitor.producer.begin_transaction()
    monitor.producer.produce(world.names.facts, b"{}", key=b"x")
    monitor.producer.flush(30)
    monitor.read_all()
    with contextlib.closing(FactLag(world.settings, monitor.admin)) as lag:
        assert PendingFacts(_pending(lag, monitor.facts_end())).affects(LOOKS_BACK, [("name", *SESSION[1:])], 5)
        monitor.producer.commit_transaction(30)
        wait_until(lambda: _pending(lag, monitor.facts_end()) == {}, "the fact is there")


def test_a_fact_is_pending_until_the_facts_topic_is_read_to_where_the_monitor_has_written_it(
    world: World, monitor: Monitor
) -> None:
    """The marker of its transaction may reach its offsets before it reaches the facts."""
    with contextlib.closing(FactLag(world.settings, monitor.admin)) as lag:
        world.send([_login()], world.names.verdicts)
        lag.add([(SESSION, 5)])
        assert _pending(lag, monitor.facts_end()) == {SESSION: 5}
        monitor.producer.begin_transaction()
        monitor.producer.produce(world.names.facts, b"{}", key=b"x")
        monitor.producer.flush(30)
        monitor.read_all()
        assert _pending(lag, monitor.facts_end()) == {SESSION: 5}
        monitor.producer.commit_transaction(30)
        wait_until(lambda: _pending(lag, monitor.facts_end()) == {}, "the fact is there")


def test_a_login_on_a_partition_that_was_added_is_pending_until_the_monitor_has_read_it(
    world: World, monitor: Monitor
) -> None:
    topic = world.names.verdicts
    with contextlib.closing(FactLag(world.settings, monitor.admin)) as lag:
        added = topic, len(partitions_of(monitor.admin, [topic]))
        monitor.admin.create_partitions([NewPartitions(topic, added[1] + 1)])[topic].result(30)
        wait_until(lambda: added in partitions_of(monitor.admin, [topic]), "the partition is there")
        producer = Producer({"bootstrap.servers": world.settings.bootstrap_servers})
        producer.produce(topic, _login(), partition=added[1])
        assert producer.flush(30) == 0
        lag.add([(SESSION, 5)])
        monitor.read_all()  # of the first partition
        assert _pending(lag, monitor.facts_end()) == {SESSION: 5}
        monitor.commit(1, added)
        assert _pending(lag, monitor.facts_end()) == {}
    with contextlib.closing(FactLag(world.settings, monitor.admin)) as lag:
        assert _pending(lag, monitor.facts_end()) == {}


def test_what_is_sent_while_the_monitor_is_away_is_bounded_and_comes_back_to_nothing(
    world: World, monitor: Monitor
) -> None:
    with contextlib.closing(FactLag(world.settings, monitor.admin)) as lag:
        for number in range(2 * SETS_HELD):
            world.send([_login(number)], world.names.verdicts)
            lag.add([((LOOKS_BACK, "Session", f"user-{number}"), number)])
            assert len(_pending(lag, 0)) == number + 1
        assert len(lag._sent) == SETS_HELD
        monitor.read_all()
        assert _pending(lag, monitor.facts_end()) == {}
