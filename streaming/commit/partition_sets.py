"""Which input partitions share a transactional id, and with it a producer, a task and a transaction of each batch."""

import zlib

import msgspec

from streaming.kafka.clients import Partition
from streaming.kafka.manifests import partition_ids

# Each task costs some 4 ms, and each transaction its markers and the offsets' commit: with 50 partitions on two cores,
# and as many tasks, the median latency was 1.25 times the one of a single transaction for all; with eight sets it was
# 0.8 to 0.9 times, and 1.8 times as many records a second were decided. Two sets even out what partitions differ in.
SETS_OF_A_SLOT = 2


class PartitionSets(msgspec.Struct, frozen=True):
    """Sets of input partitions. `count`: how many there are; 0: each partition has a transactional id of its own.

    It is the same for as long as a job runs. Another one, of the next run, is no matter: a partition whose owner is
    another id is taken over from that, see `Ownership.java`.
    """

    job: str
    count: int = 0

    def transactional_id(self, partition: Partition) -> str:
        """That of the transactions in which the partition's offsets are committed.

        A topic has no slash in its name and a partition is a number: no two jobs, and no set and partition, have the
        same one.
        """
        topic, number = partition
        own = f"{topic}/{number}"
        return partition_ids(self.job) + (self._set_of(topic, number) if self.count else own)

    def _set_of(self, topic: str, number: int) -> str:
        """The partitions of a topic, of which each may have as much to do, are spread evenly."""
        return f"{(zlib.crc32(topic.encode()) + number) % self.count}-of-{self.count}"

    def owner(self, partition: Partition) -> str:
        """As it stands beside the committed offset; empty: the id of the partition's own name."""
        return self.transactional_id(partition) if self.count else ""


def sets_for(job: str, partitions: int, slots: int) -> PartitionSets:
    """The sets of a job with so many input partitions, of whose tasks so many run side by side."""
    most = SETS_OF_A_SLOT * slots
    return PartitionSets(job, 0 if partitions <= most else most)
