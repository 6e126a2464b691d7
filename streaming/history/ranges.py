"""Ranges of topics, by time or by offsets: nothing that is written after a reading began is in it."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping

import msgspec
from confluent_kafka.admin import AdminClient

from streaming.history.records import ConsumerRecord, record_of
from streaming.history.span import Span
from streaming.kafka.clients import (
    Partition,
    PartitionOffsets,
    first_offsets,
    last_stable_offsets,
    offsets_since,
    partitions_of,
)
from streaming.kafka.committed import records_between
from streaming.records.decision import Place
from streaming.settings import Settings

CLOCKS_MS = 60_000  # by how much the clocks of brokers and producers may differ
REPORT_EVERY, REPORT_EVERY_SECONDS = 1000, 2.0  # records to look at the clock after, and what it must say

Progress = Callable[[str], None]
# Producers date their records and brokers the ends of transactions, so times run backwards in a topic by as much as a
# transaction may take: Kafka's `transaction.max.timeout.ms`, unless it was changed.
DISORDER_MS = 900_000


class Range(msgspec.Struct, frozen=True):
    """Offsets of one partition from ``first`` up to, not including, ``end``."""

    first: int
    end: int


def widen(ranges: dict[Partition, Range], source: Place) -> None:
    """Have the range of a partition hold a record, and what lies between."""
    partition, first, end = (source.topic, source.partition), source.offset, source.offset + 1
    covered = ranges.get(partition, Range(first, end))
    if not covered.first <= first < covered.end or partition not in ranges:
        ranges[partition] = Range(min(covered.first, first), max(covered.end, end))


class Topics:
    """A cluster's topics as one report sees them: nothing that is written after it began is in it.

    All methods raise KafkaException and TimeoutError when the cluster does not answer.
    """

    def __init__(self, settings: Settings, admin: AdminClient) -> None:
        self._settings, self._admin = settings, admin

    def in_span(self, topics: Iterable[str], span: Span) -> Iterator[ConsumerRecord]:
        """The records with a time in ``span``, found by Kafka's index of times.

        One that is dated more than `DISORDER_MS` before what was written ahead of it may be missing at the end.
        """
        records = self._read(self.ranges(topics, span))
        yield from (record for record in records if span.start <= record.at < span.end)

    def ranges(self, topics: Iterable[str], span: Span) -> dict[Partition, Range]:
        """Between which offsets the records with a time in ``span`` stand, other records among them."""
        ends = last_stable_offsets(self._admin, partitions_of(self._admin, topics))
        starts, until = (
            offsets_since(self._admin, ends, span.start),
            offsets_since(self._admin, ends, span.end + DISORDER_MS),
        )
        return {partition: Range(start, until[partition]) for partition, start in starts.items()}

    def since(self, topics: Iterable[str], moment: int) -> Iterator[ConsumerRecord]:
        """The records from a moment (ms) on, and some before: clocks differ."""
        ends = last_stable_offsets(self._admin, partitions_of(self._admin, topics))
        starts = offsets_since(self._admin, ends, moment - CLOCKS_MS)
        yield from self._read({partition: Range(start, ends[partition]) for partition, start in starts.items()})

    def at(self, ranges: Mapping[Partition, Range]) -> Iterator[ConsumerRecord]:
        """The records at these offsets, as far as they are still there."""
        if not ranges:
            return
        there = set(partitions_of(self._admin, {topic for topic, _ in ranges}))
        wanted = {partition: offsets for partition, offsets in ranges.items() if partition in there}
        first, ends = first_offsets(self._admin, wanted), last_stable_offsets(self._admin, wanted)
        yield from self._read(
            {
                partition: Range(max(offsets.first, first[partition]), min(offsets.end, ends[partition]))
                for partition, offsets in wanted.items()
            }
        )

    def record(self, source: Place) -> ConsumerRecord | None:
        """The record there; None: it is no longer."""
        ranges = {(source.topic, source.partition): Range(source.offset, source.offset + 1)}
        return next(self.at(ranges), None)

    def deleted_before(self, topic: str, since: int) -> int | None:
        """The moment (ms) before which some record from `since` (ms) on may have been deleted; None: none was."""
        kept_from = self.kept_from(last_stable_offsets(self._admin, partitions_of(self._admin, [topic])))
        return kept_from if kept_from > since else None

    def deleted_before_by_topic(self, topics: Iterable[str], since: int) -> dict[str, int]:
        """The same of several topics: of those from which some record may have been deleted."""
        moments = ((topic, self.deleted_before(topic, since)) for topic in topics)
        return {topic: moment for topic, moment in moments if moment is not None}

    def kept_from(self, ends: PartitionOffsets) -> int:
        """The moment (ms) before which some record of these partitions may have been deleted; 0: none was."""
        first = first_offsets(self._admin, ends)
        cut = (self._first_time(p, Range(first[p], end)) for p, end in ends.items() if first[p] > 0)
        return max(cut, default=0)

    def _first_time(self, partition: Partition, offsets: Range) -> int:
        """The time of the first record of a partition; where there is none, now."""
        first = next(self._read({partition: offsets}), None)
        return time.time_ns() // 1_000_000 if first is None else first.at

    def _read(self, ranges: Mapping[Partition, Range]) -> Iterator[ConsumerRecord]:
        starts = {partition: offsets.first for partition, offsets in ranges.items()}
        ends = {partition: offsets.end for partition, offsets in ranges.items()}
        return map(record_of, records_between(self._settings, starts, ends))


def watched(records: Iterable[ConsumerRecord], what: str, progress: Progress) -> Iterator[ConsumerRecord]:
    """The records as they come, and every few seconds how many they were; at the end too."""
    reported_at, count = time.monotonic(), 0
    for count, record in enumerate(records, 1):
        yield record
        if count % REPORT_EVERY == 0 and time.monotonic() - reported_at > REPORT_EVERY_SECONDS:
            reported_at = time.monotonic()
            progress(f"read {count:,} {what} …")
    progress(f"read {count:,} {what}")
