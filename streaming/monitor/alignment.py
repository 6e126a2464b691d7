"""Partitions read in portions, aligned in time: up to when every one of them has been read.

A batch with a bound takes a part of each partition, and the parts end at different times. The driver finds out up to
when nothing is unread, and sends it to the workers of the batch; time goes no further, and what is later is held back.
"""

import math
import time
from collections.abc import Mapping
from typing import NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark import TaskContext
from pyspark.sql import SparkSession

from streaming.kafka.clients import SECONDS, Partition, first_offsets, head_reader, last_stable_offsets
from streaming.settings import Settings

POLL_SECONDS = 0.1
TAIL = 20  # offsets, among which a partition's newest record is; many are markers of transactions
PROPERTY = "lockkeeper.monitor.times"  # of Spark's jobs, which pass it on to their tasks


class Times(NamedTuple):
    """The times of a batch, ms.

    `least`: time has advanced so far already, or does so in any case; `most`: every partition is read up to there with
    this batch. `until`: what became known later is held back. Infinite: every partition is read to its end.
    """

    least: int
    most: float
    until: float

    def reached(self, newest: int) -> int:
        """How far time advances by a batch whose newest record this is; never back, or Spark would drop records."""
        return max(int(min(newest, self.most)), self.least)


def send_times(spark: SparkSession, times: Times) -> None:
    """Have the tasks of the jobs that this thread starts receive them."""
    spark.sparkContext.setLocalProperty(PROPERTY, " ".join(map(str, times)))


def received_times() -> Times:
    """What was sent, in a task of such a job."""
    context = TaskContext.get()
    least, most, until = str(context and context.getLocalProperty(PROPERTY)).split()
    return Times(int(least), float(most), float(until))


class Alignment:
    """Looks beyond the ends of batches."""

    def __init__(self, settings: Settings, admin: AdminClient) -> None:
        self._admin = admin
        self._consumer: Consumer = head_reader(settings)
        self._behind = True  # not known yet

    def times(self, ends: Mapping[Partition, int]) -> Times:
        """How far every partition is read by a batch with these ends. Raises KafkaException and TimeoutError."""
        stable = last_stable_offsets(self._admin, ends)
        unread = {partition: end for partition, end in ends.items() if end < stable[partition]}
        until = min(self._timestamps(unread), default=math.inf) - 1
        was_behind, self._behind = self._behind, until < math.inf
        caught_up = was_behind and not self._behind
        return Times(self._newest(ends) if caught_up else 0, until, until)

    def _newest(self, ends: Mapping[Partition, int]) -> int:
        """The newest time below the ends: a batch before may have read it ahead of others."""
        first = first_offsets(self._admin, ends)
        starts = {partition: max(end - TAIL, first[partition]) for partition, end in ends.items()}
        return max(self._timestamps(starts, ends), default=0)

    def _timestamps(self, starts: Mapping[Partition, int], ends: Mapping[Partition, int] | None = None) -> list[int]:
        """Those (ms) of committed records from `starts` up to `ends`; without ends, of each partition's first."""
        found: list[int] = []
        waiting = set(starts)
        deadline = time.monotonic() + SECONDS
        self._consumer.assign([TopicPartition(*partition, offset) for partition, offset in starts.items()])
        while waiting:
            if time.monotonic() > deadline:
                raise TimeoutError(f"Kafka sent no records of {sorted(waiting)} within {SECONDS:g} s")
            message = self._consumer.poll(POLL_SECONDS)
            if message is None:
                continue
            error, partition = message.error(), (str(message.topic()), int(message.partition() or 0))
            if error is not None and error.code() != KafkaError._PARTITION_EOF:
                raise KafkaException(error)
            if partition not in waiting:
                continue
            at, end = int(message.offset() or 0), math.inf if ends is None else ends[partition]
            if error is None and at < end:
                found.append(message.timestamp()[1])
            if error is not None or ends is None or at + 1 >= end:
                waiting.discard(partition)
                self._consumer.incremental_unassign([TopicPartition(*partition)])
        self._consumer.unassign()
        return found

    def close(self) -> None:
        """Leave Kafka."""
        self._consumer.close()
