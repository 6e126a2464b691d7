"""Snapshots on their way to the workers."""

import msgspec
from pyspark.core.broadcast import Broadcast
from pyspark.sql import SparkSession

from policy.snapshot import Snapshot


class Published(msgspec.Struct, frozen=True):
    """A snapshot the workers can read, numbered within this run. `since`: ms, when its policies came into force."""

    number: int
    since: int
    version: str
    broadcast: "Broadcast[Snapshot]"


class Broadcasts:
    """Broadcasts a snapshot when it is another one, and destroys those that no batch can need.

    Of the last `kept` policy versions one each is held, with the newest facts that it was in force with: what
    happened then is judged by it.
    """

    def __init__(self, spark: SparkSession, kept: int) -> None:
        self._context, self._kept = spark.sparkContext, kept
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
            self._replaced.append(self._published.pop())  # other facts, the same policies
            since = newest.since
        number = newest.number + 1 if newest else 0
        # The log's clock may run backwards when another broker takes over; eras follow each other all the same.
        since = max(since, self._published[-1].since if self._published else since)
        broadcast = self._context.broadcast(snapshot)
        self._published.append(Published(number, since, snapshot.version, broadcast))
        self._snapshot = snapshot

    def tidy(self) -> None:
        """After a commit: destroy what is not needed any more; `unpersist` would leave its files behind."""
        while len(self._published) > self._kept:
            self._replaced.append(self._published.pop(0))
        while len(self._replaced) > 1:
            self._replaced.pop(0).broadcast.destroy()
