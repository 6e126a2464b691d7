"""Snapshots on their way to the workers."""

from collections.abc import Callable

import msgspec
from pyspark.core.broadcast import Broadcast
from pyspark.sql import SparkSession

from policy.snapshot import Snapshot


class Published(msgspec.Struct, frozen=True):
    """A snapshot the workers can read, numbered within this run."""

    number: int
    snapshot: Snapshot
    broadcast: "Broadcast[Snapshot]"


class Broadcasts:
    """Broadcasts a snapshot when it is another one, and destroys those that no batch can need.

    `on_broadcast` is called with each one that is sent.
    """

    def __init__(self, spark: SparkSession, on_broadcast: Callable[[], None]) -> None:
        self._context, self._on_broadcast = spark.sparkContext, on_broadcast
        self._published: list[Published] = []

    def current(self, snapshot: Snapshot) -> Published:
        """Broadcast a snapshot unless it is the last one, object for object."""
        newest = self._published[-1] if self._published else None
        if newest is not None and newest.snapshot is snapshot:
            return newest
        number = newest.number + 1 if newest else 0
        self._published.append(Published(number, snapshot, self._context.broadcast(snapshot)))
        self._on_broadcast()
        return self._published[-1]

    def tidy(self) -> None:
        """After a commit: destroy all but the newest two; `unpersist` would leave their files behind."""
        while len(self._published) > 2:
            self._published.pop(0).broadcast.destroy()
