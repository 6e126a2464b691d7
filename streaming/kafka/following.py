"""Following topics: committed records as they come, from all partitions."""

from collections.abc import Callable, Iterator

from confluent_kafka import KafkaException, Message, TopicPartition

from streaming.kafka.clients import admin_client, first_offsets, log_reader, partitions_of, stable_ends
from streaming.settings import Settings

POLL_SECONDS = 0.1


def follow(settings: Settings, topic: str, from_beginning: bool, stopped: Callable[[], bool]) -> Iterator[Message]:
    """Every committed record of `topic` from its beginning or from now on, until `stopped` says so.

    Raises KafkaException when the cluster does not answer or the topic is missing.
    """
    admin = admin_client(settings)
    partitions = partitions_of(admin, [topic])
    starts = first_offsets(admin, partitions) if from_beginning else stable_ends(admin, partitions)
    consumer = log_reader(settings)
    try:
        consumer.assign([TopicPartition(*partition, offset) for partition, offset in starts.items()])
        while not stopped():
            for message in consumer.consume(100, POLL_SECONDS):
                if message.error() is not None:
                    raise KafkaException(message.error())
                yield message
    finally:
        consumer.close()
