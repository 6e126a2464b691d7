"""The parts of a report put together: what is read from which topic, in which order."""

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from confluent_kafka import Consumer, Message, TopicPartition
from confluent_kafka.admin import AdminClient

from policy import Grant, Snapshot, StatementId
from policy.analysis import Statement, statements
from streaming.kafka.clients import Partition, first_offsets, last_stable_offsets, log_reader, partitions_of, topic_ids
from streaming.kafka.committed import SECONDS, records_between
from streaming.kafka.topics import dead_letters_of
from streaming.records.avro import Undecodable, is_avro
from streaming.records.registry import Deserializer
from streaming.records.schemas import Kind
from streaming.report import ConsumerRecord, Span
from streaming.report.decisions import DecisionTotals, StatementTotals, StoredVersion, find_unused, tally
from streaming.report.incidents import (
    AlertTotals,
    ChangeTotals,
    DeadLetterTotals,
    sum_up_alerts,
    sum_up_changes,
    sum_up_dead_letters,
)
from streaming.report.requests import AnswerIndex, DenialTotals, Range, Replay, analyse_requests
from streaming.settings import Settings
from streaming.snapshots.documents import KEPT_BY_TOPIC_MS
from streaming.snapshots.policies import Policies

POLICY_SECONDS = 300.0  # to read the policies and facts to their end
REPORT_EVERY, REPORT_EVERY_SECONDS = 1000, 2.0  # records to look at the clock after, and what it must say

Progress = Callable[[str], None]


class Wish(msgspec.Struct, frozen=True):
    """What the report is to be about. ``top``: rows of the lists of names; ``replay``: questions to ask at most."""

    span: Span
    top: int = 20
    replay: int = 100_000


class Report(msgspec.Struct, frozen=True):
    """Everything that a report says. ``made``: when, ms."""

    job: str
    span: Span
    made: int
    decisions: DecisionTotals
    denied: DenialTotals
    statements: StatementTotals
    alerts: AlertTotals
    changes: ChangeTotals
    dead_letters: DeadLetterTotals

    @property
    def outlived(self) -> bool:
        """Whether the range begins before what policy topics are sure to keep."""
        return self.span.start < self.made - self.kept

    @property
    def kept(self) -> int:
        """For how long policy topics keep what was replaced, ms."""
        return KEPT_BY_TOPIC_MS

    @property
    def empty(self) -> bool:
        """Whether nothing at all was recorded in the range."""
        reported_at = (self.decisions.total, self.decisions.unreadable, self.alerts.total, self.alerts.unreadable)
        return not any((*reported_at, self.changes.total, self.dead_letters.total))


class InForce(msgspec.Struct, frozen=True):
    """The policies and facts as they are now: what is written in them, and since when each statement is in force."""

    snapshot: Snapshot
    written: dict[StatementId, Sequence[Grant | Statement]]
    stored: dict[StatementId, StoredVersion]


def gather(settings: Settings, admin: AdminClient, wish: Wish, now: int, progress: Progress) -> Report:
    """Read the topics and sum up. Raises KafkaException and TimeoutError when the cluster does not answer."""
    topics, names, span = Topics(settings, admin), settings.topics, wish.span
    progress("reading the policies in force")
    now_in_force = _in_force(settings)
    by_topic = {topic: system for system, topic in names.policy_topics().items()}
    changes = sum_up_changes(topics.up_to(by_topic, span.end), by_topic, settings.limits.document, span)
    dead_letter_records = topics.in_span([dead_letters_of(topic) for topic in names.inputs], span)
    dead_letters = sum_up_dead_letters(dead_letter_records, span)
    deserializer = Deserializer(settings.schema_registry)
    alerts = sum_up_alerts(_in_json("alert", topics.in_span([names.alerts], span), deserializer), span)

    answered = AnswerIndex(topic_ids(admin, names.requests))
    written = _watched(topics.in_span([names.decisions], span), "decisions", progress)
    trust = {topic: settings.trust_of(topic) for topic in names.requests}
    claimed = frozenset(topic for topic, claims in trust.items() if "time" in claims)
    decided = tally(_in_json("decision", written, deserializer), span, now_in_force.stored, answered, claimed)
    replay = Replay(now_in_force.snapshot, trust, wish.replay)
    requests = _watched(topics.at(answered.ranges()), "requests", progress)
    replayed = analyse_requests(_in_json("request", requests, deserializer), answered, trust, replay)
    unused = find_unused(now_in_force.written, now_in_force.stored, decided.named, replay, span)
    return Report(
        settings.job_name,
        span,
        now,
        decided.totals(),
        replayed.denied(wish.top),
        unused,
        alerts,
        changes,
        dead_letters,
    )


def _in_json(kind: Kind, records: Iterable[ConsumerRecord], deserializer: Deserializer) -> Iterator[ConsumerRecord]:
    """The records, those in Avro as JSON; what cannot be read stays as it is, and is counted so."""
    for record in records:
        if not is_avro(record.value):
            yield record
            continue
        with contextlib.suppress(Undecodable):
            record = msgspec.structs.replace(record, value=deserializer.json(kind, record.value))
        yield record


def _in_force(settings: Settings) -> InForce:
    """As the job would see them if it started now: with what the history topic keeps."""
    with contextlib.closing(Policies(settings, {})) as policies:
        policies.catch_up(POLICY_SECONDS)
        written, documents = statements(policies.snapshot), dict(_documents(settings, policies))
        stored = {
            statement_id: documents[statement_id.document]
            for statement_id in written
            if statement_id.document in documents
        }
        return InForce(policies.snapshot.with_facts(policies.overlay), dict(written), stored)


def _documents(settings: Settings, policies: Policies) -> Iterator[tuple[str, StoredVersion]]:
    topics = settings.topics.policy_topics()
    for key, document_history in policies.store.histories.items():
        if (version := document_history.in_force) is not None:
            yield str(key), StoredVersion(topics[key.system], version.order, version.at)


def _watched(records: Iterable[ConsumerRecord], what: str, progress: Progress) -> Iterator[ConsumerRecord]:
    """The records as they come, and every few seconds how many they were; at the end too."""
    reported_at, count = time.monotonic(), 0
    for count, record in enumerate(records, 1):
        yield record
        if count % REPORT_EVERY == 0 and time.monotonic() - reported_at > REPORT_EVERY_SECONDS:
            reported_at = time.monotonic()
            progress(f"read {count:,} {what} …")
    progress(f"read {count:,} {what}")


Offsets = dict[Partition, int]

# Producers date their records and brokers the ends of transactions, so times run backwards in a topic by as much as a
# transaction may take: Kafka's `transaction.max.timeout.ms`, unless it was changed.
DISORDER_MS = 900_000


class Topics:
    """A cluster's topics as one report sees them: nothing that is written after it began is in it."""

    def __init__(self, settings: Settings, admin: AdminClient) -> None:
        self._settings, self._admin = settings, admin

    def in_span(self, topics: Iterable[str], span: Span) -> Iterator[ConsumerRecord]:
        """The records with a time in ``span``, found by Kafka's index of times.

        One that is dated more than `DISORDER_MS` before what was written ahead of it may be missing at the end.
        Raises KafkaException and TimeoutError when the cluster does not answer.
        """
        partitions = partitions_of(self._admin, topics)
        ends = last_stable_offsets(self._admin, partitions)
        starts = self._since(ends, span.start)
        until = self._since(ends, span.end + DISORDER_MS)
        yield from (record for record in self._read(starts, until) if span.start <= record.at < span.end)

    def up_to(self, topics: Iterable[str], moment: int) -> Iterator[ConsumerRecord]:
        """The records from the topics' beginning to the last before ``moment`` (ms). Raises as `in_span`."""
        partitions = partitions_of(self._admin, topics)
        ends = last_stable_offsets(self._admin, partitions)
        until = self._since(ends, moment + DISORDER_MS)
        yield from (r for r in self._read(first_offsets(self._admin, partitions), until) if r.at < moment)

    def at(self, ranges: Mapping[Partition, Range]) -> Iterator[ConsumerRecord]:
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

    def _read(self, starts: Mapping[Partition, int], ends: Mapping[Partition, int]) -> Iterator[ConsumerRecord]:
        return map(record_of, records_between(self._settings, starts, ends))

    def _since(self, ends: Mapping[Partition, int], moment: int) -> Offsets:
        """The first offset at or after a moment (ms) in each partition; its end when there is none."""
        if not ends:
            return {}
        with contextlib.closing(log_reader(self._settings)) as consumer:
            return dict(_found(consumer, ends, moment))


def _found(consumer: Consumer, ends: Mapping[Partition, int], moment: int) -> Iterator[tuple[Partition, int]]:
    wanted = [TopicPartition(*partition, moment) for partition in ends]
    for tp in consumer.offsets_for_times(wanted, timeout=SECONDS):
        end = ends[tp.topic, tp.partition]
        yield (tp.topic, tp.partition), min(tp.offset, end) if tp.offset >= 0 else end


def record_of(message: Message) -> ConsumerRecord:
    """A consumed record; an empty key or value and none are the same."""
    return ConsumerRecord(
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
