"""Reading a time range of topics: from the first record at or after its start, committed records alone."""

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from confluent_kafka import Consumer, Message, TopicPartition
from confluent_kafka.admin import AdminClient

from streaming.kafka.clients import Partition, first_offsets, last_stable_offsets, log_reader, partitions_of
from streaming.kafka.committed import SECONDS, records_between
from streaming.report.records import Record
from streaming.report.requests import Range
from streaming.report.span import Span
from streaming.settings import Settings

Offsets = dict[Partition, int]

# Producers date their records and brokers the ends of transactions, so times run backwards in a topic by as much as a
# transaction may take: Kafka's `transaction.max.timeout.ms`, unless it was changed.
DISORDER_MS = 900_000


class Topics:
    """A cluster's topics as one report sees them: nothing that is written after it began is in it."""

    def __init__(self, settings: Settings, admin: AdminClient) -> None:
        self._settings, self._admin = settings, admin

    def in_span(self, topics: Iterable[str], span: Span) -> Iterator[Record]:
        """The records with a time in ``span``, found by Kafka's index of times.

        One that is dated more than `DISORDER_MS` before what was written ahead of it may be missing at the end.
        Raises KafkaException and TimeoutError when the cluster does not answer.
        """
        partitions = partitions_of(self._admin, topics)
        ends = last_stable_offsets(self._admin, partitions)
        starts = self._since(ends, span.start)
        until = self._since(ends, span.end + DISORDER_MS)
        yield from (record for record in self._read(starts, until) if span.start <= record.at < span.end)

    def up_to(self, topics: Iterable[str], moment: int) -> Iterator[Record]:
        """The records from the topics' beginning to the last before ``moment`` (ms). Raises as `in_span`."""
        partitions = partitions_of(self._admin, topics)
        ends = last_stable_offsets(self._admin, partitions)
        until = self._since(ends, moment + DISORDER_MS)
        yield from (r for r in self._read(first_offsets(self._admin, partitions), until) if r.at < moment)

    def at(self, ranges: Mapping[Partition, Range]) -> Iterator[Record]:
        """The records at these offsets, as far as they are still there. Raises as `in_span`."""
        if not ranges:
            return
        there = set(partitions_of(self._admin, {topic for topic, _ in ranges}))
        wanted = {partition: found for partition, found in ranges.items() if partition in there}
        first, ends = first_offsets(self._admin, wanted), last_stable_offsets(self._admin, wanted)
        starts = {partition: max(found.first, first[partition]) for partition, found in wanted.items()}
        yield from self._read(
            starts, {partition: min(found.end, ends[partition]) for partition, found in wanted.items()}
        )

    def _read(self, starts: Mapping[Partition, int], ends: Mapping[Partition, int]) -> Iterator[Record]:
        return map(record_of, records_between(self._settings, starts, ends))

    def _since(self, ends: Mapping[Partition, int], moment: int) -> Offsets:
        """The first offset at or after a moment (ms) in each partition; its end when there is none."""
        if not ends:
            return {}
        with contextlib.closing(log_reader(self._settings)) as consumer:
            return dict(_found(consumer, ends, moment))


def _found(consumer: Consumer, ends: Mapping[Partition, int], moment: int) -> Iterator[tuple[Partition, int]]:
    asked = [TopicPartition(*partition, moment) for partition in ends]
    for tp in consumer.offsets_for_times(asked, timeout=SECONDS):
        end = ends[tp.topic, tp.partition]
        yield (tp.topic, tp.partition), min(tp.offset, end) if tp.offset >= 0 else end


def record_of(message: Message) -> Record:
    """A consumed record; an empty key or value and none are the same."""
    return Record(
        message.topic() or "",
        message.partition() or 0,
        message.offset() or 0,
        message.timestamp()[1],
        message.key() or b"",
        message.value() or b"",
        tuple(map(_header, message.headers() or ())),
    )


def _header(header: Any) -> tuple[str, bytes]:
    name, value = header
    return name, value.encode() if isinstance(value, str) else value or b""
