"""One decision against the slow reference evaluator, at the offsets that it names."""

import bisect
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from policy import (
    Batch,
    Kind,
    MalformedRequest,
    Reason,
    Request,
    Snapshot,
    all_systems,
    answer,
    decode_request,
    to_text,
)
from policy import Decision as EvaluatedDecision
from policy.evaluation import reference
from streaming.client.decision import Decision
from streaming.enforcer.answers import TIME
from streaming.history.records import ConsumerRecord
from streaming.records.answered import Answer, offsets_in, read_answer
from streaming.records.decision import ActionName, Answered, DecisionRecord, Entity, Requested, requested
from streaming.records.decision import read_decision as read_record
from streaming.records.formats import shorten_id
from streaming.snapshots.at_offsets import DocumentLog, NoLongerKnown
from streaming.snapshots.documents import DocumentRecord
from streaming.topics import Offsets, TopicNames

CLOCK_MS = 5_000  # by how much the clocks of the job and a broker may differ
ANSWERS_HELD = 100_000
SNAPSHOTS_HELD = 16
TOO_LATE, TOO_LARGE, BEHIND = "deadline-exceeded", "answer-too-large", "policies-behind"
LIMITS = frozenset({"too-many-objects"})  # the reference evaluator knows none

Outcomes = tuple[str, ...]
"""The outcome of a request; of a batch that of the record, then those of its evaluations."""

Explanation = tuple[tuple[str, tuple[str, ...]], ...]
"""Of each outcome what it rests on, by names, and the words of its reasons, sorted."""

Unknown = str
"""Why something cannot be checked."""


class Contradiction(msgspec.Struct, frozen=True):
    """A check that does not hold, what was expected, and what was found."""

    check: str
    expected: str
    found: str


class ExpectedDecision(NamedTuple):
    """What a decision must say. `explanation` None: it is not known what its outcomes rest on."""

    outcomes: Outcomes
    explanation: Explanation | None


class RecordedRequest(msgspec.Struct, frozen=True):
    """A request as the job has to read it. `envelope`: with its own time and deadline; `dated`: with the time `at`."""

    envelope: Request | Batch
    dated: Request | Batch
    at: int


def read_request(value: bytes, at: int, trust: frozenset[str]) -> RecordedRequest:
    """The request in JSON of a record with this timestamp (ms); raises MalformedRequest."""
    try:
        value.decode()
    except UnicodeDecodeError as error:
        raise MalformedRequest(f"not a request: {error}") from error
    envelope = decode_request(value)
    if envelope.time is not None and "time" in trust:
        at = envelope.time
    return RecordedRequest(envelope, _with_time(envelope, at), at)


def _with_time(request: Request | Batch, at: int) -> Request | Batch:
    """The query with the time of evaluation. Deadlines are compared with the job's clock instead."""
    if isinstance(request, Request):
        return msgspec.structs.replace(request, time=at, deadline=None)
    items = tuple(_with_time(item, at) if isinstance(item, Request) else item for item in request.items)
    return msgspec.structs.replace(request, items=items, time=at, deadline=None)


class AnswerChecker:
    """Works out what decisions must say. `trust_of`: the claims that the producers of a topic may make."""

    def __init__(
        self,
        log: DocumentLog,
        names: TopicNames,
        trust_of: Callable[[str], frozenset[str]],
    ) -> None:
        self._log, self._facts_topic, self._trust_of = log, names.facts, trust_of
        self._policy_topics = names.policy_topics()
        self._snapshots: dict[Any, Snapshot] = {}
        self._expectations: dict[Any, ExpectedDecision] = {}

    def check(
        self, request: ConsumerRecord, value: bytes, decision: Decision, at: int, unknown: Mapping[str, Unknown]
    ) -> Iterator[Contradiction | Unknown]:
        """What is wrong with a decision that was written at a moment (ms). `value`: the request in JSON.

        `unknown`: topics of documents whose offsets it names in vain, and why. Raises MalformedRequest when the record
        is no request.
        """
        trust = self._trust_of(request.topic)
        recorded = read_request(value, request.at, trust)
        record = read_record(decision.raw)
        yield from _check_copies(recorded, decision, record)
        if record.answered is not None:
            yield Contradiction("unlike_reference", "no `answered`: the request has none", "answered")
        yield from self._check(
            request, recorded, trust, decision, unknown, lambda: _check_deadline(recorded, request.at, decision, at)
        )

    def check_again(
        self, request: ConsumerRecord, value: bytes, decision: Decision, skew: int, unknown: Mapping[str, Unknown]
    ) -> Iterator[Contradiction | Unknown]:
        """The same of a request that was answered elsewhere. `skew`: see `ANSWER_SKEW_MS`."""
        answer = read_answer(value)
        at = answer.at if abs(answer.at - request.at) <= skew else request.at
        recorded = read_request(value, at, frozenset())
        trust = answer.claims(self._trust_of(request.topic))
        record = read_record(decision.raw)
        yield from _check_copies(recorded, decision, record)
        answered = record.answered
        if answered is None:
            yield Contradiction("unlike_reference", "what the job found of the answer", "none")
            return
        if decision.code != TOO_LARGE:  # which leaves parts out
            yield from _check_copy_of_answer(answer, decision)
            yield from _check_findings(answer, answered, decision, is_dated=at == answer.at)
        if not answered.verified:
            yield "the job did not know the policies that an answer names"
            if decision.outcome == "error":
                return
        if answered.verified and offsets_in(answer.policy_offsets) != decision.policy_offsets:
            yield Contradiction("unlike_reference", "the offsets that the answer names", str(decision.policy_offsets))
        deadline = recorded.envelope.deadline
        late = decision.code == TOO_LATE and deadline is not None and deadline < at
        yield from self._check(request, recorded, trust, decision, unknown, lambda: [] if late else None)

    def _check(
        self,
        request: ConsumerRecord,
        recorded: RecordedRequest,
        trust: frozenset[str],
        decision: Decision,
        unknown: Mapping[str, Unknown],
        deadline: Callable[[], list[Contradiction] | None],
    ) -> Iterator[Contradiction | Unknown]:
        """`deadline`: what is wrong where it decides; None: it does not."""
        trust |= TIME  # the time of evaluation is no claim
        yield from unknown.values()
        system, offsets = recorded.envelope.system, decision.policy_offsets
        has_facts = _has_kind(system, lambda kind: kind.fact)
        if unknown:  # a system's answers rest on its own topics
            if self._policy_topics.get(system, "") in {*unknown, ""} or (has_facts and self._facts_topic in unknown):
                return
            offsets = {topic: partitions for topic, partitions in offsets.items() if topic not in unknown}
        facts_offset = decision.facts_offset if has_facts else None
        versions = (msgspec.json.encode(offsets, order="sorted"), facts_offset)
        try:
            snapshot = self._snapshot(versions, offsets, request.at)
        except NoLongerKnown as error:
            yield str(error)
            return
        if not unknown:
            yield from self._check_version(snapshot, decision)
        late = deadline()
        if late is not None:
            yield from late
            return
        expected = self._expected(versions, recorded, snapshot, trust, decision)
        yield from self._check_answer(expected, recorded, snapshot, trust, decision)

    def _snapshot(self, versions: tuple[bytes, int | None], offsets: Offsets, moment: int) -> Snapshot:
        snapshot = self._snapshots.get(versions)
        if snapshot is None:
            if len(self._snapshots) >= SNAPSHOTS_HELD:
                del self._snapshots[next(iter(self._snapshots))]
            snapshot = self._log.snapshot_at(offsets, versions[1], moment)
            self._snapshots[versions] = snapshot
        return snapshot

    def _check_version(self, snapshot: Snapshot, decision: Decision) -> Iterator[Contradiction | Unknown]:
        if decision.policy_version == snapshot.version:
            return
        if snapshot.history_held or not self._log.complete:
            yield "policy_version counts older versions of documents, which the job may have known"
        else:
            yield Contradiction("wrong_version", snapshot.version, decision.policy_version)

    def _check_answer(
        self,
        expected: ExpectedDecision,
        request: RecordedRequest,
        snapshot: Snapshot,
        trust: frozenset[str],
        decision: Decision,
    ) -> Iterator[Contradiction | Unknown]:
        outcomes = (decision.outcome, *(item.outcome for item in decision.evaluations))
        code, system = decision.code if decision.outcome == "error" else "", request.envelope.system
        differs = list(_differences(expected, outcomes, decision))
        if not differs:
            return
        if code == TOO_LARGE:
            if outcomes != expected.outcomes:
                yield "the answer was too large to be written"
        elif code in LIMITS and code in {reason.code for reason in answer(snapshot, request.dated, trust).reasons}:
            yield "the request is beyond a limit that the reference evaluator does not have"
        elif _has_kind(system, lambda kind: kind.point_in_time) and (snapshot.history_held or not self._log.complete):
            yield "the answer may rest on older versions of documents, of which the job may have known fewer or more"
        else:
            yield from differs

    def _expected(
        self, versions: object, request: RecordedRequest, snapshot: Snapshot, trust: frozenset[str], decision: Decision
    ) -> ExpectedDecision:
        named = {**decision.policy_offsets, self._facts_topic: {"0": decision.facts_offset}}
        if not all(_covers(named, demand) for demand in _demands(request.dated)):
            return ExpectedDecision(("error",), _error_explanation(BEHIND, decision))
        policy_set = snapshot.policy_sets.get(request.envelope.system)
        dated = request.at if policy_set is not None and policy_set.edges else 0
        undated = msgspec.structs.replace(_with_time(request.dated, 0), id="")
        key = (versions, trust, dated, msgspec.json.encode(undated))
        expected = self._expectations.get(key)
        if expected is None:
            if len(self._expectations) >= ANSWERS_HELD:
                self._expectations.clear()
            outcomes = _reference(snapshot, request.dated, trust)
            expected = self._expectations[key] = ExpectedDecision(
                outcomes, _expected_explanation(snapshot, request.dated, trust)
            )
        return expected


def _expected_explanation(snapshot: Snapshot, request: Request | Batch, trust: frozenset[str]) -> Explanation | None:
    """Beside the outcomes, by the job's evaluator: the reference evaluator gives no reasons. None: it fails."""
    try:
        return _explanation(answer(snapshot, request, trust))
    except Exception:  # the outcome must be an error, whatever its reason
        return None


def _explanation(decision: EvaluatedDecision) -> Explanation:
    return tuple(
        (_grounds(part), tuple(sorted([*(r.message for r in part.reasons), *(m.message for m in part.missing)])))
        for part in (decision, *decision.evaluations)
    )


def _error_explanation(code: str, decision: Decision) -> Explanation:
    """Of an error with this reason alone, in the words of the decision."""
    words = decision.reasons[0].message if decision.reasons else ""
    return _explanation(EvaluatedDecision("error", (Reason(code, words),)))


def _grounds(decision: EvaluatedDecision) -> str:
    """Codes, rules, documents, statements, what is missing, and claims: no order counts."""
    reasons = ((reason.code, reason.rule, reason.document, reason.statement) for reason in decision.reasons)
    parts = [" ".join(str(part) for part in reason if part is not None) for reason in reasons]
    missing = [f"{lack.permission} on {lack.object} {lack.rule}" for lack in decision.missing]
    grounds = (("reasons", parts), ("missing", missing), ("claims", decision.claims))
    return "; ".join(f"{name} {', '.join(sorted(texts)) or 'none'}" for name, texts in grounds)


def _differences(
    expected: ExpectedDecision, outcomes: Outcomes, decision: EvaluatedDecision
) -> Iterator[Contradiction | Unknown]:
    """In what a decision is not as expected: the outcomes, or else what they rest on."""
    if outcomes != expected.outcomes:
        yield Contradiction("unlike_reference", _text(expected.outcomes), _text(outcomes))
        return
    if expected.explanation is None:
        return
    parts = zip(expected.explanation, _explanation(decision), strict=True)
    for number, ((expected_grounds, expected_words), (grounds, words)) in enumerate(parts):
        where = f"evaluation {number - 1}: " if number else ""
        if grounds != expected_grounds:
            yield Contradiction("unlike_reference", f"{where}{expected_grounds}", f"{where}{grounds}")
        elif words != expected_words:
            yield "this version words the reasons otherwise"


def _check_copies(request: RecordedRequest, decision: Decision, record: DecisionRecord) -> Iterator[Contradiction]:
    """Whether the decision says to which request it is, and has offsets that documents' topics can have."""
    yield from _check_names(request, decision)
    yield from _check_repeated(request.envelope, record)
    if any(partitions.keys() - {"0"} for partitions in decision.policy_offsets.values()):
        yield Contradiction("wrong_version", "offsets of partition 0", str(decision.policy_offsets))


def _check_repeated(request: Request | Batch, record: DecisionRecord) -> Iterator[Contradiction]:
    """Whether the decision repeats the request that it answers, as far as it does: version 0.1 repeats none."""
    items = request.items if isinstance(request, Batch) else ()
    answers = ((f"evaluation {number}: ", item.context) for number, item in enumerate(record.evaluations))
    pairs = [(("", record.context), request), *zip(answers, items, strict=False)]
    for (where, context), item in pairs:
        try:
            repeated = requested(context)
        except ValueError as error:
            yield Contradiction("unlike_reference", f"{where}the request", f"{where}{error}")
            continue
        expected = _requested(item) if isinstance(item, Request) else None
        if repeated is not None and repeated != expected:
            yield Contradiction("unlike_reference", f"{where}{expected}", f"{where}{repeated}")


def _requested(request: Request) -> Requested:
    subject, resource = request.subject, request.resource
    return Requested(
        Entity(subject.type, subject.id),
        ActionName(request.action.name),
        Entity(resource.type, resource.id, resource.properties),
    )


def _check_names(request: RecordedRequest, decision: Decision) -> Iterator[Contradiction]:
    """Whether the decision says which request it answers, and by which time."""
    names = request.envelope.id, request.envelope.system
    expected, actual = (*names, to_text(request.at)), (decision.request_id, decision.system, decision.time)
    shortened = decision.code == TOO_LARGE and actual == (*map(shorten_id, names), to_text(request.at))
    if actual != expected and not shortened:
        yield Contradiction("unlike_reference", f"request, system, time {expected}", str(actual))


def _check_copy_of_answer(answer: Answer, decision: Decision) -> Iterator[Contradiction]:
    """Whether the decision repeats the answer."""
    try:
        copy = _fields(read_answer(decision.raw))
    except MalformedRequest as error:
        yield Contradiction("unlike_reference", "the answer", str(error))
        return
    for name, expected in _fields(answer).items():
        if copy[name] != expected:
            yield Contradiction("unlike_reference", f"answered.{name}: {expected}", f"answered.{name}: {copy[name]}")


def _fields(answer: Answer) -> dict[str, Any]:
    """Of an answer, in whichever form it has its time: in Avro there is one alone. Raises MalformedRequest."""
    return {**msgspec.structs.asdict(answer), "policy_offsets": offsets_in(answer.policy_offsets), "time": answer.at}


def _check_findings(answer: Answer, findings: Answered, decision: Decision, is_dated: bool) -> Iterator[Contradiction]:
    """Whether the decision says of the answer what holds. `is_dated`: by its own time."""
    if findings.misdated is is_dated:
        yield Contradiction("unlike_reference", f"misdated: {not is_dated}", f"{findings.misdated}")
    is_error, is_too_old = answer.outcome == "error", answer.freshness.age_ms > answer.freshness.max_ms
    if is_error if findings.stale else is_too_old and not is_error:
        yield Contradiction("unlike_reference", f"stale: {not findings.stale}", f"{findings.stale}")
    items = tuple(item.outcome for item in answer.evaluations)
    has_items = bool(items and decision.evaluations)
    agrees = decision.outcome == answer.outcome and (
        not has_items or items == tuple(item.outcome for item in decision.evaluations)
    )
    if not findings.verified:
        if findings.agrees is not None or (agrees and decision.outcome != "error"):
            yield Contradiction("unlike_reference", f"verified: {agrees}", f"{findings.verified}, {findings.agrees}")
    elif findings.agrees is not agrees and (is_dated or not findings.agrees):  # by its own time it may agree
        yield Contradiction("unlike_reference", f"agrees: {agrees}", f"{findings.agrees}")


def _check_deadline(
    request: RecordedRequest, received: int, decision: Decision, written: int
) -> list[Contradiction] | None:
    """None: the deadline decides nothing. The job's clock at the evaluation lies between receipt and writing."""
    deadline = request.envelope.deadline
    if decision.code == TOO_LATE:
        passed = deadline is not None and deadline < written + CLOCK_MS
        outcome = decision.outcome, _explanation(decision)
        right = passed and outcome == ("error", _error_explanation(TOO_LATE, decision))
        return [] if right else [Contradiction("unlike_reference", "no deadline that had passed", TOO_LATE)]
    if deadline is not None and deadline < received - CLOCK_MS:
        expected = f"error: the deadline was {to_text(deadline)}"
        return [Contradiction("unlike_reference", expected, decision.outcome)]
    return None


def _reference(snapshot: Snapshot, request: Request | Batch, trust: frozenset[str]) -> Outcomes:
    try:
        outcomes = reference.answer(snapshot, request, trust)
    except Exception:  # what cannot be computed is an error
        return ("error",)
    if isinstance(outcomes, str):
        return (outcomes,)
    first_permit = isinstance(request, Batch) and request.semantic == "permit_on_first_permit"
    counted = outcomes[-1:] if first_permit else outcomes
    worst = next((outcome for outcome in ("error", "deny") if outcome in counted), "allow")
    return (worst, *outcomes)


def _has_kind(system: str, wanted: Callable[[Kind], bool]) -> bool:
    definition = all_systems().get(system)
    return definition is not None and any(map(wanted, definition.kinds.values()))


def _demands(request: Request | Batch) -> Iterator[Any]:
    """The `min_policy_offsets` of a request or of a batch's items."""
    for item in request.items:
        if isinstance(item, Request) and "min_policy_offsets" in item.context:
            yield item.context["min_policy_offsets"]


def _covers(named: Mapping[str, Mapping[str, int]], demand: Any) -> bool:
    """Whether the offsets that a decision names are at or beyond those that were asked for."""
    if not isinstance(demand, Mapping) or not all(isinstance(offsets, Mapping) for offsets in demand.values()):
        return False
    wanted = ((topic, number, offset) for topic, offsets in demand.items() for number, offset in offsets.items())
    return all(
        type(offset) is int and offset <= named.get(topic, {}).get(number, -2) for topic, number, offset in wanted
    )


def _text(outcomes: Outcomes) -> str:
    return f"{outcomes[0]} of {', '.join(outcomes[1:])}" if len(outcomes) > 1 else outcomes[0]


class Acknowledged:
    """Offsets of one topic, each with a moment (ms, the broker's clock) by which it could be read.

    A record is dated when it is appended. One that belongs to a transaction can be read when that is committed, and
    its marker leaves a gap in the offsets. So a record before a gap counts from the record after the gap on, which is
    younger than the marker, or from the first decision that named it (`name`). `end`: where the log ends.
    """

    def __init__(self, records: Iterable[DocumentRecord] = (), end: int = 0) -> None:
        self._by_append = _Steps()
        self._by_decision = _Steps()
        records = list(records)
        self._offsets, self._times = [record.offset for record in records], [record.at for record in records]
        self._end = end
        for offset, at in _readable(records, end):
            self._by_append.add(at, offset)

    def had_offset(self, offset: int, moment: int) -> bool:
        """Whether the topic had an offset at a moment: not if it ends before it, or got the record there later."""
        count = bisect.bisect_right(self._offsets, offset)
        return offset < self._end and (count == 0 or self._times[count - 1] <= moment)

    def ends_before(self, offset: int) -> bool:
        """Whether the topic ends before an offset."""
        return offset >= self._end

    def has_record_up_to(self, offset: int) -> bool:
        """Whether the topic has a record at an offset or before it: else the offset shows nothing of the topic."""
        return bool(self._offsets) and self._offsets[0] <= offset

    def name(self, offset: int, at: int) -> None:
        """Note that a decision which was written at a moment names this offset."""
        self._by_decision.add(at, offset)

    def before(self, moment: int, clocks_ms: int, decisions_clock_ms: int) -> int:
        """The newest offset that could surely be read before a moment; -1: none is known.

        `clocks_ms`: by how much clocks of two brokers may differ; `decisions_clock_ms`: a broker's and the job's.
        """
        return max(self._by_append.before(moment - clocks_ms), self._by_decision.before(moment - decisions_clock_ms))


class _Steps:
    """Offsets that rise over time."""

    def __init__(self) -> None:
        self._times: list[int] = []
        self._offsets: list[int] = []

    def add(self, at: int, offset: int) -> None:
        if self._offsets and offset <= self._offsets[-1]:
            return
        self._times.append(max(at, self._times[-1]) if self._times else at)
        self._offsets.append(offset)

    def before(self, moment: int) -> int:
        index = bisect.bisect_left(self._times, moment)
        return self._offsets[index - 1] if index else -1


def _readable(records: Iterable[DocumentRecord], end: int) -> Iterator[tuple[int, int]]:
    """Each offset with the moment by which it could be read; those before a gap at the end are left out."""
    run: list[DocumentRecord] = []
    for record in records:
        if run and record.offset != run[-1].offset + 1:
            yield from ((written.offset, record.at) for written in run)
            run = []
        run.append(record)
    if run and run[-1].offset + 1 == end:
        yield from ((written.offset, written.at) for written in run)
