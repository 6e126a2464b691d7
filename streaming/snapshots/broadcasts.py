"""Snapshots on their way to the workers."""

import pickle
import secrets
import time
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import structlog
from pyspark.core.broadcast import Broadcast

from policy import FactChange, FactOverlay, Snapshot, SnapshotChange, together
from streaming.snapshots.at_offsets import DocumentLog, NoLongerKnown


class PublishedSnapshot(msgspec.Struct, frozen=True):
    """A snapshot the workers can read, numbered within this run. `since`: ms, when its policies came into force.

    `until`: ms, when they ceased to be; None: when those of the next one came into force. `broadcast`: of the snapshot
    itself, or of the one that its segment begins with.
    """

    number: int
    since: int
    version: str
    broadcast: "Broadcast[Snapshot]"
    until: int | None = None


class Segment(msgspec.Struct, frozen=True):
    """Snapshots that follow one that is broadcast, whose number is `first`: each is made out of the one before.

    Changes are pickled: the first ones are in a broadcast, as many as `sent`; `tail` are the others. `bridge`: the
    change that makes the first snapshot out of the one before it, for workers that have that; None: there is none.
    `run`: whose numbers these are.
    """

    run: int
    first: int
    bridge: bytes | None = None
    sent: int = 0
    tail: tuple[bytes, ...] = ()


class _Open:
    """A segment while it grows, with its broadcasts."""

    def __init__(self, segment: Segment, base: "Broadcast[Snapshot]", most: int) -> None:
        self.segment, self.base, self._left = segment, base, most
        self.changes: Broadcast[tuple[bytes, ...]] | None = None
        self._packed: list[bytes] = []

    def has_room(self, size: int) -> bool:
        return size <= self._left and len(self._packed) < SEGMENT_CHANGES

    def add(
        self, change: bytes, size: int, broadcast: "Callable[[Any], Broadcast[Any]]"
    ) -> "list[Broadcast[tuple[bytes, ...]]]":
        """Go on by a change, or, where that fails, stay as it is. Returns what later batches do not need any more."""
        packed, tail, before = [*self._packed, change], (*self.segment.tail, change), self.changes
        if sum(map(len, tail)) > TAIL_BYTES:
            self.changes = broadcast(tuple(packed))
            self.segment = msgspec.structs.replace(self.segment, sent=len(packed), tail=())
        else:
            self.segment = msgspec.structs.replace(self.segment, tail=tail)
        self._packed, self._left = packed, self._left - size
        return [before] if before is not None and before is not self.changes else []

    def broadcasts(self) -> "list[Broadcast[Any]]":
        return [self.base] if self.changes is None else [self.base, self.changes]


SNAPSHOTS_KEPT = 8  # audit events that come late are evaluated under the policies of their time; older ones are rebuilt
TAIL_BYTES = 32 << 10  # of changes that travel with each task before they are broadcast
SEGMENT_CHANGES = 1_000  # a worker that starts has to take them all together
SEGMENT_SIZE = 2_000  # or a quarter of the snapshot: so much may be different before a segment ends


class Broadcasts:
    """Broadcasts a snapshot, then how it changes, and destroys what no batch can need.

    The last `kept` policy versions are held: what happened under them is evaluated under them. `on_broadcast` is called
    with each snapshot that is sent. `broadcast`: Spark's function for that.
    """

    def __init__(
        self, broadcast: "Callable[[Any], Broadcast[Any]]", kept: int, on_broadcast: Callable[[], None]
    ) -> None:
        self._broadcast, self._kept, self._on_broadcast = broadcast, kept, on_broadcast
        self._run = secrets.randbits(62)
        self._snapshot: Snapshot | None = None
        self._published: list[PublishedSnapshot] = []
        self._segments: list[_Open] = []
        self._replaced: list[Broadcast[Any]] = []

    def current(
        self, snapshot: Snapshot, since: int, changes_since: Callable[[Snapshot | None], list[SnapshotChange] | None]
    ) -> tuple[PublishedSnapshot, ...]:
        """All that are held, oldest first; a snapshot is sent unless it is the last one, object for object.

        `since`: ms, when its newest policy document came into force. `changes_since`: what it differs in from another.
        """
        if snapshot is not self._snapshot:
            self._publish(snapshot, since, changes_since(self._snapshot))
        return tuple(self._published)

    @property
    def segments(self) -> tuple[Segment, ...]:
        """How the snapshots follow one another, oldest first."""
        return tuple(one.segment for one in self._segments)

    @property
    def changes(self) -> "tuple[Broadcast[tuple[bytes, ...]] | None, ...]":
        """The broadcast of each segment's changes; None: there is none."""
        return tuple(one.changes for one in self._segments)

    def _publish(self, snapshot: Snapshot, since: int, changes: list[SnapshotChange] | None) -> None:
        newest = self._published[-1] if self._published else None
        number = newest.number + 1 if newest else 0
        broadcast = self._send(snapshot, number, together(changes) if changes else None)
        if newest is not None and newest.version == snapshot.version:
            self._published.pop()  # the same policies once more: what was refused may differ
            since = newest.since
        # The log's clock may run backwards when another broker takes over; eras follow each other all the same.
        since = max(since, self._published[-1].since if self._published else since)
        self._published.append(PublishedSnapshot(number, since, snapshot.version, broadcast))
        self._snapshot = snapshot
        self._on_broadcast()

    def _send(self, snapshot: Snapshot, number: int, change: SnapshotChange | None) -> "Broadcast[Snapshot]":
        """The broadcast that the segment of a snapshot begins with."""
        packed = None if change is None else pickle.dumps(change, pickle.HIGHEST_PROTOCOL)
        if change is None or packed is None or not self._segments[-1].has_room(change.size):
            base = self._broadcast(snapshot.without_findings())
            self._segments.append(_Open(Segment(self._run, number, packed), base, _most(snapshot)))
        else:
            self._replaced += self._segments[-1].add(packed, change.size, self._broadcast)
        return self._segments[-1].base

    def tidy(self) -> None:
        """After a commit: destroy what is not needed any more; `unpersist` would leave its files behind."""
        del self._published[: -self._kept]
        while len(self._segments) > 1 and self._segments[1].segment.first <= self._published[0].number:
            self._replaced += self._segments.pop(0).broadcasts()
        while len(self._replaced) > 1:
            self._replaced.pop(0).destroy()


def _most(snapshot: Snapshot) -> int:
    """How much may be different in a segment."""
    return max(
        SEGMENT_SIZE,
        sum(sum(map(len, policy_set.grants.values())) for policy_set in snapshot.policy_sets.values()) // 4,
    )


class Facts(msgspec.Struct, frozen=True):
    """How the workers get the facts: a layer, and the changes to it since, numbered from 0.

    `starts`: the number of the first change in each broadcast after the first, which is the layer; `tail`: the newest
    changes themselves, from `tail_start` on. `base`: which of this run's layers it is, and `since`: the newest offset
    of the facts topic that it holds.
    """

    base: int
    starts: tuple[int, ...]
    tail_start: int
    tail: tuple[FactChange, ...]
    since: int = -1


PART = 500  # changes that travel with each task before they become a broadcast of their own
REBASED = 10_000  # changes after which a layer is broadcast as a whole, unless it is larger itself
RECENT = REBASED // 2  # changes from before a start of the job that are known one by one


class FactBroadcasts:
    """Broadcasts the facts once and then what changes: a login costs as much as a login, however much is known.

    `broadcast`: Spark's function for that.
    """

    def __init__(self, broadcast: "Callable[[Any], Broadcast[Any]]") -> None:
        self._broadcast = broadcast
        self._base, self._size, self._since = -1, 0, -1
        self._starts: list[int] = []
        self._tail_start, self._tail = 0, list[FactChange]()
        self.broadcasts: list[Broadcast[Any]] = []
        self._replaced: list[Broadcast[Any]] = []

    def current(
        self,
        overlay: FactOverlay,
        changes: list[FactChange],
        offset: int = -1,
        older: tuple[FactOverlay, int] | None = None,
    ) -> Facts:
        """How things stand after `changes`, which `overlay` has taken in; `broadcasts` are what it refers to.

        `offset`: the newest of the facts topic in it. `older`: the layer at an earlier offset, which is broadcast first
        if there is none yet, so that what was known since then is known.
        """
        self._tail += changes
        if self._base < 0 and older is not None:
            self._rebase(*older)
            self._tail = [change for change in changes if change.order > self._since]
        if self._base < 0 or self._tail_start + len(self._tail) > max(REBASED, self._size):
            self._rebase(overlay, offset)
        elif len(self._tail) > PART:
            self._starts.append(self._tail_start)
            self.broadcasts.append(self._broadcast(tuple(self._tail)))
            self._tail_start, self._tail = self._tail_start + len(self._tail), []
        return Facts(self._base, tuple(self._starts), self._tail_start, tuple(self._tail), self._since)

    def _rebase(self, overlay: FactOverlay, offset: int) -> None:
        self._replaced += self.broadcasts
        self._base, self._size, self._since = self._base + 1, len(overlay), offset
        self.broadcasts = [self._broadcast(overlay)]
        self._starts, self._tail_start, self._tail = [], 0, []

    def tidy(self) -> None:
        """After a commit: destroy what no batch can need any more."""
        while self._replaced:
            self._replaced.pop().destroy()


log = structlog.get_logger()

AT_ONCE_SECONDS = 10.0  # of work, before there is none left
SHARE = 0.1  # of the time may be spent on it from then on
HELD_SECONDS = 600.0
TIMES_HELD = 4  # so many times as many are held as there are snapshots of the present


class WorkBudget:
    """How long may be spent on rebuilding: `at_once` seconds, then a share of the time. `clock`: seconds."""

    def __init__(self, at_once: float, clock: Callable[[], float]) -> None:
        self._at_once, self._clock = at_once, clock
        self._left, self._looked_at = at_once, clock()

    def spend(self, seconds: float) -> None:
        """Count work that was done."""
        self._left -= seconds

    def has_time(self) -> bool:
        """Whether there may be more work now."""
        now = self._clock()
        self._left = min(self._left + SHARE * (now - self._looked_at), self._at_once)
        self._looked_at = now
        return self._left > 0


class PastSnapshots:
    """Holds rebuilt snapshots. `documents`: what they are rebuilt from; `send`: Spark's function to broadcast one.

    `kept`: how many snapshots of the present are held. `clock`: seconds.
    """

    def __init__(
        self,
        documents: DocumentLog,
        send: "Callable[[Snapshot], Broadcast[Snapshot]]",
        kept: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._documents, self._send, self._clock = documents, send, clock
        self._most = TIMES_HELD * kept
        self._held: dict[int, tuple[float, PublishedSnapshot]] = {}  # by since; with when it was rebuilt
        self._lost: set[int] = set()  # since when those were in force that cannot be rebuilt
        self._gone: list[Broadcast[Snapshot]] = []
        self._budget = WorkBudget(AT_ONCE_SECONDS, clock)

    def held(self) -> tuple[PublishedSnapshot, ...]:
        """What is held, oldest first."""
        return tuple(published for _, (_, published) in sorted(self._held.items()))

    def rebuild(self, moments: Iterable[int]) -> bool:
        """Rebuild the snapshots in force at these moments (ms), as far as they can be; whether there is any new one."""
        before = len(self._held)
        for moment in sorted(set(moments), reverse=True):
            if len(self._held) >= self._most or not self._budget.has_time():
                break
            self._rebuild(moment)
        return len(self._held) > before

    def _rebuild(self, moment: int) -> None:
        try:
            span = self._documents.policies_at(moment)
            if span.since in self._held or span.since in self._lost:
                return
            began = self._clock()
            self._lost.add(span.since)  # until it is there
            snapshot = self._documents.snapshot_at(span.offsets, None, moment)
        except NoLongerKnown as error:
            log.debug("policies of an audit event's time are no longer known", error=str(error))
            return
        self._lost.discard(span.since)
        # Never the newest: its number is that of no snapshot of the present.
        published = PublishedSnapshot(-1, span.since, snapshot.version, self._send(snapshot), span.until)
        self._held[span.since] = (self._clock(), published)
        self._budget.spend(self._clock() - began)
        log.info("policies of audit events' time rebuilt", version=snapshot.version, since=span.since)

    def tidy(self) -> None:
        """After a commit: let go of what was rebuilt a while ago."""
        while self._gone:
            self._gone.pop().destroy()
        for since, (rebuilt_at, published) in list(self._held.items()):
            if self._clock() - rebuilt_at > HELD_SECONDS:
                del self._held[since]
                self._gone.append(published.broadcast)
        if len(self._lost) > self._most:
            self._lost.clear()
