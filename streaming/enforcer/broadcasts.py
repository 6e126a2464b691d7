"""Snapshots on their way to the workers."""

import msgspec
from pyspark.core.broadcast import Broadcast
from pyspark.sql import SparkSession

from policy.snapshot import Snapshot


class Published(msgspec.Struct, frozen=True):
    """A snapshot the workers can read, numbered within this run."""

    number: int
    version: str
    broadcast: "Broadcast[Snapshot]"


class Broadcasts:
    """Broadcasts a snapshot when it is another one, and destroys those that no batch can need."""

    def __init__(self, spark: SparkSession) -> None:
        self._context = spark.sparkContext
        self._published: list[Published] = []

    def publish(self, snapshot: Snapshot) -> Published:
        """Broadcast a snapshot; it stays until two later ones are there and a batch has committed."""
        number = self._published[-1].number + 1 if self._published else 0
        self._published.append(Published(number, snapshot.version, self._context.broadcast(snapshot)))
        return self._published[-1]

    def tidy(self) -> None:
        """Destroy all but the newest two; `unpersist` would leave their files behind."""
        while len(self._published) > 2:
            self._published.pop(0).broadcast.destroy()
