"""The timestamps of single records, by their offsets."""

import math
import time
from collections.abc import Mapping

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from streaming.kafka.clients import SECONDS, Partition, head_reader
from streaming.settings import Settings

POLL_SECONDS = 0.1


class TimestampReader:
    """Reads them with a consumer of its own, which fetches little. `seconds`: how long it waits for Kafka."""

    def __init__(self, settings: Settings, seconds: float = SECONDS) -> None:
        self._settings, self._seconds = settings, seconds
        self._consumer: Consumer = head_reader(settings)

    def read(self, starts: Mapping[Partition, int], ends: Mapping[Partition, int] | None = None) -> list[int]:
        """Those (ms) of committed records from `starts` up to `ends`; without ends, of each partition's first.

        Raises KafkaException, and TimeoutError where Kafka does not send them in time.
        """
        timestamps: list[int] = []
        waiting = set(starts)
        deadline = time.monotonic() + self._seconds
        self._consumer.assign([TopicPartition(*partition, offset) for partition, offset in starts.items()])
        while waiting:
            if time.monotonic() > deadline:
                self._replace_consumer()
                raise TimeoutError(f"Kafka sent no records of {sorted(waiting)} within {self._seconds:g} s")
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
                timestamps.append(message.timestamp()[1])
            # The end may come first: behind the newest record only markers and aborted records are left.
            if error is not None or ends is None or at + 1 >= end:
                waiting.discard(partition)
                self._consumer.incremental_unassign([TopicPartition(*partition)])
        self._consumer.unassign()
        return timestamps

    def _replace_consumer(self) -> None:
        """One of librdkafka's may stand still for good, see `TopicReader`."""
        self._consumer.close()
        self._consumer = head_reader(self._settings)

    def close(self) -> None:
        """Leave Kafka."""
        self._consumer.close()
