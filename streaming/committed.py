"""Reading topics once, from their beginning, their last records or a given place, up to ends fetched beforehand."""

import time
from collections.abc import Iterable, Iterator, Mapping

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition

from streaming.enforcer.kafka import Partition, admin_client, first_offsets, log_reader, partitions_of, stable_ends
from streaming.settings import Settings

SECONDS = 30.0
POLL_SECONDS = 0.1
FETCH = 1000


def committed_records(settings: Settings, topics: Iterable[str], last: int | None = None) -> Iterator[Message]:
    """Every committed record up to the last stable offsets; with ``last`` about so many of each partition's newest.

    Raises as `records_between`.
    """
    admin = admin_client(settings)
    partitions = partitions_of(admin, topics)
    ends, starts = stable_ends(admin, partitions), first_offsets(admin, partitions)
    if last is not None:
        starts = {partition: max(first, ends[partition] - last) for partition, first in starts.items()}
    yield from records_between(settings, starts, ends)


def records_between(
    settings: Settings, starts: Mapping[Partition, int], ends: Mapping[Partition, int]
) -> Iterator[Message]:
    """Every committed record at or above its partition's start and below its end, which must be stable.

    Raises KafkaException when the cluster does not answer; TimeoutError when it gets no further for a while.
    """
    wanted = {partition: end for partition, end in ends.items() if end > starts[partition]}
    consumer = log_reader(settings)
    try:
        consumer.assign([TopicPartition(*partition, starts[partition]) for partition in wanted])
        yield from _up_to(consumer, wanted)
    finally:
        consumer.close()


def _up_to(consumer: Consumer, ends: Mapping[Partition, int]) -> Iterator[Message]:
    """A partition that is through is paused: what lies behind its end is not fetched while others are read."""
    left, positions = set(ends), dict[Partition, int]()
    while left:
        before, positions = positions, _positions(consumer, left)
        through = {partition for partition in left if positions[partition] >= ends[partition]}
        consumer.pause([TopicPartition(*partition) for partition in through])
        left -= through
        if positions != before:
            deadline = time.monotonic() + SECONDS
        elif time.monotonic() > deadline:
            raise TimeoutError(f"the ends of {', '.join(sorted({t for t, _ in left}))} are not reached: {positions}")
        for message in consumer.consume(FETCH, POLL_SECONDS) if left else ():
            if message.error() is not None:
                raise KafkaException(message.error())
            if _offset(message) < ends[message.topic() or "", message.partition() or 0]:
                yield message


def _positions(consumer: Consumer, partitions: Iterable[Partition]) -> dict[Partition, int]:
    """Positions move past the markers of transactions too."""
    told = consumer.position([TopicPartition(*partition) for partition in partitions])
    return {(tp.topic, tp.partition): max(tp.offset, 0) for tp in told}


def _offset(message: Message) -> int:
    return message.offset() or 0


def newest_requests(settings: Settings, count: int) -> list[tuple[int, bytes]]:
    """The ``count`` newest records of the request topics together, oldest first: broker timestamp (ms) and value.

    Raises as `records_between`.
    """
    found = committed_records(settings, settings.topics.requests, count)
    ordered = sorted(found, key=lambda message: (message.timestamp()[1], message.topic(), message.offset()))
    return [(message.timestamp()[1], message.value() or b"") for message in ordered[-count:]]
