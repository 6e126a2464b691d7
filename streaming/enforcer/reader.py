"""Reads whole topics, committed records alone, up to ends that are fetched beforehand."""

import time
from collections.abc import Iterable, Iterator, Mapping

from confluent_kafka import Message, TopicPartition

from streaming.enforcer.errors import JobStopped
from streaming.enforcer.kafka import SECONDS, Partition, admin_client, log_reader, partitions_of, stable_ends
from streaming.settings import Settings

POLL_SECONDS = 0.002
FETCH = 1000


class TopicReader:
    """Follows some topics from their start. `positions`: the ends of the last complete reading, by partition."""

    def __init__(self, settings: Settings, topics: Iterable[str]) -> None:
        self._admin = admin_client(settings)
        self._consumer = log_reader(settings)
        self.partitions = partitions_of(self._admin, topics)
        self.positions: dict[Partition, int] = dict.fromkeys(self.partitions, 0)
        self._fetched = dict(self.positions)
        self._ahead: list[Message] = []  # fetched, but behind the ends of the last reading
        self._consumer.assign([TopicPartition(topic, number, 0) for topic, number in self.partitions])

    def read_to_end(self, seconds: float = SECONDS) -> Iterator[Message]:
        """Yield what lies before the ends as they are now, and nothing beyond: ends are ends of transactions.

        How far one can read is the last stable offset; how far one is, the consumer's position: it moves past
        markers and aborted records too, where waiting for a record with the last offset would hang.
        Raises KafkaException when Kafka does not answer; TimeoutError when the ends are not reached in time.
        """
        deadline = time.monotonic() + seconds
        ends = stable_ends(self._admin, self.partitions)
        held, self._ahead = self._ahead, []
        yield from self._before(ends, held)
        while any(self._fetched[partition] < end for partition, end in ends.items()):
            if time.monotonic() > deadline:
                raise TimeoutError(f"the ends {ends} are not reached within {seconds} s, only {self._fetched}")
            yield from self._before(ends, self._fetch())
        self.positions.update(ends)

    def _before(self, ends: Mapping[Partition, int], messages: list[Message]) -> Iterator[Message]:
        self._ahead += [message for message in messages if not _is_before(ends, message)]
        yield from (message for message in messages if _is_before(ends, message))

    def _fetch(self) -> list[Message]:
        messages = self._consumer.consume(FETCH, POLL_SECONDS)
        for message in messages:
            if message.error() is not None:
                raise JobStopped(f"{message.topic()}-{message.partition()} cannot be read: {message.error()}")
        for tp in self._consumer.position([TopicPartition(*partition) for partition in self.partitions]):
            self._fetched[tp.topic, tp.partition] = max(tp.offset, 0)
        return messages

    def close(self) -> None:
        """Leave Kafka."""
        self._consumer.close()


def _is_before(ends: Mapping[Partition, int], message: Message) -> bool:
    topic, partition, offset = message.topic(), message.partition(), message.offset()
    assert topic is not None
    assert partition is not None
    assert offset is not None
    return offset < ends[topic, partition]
