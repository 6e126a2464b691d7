"""Audit events evaluated by the snapshot that was in force at their time. Bytes in, verdicts out.

Most events have an answer that is kept, like requests: by the policies of a span of time, and the facts that were known
at a moment of it. All others are evaluated one by one.
"""

from collections.abc import Callable, Iterable
from typing import Any, Final, Literal, cast

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
    to_ms,
)
from policy.evaluation import ANSWERS_KEPT, FIRST, Answer, AnswerCache, Lookup, PolicySets
from streaming.enforcer.answers import (
    TIME,
    Pieces,
    QueryParts,
    check_members,
    content_of,
    may_be_kept,
    may_share,
    pieces_of,
)
from streaming.enforcer.evaluator import EXPECTED, RecordEvaluator, Source
from streaming.enforcer.pending_facts import FactReads, derived_reads
from streaming.ops.tally import LIFECYCLE, Label, label
from streaming.records.audit import (
    EVENT_NAMES,
    AuditEvent,
    Lifecycle,
    VerdictOutcome,
    check_derived_fact,
    encode_verdict,
    read_event,
)
from streaming.records.avro import Reader, is_avro
from streaming.records.decision import ActionName, Entity
from streaming.records.formats import JSON_ALONE
from streaming.records.size_gate import check_size, record_size
from streaming.settings import Limits

UNKNOWN = Reason(NO_LONGER_KNOWN, "the policies that were in force at that time are not known any more")
UNKNOWN_OUTCOME: Final = "unknown"
NOT_YET_KNOWN = Reason(NO_LONGER_KNOWN, "a login, or a start or stop of a job, before that time is no fact yet")
NULL = b"null"
OUTCOME, DECISION_ID = 4, 4
"""Quotes of members that requests do not have."""

log = structlog.get_logger()
_encode = msgspec.json.encode


class EventParts(QueryParts, gc=False):
    """An audit event with its parts undecoded: to look the query of an access up, nothing more is needed."""

    outcome: Literal["success", "failure"] | None = None
    decision_id: str | None = None
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


class RenderedVerdict(msgspec.Struct, frozen=True, gc=False):
    """Both parts in JSON, around the resource's id. `label`: as what it is counted."""

    access: Pieces
    answer: Pieces
    label: Label


def _rendered(
    request: Request, outcome: VerdictOutcome, reasons: tuple[Reason, ...], version: str, shared: bool = False
) -> RenderedVerdict:
    subject, resource = request.subject, request.resource
    parts = Entity(subject.type, subject.id), Entity(resource.type, resource.id, resource.properties)
    access = _encode(Access(request.system, parts[0], ActionName(request.action.name), parts[1]))[1:-1]
    answer = _encode(VerdictAnswer(outcome, reasons, version))[1:-1]
    return RenderedVerdict(pieces_of(access, shared), pieces_of(answer, shared), label(request.system, outcome))


class AuditAnswers(AnswerCache[RenderedVerdict]):
    """The verdicts by the policies of one span of time. `facts`: what was known beside them at each moment."""

    def __init__(
        self,
        policies: Snapshot,
        trust: frozenset[str],
        most: int = ANSWERS_KEPT,
        facts: FactOverlay | None = None,
    ) -> None:
        self._policies, self._facts, self.version = policies, facts, policies.version
        super().__init__(self._now(), trust | TIME, self._verdict, most)

    def _verdict(self, request: Request, decision: Decision, shared: bool) -> tuple[RenderedVerdict, int]:
        rendered = _rendered(request, _outcome(decision), decision.reasons, self.version, shared)
        return rendered, sum(map(len, (*rendered.access, *rendered.answer)))

    def follow_facts(self, changed: Iterable[tuple[str, Lookup]]) -> None:
        """Go on with the facts as they are now, which differ in these lookups."""
        self.follow(self._now(), changed)

    def _now(self) -> PolicySets:
        """The policies with the facts that are known now. Notes for which moments these, and older ones, are known."""
        facts = self._facts
        self._changed_at = SINCE_EVER if facts is None else facts.changed_at
        self._known_from = SINCE_EVER if facts is None else min(facts.known_from, facts.changed_at)
        return self._policies.policy_sets if facts is None else self._policies.with_facts(facts).policy_sets

    def policies_at(self, at: int | None) -> tuple[PolicySets, int]:
        """The policies and facts of a moment (ms), and since when these hold."""
        assert at is not None
        if self._facts is None or at >= self._changed_at:
            return self.policy_sets, self._changed_at
        return self._policies.with_facts(self._facts, at).policy_sets, FIRST

    def knows(self, at: int) -> bool:
        """Whether everything is known of a moment (ms), so that answers for it may be kept."""
        return at >= self._known_from


class AuditEvaluator(RecordEvaluator):
    """Evaluates the audit events of one partition in one batch.

    `verdicts`: the number of their output. `answers_at`: those of what was in force at a moment (ms), to producers with
    the trust of the source; None: that is not known any more. `reader`: of events in Avro; None knows no registry.
    `facts`: notes which facts are read and passed on; None: none are derived.
    """

    def __init__(
        self,
        source: Source,
        verdicts: int,
        answers_at: Callable[[int], AuditAnswers | None],
        limits: Limits,
        reader: Reader | None = None,
        facts: FactReads | None = None,
    ) -> None:
        super().__init__(source, limits, verdicts)
        self._answers_at, self._facts, self._reader = answers_at, facts, reader or Reader(JSON_ALONE)
        self._head = b'{"kind":"access","id":%b-%d-' % (_encode(source.topic_id)[:-1], source.partition)
        self._has_failed = False

    def _record(self, key: bytes | None, value: bytes | None, offset: int, at: int) -> bytes:
        verdict = self._kept(key, value, offset, at)
        if verdict is None:
            verdict = self._verdict(read_event(value, key, self._limits, self._reader), key, offset, at)
        return verdict

    def _kept(self, key: bytes | None, value: bytes | None, offset: int, at: int) -> bytes | None:
        """The verdict by an answer that is kept, encoded; None: the event is evaluated by itself."""
        if value is None or len(value) + len(key or b"") > self._limits.record_in:
            return None
        try:
            value = self._reader.transcode("audit-event", value) if is_avro(value) else value
            value.decode()  # no decoder checks that undecoded fields are UTF-8
            return self._find(key, value, offset, at)
        except Exception as failure:  # a bug costs time alone
            if not isinstance(failure, EXPECTED) and not self._has_failed:
                self._has_failed = True
                log.warning("audit events are judged the slow way; please report it", error=type(failure).__name__)
            return None

    def _find(self, key: bytes | None, value: bytes, offset: int, at: int) -> bytes | None:
        parts = _parts(value)
        is_access = parts.outcome is not None and bytes(parts.event) in (b"", NULL)
        if not is_access or not may_be_kept(parts):
            return None
        at = at if parts.time is None else min(at, to_ms(parts.time))
        answers = self._answers_at(at)
        if answers is None or not answers.knows(at):
            return None
        answer = self._answer(answers, parts, key, value, at)
        if self._is_pending(answer, at):
            return None
        encoded = self._encode(offset, parts, answer.rendered, at)
        if record_size(key, encoded) > self._limits.record_out:
            return None
        self.counts[answer.rendered.label] += 1
        return encoded

    def _answer(
        self, answers: AuditAnswers, parts: EventParts, key: bytes | None, value: bytes, at: int
    ) -> Answer[RenderedVerdict]:
        content, repeats = content_of(parts)
        answer = answers.find(content, parts.resource.id, at)
        if answer is None:
            request = self._request(read_event(value, key, self._limits, self._reader), at)
            answer = answers.add(content, request, repeats, may_share(content))
        more = OUTCOME if parts.decision_id is None else OUTCOME + DECISION_ID
        check_members(value, parts, content, repeats, more, EVENT_NAMES)
        return answer

    def _encode(self, offset: int, event: EventParts | AuditEvent, rendered: RenderedVerdict, at: int) -> bytes:
        """The verdict on an access."""
        assert event.resource is not None
        assert event.outcome is not None
        resource = _encode(event.resource.id)[1:-1]
        return b'%b%d","event_id":%b,%b,"time":%d,"result":"%b",%b,"decision_id":%b,"by_oldest":false}' % (
            *(self._head, offset, _encode(event.id), resource.join(rendered.access), at, event.outcome.encode()),
            *(resource.join(rendered.answer), _encode(event.decision_id)),
        )

    def _verdict(self, event: AuditEvent, key: bytes | None, offset: int, at: int) -> bytes:
        """The verdict, encoded. Raises TooLarge."""
        id_ = f"{self._source.topic_id}-{self._source.partition}-{offset}"
        claimed = at if event.time is None else min(at, to_ms(event.time))
        if event.event is not None:
            # It becomes a fact: a login before a revocation would bring back what was revoked.
            moment = claimed if "time" in self._source.trust else at
            encoded, name = self._passed_on(event, key, id_, moment), label(event.system, LIFECYCLE)
        else:
            encoded, name = self._access(event, key, offset, claimed)
        self.counts[name] += 1
        return encoded

    def _access(self, event: AuditEvent, key: bytes | None, offset: int, at: int) -> tuple[bytes, Label]:
        """The verdict on an access, encoded, and as what it is counted.

        One that is too large has no reasons. All else says which access it was, by which the monitor finds its request.
        """
        request, answers = self._request(event, at), self._answers_at(at)
        version = "" if answers is None else answers.version
        rendered = _rendered(request, UNKNOWN_OUTCOME, (UNKNOWN,), version)
        if answers is not None:
            answer = answers.alone(request)
            rendered = answer.rendered
            if self._is_pending(answer, at):
                rendered = _rendered(request, UNKNOWN_OUTCOME, (NOT_YET_KNOWN,), version)
        encoded = self._encode(offset, event, rendered, at)
        if record_size(key, encoded) > self._limits.record_out:
            outcome = cast(VerdictOutcome, rendered.label.split()[-1])
            encoded = self._encode(offset, event, _rendered(request, outcome, (), version), at)
        check_size("the verdict", record_size(key, encoded), self._limits.record_out)
        return encoded, rendered.label

    def _passed_on(self, event: AuditEvent, key: bytes | None, id_: str, at: int) -> bytes:
        """A lifecycle event, encoded. The fact that the monitor derives from it must be no larger than a document."""
        lifecycle = _lifecycle(event, id_, at, self._source.trust)
        encoded, about = encode_verdict(lifecycle), lifecycle.subject or lifecycle.resource or ""
        size = max(record_size(key, encoded), record_size(about.encode(), encoded))  # the fact's key names it, too
        check_size("the verdict", size, min(self._limits.record_out, self._limits.document))
        check_derived_fact(lifecycle)
        if self._facts is not None:
            self._facts.pass_on(lifecycle)
        return encoded

    def _is_pending(self, answer: Answer[RenderedVerdict], at: int) -> bool:
        """Whether an access that reads derived facts happened after an event that is not among them yet."""
        reads = () if self._facts is None else derived_reads(answer.basis.lookups)
        return bool(reads) and self._facts is not None and self._facts.is_pending(answer.basis.system, reads, at)

    def _request(self, event: AuditEvent, at: int) -> Request:
        """The access as a request at a moment (ms)."""
        assert event.subject is not None
        assert event.action is not None
        assert event.resource is not None
        request = event.subject, event.action, event.resource, event.context
        return Request(event.id, event.system, *request, at, None)


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
    if event.outcome == "failure":  # it did not happen: an attempt to log in must bring nothing into force
        untrusted.add("facts")
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
