"""Snapshots on their way to the workers."""

import pickle
import secrets
from collections.abc import Callable
from typing import Any

import msgspec
from pyspark.core.broadcast import Broadcast

from policy import FactChange, FactOverlay, Snapshot, SnapshotChange, together


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
# Of changes that travel with each task before they are broadcast. PySpark broadcasts a function of more than 1 MiB
# (`_prepare_for_python_RDD`), again with each batch.
TAIL_BYTES = 32 << 10
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
        self,
        snapshot: Snapshot,
        since: int,
        changes_since: Callable[[Snapshot | None], list[SnapshotChange] | None],
        until: int | None = None,
    ) -> tuple[PublishedSnapshot, ...]:
        """All that are held, oldest first; a snapshot is sent unless it is the last one, object for object.

        `since`: ms, when its newest policy document came into force. `changes_since`: what it differs in from another.
        `until`: ms, when the last one ceased to be in force: where several changes were read together, before `since`.
        """
        if snapshot is not self._snapshot:
            self._publish(snapshot, since, changes_since(self._snapshot), until)
        return tuple(self._published)

    @property
    def segments(self) -> tuple[Segment, ...]:
        """How the snapshots follow one another, oldest first."""
        return tuple(opened.segment for opened in self._segments)

    @property
    def changes(self) -> "tuple[Broadcast[tuple[bytes, ...]] | None, ...]":
        """The broadcast of each segment's changes; None: there is none."""
        return tuple(opened.changes for opened in self._segments)

    def _publish(self, snapshot: Snapshot, since: int, changes: list[SnapshotChange] | None, until: int | None) -> None:
        newest = self._published[-1] if self._published else None
        number = newest.number + 1 if newest else 0
        broadcast = self._send(snapshot, number, together(changes) if changes else None)
        if newest is not None and until is not None and until < since:
            # Between the two others were in force, for moments of which the snapshots are rebuilt.
            self._published[-1] = msgspec.structs.replace(newest, until=until)
        elif newest is not None and newest.version == snapshot.version:
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
            self._segments.append(
                _Open(Segment(self._run, number, packed), base, max(SEGMENT_SIZE, grants_of(snapshot) // 4))
            )
        else:
            self._replaced += self._segments[-1].add(packed, change.size, self._broadcast)
        return self._segments[-1].base

    def tidy(self) -> None:
        """After a commit: destroy what is not needed any more."""
        # Of PySpark's, `unpersist` drops the executors' copies alone; `destroy` deletes the driver's file too.
        del self._published[: -self._kept]
        while len(self._segments) > 1 and self._segments[1].segment.first <= self._published[0].number:
            self._replaced += self._segments.pop(0).broadcasts()
        while len(self._replaced) > 1:
            self._replaced.pop(0).destroy()


def grants_of(snapshot: Snapshot) -> int:
    """How many grants there are: the size of a snapshot."""
    return sum(sum(map(len, policy_set.grants.values())) for policy_set in snapshot.policy_sets.values())


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
            self.broadcasts.append(self._broadcast(tuple(self._tail)))
            self._starts.append(self._tail_start)
            self._tail_start, self._tail = self._tail_start + len(self._tail), []
        return Facts(self._base, tuple(self._starts), self._tail_start, tuple(self._tail), self._since)

    def _rebase(self, overlay: FactOverlay, offset: int) -> None:
        layer = self._broadcast(overlay)  # first: where it fails, what there is stays
        self._replaced += self.broadcasts
        self._base, self._size, self._since = self._base + 1, len(overlay), offset
        self.broadcasts, self._starts, self._tail_start, self._tail = [layer], [], 0, []

    def tidy(self) -> None:
        """After a commit: destroy what no batch can need any more."""
        while self._replaced:
            self._replaced.pop().destroy()
