"""Consumed records as plain data."""

from typing import Any

import msgspec
from confluent_kafka import Message

from streaming.records.decision import Place


class ConsumerRecord(msgspec.Struct, frozen=True):
    """A record of a topic. ``at``: Kafka's timestamp of it, ms."""

    topic: str
    partition: int
    offset: int
    at: int
    key: bytes
    value: bytes
    headers: tuple[tuple[str, bytes], ...] = ()

    @property
    def source(self) -> Place:
        """Where it stands, as its answer names it."""
        return Place(self.topic, self.partition, self.offset)


def record_of(message: Message) -> ConsumerRecord:
    """A consumed record; an empty key or value and none are the same."""
    headers: Any = message.headers() or ()
    return ConsumerRecord(
        message.topic() or "",
        message.partition() or 0,
        message.offset() or 0,
        message.timestamp()[1],
        message.key() or b"",
        message.value() or b"",
        tuple((name, value.encode() if isinstance(value, str) else value or b"") for name, value in headers),
    )
