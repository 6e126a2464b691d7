"""Reading topics once, from their beginning or their last records, up to their ends as they are now."""

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

    Raises KafkaException when the cluster does not answer; TimeoutError when the ends are not reached in time.
    """
    admin = admin_client(settings)
    partitions = partitions_of(admin, topics)
    ends, starts = stable_ends(admin, partitions), first_offsets(admin, partitions)
    if last is not None:
        starts = {partition: max(first, ends[partition] - last) for partition, first in starts.items()}
    consumer = log_reader(settings)
    try:
        consumer.assign([TopicPartition(*partition, start) for partition, start in starts.items()])
        yield from _up_to(consumer, {partition: end for partition, end in ends.items() if end > starts[partition]})
    finally:
        consumer.close()


def _up_to(consumer: Consumer, ends: Mapping[Partition, int]) -> Iterator[Message]:
    deadline = time.monotonic() + SECONDS
    while not _reached(consumer, ends):
        if time.monotonic() > deadline:
            raise TimeoutError(
                f"the ends of {', '.join(sorted({t for t, _ in ends}))} were not reached in {SECONDS:g} s"
            )
        for message in consumer.consume(FETCH, POLL_SECONDS):
            if message.error() is not None:
                raise KafkaException(message.error())
            yield message


def _reached(consumer: Consumer, ends: Mapping[Partition, int]) -> bool:
    """By position, which moves past the markers of transactions too."""
    positions = consumer.position([TopicPartition(*partition) for partition in ends])
    return all(max(tp.offset, 0) >= ends[tp.topic, tp.partition] for tp in positions)


def newest_requests(settings: Settings, count: int) -> list[tuple[int, bytes]]:
    """The ``count`` newest records of the request topics together, oldest first: broker timestamp (ms) and value.

    Raises as `committed_records`.
    """
    found = committed_records(settings, settings.topics.requests, count)
    ordered = sorted(found, key=lambda message: (message.timestamp()[1], message.topic(), message.offset()))
    return [(message.timestamp()[1], message.value() or b"") for message in ordered[-count:]]
