"""Facts that the monitor has yet to derive from logins, starts and stops of jobs which the enforcer has passed on.

Seconds go by between the two. What is evaluated meanwhile and reads such a fact would be judged without it: its verdict
is `unknown`.
"""

import contextlib
import threading
import time
from collections.abc import Iterable, Iterator, Mapping

import msgspec
import structlog
from confluent_kafka import Consumer, KafkaException
from confluent_kafka.admin import AdminClient

from policy.evaluation import Lookup
from streaming.commit.evaluation import SideOutput
from streaming.commit.offsets import read_committed
from streaming.errors import CannotStart
from streaming.kafka.clients import (
    RETRIED_SECONDS,
    Partition,
    first_offsets,
    group_observer,
    log_ends,
    partitions_of,
)
from streaming.kafka.committed import records_between
from streaming.records.audit import DERIVED_KINDS, Derived, Lifecycle, decode_verdict, derived_fact
from streaming.settings import Settings, monitor_settings

FACTS_HELD = 10_000  # of one set; beyond them every derived fact of all systems is pending
SETS_HELD = 16
REPLAYED_SECONDS = 10.0  # the start waits for it
POLL_SECONDS = 0.5
LIFECYCLE = b'"lifecycle"'
EVERY: Derived = ("", "", "")
"""In place of a fact: any of any system."""
ALWAYS = -(1 << 62)  # ms: before any moment

log = structlog.get_logger()


class PendingFacts:
    """Since when (ms) each derived fact may say something else than is known. Bounded: see `EVERY`."""

    def __init__(self, since: Mapping[Derived, int] | None = None) -> None:
        self._since = dict(since or {})

    def __bool__(self) -> bool:
        return bool(self._since)

    def __iter__(self) -> Iterator[tuple[Derived, int]]:
        return iter(self._since.items())

    def copy(self) -> "PendingFacts":
        """A copy, which does not change with this one."""
        return PendingFacts(self._since)

    def note(self, fact: Derived, since: int) -> None:
        """A fact is pending since a moment (ms)."""
        self._since[fact] = min(since, self._since.get(fact, since))
        if len(self._since) > FACTS_HELD:
            self._since = {EVERY: min(self._since.values())}

    def update(self, others: Iterable[tuple[Derived, int]]) -> None:
        """All of these are pending, too."""
        for fact, since in others:
            self.note(fact, since)

    def affects(self, system: str, reads: Iterable[Lookup], at: int) -> bool:
        """Whether one of these derived facts, read at a moment (ms), is pending since then or longer."""
        facts = (EVERY, *((system, lookup[1], lookup[2]) for lookup in reads)) if self._since else ()
        return any(at >= self._since.get(fact, at + 1) for fact in facts)


def derived_reads(reads: Iterable[Lookup]) -> tuple[Lookup, ...]:
    """The lookups of facts that the monitor derives, which are found by their names alone."""
    return tuple(lookup for lookup in reads if lookup[0] == "name" and lookup[1] in DERIVED_KINDS)


class FactReads:
    """What the accesses of one partition in a batch read of derived facts. `pending`: of these, which grows.

    `passed_on`: by this batch. `newest`: the newest moment (ms) at which each one was read that was not pending.
    """

    def __init__(self, pending: PendingFacts) -> None:
        self._pending, self.passed_on = pending, PendingFacts()
        self.newest: dict[Derived, int] = {}

    def is_pending(self, system: str, reads: Iterable[Lookup], at: int) -> bool:
        """Whether an access at a moment (ms) that reads these is evaluated without an event before it."""
        if self._pending.affects(system, reads, at):
            return True
        for _, kind, name in reads:
            fact = (system, kind, name)
            self.newest[fact] = max(at, self.newest.get(fact, at))
        if len(self.newest) > FACTS_HELD:
            self.newest = {EVERY: max(self.newest.values())}
        return False

    def pass_on(self, event: Lifecycle) -> None:
        """An event is passed on to the monitor."""
        fact = derived_fact(event)
        if fact is not None:
            self._pending.note(fact, event.time)
            self.passed_on.note(fact, event.time)


def overlooked(side_outputs: Iterable[SideOutput], undecided: PendingFacts, again: bool) -> PendingFacts:
    """The facts that are pending beside a batch, where one of its accesses has read one without that; else none.

    These are the facts that the batch has passed on itself, for partitions are evaluated beside each other, and those
    of `undecided` events. `again`: the batch was evaluated once more already, and may be for ever; so all are pending.
    """
    side_outputs = list(side_outputs)
    pending = undecided.copy()
    for side in side_outputs:
        pending.update(side.passed_on)
    reads = ((fact, at) for side in side_outputs for fact, at in side.fact_reads)
    if not any(_is_read(pending, fact, at) for fact, at in reads):
        return PendingFacts()
    return PendingFacts({EVERY: ALWAYS}) if again else pending


def _is_read(pending: PendingFacts, fact: Derived, at: int) -> bool:
    if fact == EVERY:
        return any(at >= since for _, since in pending)
    return pending.affects(fact[0], [("name", *fact[1:])], at)


class _Sent(msgspec.Struct):
    """Facts passed on by transactions that are committed.

    `verdicts`: the ends of the verdicts topic after these; None: not fetched yet. `facts`: the end of the facts topic
    after the monitor had committed these; None: it has not yet.
    """

    pending: PendingFacts
    verdicts: dict[Partition, int] | None = None
    facts: int | None = None


class FactLag:
    """Follows how far the monitor has come. `poll` and the rest may be called by two threads.

    The monitor commits its offsets of the verdicts topic and the facts in one transaction. Its offsets may be there
    before its records are: the marker of a transaction reaches each partition by itself. So a fact is there once the
    facts topic is read to its end, open transactions included, as it was after the offsets were read.
    """

    def __init__(self, settings: Settings, admin: AdminClient) -> None:
        self._admin, self._topics = admin, settings.topics
        self._monitor: Consumer = group_observer(monitor_settings(settings))
        self._lock = threading.Lock()
        self._sent: list[_Sent] = []
        self._next_poll = 0.0
        self.add(self._replayed(settings))

    def _replayed(self, settings: Settings) -> PendingFacts:
        """What a run before this one has passed on, and the monitor has not read.

        Open transactions included: the last one of a run that was killed may be committed, and its markers not written.
        """
        pending, deadline = PendingFacts(), time.monotonic() + REPLAYED_SECONDS
        try:
            verdicts = self._verdicts()
            first, ends = first_offsets(self._admin, verdicts), log_ends(self._admin, verdicts)
            starts = {**first, **{at: max(offset, first[at]) for at, offset in self._read_by_monitor(verdicts).items()}}
            self._await_facts()
            for message in records_between(settings, starts, ends):
                pending.update(_passed_on_by(message.value() or b""))
                if time.monotonic() > deadline:
                    raise TimeoutError(f"not read within {REPLAYED_SECONDS:g} s")
        except (KafkaException, TimeoutError, CannotStart) as error:
            why = "accesses that depend on logins or runs are unknown until the monitor has caught up"
            log.warning(why, error=str(error))
            return PendingFacts({EVERY: ALWAYS})
        return pending

    def _await_facts(self) -> None:
        """Until the facts topic is read to its end, all are pending: some of what the monitor has read, as its offsets
        say, may not be there yet.
        """
        facts = (self._topics.facts, 0)
        self._sent.append(_Sent(PendingFacts({EVERY: ALWAYS}), {}, log_ends(self._admin, [facts])[facts]))

    def _verdicts(self) -> list[Partition]:
        """The partitions of the verdicts topic as they are now: it may get more while the job runs."""
        return partitions_of(self._admin, [self._topics.verdicts], RETRIED_SECONDS)

    def _read_by_monitor(self, verdicts: list[Partition]) -> dict[Partition, int]:
        committed = read_committed(self._monitor, verdicts, RETRIED_SECONDS)
        return {partition: entry.offset for partition, entry in committed.items()}

    def add_any_fact(self) -> None:
        """Another instance may have passed on any fact."""
        self.add([(EVERY, ALWAYS)])

    def add(self, passed_on: Iterable[tuple[Derived, int]]) -> None:
        """Facts were passed on by a transaction that is committed."""
        pending = PendingFacts()
        pending.update(passed_on)
        if not pending:
            return
        with self._lock:
            if not self._sent or (self._sent[-1].verdicts is not None and len(self._sent) < SETS_HELD):
                self._sent.append(_Sent(pending))
                return
            merged = self._sent[-1].pending.copy()
            merged.update(pending)
            self._sent[-1] = _Sent(merged)  # its ends are fetched again

    def pending(self, facts_end: int) -> PendingFacts:
        """What is pending where the facts topic is read up to, without it, this offset."""
        with self._lock:
            self._sent = [sent for sent in self._sent if sent.facts is None or sent.facts > facts_end]
            sets = [sent.pending for sent in self._sent]
        merged = sets[0].copy() if sets else PendingFacts()
        for other in sets[1:]:
            merged.update(other)
        return merged

    def poll(self) -> None:
        """Look how far the monitor is, now and then. Where Kafka does not answer, everything stays pending."""
        with self._lock:
            waiting = [sent for sent in self._sent if sent.facts is None]
        if not waiting or time.monotonic() < self._next_poll:
            return
        self._next_poll = time.monotonic() + POLL_SECONDS
        with contextlib.suppress(KafkaException, TimeoutError, CannotStart):
            self._look(waiting)

    def _look(self, waiting: list[_Sent]) -> None:
        verdicts = self._verdicts()
        ends = log_ends(self._admin, verdicts, RETRIED_SECONDS)
        for sent in waiting:
            before = sent.verdicts or ends
            # Fewer in a topic that was re-created.
            sent.verdicts = {at: min(end, ends[at]) for at, end in before.items() if at in ends}
        read = self._read_by_monitor(verdicts)
        done = [sent for sent in waiting if all(read.get(at, 0) >= end for at, end in (sent.verdicts or {}).items())]
        if done:
            facts = (self._topics.facts, 0)
            end = log_ends(self._admin, [facts], RETRIED_SECONDS)[facts]
            for sent in done:
                sent.facts = end

    def close(self) -> None:
        """Leave Kafka."""
        self._monitor.close()


def _passed_on_by(value: bytes) -> Iterator[tuple[Derived, int]]:
    """What a record of the verdicts topic is about, if a fact is derived from it."""
    if LIFECYCLE not in value:
        return
    with contextlib.suppress(msgspec.DecodeError):
        verdict = decode_verdict(value)
        if isinstance(verdict, Lifecycle) and (fact := derived_fact(verdict)) is not None:
            yield fact, verdict.time
