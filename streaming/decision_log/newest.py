"""The newest decisions first, read backwards from the ends of the topic: a page of them must not read a day.

Kafka reads forwards alone. So the last records of each partition are read, then up to four times as many before them,
as the time that is left allows, until enough fit. What is older than the oldest that every partition has been read to
is not shown.

Producers date their records, so times run backwards where the writes of several meet in one partition. What was read
first of a partition may be newer than what lies before it, and what lies behind the end of a range may be of it.
"""

import collections
import time
from collections.abc import Mapping

import msgspec
from confluent_kafka.admin import AdminClient

from streaming.decision_log.search import Decoder, Found, Query
from streaming.history.ranges import Topics
from streaming.history.records import record_of
from streaming.kafka.clients import (
    Partition,
    first_offsets,
    last_stable_offsets,
    offsets_since,
    partitions_of,
)
from streaming.kafka.committed import records_between
from streaming.settings import Settings

TIES = 10  # times the limit: so many decisions of one moment (ms) are shown at most
FIRST_READ, GROWTH = 200, 4  # records of each partition, and how many times as many before them, at most
SURE = 0.5  # of the time that is left, what the next reading is likely to take: some come slower than others
UNSURE = 4  # the part of a reading, its oldest, before which newer ones may stand: a quarter
LATE_MS, LATE_RECORDS = 30_000, 20_000  # by how much records may be late: the job's transactions take no longer


class NewestDecisions(msgspec.Struct, frozen=True):
    """Newest first. ``read_from``: what is older than this moment (ms) was not looked at; None: there is no more.

    ``kept_from``: of those before then (ms) some may have been deleted by the topic's retention; None: none were, or
    it was not read so far back. ``unreadable``: records that were read and are no decisions. ``left_out``: how many of
    the moment ``read_from`` are too many to be shown.
    """

    found: tuple[Found, ...]
    read_from: int | None = None
    kept_from: int | None = None
    unreadable: int = 0
    left_out: int = 0


def newest(settings: Settings, admin: AdminClient, query: Query, seconds: float = 2.0) -> NewestDecisions:
    """The newest decisions of the query's range that fit. Raises KafkaException and TimeoutError.

    ``seconds``: within which the last reading is likely to end; each reading is finished.
    """
    deadline, limit = time.monotonic() + seconds, query.limit
    reader = _Reading(settings, admin, query)
    while reader.ends:
        began = time.monotonic()
        reader.read_back()
        now = time.monotonic()
        growth = min(GROWTH, SURE * (deadline - now) / max(now - began, 1e-3))
        if reader.is_blind or reader.is_at_end:  # an aborted batch has some ten thousand records
            growth = GROWTH
        elif len(reader.sure()) >= limit or growth < 1:
            break
        reader.grow(growth)
    entries = sorted(reader.sure(), key=lambda entry: (entry.record.at, entry.record.offset), reverse=True)
    if len(entries) <= limit:
        topic, since = settings.topics.decisions, query.span.start
        kept_from = Topics(settings, admin).deleted_before(topic, since) if reader.reach is None else None
        return NewestDecisions(tuple(entries), reader.reach, kept_from, reader.unreadable)
    last = entries[limit - 1].record.at
    # The next page begins before this moment, so all that was decided in it is on this one.
    same = [entry for entry in entries[limit:] if entry.record.at == last]
    shown = same[: limit * (TIES - 1)]
    left_out = len(same) - len(shown)
    return NewestDecisions((*entries[:limit], *shown), last, unreadable=reader.unreadable, left_out=left_out)


class _Reading:
    """``ends``: of each partition, below which it is not read yet; those that are through are left out."""

    def __init__(self, settings: Settings, admin: AdminClient, query: Query) -> None:
        self._settings, self._query, self._decode = settings, query, Decoder(settings)
        partitions = partitions_of(admin, [settings.topics.decisions])
        stable, span = last_stable_offsets(admin, partitions), query.span
        ends, until = (offsets_since(admin, stable, moment) for moment in (span.end, span.end + LATE_MS))
        self._starts = first_offsets(admin, ends)
        self.ends = {partition: end for partition, end in ends.items() if end > self._starts[partition]}
        self._found: list[Found] = []
        self._size = FIRST_READ
        self._oldest: dict[Partition, int] = {}  # the times (ms) that those that were not read are not newer than
        self.reach: int | None = None
        self._read(ends, {partition: min(until[partition], end + LATE_RECORDS) for partition, end in ends.items()})

    @property
    def is_blind(self) -> bool:
        """Whether of some partition no record was read yet: its newest offsets hold what was aborted."""
        return not self.ends.keys() <= self._oldest.keys()

    @property
    def is_at_end(self) -> bool:
        """Whether nothing is sure yet: the next page would be this one."""
        return self.reach is not None and self.reach >= self._query.span.end

    @property
    def unreadable(self) -> int:
        """How many records were no decisions."""
        return self._decode.unreadable

    def sure(self) -> list[Found]:
        """Those of moments from which on every partition has been read."""
        if self.is_blind:
            return []
        return [entry for entry in self._found if self.reach is None or entry.record.at >= self.reach]

    def read_back(self) -> None:
        """Read what is before, of every partition that has any."""
        starts = {partition: max(self._starts[partition], end - self._size) for partition, end in self.ends.items()}
        times, span = self._read(starts, self.ends), self._query.span
        oldest = {partition: max(read[: len(read) // UNSURE + 1]) for partition, read in times.items()}
        self.ends = {
            partition: at
            for partition, at in starts.items()
            if at > self._starts[partition] and oldest.get(partition, span.start) >= span.start
        }
        self._oldest |= oldest
        # Before them, others of the same moment may stand.
        self.reach = max((at + 1 for partition, at in self._oldest.items() if partition in self.ends), default=None)

    def _read(self, starts: Mapping[Partition, int], ends: Mapping[Partition, int]) -> dict[Partition, list[int]]:
        """Take what fits. Returns the times (ms) of what was read, in its order."""
        times, span = collections.defaultdict[Partition, list[int]](list), self._query.span
        for record in map(record_of, records_between(self._settings, starts, ends)):
            times[record.topic, record.partition].append(record.at)
            if not span.holds(record.at):
                continue
            if (entry := self._decode.fitting(record, self._query.may_fit, self._query.fits)) is not None:
                self._found.append(entry)
        return times

    def grow(self, times: float) -> None:
        """Read so many times as many the next time."""
        self._size = int(self._size * times)
