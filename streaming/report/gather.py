"""The parts of a report put together: what is read from which topic, in which order."""

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec
from confluent_kafka.admin import AdminClient

from policy import Grant, Snapshot, StatementId
from policy.analysis import Statement, statements
from streaming.history.ranges import Progress, Topics, watched
from streaming.history.records import ConsumerRecord
from streaming.history.span import Span
from streaming.kafka.clients import topic_ids
from streaming.records.avro import Undecodable, is_avro
from streaming.records.registry import Deserializer
from streaming.records.schemas import Kind
from streaming.report.decisions import DecisionTotals, StatementTotals, StoredVersion, Tally, find_unused
from streaming.report.incidents import (
    AlertTotals,
    ChangeTotals,
    DeadLetterTotals,
    sum_up_alerts,
    sum_up_changes,
    sum_up_dead_letters,
)
from streaming.report.requests import AnswerIndex, DenialTotals, Replay, RequestAnalysis
from streaming.settings import Settings
from streaming.snapshots.documents import KEPT_BY_TOPIC_MS
from streaming.snapshots.policies import Policies, policies_in_force
from streaming.topics import dead_letters_of


class Report(msgspec.Struct, frozen=True):
    """Everything that a report says. ``made``: when, ms. ``console``: its URL, for links; "": there is none.

    ``kept_from``: by topic of decisions, alerts or dead letters, the moment (ms) before which retention may have
    deleted some of the range: statements that decided before it count as unused.
    """

    job: str
    span: Span
    made: int
    decisions: DecisionTotals
    denied: DenialTotals
    statements: StatementTotals
    alerts: AlertTotals
    changes: ChangeTotals
    dead_letters: DeadLetterTotals
    console: str = ""
    kept_from: Mapping[str, int] = {}

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


InForce = tuple[Snapshot, Mapping[StatementId, Sequence[Grant | Statement]], Mapping[StatementId, StoredVersion]]
"""The policies and facts as they are now, what is written in them, and since when each statement is in force."""


def gather(
    settings: Settings, admin: AdminClient, span: Span, now: int, progress: Progress, top: int, most_replayed: int
) -> Report:
    """Read the topics and sum up. ``top``: rows of the lists of names; ``most_replayed``: questions to ask at most.

    Raises KafkaException and TimeoutError when the cluster does not answer.
    """
    topics, names = Topics(settings, admin), settings.topics
    progress("reading the policies in force")
    snapshot, in_force, stored = _in_force(settings)
    by_topic = {topic: system for system, topic in names.policy_topics().items()}
    changes = sum_up_changes(topics.in_span(by_topic, Span(0, span.end)), by_topic, settings.limits.document, span)
    refused = [dead_letters_of(topic) for topic in names.inputs]
    dead_letters = sum_up_dead_letters(topics.in_span(refused, span), span)
    deserializer = Deserializer(settings.schema_registry)
    alerts = sum_up_alerts(_in_json("alert", topics.in_span([names.alerts], span), deserializer), span)

    answered = AnswerIndex(topic_ids(admin, names.asking))
    written = watched(topics.in_span([names.decisions], span), "decisions", progress)
    trust = {topic: settings.trust_of(topic) for topic in names.asking}
    claimed = frozenset(names.answered).union(topic for topic, claims in trust.items() if "time" in claims)
    decided = Tally(span, stored, answered, claimed)
    for record in _in_json("decision", written, deserializer):
        decided.take(record)
    replay = Replay(snapshot, most_replayed)
    requests = watched(topics.at(answered.ranges()), "requests", progress)
    analysis = RequestAnalysis(answered, trust, names.answered, replay)
    for record in _in_json("request", requests, deserializer):
        analysis.take(record)
    unused = find_unused(in_force, stored, decided.named, replay, span)
    return Report(
        settings.job_name,
        span,
        now,
        decided.totals(),
        analysis.denied(top),
        unused,
        alerts,
        changes,
        dead_letters,
        settings.console.url,
        topics.deleted_before_by_topic((names.decisions, names.alerts, *refused), span.start),
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
    with policies_in_force(settings) as policies:
        written, documents = statements(policies.snapshot), dict(_documents(settings, policies))
        stored = {
            statement_id: documents[statement_id.document]
            for statement_id in written
            if statement_id.document in documents
        }
        return policies.snapshot.with_facts(policies.overlay), written, stored


def _documents(settings: Settings, policies: Policies) -> Iterator[tuple[str, StoredVersion]]:
    topics = settings.topics.policy_topics()
    for key, document_history in policies.store.histories.items():
        if (version := document_history.in_force) is not None:
            yield str(key), StoredVersion(topics[key.system], version.order, version.at)
