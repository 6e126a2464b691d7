"""Consumers that read a partition no further: after a broker was restarted, librdkafka may do so for good and without
an error (confluentinc/librdkafka#4492). Assigning the partition once more does not help, a new consumer does.
"""

import time
from collections.abc import Mapping

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient

from streaming.kafka.clients import Partition, last_stable_offsets

LOOK_SECONDS = 30.0
SECONDS = 3.0  # for the answer of the cluster


def positions_of(consumer: Consumer, read: Mapping[Partition, int]) -> dict[Partition, int]:
    """Where the next record of each partition is. `read`: where reading began, or has come to.

    Before the first record librdkafka does not say. Behind it a position is that of the next fetch: also behind records
    that end transactions, which nobody is given.
    """
    positions = consumer.position([TopicPartition(*partition) for partition in read])
    return {(tp.topic, tp.partition): max(tp.offset, read[tp.topic, tp.partition]) for tp in positions}


class Progress:
    """Whether a consumer still reads what there is, by two looks between which it gave nothing of a partition.

    The position of a consumer of committed records passes over the records that end transactions, so that one that has
    read all there is stands at the last stable offset.
    """

    def __init__(self, admin: AdminClient) -> None:
        self.admin = admin
        self.begin()

    def begin(self) -> None:
        """Look at a new consumer, or at other partitions."""
        self._lacking: dict[Partition, int] = {}
        self._look_at = time.monotonic() + LOOK_SECONDS

    def is_due(self) -> bool:
        """Whether it is time for the next look; if so, the one after it comes as much later."""
        if time.monotonic() <= self._look_at:
            return False
        self._look_at = time.monotonic() + LOOK_SECONDS
        return True

    def is_stalled(self, positions: Mapping[Partition, int]) -> bool:
        """Whether one of the partitions has stood at this position since the look before, with records behind it.

        Raises KafkaException and TimeoutError where Kafka does not answer.
        """
        ends = last_stable_offsets(self.admin, positions, SECONDS)
        lacking = {partition: position for partition, position in positions.items() if position < ends[partition]}
        stalled = bool(lacking.items() & self._lacking.items())
        self._lacking = {} if stalled else lacking
        return stalled
