"""Alerts about the documents: their records (contracts, "Alert"). Ids are deterministic: one for one occasion."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from policy import SEVERITIES, to_text, worst
from policy.analysis import Escalation
from streaming.alert_kinds import FIXED_SEVERITIES, AlertKind
from streaming.kafka.clients import RETRIED_SECONDS, Partition, last_stable_offsets, log_ends, partitions_of
from streaming.records.alert import Alert, alert_record
from streaming.records.formats import Result
from streaming.settings import Settings
from streaming.snapshots.documents import Refused

SHOWN = 20  # principals of an escalation, and escalations of an alert; the rest is counted


class PublishedDocument(msgspec.Struct, frozen=True):
    """A record of a policy topic: which document it holds, and where and when (ms) it was published."""

    document: str
    topic: str
    offset: int
    at: int


def policy_rejected(topic: str, refused: Refused) -> Result:
    """A document was refused; which, and why."""
    alert = Alert(
        id=f"policy-rejected-{refused.topic}-{refused.offset}",
        kind=AlertKind.POLICY_REJECTED,
        severity=FIXED_SEVERITIES[AlertKind.POLICY_REJECTED],
        time=to_text(refused.at),
        subject=refused.document,
        message=f"{refused.document} was refused; what was in force before it stays: {'; '.join(refused.errors)}",
        evidence=[{"topic": refused.topic, "offset": refused.offset, "errors": list(refused.errors)}],
    )
    return alert_record(topic, refused.document, alert)


def policy_stale(topic: str, partition: Partition, offset: int, since: int, why: str) -> Result:
    """A documents' topic could not be read for longer than the bound. `since`: ms."""
    name, number = partition
    alert = Alert(
        id=f"policy-stale-{name}-{number}-{offset}",
        kind=AlertKind.POLICY_STALE,
        severity=FIXED_SEVERITIES[AlertKind.POLICY_STALE],
        time=to_text(since),
        subject=name,
        message=f"{name}-{number} cannot be read beyond offset {offset} since {to_text(since)}: {why}",
        evidence=[{"topic": name, "partition": number, "offset": offset}],
    )
    return alert_record(topic, name, alert)


def topic_recreated(topic: str, name: str, before: str, after: str, offsets: Mapping[int, int], at: int) -> Result:
    """A topic that was deleted and re-created is read from its beginning, as `accepted_topic_ids` allows.

    `before`, `after`: its topic ids. `offsets`: those below which the deleted one was decided or read, by partition, as
    far as Kafka still has them. `at`: ms.
    """
    upto = ", ".join(f"{number}: {offset}" for number, offset in sorted(offsets.items()))
    known = f"up to the offsets {{{upto}}}" if offsets else "up to offsets that Kafka has deleted with it"
    alert = Alert(
        id=f"topic-recreated-{name}-{after}",
        kind=AlertKind.TOPIC_RECREATED,
        severity=FIXED_SEVERITIES[AlertKind.TOPIC_RECREATED],
        time=to_text(at),
        subject=name,
        message=f"topic {name} was deleted and re-created; the new one is read from its beginning, as its topic id "
        f"is in accepted_topic_ids. The deleted one was read {known}: what came after them is lost",
        evidence=[
            {
                "topic": name,
                "topic_id_before": before,
                "topic_id": after,
                "offsets_before": {str(number): offset for number, offset in sorted(offsets.items())} or None,
            }
        ],
    )
    return alert_record(topic, name, alert)


def privilege_escalation(
    topic: str, record: PublishedDocument, opened: Sequence[Escalation], published: Mapping[str, PublishedDocument]
) -> Result:
    """A change granted a privileged permission, or lifted a deny. ``published``: records of changed documents."""
    shown = sorted(opened, key=lambda one: (-SEVERITIES.index(one.severity), one))[:SHOWN]
    causes = sorted({cause for one in opened for cause in one.causes})
    alert = Alert(
        id=f"privilege-escalation-{record.topic}-{record.offset}",
        kind=AlertKind.PRIVILEGE_ESCALATION,
        severity=worst(one.severity for one in opened),
        time=to_text(record.at),
        subject=record.document,
        message=f"{', '.join(causes[:SHOWN])} changed: {'; '.join(map(_opened, shown))}",
        evidence=[
            *(
                {"document": one, "topic": published[one].topic, "offset": published[one].offset}
                for one in causes[:SHOWN]
            ),
            *map(_evidence, shown),
            *([{"more": len(opened) - SHOWN}] if len(opened) > SHOWN else []),
        ],
    )
    return alert_record(topic, record.document, alert)


def unknown_escalation(topic: str, record: PublishedDocument, why: str) -> Result:
    """What a change opens could not be worked out: the owners of the policies must review it."""
    alert = Alert(
        id=f"privilege-escalation-{record.topic}-{record.offset}",
        kind=AlertKind.PRIVILEGE_ESCALATION,
        severity="high",
        time=to_text(record.at),
        subject=record.document,
        message=f"what the change of {record.document} opens, and for whom, could not be worked out: {why}",
        evidence=[{"document": record.document, "topic": record.topic, "offset": record.offset}],
    )
    return alert_record(topic, record.document, alert)


def incomplete_escalation(
    topic: str,
    record: PublishedDocument,
    documents: Sequence[str],
    complete: bool,
    merged: int,
    found: Sequence[Escalation],
) -> Result:
    """What a change opens is not known whole: the analysis was too much work, or changes came too fast for it.

    ``merged``: how many changes were compared together with the first; ``found``: what is known, in alerts of its own.
    """
    why = [
        *([] if complete else ["the analysis would have taken too much work and ended early"]),
        *(
            [f"{merged + 1} changes came sooner than they could be analysed, and were compared as one"]
            if merged
            else []
        ),
    ]
    named = f"{', '.join(documents[:SHOWN])}{f' and {len(documents) - SHOWN} more' if len(documents) > SHOWN else ''}"
    alert = Alert(
        id=f"privilege-escalation-{record.topic}-{record.offset}-incomplete",
        kind=AlertKind.PRIVILEGE_ESCALATION,
        severity="high",
        time=to_text(record.at),
        subject=record.document,
        message=f"what the change of {named} opens is known in part only: {'; '.join(why)}. "
        f"Found until then, in alerts of their own: {len(found)}. Look at the rest with `lockkeeper policy diff`",
        evidence=[
            {"document": record.document, "topic": record.topic, "offset": record.offset},
            {"documents": list(documents[:SHOWN]), "documents_count": len(documents)},
        ],
    )
    return alert_record(topic, record.document, alert)


def _opened(one: Escalation) -> str:
    place = one.document if one.statement < 0 else f"{one.document} statement {one.statement}"
    return f"{', '.join(one.names)} for {_principals(one)} ({place})"


def _principals(one: Escalation) -> str:
    """The first three, and how many more."""
    named, more = ", ".join(one.principals[:3]), len(one.principals[3:]) + one.unseen
    return f"{named} and {more} more" if more and named else named or f"up to {more}"


def _evidence(one: Escalation) -> dict[str, Any]:
    fields = {name: value for name, value in msgspec.to_builtins(one).items() if value}
    principals = {"holders": one.principals[:SHOWN], "holders_count": len(one.principals) + one.unseen}
    return {**fields, **principals, "statement": None if one.statement < 0 else one.statement}


def enforcement_disabled(topic: str, record: PublishedDocument, grants: Sequence[str]) -> Result:
    """Enforcement is off: every principal may do everything."""
    alert = Alert(
        id=f"enforcement-disabled-{record.topic}-{record.offset}",
        kind=AlertKind.ENFORCEMENT_DISABLED,
        severity=FIXED_SEVERITIES[AlertKind.ENFORCEMENT_DISABLED],
        time=to_text(record.at),
        subject=record.document,
        message=f"{record.document} says that nothing is enforced: everybody in it may do everything",
        evidence=[{"topic": record.topic, "offset": record.offset, "grants": list(grants)}],
    )
    return alert_record(topic, record.document, alert)


class StaleWatch:
    """Remembers since when each partition stands, and which were reported. `late`: how many stand for too long."""

    def __init__(self, admin: AdminClient, settings: Settings) -> None:
        topics = settings.topics
        self._admin, self._alerts_topic = admin, topics.alerts
        self._partitions = partitions_of(admin, (*topics.policy_topics().values(), topics.facts))
        self._bound = settings.policy_stale_seconds
        self._behind: dict[Partition, tuple[int, float]] = {}
        self._reported: set[tuple[Partition, int]] = set()
        self.late = 0

    def unread(self, positions: Mapping[Partition, int], since: float, why: str) -> list[Result]:
        """Alerts when the topics could not be read to their end since `since` (s)."""
        if time.time() - since < self._bound:
            return []
        return self._alert({partition: (positions[partition], since) for partition in self._partitions}, why)

    def stuck(self) -> list[Result]:
        """Alerts of partitions whose last stable offset stands behind their end: a transaction was left open."""
        try:
            ends = log_ends(self._admin, self._partitions, RETRIED_SECONDS)
            stable = last_stable_offsets(self._admin, self._partitions, RETRIED_SECONDS)
        except (KafkaException, TimeoutError):
            return []  # reading the policies fails in the same way, waits, and reports it
        now = time.time()
        behind = {partition: offset for partition, offset in stable.items() if offset < ends[partition]}
        before = self._behind
        self._behind = {p: (o, before[p][1] if before.get(p, (-1,))[0] == o else now) for p, o in behind.items()}
        late = {p: (offset, since) for p, (offset, since) in self._behind.items() if now - since >= self._bound}
        self.late = len(late)
        return self._alert(late, "a transaction on it is not ended, which hides whatever was published after it")

    def _alert(self, late: Mapping[Partition, tuple[int, float]], why: str) -> list[Result]:
        new = {p: (offset, since) for p, (offset, since) in late.items() if (p, offset) not in self._reported}
        self._reported |= {(partition, offset) for partition, (offset, _) in new.items()}
        topic = self._alerts_topic
        return [policy_stale(topic, p, offset, int(since * 1000), why) for p, (offset, since) in new.items()]
