"""Snapshots on their way to the workers."""

from collections.abc import Callable
from typing import Any

import msgspec
from pyspark.core.broadcast import Broadcast
from pyspark.sql import SparkSession

from policy.layer import FactChange, FactLayer
from policy.snapshot import Snapshot


class Published(msgspec.Struct, frozen=True):
    """A snapshot the workers can read, numbered within this run. `since`: ms, when its policies came into force.

    `until`: ms, when they ceased to be; None: when those of the next one came into force.
    """

    number: int
    since: int
    version: str
    broadcast: "Broadcast[Snapshot]"
    until: int | None = None


class Broadcasts:
    """Broadcasts a snapshot when it is another one, and destroys those that no batch can need.

    The last `kept` policy versions are held: what happened under them is judged by them. `on_broadcast` is called
    with each snapshot that is sent.
    """

    def __init__(self, spark: SparkSession, kept: int, on_broadcast: Callable[[], None]) -> None:
        self._context, self._kept, self._on_broadcast = spark.sparkContext, kept, on_broadcast
        self._snapshot: Snapshot | None = None
        self._published: list[Published] = []
        self._replaced: list[Published] = []

    def current(self, snapshot: Snapshot, since: int) -> tuple[Published, ...]:
        """All that are held, oldest first; a snapshot is broadcast unless it is the last one, object for object.

        `since`: ms, when its newest policy document came into force.
        """
        if snapshot is not self._snapshot:
            self._publish(snapshot, since)
        return tuple(self._published)

    def _publish(self, snapshot: Snapshot, since: int) -> None:
        newest = self._published[-1] if self._published else None
        if newest is not None and newest.version == snapshot.version:
            self._replaced.append(self._published.pop())  # the same policies once more: what was refused may differ
            since = newest.since
        number = newest.number + 1 if newest else 0
        # The log's clock may run backwards when another broker takes over; eras follow each other all the same.
        since = max(since, self._published[-1].since if self._published else since)
        broadcast = self._context.broadcast(snapshot)
        self._published.append(Published(number, since, snapshot.version, broadcast))
        self._snapshot = snapshot
        self._on_broadcast()

    def tidy(self) -> None:
        """After a commit: destroy what is not needed any more; `unpersist` would leave its files behind."""
        while len(self._published) > self._kept:
            self._replaced.append(self._published.pop(0))
        while len(self._replaced) > 1:
            self._replaced.pop(0).broadcast.destroy()


class Facts(msgspec.Struct, frozen=True):
    """How the workers get the facts: a layer, and the changes to it since, numbered from 0.

    `starts`: the number of the first change in each broadcast after the first, which is the layer; `tail`: the newest
    changes themselves, from `tail_start` on. `base`: which of this run's layers it is.
    """

    base: int
    starts: tuple[int, ...]
    tail_start: int
    tail: tuple[FactChange, ...]


PART = 500  # changes that travel with each task before they become a broadcast of their own
REBASED = 10_000  # changes after which a layer is broadcast anew, unless it is larger itself


class FactBroadcasts:
    """Broadcasts the facts once and then what changes: a login costs as much as a login, however much is known.

    `broadcast`: Spark's function for that.
    """

    def __init__(self, broadcast: "Callable[[Any], Broadcast[Any]]") -> None:
        self._broadcast = broadcast
        self._base, self._size = -1, 0
        self._starts: list[int] = []
        self._tail_start, self._tail = 0, list[FactChange]()
        self.broadcasts: list[Broadcast[Any]] = []
        self._replaced: list[Broadcast[Any]] = []

    def current(self, layer: FactLayer, changes: list[FactChange]) -> Facts:
        """How things stand after `changes`, which `layer` has already taken in; `broadcasts` are what it refers to."""
        self._tail += changes
        if self._base < 0 or self._tail_start + len(self._tail) > max(REBASED, self._size):
            self._rebase(layer)
        elif len(self._tail) > PART:
            self._starts.append(self._tail_start)
            self.broadcasts.append(self._broadcast(tuple(self._tail)))
            self._tail_start, self._tail = self._tail_start + len(self._tail), []
        return Facts(self._base, tuple(self._starts), self._tail_start, tuple(self._tail))

    def _rebase(self, layer: FactLayer) -> None:
        self._replaced += self.broadcasts
        self._base, self._size = self._base + 1, len(layer)
        self.broadcasts = [self._broadcast(layer)]
        self._starts, self._tail_start, self._tail = [], 0, []

    def tidy(self) -> None:
        """After a commit: destroy what no batch can need any more."""
        while self._replaced:
            self._replaced.pop().destroy()
