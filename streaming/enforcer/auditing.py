"""Audit events judged by the snapshot that was in force at their time. Bytes in, verdicts out."""

from collections.abc import Callable
from typing import Any

import msgspec

from policy import answer
from policy.decisions import Decision
from policy.model import NO_LONGER_KNOWN, Reason
from policy.requests import Request
from policy.snapshot import Snapshot
from policy.times import to_ms
from streaming.audit_events import AuditEvent, read_event
from streaming.contracts.avro import Reader
from streaming.contracts.formats import JSON_ALONE
from streaming.enforcer.answers import TIME
from streaming.enforcer.deadletters import Rejection, dead_letter
from streaming.enforcer.wire import Outgoing
from streaming.observability.tally import DEAD, LIFECYCLE, label, no_counts
from streaming.records.size_gate import TooLarge, fits, record_size
from streaming.settings import Limits
from streaming.verdicts import Lifecycle, Named, Thing, Verdict, VerdictOutcome, encode_verdict

UNKNOWN = Reason(NO_LONGER_KNOWN, "the policies that were in force at that time are not known any more")


class AuditSource(msgspec.Struct, frozen=True):
    """Where audit events come from, what their producers may claim, and the numbers of their two outputs."""

    topic: str
    partition: int
    topic_id: str
    trust: frozenset[str]
    verdicts: int
    dead_letters: int


class AuditSitting:
    """Judges the audit events of one partition in one batch. `snapshot_at`: what was in force at a moment (ms);
    None: that is not known any more.

    `reader`: of events in Avro; None knows no registry. `counts`: what it made, for the metrics.
    """

    def __init__(
        self,
        source: AuditSource,
        snapshot_at: Callable[[int], Snapshot | None],
        limits: Limits,
        reader: Reader | None = None,
    ) -> None:
        self._source, self._snapshot_at, self._limits = source, snapshot_at, limits
        self.counts = no_counts()
        self._reader = reader or Reader(JSON_ALONE)

    def judge(
        self, key: bytes | None, value: bytes | None, headers: list[dict[str, Any]] | None, offset: int, at: int
    ) -> Outgoing:
        """The record to write for one audit event: its verdict, or its dead letter. Never raises."""
        source = self._source
        try:
            return (
                source.verdicts,
                key,
                self._verdict(read_event(value, key, self._limits, self._reader), key, offset, at),
                None,
            )
        except Exception as refusal:  # a bug too: one poisonous record must not stop the stream
            self.counts[DEAD] += 1
            limits = self._limits  # a name for the rejection would make a cycle: see Sitting.decide
            letter = dead_letter(
                Rejection(source.topic, source.partition, offset, refusal), key, value, headers, limits
            )
            return (source.dead_letters, *letter)

    def _verdict(self, event: AuditEvent, key: bytes | None, offset: int, at: int) -> bytes:
        """The verdict, encoded. Raises TooLarge."""
        id_ = f"{self._source.topic_id}-{self._source.partition}-{offset}"
        moment = at if event.time is None else min(at, to_ms(event.time))
        if event.event is not None:
            encoded, outcome = self._passed_on(event, key, id_, moment), LIFECYCLE
        else:
            encoded, outcome = self._access(event, key, id_, moment)
        self.counts[label(event.system, outcome)] += 1
        return encoded

    def _access(self, event: AuditEvent, key: bytes | None, id_: str, at: int) -> tuple[bytes, str]:
        """The verdict on an access, encoded, and its outcome.

        One that is too large has no reasons. All else says which access it was, by which the monitor finds its request.
        """
        verdict = self._judged(event, id_, at)
        encoded = encode_verdict(verdict)
        if record_size(key, encoded) > self._limits.record_out:
            encoded = encode_verdict(msgspec.structs.replace(verdict, reasons=()))
        self._check_size(record_size(key, encoded), self._limits.record_out)
        return encoded, verdict.outcome

    def _passed_on(self, event: AuditEvent, key: bytes | None, id_: str, at: int) -> bytes:
        """A lifecycle event, encoded. The fact that the monitor makes of it must be no larger than a document."""
        lifecycle = _lifecycle(event, id_, at)
        encoded, about = encode_verdict(lifecycle), lifecycle.subject or lifecycle.resource or ""
        size = max(record_size(key, encoded), record_size(about.encode(), encoded))  # the fact's key names it, too
        self._check_size(size, min(self._limits.record_out, self._limits.document))
        return encoded

    def _check_size(self, size: int, limit: int) -> None:
        if not fits(size, limit):
            raise TooLarge("the verdict", size, limit)

    def _judged(self, event: AuditEvent, id_: str, at: int) -> Verdict:
        subject, action, resource = event.subject, event.action, event.resource
        assert subject is not None
        assert action is not None
        assert resource is not None
        assert event.outcome is not None
        most = self._limits.claimed_groups
        asked = Request(event.id, event.system, subject, action, resource, event.context, at, None, most)
        snapshot = self._snapshot_at(at)
        trust = self._source.trust | TIME
        decision = answer(snapshot, asked, trust) if snapshot else Decision("error", (UNKNOWN,))
        return Verdict(
            id=id_,
            event_id=event.id,
            system=event.system,
            subject=Thing(subject.type, subject.id),
            action=Named(action.name),
            resource=Thing(resource.type, resource.id, resource.properties),
            time=at,
            result=event.outcome,
            decision_id=event.decision_id,
            outcome=_outcome(decision),
            reasons=decision.reasons,
            policy_version=snapshot.version if snapshot else "",
        )


def _outcome(decision: Decision) -> VerdictOutcome:
    """`unknown` where policies or facts of that time would have been needed that are not known any more."""
    unknown = decision.outcome == "error" and any(reason.code == NO_LONGER_KNOWN for reason in decision.reasons)
    return "unknown" if unknown else decision.outcome


def _lifecycle(event: AuditEvent, id_: str, at: int) -> Lifecycle:
    assert event.event is not None
    subject, resource = event.subject, event.resource
    properties = subject.properties if subject is not None else {}
    return Lifecycle(
        id=id_,
        event_id=event.id,
        system=event.system,
        event=event.event,
        time=at,
        subject=subject.id if subject is not None else None,
        resource=resource.id if resource is not None else None,
        groups=_names(properties.get("groups")),
        roles=_names(properties.get("roles")),
    )


def _names(told: Any) -> tuple[str, ...] | None:
    """Groups or roles at a login, sorted; None where the event does not tell them. Raises ValueError."""
    if told is None:
        return None
    if not isinstance(told, list) or not all(isinstance(name, str) and name for name in told):
        raise ValueError("subject.properties: groups and roles are lists of texts that are not empty")
    return tuple(sorted(set(told)))
