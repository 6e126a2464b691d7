"""Reading topics once, from their beginning, their last records or a given place, up to ends fetched beforehand."""

import collections
import contextlib
import heapq
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec
from confluent_kafka import Consumer, KafkaException, Message, TopicPartition

from policy import Key, Unreadable, read_value
from streaming.kafka.clients import (
    RETRIED_SECONDS,
    Partition,
    admin_client,
    first_offsets,
    last_stable_offsets,
    log_reader,
    partitions_of,
)
from streaming.kafka.stalled import positions_of
from streaming.settings import Settings

SECONDS = 30.0
POLL_SECONDS = 0.01
FETCH = 1000
READ_AHEAD = 10_000


def committed_records(settings: Settings, topics: Iterable[str], last: int | None = None) -> Iterator[Message]:
    """Every committed record up to the last stable offsets; with ``last`` about so many of each partition's newest.

    Raises as `records_between`.
    """
    admin = admin_client(settings)
    partitions = partitions_of(admin, topics)
    ends, starts = last_stable_offsets(admin, partitions), first_offsets(admin, partitions)
    if last is not None:
        starts = {partition: max(first, ends[partition] - last) for partition, first in starts.items()}
    yield from records_between(settings, starts, ends)


def records_between(
    settings: Settings, starts: Mapping[Partition, int], ends: Mapping[Partition, int]
) -> Iterator[Message]:
    """Every committed record at or above its partition's start and below its end, which must be stable.

    Raises KafkaException when the cluster does not answer; TimeoutError when it gets no further for a while.
    """
    if any(end > starts[partition] for partition, end in ends.items()):  # a consumer takes a while to begin and end
        with _assigned(settings, starts, ends) as (consumer, wanted):
            yield from _up_to(consumer, wanted)


def records_by_time(
    settings: Settings, starts: Mapping[Partition, int], ends: Mapping[Partition, int]
) -> Iterator[Message]:
    """The same in the order of their timestamps, as far as each partition is in that order.

    Holds about `READ_AHEAD` records of each partition. Raises as `records_between`.
    """
    with _assigned(settings, starts, ends) as (consumer, wanted):
        yield from _Merge(consumer, wanted)


@contextlib.contextmanager
def _assigned(
    settings: Settings, starts: Mapping[Partition, int], ends: Mapping[Partition, int]
) -> Iterator[tuple[Consumer, dict[Partition, int]]]:
    """A consumer of the partitions that have anything between start and end, and the ends of these."""
    wanted = {partition: end for partition, end in ends.items() if end > starts[partition]}
    with contextlib.closing(log_reader(settings)) as consumer:
        consumer.assign([TopicPartition(*partition, starts[partition]) for partition in wanted])
        yield consumer, wanted


class _Merge:
    """Of each partition that is not through, one record at least is held before the oldest of all is given out."""

    def __init__(self, consumer: Consumer, ends: Mapping[Partition, int]) -> None:
        self._consumer, self._ends, self._left = consumer, ends, set(ends)
        self._held: dict[Partition, collections.deque[Message]] = {partition: collections.deque() for partition in ends}
        self._oldest: list[tuple[int, Partition]] = []  # the time of the first record held of each partition
        self._paused = set[Partition]()

    def __iter__(self) -> Iterator[Message]:
        while self._fill():
            _, partition = heapq.heappop(self._oldest)
            messages = self._held[partition]
            yield messages.popleft()
            if messages:
                heapq.heappush(self._oldest, (messages[0].timestamp()[1], partition))
            elif partition in self._paused:
                self._consumer.resume([TopicPartition(*partition)])
                self._paused.discard(partition)

    def _fill(self) -> bool:
        """Read until there is a record of each partition that has any left; whether there is one at all."""
        deadline = time.monotonic() + SECONDS
        while wanting := [partition for partition in self._left if not self._held[partition]]:
            if time.monotonic() > deadline:
                raise _why_not_reached(self._consumer, wanting)
            before = len(self._left)
            if self._read() or len(self._left) < before:
                deadline = time.monotonic() + SECONDS
        return bool(self._oldest)

    def _read(self) -> int:
        messages = _consume(self._consumer)
        for message in messages:
            if message.error() is not None:
                raise KafkaException(message.error())
            partition = (message.topic() or "", message.partition() or 0)
            if _offset(message) < self._ends[partition]:
                self._hold(partition, message)
        through = {
            partition
            for partition, at in positions_of(self._consumer, dict.fromkeys(self._left, 0)).items()
            if at >= self._ends[partition]
        }
        full = {p for p in self._left - self._paused if len(self._held[p]) >= READ_AHEAD}
        self._consumer.pause([TopicPartition(*partition) for partition in full | through])
        self._left -= through
        self._paused |= full
        return len(messages)

    def _hold(self, partition: Partition, message: Message) -> None:
        if not self._held[partition]:
            heapq.heappush(self._oldest, (message.timestamp()[1], partition))
        self._held[partition].append(message)


def _up_to(consumer: Consumer, ends: Mapping[Partition, int]) -> Iterator[Message]:
    """A partition that is through is paused: what lies behind its end is not fetched while others are read."""
    left, positions = set(ends), dict[Partition, int]()
    while left:
        before, positions = positions, positions_of(consumer, dict.fromkeys(left, 0))
        through = {partition for partition in left if positions[partition] >= ends[partition]}
        consumer.pause([TopicPartition(*partition) for partition in through])
        left -= through
        if positions != before:
            deadline = time.monotonic() + SECONDS
        elif time.monotonic() > deadline:
            raise _why_not_reached(consumer, left)
        for message in _consume(consumer) if left else ():
            if message.error() is not None:
                raise KafkaException(message.error())
            if _offset(message) < ends[message.topic() or "", message.partition() or 0]:
                yield message


def _why_not_reached(consumer: Consumer, partitions: Iterable[Partition]) -> Exception:
    """The error of a consumer that gets no further: librdkafka gives it none where the brokers have gone away."""
    try:
        consumer.list_topics(timeout=RETRIED_SECONDS)
    except KafkaException as error:
        return error
    return TimeoutError(f"the ends of {', '.join(sorted({topic for topic, _ in partitions}))} are not reached")


def _consume(consumer: Consumer) -> list[Message]:
    """What has come. `consume` alone waits for as many records as it may return, also where there are no more."""
    first = consumer.consume(1, POLL_SECONDS)
    return [*first, *consumer.consume(FETCH - 1, 0)] if first else first


def _offset(message: Message) -> int:
    return message.offset() or 0


class RecordKey(NamedTuple):
    """What identifies a document on its topic: the bytes of its key, whatever text they are shown as."""

    system: str
    key: bytes

    @classmethod
    def of(cls, key: Key) -> "RecordKey":
        """The key of a document's records."""
        return cls(key.system, f"{key.kind}/{key.name}".encode())

    def __str__(self) -> str:
        return f"{self.system}/{self.key.decode('utf-8', 'backslashreplace')}"


class Stored(msgspec.Struct, frozen=True):
    """A document as it stands in its topic. `error`: why it is not in force; of what cannot be read `document` is None.

    `at`: the broker's timestamp, ms since the epoch. `value`: of the record, the bytes.
    """

    record_key: RecordKey
    topic: str
    offset: int
    at: int
    value: bytes
    document: Any = None
    error: str | None = None

    @property
    def key(self) -> str:
        """`system/kind/name` as it is shown: the keys of two records may be shown as the same."""
        return str(self.record_key)


def read_stored(settings: Settings, systems: Iterable[str]) -> list[Stored]:
    """The documents in the policy topics of `systems`, sorted by key, deleted ones left out.

    Raises KafkaException or TimeoutError when the cluster does not answer.
    """
    topics = settings.topics.policy_topics()
    by_topic = {topics[system]: system for system in systems}
    newest: dict[RecordKey, Message] = {}
    for message in committed_records(settings, by_topic):
        newest[RecordKey(by_topic[message.topic() or ""], message.key() or b"")] = message
    return sorted((_stored(key, message) for key, message in newest.items() if message.value()), key=lambda s: s.key)


def find_key(key: str) -> Key | None:
    """`system/kind/name` as a key, None when it is not one."""
    parts = key.split("/", 2)
    return Key(*parts) if len(parts) == 3 and all(parts) else None


def _stored(key: RecordKey, message: Message) -> Stored:
    return stored(key, message.topic() or "", message.offset() or 0, message.timestamp()[1], message.value() or b"")


def stored(key: RecordKey, topic: str, offset: int, at: int, value: bytes) -> Stored:
    """The document of a record. `at`: the broker's timestamp, ms."""
    try:
        return Stored(key, topic, offset, at, value, read_value(value))
    except Unreadable as error:
        return Stored(key, topic, offset, at, value, None, str(error))
