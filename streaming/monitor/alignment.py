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

from streaming.enforcer.kafka import SECONDS, Partition, head_reader, newest_time, stable_ends
from streaming.settings import Settings

POLL_SECONDS = 0.1
PROPERTY = "lockkeeper.monitor.times"  # of Spark's jobs, which pass it on to their tasks


class Times(NamedTuple):
    """The times of a batch, ms. `reached`: how far time advances by it: every partition is read up to there.

    `until`: what became known later than this is held back; infinite: nothing, as every partition is read to its end.
    """

    reached: int
    until: float


def send_times(spark: SparkSession, times: Times) -> None:
    """Have the tasks of the jobs that this thread starts receive them."""
    spark.sparkContext.setLocalProperty(PROPERTY, f"{times.reached} {times.until}")


def received_times() -> Times:
    """What was sent, in a task of such a job."""
    context = TaskContext.get()
    reached, until = str(context and context.getLocalProperty(PROPERTY)).split()
    return Times(int(reached), float(until))


class Alignment:
    """Looks beyond the ends of batches."""

    def __init__(self, settings: Settings, admin: AdminClient) -> None:
        self._admin = admin
        self._consumer: Consumer = head_reader(settings)

    def times(self, ends: Mapping[Partition, int]) -> Times:
        """How far every partition is read by a batch with these ends. Raises KafkaException and TimeoutError."""
        newest = newest_time(self._admin, ends)  # first: what comes after that is unread
        stable = stable_ends(self._admin, ends)
        unread = {partition: end for partition, end in ends.items() if end < stable[partition]}
        until = min(self._first_times(unread), default=math.inf) - 1
        return Times(int(min(newest, until)), until)

    def _first_times(self, starts: Mapping[Partition, int]) -> list[int]:
        """The timestamps (ms) of each partition's first record; of one that has only markers of transactions, none."""
        found: list[int] = []
        waiting = set(starts)
        deadline = time.monotonic() + SECONDS
        self._consumer.assign([TopicPartition(*partition, offset) for partition, offset in starts.items()])
        while waiting:
            if time.monotonic() > deadline:
                raise TimeoutError(f"Kafka did not answer within {SECONDS:g} s what is unread of {sorted(waiting)}")
            message = self._consumer.poll(POLL_SECONDS)
            if message is None:
                continue
            error = message.error()
            if error is not None and error.code() != KafkaError._PARTITION_EOF:
                raise KafkaException(error)
            partition = str(message.topic()), int(message.partition() or 0)
            if partition in waiting:
                waiting.discard(partition)
                self._consumer.incremental_unassign([TopicPartition(*partition)])
                found += [] if error is not None else [message.timestamp()[1]]
        self._consumer.unassign()
        return found

    def close(self) -> None:
        """Leave Kafka."""
        self._consumer.close()
