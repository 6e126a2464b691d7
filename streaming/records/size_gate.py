"""The size gate: no record that goes out is larger than Kafka takes, for that would stop its batch for ever.

Each kind of record is shortened in its own way where it is made: a decision becomes `error`, a verdict loses its
reasons, a dead letter its value, an alert most of its evidence. What is shortened says so. `fitting`, and its like in
the workers, are the last gate before Kafka's producer.

A size is that of the encoded record: key, value and headers.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping

import structlog

from streaming.records.formats import Header, Result
from streaming.settings import Settings
from streaming.topics import ALWAYS_FITS

log = structlog.get_logger()

OWN_HEADERS = 4 * 1024  # of a decision: content type and trace; they come on top of the limit
HEADER_BYTES = 10  # at most, for the lengths of a header's name and value


class TooLarge(Exception):
    """A record cannot be written, however it is shortened; the message names its size and the limit."""

    def __init__(self, record: str, size: int, limit: int) -> None:
        super().__init__(f"{record} has {size} bytes; at most {limit} (setting limits.record_out)")


def record_size(key: bytes | None, value: bytes | None, headers: Iterable[Header] | None = None) -> int:
    """The bytes of a record, at most, but for what every record has."""
    beside = sum(len(name.encode()) + len(text or b"") + HEADER_BYTES for name, text in headers or ())
    return len(key or b"") + len(value or b"") + beside


def fits(size: int, limit: int) -> bool:
    """Whether Kafka takes a record of so many bytes, where `limit` is the largest of its kind."""
    return size <= max(limit + OWN_HEADERS, ALWAYS_FITS)


def check_size(record: str, size: int, limit: int) -> None:
    """Raise TooLarge where a record of so many bytes does not fit."""
    if not fits(size, limit):
        raise TooLarge(record, size, limit)


def largest(settings: Settings) -> Mapping[str, int]:
    """The largest record of each topic that has another limit than `limits.record_out`, which is under ""."""
    limits, topics = settings.limits, settings.topics
    of_history = 2 * limits.document  # a document and its key
    return {"": limits.record_out, topics.facts: limits.document, topics.history: of_history}


def fitting(
    results: Iterable[Result], limits: Mapping[str, int], on_dropped: Callable[[str], None] = lambda _topic: None
) -> Iterator[Result]:
    """The last gate for what the driver writes: the results that Kafka takes; of each other one an error is logged.

    `limits`: as `largest` has them. `on_dropped` is called with the topic of each that is left out.
    """
    for result in results:
        topic, key, value, headers = result
        size, limit = record_size(key, value, headers), limits.get(topic, limits[""])
        if fits(size, limit):
            yield result
        else:
            hashed = hashlib.sha256(key or b"").hexdigest()
            log.error(
                "a record too large for Kafka is left out", topic=topic, bytes=size, most=limit, key_sha256=hashed
            )
            on_dropped(topic)
