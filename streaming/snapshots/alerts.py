"""Alerts about the documents: their records (contracts, "Alert"). Ids are deterministic: one for one occasion."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from policy import SEVERITIES, to_text, worst
from policy.analysis import Escalation
from streaming.alert_kinds import FIXED_SEVERITIES, AlertKind
from streaming.kafka.clients import RETRIED_SECONDS, Partition, last_stable_offsets, log_ends
from streaming.records.alert import Alert, alert_record
from streaming.records.formats import Result
from streaming.settings import Settings
from streaming.snapshots.documents import PublishedDocument, Refused

SHOWN = 20  # principals of an escalation, and escalations of an alert; the rest is counted


def policy_rejected(topic: str, refused: Refused) -> Result:
    """A document was refused; which, and why."""
    message = f"{refused.document} was refused; what was in force before it stays: {'; '.join(refused.errors)}"
    evidence = [{"topic": refused.topic, "offset": refused.offset, "errors": list(refused.errors)}]
    return _record_of(topic, AlertKind.POLICY_REJECTED, refused, message, evidence)


def policy_stale(topic: str, partition: Partition, offset: int, since: int, why: str, suffix: str = "") -> Result:
    """A documents' topic could not be read for longer than the bound. `since`: ms. `suffix`: of the alert's id."""
    name, number = partition
    occasion, evidence = f"{name}-{number}-{offset}{suffix}", [{"topic": name, "partition": number, "offset": offset}]
    message = f"{name}-{number} cannot be read beyond offset {offset} since {to_text(since)}: {why}"
    return _record(topic, AlertKind.POLICY_STALE, occasion, since, name, message, evidence)


def topic_recreated(topic: str, name: str, before: str, after: str, offsets: Mapping[int, int], at: int) -> Result:
    """A topic that was deleted and re-created is read from its beginning, as `accepted_topic_ids` allows.

    `before`, `after`: its topic ids. `offsets`: those below which the deleted one was decided or read, by partition, as
    far as Kafka still has them. `at`: ms.
    """
    ends = {str(number): offset for number, offset in sorted(offsets.items())}
    listed = ", ".join(f"{number}: {offset}" for number, offset in ends.items())
    upto = f"up to the offsets {{{listed}}}" if ends else "up to offsets that Kafka has deleted with it"
    message = (
        f"topic {name} was deleted and re-created; the new one is read from its beginning, as its topic id "
        f"is in accepted_topic_ids. The deleted one was read {upto}: what came after them is lost"
    )
    evidence = [{"topic": name, "topic_id_before": before, "topic_id": after, "offsets_before": ends or None}]
    return _record(topic, AlertKind.TOPIC_RECREATED, f"{name}-{after}", at, name, message, evidence)


def privilege_escalation(
    topic: str, record: PublishedDocument, opened: Sequence[Escalation], published: Mapping[str, PublishedDocument]
) -> Result:
    """A change granted a privileged permission, or lifted a deny. ``published``: records of changed documents."""
    shown = sorted(opened, key=lambda escalation: (-SEVERITIES.index(escalation.severity), escalation))[:SHOWN]
    causes = sorted({cause for escalation in opened for cause in escalation.causes})
    records = [(cause, published[cause]) for cause in causes[:SHOWN]]
    evidence = [{"document": cause, "topic": of.topic, "offset": of.offset} for cause, of in records]
    evidence += map(_evidence, shown)
    evidence += [{"more": len(opened) - SHOWN}] if len(opened) > SHOWN else []
    message = f"{', '.join(causes[:SHOWN])} changed: {'; '.join(map(_opened, shown))}"
    severity = worst(escalation.severity for escalation in opened)
    return _record_of(topic, AlertKind.PRIVILEGE_ESCALATION, record, message, evidence, severity)


def unknown_escalation(topic: str, record: PublishedDocument, why: str) -> Result:
    """What a change opens could not be worked out: the owners of the policies must review it."""
    message = f"what the change of {record.document} opens, and for whom, could not be worked out: {why}"
    evidence = [{"document": record.document, "topic": record.topic, "offset": record.offset}]
    return _record_of(topic, AlertKind.PRIVILEGE_ESCALATION, record, message, evidence, "high")


def incomplete_escalation(
    topic: str,
    record: PublishedDocument,
    documents: Sequence[str],
    complete: bool,
    merged: int,
    escalations: Sequence[Escalation],
) -> Result:
    """What a change opens is not known whole: the analysis was too much work, or changes came too fast for it.

    ``merged``: how many changes were compared together with the first; ``escalations``: what is known, in alerts of
    its own.
    """
    why = [] if complete else ["the analysis would have taken too much work and ended early"]
    why += [f"{merged + 1} changes came sooner than they could be analysed, and were compared as one"] if merged else []
    named = f"{', '.join(documents[:SHOWN])}{f' and {len(documents) - SHOWN} more' if len(documents) > SHOWN else ''}"
    message = (
        f"what the change of {named} opens is known in part only: {'; '.join(why)}. "
        f"Found until then, in alerts of their own: {len(escalations)}. Look at the rest with `lockkeeper policy diff`"
    )
    first = {"document": record.document, "topic": record.topic, "offset": record.offset}
    evidence = [first, {"documents": list(documents[:SHOWN]), "documents_count": len(documents)}]
    return _record_of(topic, AlertKind.PRIVILEGE_ESCALATION, record, message, evidence, "high", "-incomplete")


def enforcement_disabled(topic: str, record: PublishedDocument, grants: Sequence[str]) -> Result:
    """Enforcement is off: every principal may do everything."""
    message = f"{record.document} says that nothing is enforced: everybody in it may do everything"
    evidence = [{"topic": record.topic, "offset": record.offset, "grants": list(grants)}]
    return _record_of(topic, AlertKind.ENFORCEMENT_DISABLED, record, message, evidence)


def _record_of(
    topic: str,
    kind: AlertKind,
    record: PublishedDocument,
    message: str,
    evidence: Sequence[Mapping[str, Any]],
    severity: str = "",
    suffix: str = "",
) -> Result:
    """An alert about the document of a record. Its time is in the id: a re-created topic has the same offsets again."""
    occasion = f"{record.topic}-{record.offset}-{record.at}{suffix}"
    return _record(topic, kind, occasion, record.at, record.document, message, evidence, severity)


def _record(
    topic: str,
    kind: AlertKind,
    occasion: str,
    at: int,
    subject: str,
    message: str,
    evidence: Sequence[Mapping[str, Any]],
    severity: str = "",
) -> Result:
    """An alert for a topic. `occasion`: what the id adds to the kind; `at`: ms; `severity`: "" for that of the kind."""
    alert = Alert(
        id=f"{kind}-{occasion}",
        kind=kind,
        severity=severity or FIXED_SEVERITIES[kind],
        time=to_text(at),
        subject=subject,
        message=message,
        evidence=evidence,
    )
    return alert_record(topic, subject, alert)


def _opened(escalation: Escalation) -> str:
    statement = escalation.statement
    origin = escalation.document if statement < 0 else f"{escalation.document} statement {statement}"
    return f"{', '.join(escalation.names)} for {_principals(escalation)} ({origin})"


def _principals(escalation: Escalation) -> str:
    """The first three, and how many more."""
    named, more = ", ".join(escalation.principals[:3]), len(escalation.principals[3:]) + escalation.unseen
    return f"{named} and {more} more" if more and named else named or f"up to {more}"


def _evidence(escalation: Escalation) -> dict[str, Any]:
    fields = {name: value for name, value in msgspec.to_builtins(escalation).items() if value}
    principals = {
        "holders": escalation.principals[:SHOWN],
        "holders_count": len(escalation.principals) + escalation.unseen,
    }
    return {**fields, **principals, "statement": None if escalation.statement < 0 else escalation.statement}


class StaleWatch:
    """Remembers since when each of `partitions`, of policies and facts, stands, and which were reported.

    `late`: how many stand for too long. `clock`: monotonic, s.
    """

    def __init__(
        self,
        admin: AdminClient,
        settings: Settings,
        partitions: Iterable[Partition],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._admin, self._alerts_topic, self._clock = admin, settings.topics.alerts, clock
        self._partitions = sorted(partitions)
        self._bound = settings.policy_stale_seconds
        self._behind: dict[Partition, tuple[int, float]] = {}
        self._reported: set[tuple[Partition, int]] = set()
        self.late = 0

    def unread(self, positions: Mapping[Partition, int], since: float, why: str) -> list[Result]:
        """Alerts when the topics could not be read to their end since `since`. To be asked once for each outage.

        Their ids say since when: the next time may find the same offsets.
        """
        if self._clock() - since < self._bound:
            return []
        topic, at = self._alerts_topic, self._moment(since)
        return [policy_stale(topic, p, positions[p], at, why, f"-{at}") for p in self._partitions]

    def stuck(self) -> list[Result]:
        """Alerts of partitions whose last stable offset stands behind their end: a transaction was left open."""
        try:
            ends = log_ends(self._admin, self._partitions, RETRIED_SECONDS)
            stable = last_stable_offsets(self._admin, self._partitions, RETRIED_SECONDS)
        except (KafkaException, TimeoutError):
            return []  # reading the policies fails in the same way, waits, and reports it
        # Kafka aborts a transaction that its producer has left, after `transaction.timeout.ms`. One that hangs
        # (KAFKA-9144) is there until somebody aborts it with `kafka-transactions.sh` (KIP-664).
        now = self._clock()
        behind = {partition: offset for partition, offset in stable.items() if offset < ends[partition]}
        before = self._behind
        self._behind = {p: (o, before[p][1] if before.get(p, (-1,))[0] == o else now) for p, o in behind.items()}
        late = {p: (offset, since) for p, (offset, since) in self._behind.items() if now - since >= self._bound}
        self.late = len(late)
        why = "a transaction on it is not ended, which hides whatever was published after it"
        new = {p: (offset, since) for p, (offset, since) in late.items() if (p, offset) not in self._reported}
        self._reported |= {(partition, offset) for partition, (offset, _) in new.items()}
        topic = self._alerts_topic
        return [policy_stale(topic, p, offset, self._moment(since), why) for p, (offset, since) in new.items()]

    def _moment(self, since: float) -> int:
        """Of the record of an alert, ms: a step of the machine's clock does not make topics stale, but dates them."""
        return int((time.time() - (self._clock() - since)) * 1000)
