"""Which offsets are decided together: all of a Spark batch, or a part where that is too much for one transaction.

What is too much shows when a task has used up its budget (see `budget`): its partition is then decided up to some
offset, and what is left of the Spark batch is read from there, about as much at a time as was decided before. Each part
is a batch by the promises: its policies are read after its range is fixed, and it has a transaction. Meanwhile
partitions that are done are read on to their newest end, so that nothing waits for the backlog of one partition. When
Spark proposes these records, they are decided, and by rule 2 left out.

A Spark batch is also decided in parts where it would let a topic or partition wait for the backlog of others: then each
part has their fair shares, see `shares`.
"""

import math
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec
import numpy as np

from streaming.commit.evaluation import SideOutput
from streaming.enforcer.shares import fair_shares, is_starved
from streaming.enforcer.source import Int64Array, Row
from streaming.kafka.clients import Partition, PartitionOffsets
from streaming.ops.tally import Counts
from streaming.records.packing import Outgoing
from streaming.records.size_gate import record_size

LEAST = 16  # offsets of a partition that are read at once, however much the last ones took
GROWTH = 8  # times as many may be read as the last time
LEAST_SHARE = 1 / 1024  # of a transaction's bytes, however often Kafka did not take one
# Each partition has a consumer and takes some ms on two cores, also for one record: at 100 requests a second the median
# latency was 155 ms with 2 partitions and 361 with 50 (2026-11-25). 10,000 at once were a batch of most of a minute.
MOST_PARTITIONS = 200
FEW_OFFSETS = 100  # offsets of a partition that are read first of a batch with which a job has ended before


class OffsetRange(msgspec.Struct, frozen=True):
    """Offsets to decide, by partition. `whole`: a Spark batch, to be read as Spark has it."""

    starts: Mapping[Partition, int]
    ends: Mapping[Partition, int]
    whole: bool = False

    @property
    def undecided(self) -> PartitionOffsets:
        """How many offsets there are, of each partition that has any."""
        counts = {partition: end - self.starts[partition] for partition, end in self.ends.items()}
        return {partition: count for partition, count in counts.items() if count > 0}

    def decided(self, side_outputs: Iterable[SideOutput]) -> PartitionOffsets:
        """Up to where each partition is decided: to the end, or to where its task stopped."""
        return {**self.ends, **stops(side_outputs)}

    def left(self, committed: Mapping[Partition, int]) -> "OffsetRange":
        """What is not decided yet."""
        starts = {partition: max(start, committed.get(partition, start)) for partition, start in self.starts.items()}
        return OffsetRange(starts, self.ends, self.whole)


def _undecided(ends: Mapping[Partition, int], committed: Mapping[Partition, int]) -> PartitionOffsets:
    """How many offsets there are before the end of each partition that are not decided."""
    return {partition: max(end - committed.get(partition, 0), 0) for partition, end in ends.items()}


def stops(side_outputs: Iterable[SideOutput]) -> PartitionOffsets:
    """Where tasks stopped, by partition: the first undecided offset."""
    ends: PartitionOffsets = {}
    for partition, decided in ((side.partition, side.decided) for side in side_outputs):
        if decided.stopped:
            ends[partition] = min(decided.end, ends.get(partition, decided.end))
    return ends


class ReadLimits:
    """How many offsets to read at once of the partitions of which all were too much. `most`: those of a Spark batch.

    `weights`: of input topics, for their shares of a batch; 1 by default. `stalled`: partitions of which nothing was
    decided the last time. `share`: of its bytes, for the next transaction.
    """

    def __init__(self, most: int, weights: Mapping[str, float] | None = None) -> None:
        self._most, self._weights = most, weights or {}
        self._limits: PartitionOffsets = {}
        self._ranges = 0
        self._read_in: PartitionOffsets = {}  # the number of the range in which a partition was read last
        self.stalled: set[Partition] = set()
        self.share = 1.0

    def failed(self) -> None:
        """Kafka did not take a transaction in time: the next one is smaller.

        With a slow disk or a quota, what takes longer than `transaction.timeout.ms` would be aborted again and again.
        """
        self.share = max(self.share / 2, LEAST_SHARE)

    def committed(self) -> None:
        """A transaction is committed: the next one may be larger."""
        self.share = min(self.share * 2, 1.0)

    def limit_first_read(self, ends: Mapping[Partition, int], committed: Mapping[Partition, int]) -> None:
        """Read little at first of a Spark batch that a job has begun and not ended: perhaps it was killed by its size.

        What a budget bounds is read by then: a million bytes that compress to a few are unpacked in Java.
        """
        for partition, end in ends.items():
            if end - committed.get(partition, 0) > FEW_OFFSETS:
                self._limits.setdefault(partition, FEW_OFFSETS)

    def is_full(self, ends: Mapping[Partition, int], committed: Mapping[Partition, int]) -> bool:
        """Whether Spark has left records for later batches, as far as the size of this one shows.

        It rounds the part of each partition down, or up to one.
        """
        return sum(_undecided(ends, committed).values()) + len(ends) >= self._most

    def first(
        self,
        ends: Mapping[Partition, int],
        committed: Mapping[Partition, int],
        replayed: bool,
        newest: Mapping[Partition, int] | None = None,
    ) -> OffsetRange:
        """What to decide first of a Spark batch. `replayed`: some of it is committed, and would be read again.

        `newest`: the newest ends, where the batch is full.
        """
        if newest and is_starved(_undecided(ends, committed), self._shares(ends, newest, committed)):
            return self.next(ends, newest, committed)
        part = self.next(ends, {}, committed)
        if part.undecided and (replayed or any(end < ends[partition] for partition, end in part.ends.items())):
            return part
        return OffsetRange(part.starts, ends, whole=not replayed)

    def next(
        self, ends: Mapping[Partition, int], newest: Mapping[Partition, int], committed: Mapping[Partition, int]
    ) -> OffsetRange:
        """What to decide next of a Spark batch with these ends, and beyond it: by fair shares of what waits."""
        starts = {partition: committed.get(partition, 0) for partition in ends}
        shares = self._shares(ends, newest, committed) if newest else self._in_turn(_undecided(ends, committed))
        reached = {
            partition: start + min(share := shares.get(partition, 0), self._limits.get(partition, share))
            for partition, start in starts.items()
        }
        return OffsetRange(starts, reached)

    def _shares(
        self, ends: Mapping[Partition, int], newest: Mapping[Partition, int], committed: Mapping[Partition, int]
    ) -> PartitionOffsets:
        newest_ends = {partition: max(end, newest.get(partition, end)) for partition, end in ends.items()}
        return fair_shares(self._in_turn(_undecided(newest_ends, committed)), self._most, self._weights)

    def _in_turn(self, waiting: Mapping[Partition, int]) -> PartitionOffsets:
        """What waits, of so many partitions as a range may have: those go first that were read the longest ago."""
        waits = [partition for partition, count in waiting.items() if count]
        if len(waits) > MOST_PARTITIONS:
            waits.sort(key=lambda partition: (self._read_in.get(partition, 0), partition))
        return {partition: waiting[partition] for partition in waits[:MOST_PARTITIONS]}

    def note(self, range_: OffsetRange, side_outputs: Iterable[SideOutput]) -> None:
        """Learn from what was decided of a range."""
        side_outputs = list(side_outputs)
        stopped = stops(side_outputs)
        self._ranges += 1
        self._read_in |= dict.fromkeys(range_.undecided, self._ranges)
        shares = dict.fromkeys(range_.undecided, 0.0)  # some may have held aborted records alone
        for side in side_outputs:
            shares[side.partition] = max(side.decided.share, shares.get(side.partition, 0.0))
        self.stalled = {partition for partition, end in stopped.items() if end <= range_.starts[partition]}
        for partition, share in shares.items():
            if partition in stopped:
                count = stopped[partition] - range_.starts[partition]
                self._limits[partition] = max(count + count // 4, LEAST)
            elif partition in self._limits:
                self._grow(partition, range_.ends[partition] - range_.starts[partition], share)

    def _grow(self, partition: Partition, count: int, share: float) -> None:
        """Read more at once: so many offsets used this share of the budget."""
        times = min(1 / max(share, 1 / GROWTH), GROWTH)
        limit = max(self._limits[partition], int(count * times))
        self._limits[partition] = limit * GROWTH if times == GROWTH and limit == self._limits[partition] else limit
        if limit >= self._most:
            del self._limits[partition]


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

    It stands still while the task waits for records. `clock`: seconds.
    """

    def __init__(self, budget: Budget, clock: Callable[[], float] = time.monotonic) -> None:
        self._budget, self._clock, self._began = budget, clock, clock()
        self._paused: float | None = None
        self.records = self.bytes = 0

    @property
    def seconds(self) -> float:
        """Of deciding, until now."""
        return (self._clock() if self._paused is None else self._paused) - self._began

    def pause(self) -> None:
        """Stop the clock until `resume`."""
        self._paused = self._clock()

    def resume(self) -> None:
        """Go on, if it was paused."""
        if self._paused is not None:
            self._began += self._clock() - self._paused
            self._paused = None

    @property
    def share(self) -> float:
        """How much of the budget is used: 1 is all of it."""
        return max(self.bytes / max(self._budget.bytes, 1), self.seconds / self._budget.seconds)

    def fitting(self, sizes: Int64Array) -> int:
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
        outgoing = decide(*row)
        used = size + record_size(outgoing[1], outgoing[2], outgoing[3])
        if self.bytes + used > self._budget.bytes and not (first and self._must_go_on()):
            counts.clear()
            counts.update(before)
            return None
        self.bytes += used
        return outgoing

    def _must_go_on(self) -> bool:
        return self._budget.exceeds and not self.records
