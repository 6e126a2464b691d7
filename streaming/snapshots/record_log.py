"""The records of one topic of documents by offset, and what of its past compaction has surely left there.

See `streaming.snapshots.at_offsets` for when what was in force at an offset is still known.
"""

import bisect
from collections.abc import Iterable

import msgspec

from policy import LAST_MS, to_text
from streaming.snapshots.documents import CLOCKS_DIFFER_MS, DocumentRecord
from streaming.topics import NOTHING_READ

APART_MS = 90_000  # parts of one change are published in one transaction of 30 s; brokers' clocks differ


class NoLongerKnown(Exception):
    """The snapshot at these offsets cannot be rebuilt; the message says which topic lacks what."""


class Retention(msgspec.Struct, frozen=True):
    """What a topic still holds: `lag_ms` is its `min.compaction.lag.ms`, `start` its log start offset, 0 as a rule.

    `topic_id`: Kafka's id of the topic. What the history topic keeps of one with another id is left aside.
    """

    lag_ms: int = 0
    start: int = 0
    topic_id: str = ""


class RecordLog:
    """The records of one topic by offset. `end`: the offset up to which it was read, not included."""

    def __init__(self, topic: str, retention: Retention, opened_at: int) -> None:
        self.topic, self.start, self._id = topic, retention.start, retention.topic_id
        self.opened_at = opened_at
        # Compaction leaves segments whose newest record is younger than `min.compaction.lag.ms` (KIP-58): it neither
        # removes records there nor elsewhere for the sake of these.
        self.cutoff = opened_at - retention.lag_ms + CLOCKS_DIFFER_MS
        self.end = 0
        self.seen_from: int | None = None  # from here on every record was seen: the end when the log was opened
        self.floor = NOTHING_READ  # the oldest offset that can still be asked for
        self.records: list[DocumentRecord] = []
        self._offsets: list[int] = []
        self._times: list[int] = []  # the newest timestamp so far: a clock may run backwards, the log orders
        self._firsts: list[int] = []  # of each record, which one is the first of its change
        self._dated_from = 0  # the records of before this moment have the timestamps of their producers
        self._open: dict[str, int] = {}  # the newest record of each change whose transaction may not have ended

    def is_of(self, topic_id: bytes | None) -> bool:
        """Whether something is of this topic, as far as it is known of which topic it is."""
        return not topic_id or not self._id or topic_id == self._id.encode()

    def append(self, record: DocumentRecord) -> None:
        newest, number = self._times[-1] if self._times else 0, len(self.records)
        at = newest if record.by_producer else max(record.at, newest)
        if record.by_producer:
            self._dated_from = self.opened_at if self.seen_from is None else LAST_MS
        elif self.records and self.records[-1].by_producer:
            self._dated_from = at
        self._end_changes(record)
        first = self._first_of_change(record.change, at)
        for between in range(bisect.bisect_right(self._firsts, first), number):
            self._firsts[between] = first  # of transactions at the same time: nobody reads beyond the first open one
        if record.change:
            self._open[record.change] = number
        self._firsts.append(first)
        self.records.append(record)
        self._offsets.append(record.offset)
        self._times.append(at)

    def _end_changes(self, record: DocumentRecord) -> None:
        """Note which changes have ended before a record: behind the records of each stands its transaction's marker."""
        markers = record.offset - self._offsets[-1] - 1 if self._offsets else 0
        if markers >= len(self._open):
            self._open.clear()
        elif markers:
            for change in [change for change in self._open if change != record.change][:markers]:
                del self._open[change]

    def _first_of_change(self, change: str, at: int) -> int:
        """The number of the first record that the next one comes into force with."""
        number = len(self.records)
        first = self._firsts[self._open[change]] if change in self._open else number
        return first if first < number and at - self._times[first] <= APART_MS else number

    def insert(self, records: Iterable[DocumentRecord]) -> None:
        """Add records that stood before others; those whose offset is there already are left out."""
        there = set(self._offsets)
        merged = [*self.records, *(record for record in records if record.offset not in there)]
        self.records, self._offsets, self._times, self._firsts, self._open = [], [], [], [], {}
        for record in sorted(merged, key=lambda record: record.offset):
            self.append(record)

    def count(self, offset: int) -> int:
        """How many records there are up to an offset."""
        return bisect.bisect_right(self._offsets, offset)

    def next_time(self, offset: int) -> int | None:
        """When the first record beyond an offset came, ms."""
        count = self.count(offset)
        return self.records[count].at if count < len(self.records) else None

    def at(self, offset: int) -> DocumentRecord:
        """The record at an offset, which must be there."""
        return self.records[self.count(offset) - 1]

    def between(self, after: int, upto: int) -> list[DocumentRecord]:
        return self.records[self.count(after) : self.count(upto)]

    def _count_at(self, moment: int) -> int:
        """How many records there were at a moment (ms). Those of one change are there together, when its last one is:
        before its transaction has ended nobody reads them.
        """
        count = bisect.bisect_right(self._times, moment)
        return self._firsts[count] if count < len(self._firsts) else count

    def offset_at(self, moment: int) -> int:
        """The newest offset at a moment (ms), as far as the records that are there say."""
        following = self._count_at(moment)
        return self._offsets[following] - 1 if following < len(self._offsets) else self.end - 1

    def missing_offset_below(self, offset: int) -> int | None:
        """The newest offset below one at which no record stands; None: they are all there."""
        below = self._offsets[: bisect.bisect_left(self._offsets, offset)]
        there = set(below)
        return next((at for at in range(offset - 1, -1, -1) if at not in there), None)

    def is_complete(self) -> bool:
        """Whether no record can have been removed."""
        if not self.records:
            return self.end == 0
        first = self.records[0]
        return first.offset == 0 and self.all_seen_above(first.offset, first.at)

    def all_seen_above(self, record_offset: int, at: int) -> bool:
        """Whether a record with this offset and time, and all after it, cannot have been removed unseen."""
        return at > self.cutoff or (self.seen_from is not None and record_offset >= self.seen_from)

    def check(self, offset: int, moment: int | None) -> None:
        """Raise NoLongerKnown unless what was in force at an offset is still there; `moment`: see `snapshot_at`."""
        at = f"{self.topic} at offset {offset}"
        if offset >= self.end:
            raise NoLongerKnown(f"{at}: read up to {self.end} only; was the topic deleted and created again?")
        if self.start > 0:
            raise NoLongerKnown(f"{at}: the records below offset {self.start} were deleted")
        if offset < self.floor:
            raise NoLongerKnown(f"{at}: kept from offset {self.floor} on")
        if not self._holds_what_follows(offset, moment):
            raise NoLongerKnown(f"{at}: compaction may have removed what was in force then")

    def _holds_what_follows(self, offset: int, moment: int | None) -> bool:
        if offset == self.end - 1 or (self.seen_from is not None and offset >= self.seen_from - 1):
            return True  # all later records were seen
        count = self.count(offset)
        if count and self._times[count - 1] > self.cutoff:
            return True  # all later records are above the cutoff, as this one is
        if count < len(self._offsets) and self._times[count] <= self.cutoff:
            return False  # what it has superseded may be gone
        # Between adjacent offsets nothing was removed. A gap may be a transaction's marker as well as a removed record.
        adjacent = count < len(self._offsets) and self._offsets[count] == offset + 1
        return adjacent or (moment is not None and moment > self.cutoff)

    def check_moment(self, moment: int) -> int:
        """The newest offset at a moment (ms), by the records' timestamps; raises NoLongerKnown."""
        if moment < self._dated_from:
            raise NoLongerKnown(f"{self.topic} at {to_text(moment)}: its records were dated by their producers")
        offset = self.offset_at(moment)
        if moment <= self.cutoff and self.seen_from != 0 and (self.seen_from is None or offset < self.seen_from):
            raise NoLongerKnown(
                f"{self.topic} at {to_text(moment)}: compaction may have removed what was in force then"
            )
        self.check(offset, moment)
        return offset

    def around(self, moment: int) -> tuple[int, int | None]:
        """When the newest record at a moment (ms) came, 0 if there is none, and when all of the next change has."""
        following = self._count_at(moment)
        return self._times[following - 1] if following else 0, self._time_of_change(following)

    def next_change(self, offset: int) -> int | None:
        """When all of the first change beyond an offset had come, ms; None: there is none."""
        return self._time_of_change(self.count(offset))

    def _time_of_change(self, number: int) -> int | None:
        """When all of the change had come that a record is of, by its number; None: there is no such record."""
        if number == len(self._times):
            return None
        return self._times[bisect.bisect_right(self._firsts, self._firsts[number]) - 1]

    def forget(self, offset: int) -> None:
        """Let go of the records up to an offset, once they are taken into a document store."""
        count = self.count(offset)
        del self.records[:count], self._offsets[:count], self._times[:count]
        self._firsts = [max(first - count, 0) for first in self._firsts[count:]]
        self._open = {change: number - count for change, number in self._open.items() if number >= count}
        self.floor = max(self.floor, offset)
