"""Which input partitions are to be committed again though nothing of them is decided.

Kafka forgets the offsets of a group without members after offsets.retention.minutes.
"""

import itertools
import time
from collections.abc import Collection, Iterable

from streaming.commit.partition_sets import PartitionSets
from streaming.kafka.clients import Partition, PartitionOffsets

COMMITTED_AT_ONCE = 50  # partitions, since batches wait meanwhile


class IdleOffsets:
    """When each partition of the topics `inputs` was committed; after `seconds` it is overdue."""

    def __init__(self, inputs: Collection[str], sets: PartitionSets, seconds: float) -> None:
        self._inputs, self._sets, self._seconds = inputs, sets, seconds
        self._began = time.monotonic()
        self._committed_at: dict[Partition, float] = {}

    def note_committed(self, partitions: Iterable[Partition]) -> None:
        """Note that these were committed just now."""
        self._committed_at |= dict.fromkeys(partitions, time.monotonic())

    def overdue_alone(self, offsets: PartitionOffsets) -> PartitionOffsets:
        """Some of the overdue ones of `offsets`, in sets of which nothing was committed for long.

        Those of other sets are committed with what is decided of these: by the driver, the producers of these would be
        fenced.
        """
        overdue = self._overdue(offsets)
        if not overdue:
            return {}
        active = {self._sets.transactional_id(at) for at in self._committed_at if at not in overdue}
        idle = (at for at in overdue if self._sets.transactional_id(at) not in active)
        return {at: overdue[at] for at in itertools.islice(idle, COMMITTED_AT_ONCE)}

    def overdue_beside(self, partitions: Collection[Partition], offsets: PartitionOffsets) -> PartitionOffsets:
        """Some of the overdue ones of `offsets`, of other partitions in the sets of these."""
        overdue = self._overdue(offsets) if self._sets.count else {}
        ids = set(map(self._sets.transactional_id, partitions)) if overdue else set()
        others = (at for at in overdue if at not in partitions and self._sets.transactional_id(at) in ids)
        return {at: overdue[at] for at in itertools.islice(others, COMMITTED_AT_ONCE)}

    def _overdue(self, offsets: PartitionOffsets) -> PartitionOffsets:
        before = time.monotonic() - self._seconds
        return {
            at: offset
            for at, offset in offsets.items()
            if at[0] in self._inputs and self._committed_at.get(at, self._began) < before
        }
