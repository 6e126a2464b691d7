"""The budget of a task: how much of its offset range a worker decides.

Spark limits a micro-batch by records alone. A record may have a thousand bytes or a million, and hold one question or a
thousand, so a task also stops where its share of the batch's bytes or seconds is used up. What it has decided is always
the beginning of its range: the driver commits the offset up to which it came, and the rest is read again later.
"""

import math
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec
import numpy as np

from streaming.enforcer.records import Numbers, Row
from streaming.kafka.clients import Partition
from streaming.ops.tally import Counts
from streaming.records.packing import Outgoing
from streaming.records.size_gate import record_size

Decide = Callable[[bytes | None, bytes | None, list[dict[str, Any]] | None, int, int], Outgoing]
"""The record to write for one of these key, value, headers, offset and time."""

LEAST_SECONDS = 0.1  # of a task, however many there are


class Budget(msgspec.Struct, frozen=True):
    """What a task may use: bytes of the records that it reads and makes, and seconds.

    `exceeds`: its first record is decided even if that alone takes more. A task without it may decide nothing.
    """

    bytes: int
    seconds: float
    exceeds: bool = True


UNLIMITED = Budget(2**62, math.inf)


def budgets_of(
    undecided: Mapping[Partition, int], whole: Budget, slots: int, stalled: Iterable[Partition], exceeding: int
) -> dict[Partition, Budget]:
    """The budget of each partition's task. Of the bytes, and of the seconds of `slots` tasks that run side by side,
    half is for all alike, and half in proportion to how many offsets are `undecided`.

    `exceeding`: how many partitions may go beyond with their first record, those that are `stalled` before others.
    """
    offsets, first = max(sum(undecided.values()), 1), set(stalled)
    privileged = set(sorted(undecided, key=lambda partition: (partition not in first, partition))[:exceeding])

    def budget(partition: Partition) -> Budget:
        share = (undecided[partition] / offsets + 1 / len(undecided)) / 2
        seconds = max(min(whole.seconds, whole.seconds * slots * share), LEAST_SECONDS)
        return Budget(int(whole.bytes * share), seconds, partition in privileged)

    return {partition: budget(partition) for partition in undecided}


class Usage:
    """What a task has used of its budget. `records`, `bytes`: of what is decided. The clock starts here.

    `clock`: seconds.
    """

    def __init__(self, budget: Budget, clock: Callable[[], float] = time.monotonic) -> None:
        self._budget, self._clock, self._began = budget, clock, clock()
        self.records = self.bytes = 0

    @property
    def seconds(self) -> float:
        """Since it began."""
        return self._clock() - self._began

    @property
    def share(self) -> float:
        """How much of the budget is used: 1 is all of it."""
        return max(self.bytes / max(self._budget.bytes, 1), self.seconds / self._budget.seconds)

    def fitting(self, sizes: Numbers) -> int:
        """How many of the next records, which have so many bytes, may be decided as far as can be said before."""
        if self._must_go_on():
            least = 1
        elif self.seconds >= self._budget.seconds:
            return 0
        else:
            least = 0
        room = self._budget.bytes - self.bytes
        if int(sizes.sum()) <= room:
            return len(sizes)
        return max(int(np.searchsorted(np.cumsum(sizes), room, side="right")), least)

    def is_over(self, first: bool) -> bool:
        """Whether the seconds are used up. `first`: no record of this Arrow batch is before the next one."""
        return not (first and self._must_go_on()) and self.seconds >= self._budget.seconds

    def decide(self, decide: Decide, row: Row, size: int, counts: Counts, first: bool) -> Outgoing | None:
        """The record to write for one; None, and nothing is counted: it would go beyond the budget.

        `size`: of the row, bytes; `first`: no record of this Arrow batch is before it.
        """
        if self.is_over(first):
            return None
        before = counts.copy()
        made = decide(*row)
        used = size + record_size(made[1], made[2], made[3])
        if self.bytes + used > self._budget.bytes and not (first and self._must_go_on()):
            counts.clear()
            counts.update(before)
            return None
        self.bytes += used
        return made

    def _must_go_on(self) -> bool:
        return self._budget.exceeds and not self.records
