"""Audit events evaluated by the snapshot that was in force at their time. Bytes in, verdicts out.

Most events are answered by a prepared query, like requests: of the policies of a span of time, and of the facts that
were known at a moment of it. All others are evaluated one by one.
"""

from collections.abc import Callable, Iterable
from typing import Any, Literal

import msgspec
import structlog

from policy import (
    NO_LONGER_KNOWN,
    SINCE_EVER,
    Decision,
    FactOverlay,
    Reason,
    Request,
    Snapshot,
    answer,
    decode_json,
    to_ms,
)
from policy.evaluation import Lookup, PreparedQuery
from streaming.enforcer.answers import (
    FIRST,
    MOMENT_QUOTES,
    Answers,
    QueryParts,
    RenderedQuery,
    has_many_parts,
    is_plain,
)
from streaming.enforcer.evaluator import EXPECTED
from streaming.enforcer.pending_facts import FactReads, derived_reads
from streaming.enforcer.rendering import Form
from streaming.ops.tally import DEAD, LIFECYCLE, label, no_counts
from streaming.records.audit import (
    ActionName,
    AuditEvent,
    Entity,
    Lifecycle,
    Verdict,
    VerdictOutcome,
    encode_verdict,
    has_derived_facts,
    read_event,
)
from streaming.records.avro import Reader, is_avro
from streaming.records.dead_letter import rejected
from streaming.records.formats import JSON_ALONE
from streaming.records.packing import Outgoing
from streaming.records.size_gate import TooLarge, fits, record_size
from streaming.settings import Limits

UNKNOWN = Reason(NO_LONGER_KNOWN, "the policies that were in force at that time are not known any more")
NOT_YET_KNOWN = Reason(NO_LONGER_KNOWN, "a login, or a start or stop of a job, before that time is no fact yet")
NULL = b"null"
OUTCOME_QUOTES = 4

log = structlog.get_logger()
_encode = msgspec.json.encode


class EventParts(QueryParts, gc=False):
    """An audit event with its parts undecoded: to look the query of an access up, nothing more is needed."""

    outcome: Literal["success", "failure"] | None = None
    decision_id: msgspec.Raw = msgspec.Raw()
    event: msgspec.Raw = msgspec.Raw()


_parts = msgspec.json.Decoder(EventParts).decode


class Access(msgspec.Struct):
    """The part of a verdict that says who did what to which resource."""

    system: str
    subject: Entity
    action: ActionName
    resource: Entity


class VerdictAnswer(msgspec.Struct):
    """The part of a verdict that says what the policies answer."""

    outcome: VerdictOutcome
    reasons: tuple[Reason, ...]
    policy_version: str


def _quotes_beside(parts: EventParts) -> int:
    """The quotes of what an event of an access has and a request has not, see `quotes_of`."""
    decision = bytes(parts.decision_id)
    return OUTCOME_QUOTES + (2 + decision.count(b'"') if decision else 0)


def _form(version: str) -> Form:
    """Both parts in JSON, as a verdict by these policies has them."""

    def verdict_answer(decision: Decision) -> bytes:
        return _encode(VerdictAnswer(_outcome(decision), decision.reasons, version))[1:-1]

    return Form(verdict_answer, _access, _outcome_in)


def _access(request: Request) -> bytes:
    subject, resource = request.subject, request.resource
    parts = Entity(subject.type, subject.id), Entity(resource.type, resource.id, resource.properties)
    return _encode(Access(request.system, parts[0], ActionName(request.action.name), parts[1]))[1:-1]


def _outcome_in(answer: bytes) -> str:
    return answer.removeprefix(b'"outcome":"').partition(b'"')[0].decode()


class AuditAnswers(Answers):
    """The verdicts by the policies of one span of time. `facts`: what was known beside them at each moment."""

    def __init__(self, policies: Snapshot, trust: frozenset[str], most: int, facts: FactOverlay | None = None) -> None:
        self._policies, self._facts = policies, facts
        super().__init__(self._now(), trust, most, _form(policies.version))

    def follow_facts(self, changed: Iterable[tuple[str, Lookup]]) -> None:
        """Go on with the facts as they are now, which differ in these lookups."""
        self.follow(self._now(), changed)

    def _now(self) -> Snapshot:
        """The policies with the facts that are known now. Notes for which moments these, and older ones, are known."""
        facts = self._facts
        self._changed_at = SINCE_EVER if facts is None else facts.changed_at
        self._known_from = SINCE_EVER if facts is None else min(facts.known_from, facts.changed_at)
        return self._policies if facts is None else self._policies.with_facts(facts)

    def snapshot_at(self, at: int) -> tuple[Snapshot, int]:
        """The snapshot to answer with at a moment (ms), and since when it holds; else the queries know by
        what they read.
        """
        if self._facts is None or at >= self._changed_at:
            return self.snapshot, self._changed_at
        return self._policies.with_facts(self._facts, at), FIRST

    def find(self, parts: QueryParts, resource: bytes, at: int) -> RenderedQuery | None:
        """The query that is prepared for an event and holds at a moment (ms)."""
        return None if at < self._known_from else super().find(parts, resource, at)

    def prepare(self, parts: QueryParts, resource: bytes, request: Request) -> RenderedQuery | None:
        """Prepare the query of an event; None: it is too large, or perhaps not everything is known of its time."""
        assert request.time is not None
        return None if request.time < self._known_from else super().prepare(parts, resource, request)


class AuditSource(msgspec.Struct, frozen=True):
    """Where audit events come from, what their producers may claim, and the numbers of their two outputs."""

    topic: str
    partition: int
    topic_id: str
    trust: frozenset[str]
    verdicts: int
    dead_letters: int


class AuditEvaluator:
    """Evaluates the audit events of one partition in one batch. `answers_at`: those of what was in force at a moment
    (ms), to producers with the trust of the source; None: that is not known any more.

    `reader`: of events in Avro; None knows no registry. `counts`: what it made, for the metrics. `facts`: notes which
    facts are read and passed on; None: no facts are derived.
    """

    def __init__(
        self,
        source: AuditSource,
        answers_at: Callable[[int], AuditAnswers | None],
        limits: Limits,
        reader: Reader | None = None,
        facts: FactReads | None = None,
    ) -> None:
        self._source, self._answers_at, self._limits, self._facts = source, answers_at, limits, facts
        self.counts = no_counts()
        self._reader = reader or Reader(JSON_ALONE)
        self._head = b'{"kind":"access","id":%b-%d-' % (_encode(source.topic_id)[:-1], source.partition)
        self._has_failed = False

    def evaluate(
        self, key: bytes | None, value: bytes | None, headers: list[dict[str, Any]] | None, offset: int, at: int
    ) -> Outgoing:
        """The record to write for one audit event: its verdict, or its dead letter. Never raises."""
        source = self._source
        try:
            verdict = self._prepared(key, value, offset, at)
            if verdict is None:
                verdict = self._verdict(read_event(value, key, self._limits, self._reader), key, offset, at)
            return source.verdicts, key, verdict, None
        except Exception as refusal:  # a bug too: one poisonous record must not stop the stream
            self.counts[DEAD] += 1
            return rejected(source, offset, refusal, key, value, headers, self._limits)

    def _prepared(self, key: bytes | None, value: bytes | None, offset: int, at: int) -> bytes | None:
        """The verdict by a prepared query, encoded; None: the event is evaluated by itself."""
        if value is None or len(value) + len(key or b"") > self._limits.record_in:
            return None
        try:
            return self._find(key, self._as_json(value), offset, at)
        except Exception as failure:  # a bug costs time alone
            if not isinstance(failure, EXPECTED) and not self._has_failed:
                self._has_failed = True
                log.warning("audit events are judged the slow way; please report it", error=type(failure).__name__)
            return None

    def _as_json(self, value: bytes) -> bytes:
        value = self._reader.transcode("audit-event", value) if is_avro(value) else value
        value.decode()  # no decoder checks that undecoded fields are UTF-8
        return value

    def _find(self, key: bytes | None, value: bytes, offset: int, at: int) -> bytes | None:
        parts = _parts(value)
        id_, resource, decision = bytes(parts.id), bytes(parts.resource.id), bytes(parts.decision_id) or NULL
        plain = is_plain(id_) and is_plain(resource) and (decision == NULL or is_plain(decision))
        if not plain or parts.outcome is None or bytes(parts.event) not in (b"", NULL) or has_many_parts(parts, value):
            return None
        at = at if parts.time is None else min(at, to_ms(parts.time))
        answers = self._answers_at(at)
        if answers is None:
            return None
        query = answers.find(parts, resource, at) or self._prepare(answers, parts, key, value, at)
        answer = query.answer_for(resource) if query else None
        if query is None or answer is None or answer.is_large or self._is_pending(query.system, query.derived, at):
            return None
        if value.count(b'"') != query.quotes + MOMENT_QUOTES[type(parts.time)] + _quotes_beside(parts):
            decode_json(value)  # raises where a name stands twice
        resource, request = resource[1:-1], query.request_text
        encoded = b'%b%d","event_id":%b,%b,"time":%d,"result":"%b",%b,"decision_id":%b,"by_oldest":false}' % (
            *(self._head, offset, id_, resource.join(request.pieces)),
            *(at, parts.outcome.encode(), resource.join(answer.pieces), decision),
        )
        if record_size(key, encoded) > self._limits.record_out:
            return None
        self.counts[answer.label] += 1
        return encoded

    def _prepare(
        self, answers: AuditAnswers, parts: EventParts, key: bytes | None, value: bytes, at: int
    ) -> RenderedQuery | None:
        request = self._request(read_event(value, key, self._limits, self._reader), at)
        return answers.prepare(parts, bytes(parts.resource.id), request)

    def _verdict(self, event: AuditEvent, key: bytes | None, offset: int, at: int) -> bytes:
        """The verdict, encoded. Raises TooLarge."""
        id_ = f"{self._source.topic_id}-{self._source.partition}-{offset}"
        claimed = at if event.time is None else min(at, to_ms(event.time))
        if event.event is not None:
            # It becomes a fact: a login before a revocation would bring back what was revoked.
            moment = claimed if "time" in self._source.trust else at
            encoded, outcome = self._passed_on(event, key, id_, moment), LIFECYCLE
        else:
            encoded, outcome = self._access(event, key, id_, claimed)
        self.counts[label(event.system, outcome)] += 1
        return encoded

    def _access(self, event: AuditEvent, key: bytes | None, id_: str, at: int) -> tuple[bytes, str]:
        """The verdict on an access, encoded, and its outcome.

        One that is too large has no reasons. All else says which access it was, by which the monitor finds its request.
        """
        verdict = self._evaluated(event, id_, at)
        encoded = encode_verdict(verdict)
        if record_size(key, encoded) > self._limits.record_out:
            encoded = encode_verdict(msgspec.structs.replace(verdict, reasons=()))
        self._check_size(record_size(key, encoded), self._limits.record_out)
        return encoded, verdict.outcome

    def _passed_on(self, event: AuditEvent, key: bytes | None, id_: str, at: int) -> bytes:
        """A lifecycle event, encoded. The fact that the monitor derives from it must be no larger than a document."""
        lifecycle = _lifecycle(event, id_, at, self._source.trust)
        encoded, about = encode_verdict(lifecycle), lifecycle.subject or lifecycle.resource or ""
        size = max(record_size(key, encoded), record_size(about.encode(), encoded))  # the fact's key names it, too
        self._check_size(size, min(self._limits.record_out, self._limits.document))
        if self._facts is not None:
            self._facts.pass_on(lifecycle)
        return encoded

    def _check_size(self, size: int, limit: int) -> None:
        if not fits(size, limit):
            raise TooLarge("the verdict", size, limit)

    def _is_pending(self, system: str, reads: tuple[Lookup, ...], at: int) -> bool:
        """Whether an access that reads these derived facts happened after an event that is not among them yet."""
        return bool(reads) and self._facts is not None and self._facts.is_pending(system, reads, at)

    def _request(self, event: AuditEvent, at: int) -> Request:
        """The access as a request at a moment (ms)."""
        assert event.subject is not None
        assert event.action is not None
        assert event.resource is not None
        request = event.subject, event.action, event.resource, event.context
        return Request(event.id, event.system, *request, at, None, self._limits.claimed_groups)

    def _evaluated(self, event: AuditEvent, id_: str, at: int) -> Verdict:
        assert event.outcome is not None
        request, answers = self._request(event, at), self._answers_at(at)
        decision, version = Decision("error", (UNKNOWN,)), ""
        if answers is not None:
            snapshot, _ = answers.snapshot_at(at)
            decision, version = answer(snapshot, request, answers.trust), snapshot.version
            if self._facts is not None and has_derived_facts(request.system):
                reads = derived_reads(PreparedQuery(snapshot, request, answers.trust).reads)
                if self._is_pending(request.system, reads, at):
                    decision = Decision("error", (NOT_YET_KNOWN,))
        return Verdict(
            id=id_,
            event_id=event.id,
            system=event.system,
            subject=Entity(request.subject.type, request.subject.id),
            action=ActionName(request.action.name),
            resource=Entity(request.resource.type, request.resource.id, request.resource.properties),
            time=at,
            result=event.outcome,
            decision_id=event.decision_id,
            outcome=_outcome(decision),
            reasons=decision.reasons,
            policy_version=version,
        )


def _outcome(decision: Decision) -> VerdictOutcome:
    """`unknown` where policies or facts of that time would have been needed that are not known any more."""
    unknown = any(reason.code == NO_LONGER_KNOWN for reason in decision.reasons)
    return "unknown" if unknown else decision.outcome


def _lifecycle(event: AuditEvent, id_: str, at: int, trust: frozenset[str]) -> Lifecycle:
    """A lifecycle event, with those of its claims that the producers of its topic may make."""
    assert event.event is not None
    subject, resource = event.subject, event.resource
    properties = subject.properties if subject is not None else {}
    groups, roles = _names(properties.get("groups")), _names(properties.get("roles"))
    claims = {"facts": True, "groups": groups, "roles": roles, "time": event.time}
    untrusted = {name for name, claim in claims.items() if claim is not None} - trust
    return Lifecycle(
        id=id_,
        event_id=event.id,
        system=event.system,
        event=event.event,
        time=at,
        subject=subject.id if subject is not None else None,
        resource=resource.id if resource is not None else None,
        groups=groups if "groups" in trust else None,
        roles=roles if "roles" in trust else None,
        untrusted=tuple(sorted(untrusted)),
    )


def _names(names: Any) -> tuple[str, ...] | None:
    """Groups or roles at a login, sorted; None where the event does not name them. Raises ValueError."""
    if names is None:
        return None
    if not isinstance(names, list) or not all(isinstance(name, str) and name for name in names):
        raise ValueError("subject.properties: groups and roles are lists of texts that are not empty")
    return tuple(sorted(set(names)))
