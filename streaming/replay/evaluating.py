"""Requests decided under two snapshots: what runs in Spark's Python workers. Bytes in, a summary out.

Both sides are answered as the job answers accesses of the past (`streaming.enforcer.auditing`): answers are kept, and
are those with the facts that were known at the time of the request. Deadlines and `min_policy_offsets` do not count:
they were about the decision of that time.
"""

import gc
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import msgspec
import pyarrow as pa
from pyspark.core.broadcast import Broadcast

from policy import (
    NO_LONGER_KNOWN,
    Batch,
    Decision,
    FactOverlay,
    MalformedRequest,
    Reason,
    Request,
    Snapshot,
    Unanswerable,
    answer,
    to_text,
)
from streaming.enforcer.answers import QueryParts, check_members, content_of, may_be_kept, may_share
from streaming.enforcer.auditing import AuditAnswers, RenderedVerdict
from streaming.enforcer.requests import Envelope, Parts, moment, open_envelope
from streaming.enforcer.source import Records
from streaming.records.avro import Reader, Undecodable, is_avro
from streaming.records.formats import JSON_ALONE, Formats
from streaming.replay.result import Example, Totals, kind_of
from streaming.settings import Limits

NO_REQUEST = (msgspec.MsgspecError, ValueError, RecursionError, Unanswerable, MalformedRequest, Undecodable)
UNKNOWN = "unknown"
COLUMN = "totals"

encode = msgspec.msgpack.Encoder().encode
_parts = msgspec.json.Decoder(QueryParts).decode


class Sides(msgspec.Struct, frozen=True):
    """The policies before and after, and the facts beside both, with their past; None: the documents have all facts."""

    before: Snapshot
    after: Snapshot
    facts: FactOverlay | None = None


class Task(msgspec.Struct, frozen=True):
    """What the workers need beside the policies. Plain data.

    ``id``: of the replay. ``trust``: by topic, what its producers may claim; of files that of "". ``topic_ids``: which
    begin the ids of decisions. ``systems``: in JSON, those whose requests are replayed; none: all. ``now``: the time of
    a request in a file that says none, ms. ``schemas``: for records in Avro.
    """

    id: str
    trust: Mapping[str, frozenset[str]]
    topic_ids: Mapping[str, str]
    systems: frozenset[bytes]
    now: int
    limits: Limits
    schemas: Formats = JSON_ALONE


class Answered(NamedTuple):
    """One answer by both sides. ``reason``: the one that is shown if they differ: see `_reason`."""

    before: str
    after: str
    request: Request | None = None
    reason: Reason | None = None


class _Named(msgspec.Struct):
    id: str = ""
    name: str = ""


class _Names(msgspec.Struct):
    """Who asks for what, as an example shows it."""

    id: str
    system: str
    subject: _Named
    action: _Named
    resource: _Named


class _Verdict(msgspec.Struct):
    reasons: tuple[Reason, ...]


_names = msgspec.json.Decoder(_Names).decode
_verdict = msgspec.json.Decoder(_Verdict).decode


class Kept(NamedTuple):
    """Both answers to a request, rendered, and the time of evaluation (ms)."""

    before: RenderedVerdict
    after: RenderedVerdict
    parts: QueryParts
    at: int


class Comparison:
    """Decides requests of producers with one trust under both sides. It keeps its answers: a process has one."""

    def __init__(self, sides: Sides, trust: frozenset[str], limits: Limits) -> None:
        self._sides, most = sides, limits.cached_decisions
        self._before, self._after = (AuditAnswers(one, trust, most, sides.facts) for one in (sides.before, sides.after))
        self._requests, self._trusts_time = Parts(limits.claimed_groups), "time" in trust

    def kept(self, value: bytes, at: int) -> "Kept | None":
        """Both answers by what is kept; None: it is decided by itself. Raises one of `NO_REQUEST` for what is none."""
        try:
            parts = _parts(value)
        except msgspec.ValidationError:  # a batch needs no subject of its own
            return None
        at = self._time(parts, at)
        if not may_be_kept(parts) or not self._before.knows(at):
            return None
        content, repeats = content_of(parts)
        before, after = (one.find(content, parts.resource.id, at) for one in (self._before, self._after))
        if before is None or after is None:
            request = self._requests.request(open_envelope(value), value, at)
            if not isinstance(request, Request):
                return None
            before = before or self._before.add(content, request, repeats, may_share(content))
            after = after or self._after.add(content, request, repeats, may_share(content))
        check_members(value, parts, content, repeats)
        return Kept(before.rendered, after.rendered, parts, at)

    def _time(self, asked: QueryParts | Envelope, at: int) -> int:
        """The time of evaluation (ms): of the record, or what the request says where that is trusted."""
        claimed = at if asked.time is None else moment(asked.time)
        if asked.deadline is not None:
            moment(asked.deadline)  # raises where it is none
        return claimed if self._trusts_time else at

    def each(self, value: bytes, at: int) -> Iterator[Answered]:
        """The answers of a request, or of a batch, one by one. Raises as `kept`."""
        envelope = open_envelope(value)
        at = self._time(envelope, at)
        parsed = self._requests.request(envelope, value, at)
        before, after = (
            answer(self._at(one, at), parsed, self._before.trust) for one in (self._sides.before, self._sides.after)
        )
        if not isinstance(parsed, Batch):
            yield _answered(before, after, parsed)
            return
        most = max(len(before.evaluations), len(after.evaluations))
        for number, item in enumerate(parsed.items[:most]):
            was, now = (one.evaluations[number] if number < len(one.evaluations) else one for one in (before, after))
            yield _answered(was, now, item if isinstance(item, Request) else None)

    def _at(self, policies: Snapshot, at: int) -> Snapshot:
        """With the facts of a moment (ms)."""
        return policies if self._sides.facts is None else policies.with_facts(self._sides.facts, at)


def _answered(before: Decision, after: Decision, request: Request | None) -> Answered:
    return Answered(_outcome(before), _outcome(after), request, _reason(before.reasons, after.reasons))


def _outcome(decision: Decision) -> str:
    unknown = any(reason.code == NO_LONGER_KNOWN for reason in decision.reasons)
    return UNKNOWN if unknown else decision.outcome


def _reason(before: tuple[Reason, ...], after: tuple[Reason, ...]) -> Reason | None:
    """Why it is answered otherwise: the statement that decides now, else the one that did before, else what is
    missing.
    """
    placed = (reason for reason in (*after, *before) if reason.document is not None)
    return next(placed, None) or next(iter(after), None)


class Replayer:
    """Called by Spark with the Arrow batches of one task: of one partition of a topic, or of a file."""

    def __init__(self, task: Task, sides: "Broadcast[Sides]", from_topics: bool) -> None:
        self._task, self._sides, self._from_topics = task, sides, from_topics

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield one row, with the totals of the task in MessagePack."""
        totals = Totals()
        for batch in batches:
            if batch.num_rows:
                self._take(batch, totals)
        yield pa.RecordBatch.from_arrays([pa.array([encode(totals)], pa.binary())], [COLUMN])

    def _take(self, batch: pa.RecordBatch, totals: Totals) -> None:
        if self._from_topics:
            records = Records(batch)
            head = f"{self._task.topic_ids[records.topic]}-{records.partition}-"
            times, offsets = records.times.tolist(), records.offsets.tolist()
            part = Part(self._comparison(records.topic), self._task, head, totals)
            part.take(zip(records.texts, times, offsets, strict=True))
        else:
            values = batch.column(0).cast(pa.binary()).to_pylist()
            Part(self._comparison(""), self._task, "", totals).take((value, self._task.now, -1) for value in values)

    def _comparison(self, topic: str) -> Comparison:
        trust, key = self._task.trust[topic], self._task.id
        found = _held.get((key, trust))
        if found is None:
            for other in [one for one in _held if one[0] != key]:
                del _held[other]
            found = _held[key, trust] = Comparison(self._sides.value, trust, self._task.limits)
            gc.freeze()  # snapshots and caches hold no cycles
        return found


_held: dict[tuple[str, frozenset[str]], Comparison] = {}
"""By the replay and the trust. Of one replay at a time."""


class Part:
    """Decides the records of one Arrow batch. ``head``: of the ids of their decisions; "": they are of a file."""

    def __init__(self, comparison: Comparison, task: Task, head: str, totals: Totals) -> None:
        self._comparison, self._task, self._head, self._totals = comparison, task, head, totals
        self._reader = Reader(task.schemas)
        self._alike: Counter[str] = Counter()  # answers that are the same, by label

    def take(self, rows: Iterator[tuple[bytes | None, int, int]]) -> None:
        """Count them. A row: value, the record's time (ms) and its offset."""
        for value, at, offset in rows:
            if value is None or not value.strip():
                self._totals.unreadable += self._head != ""
                continue
            self._totals.records += 1
            try:
                self._one(self._as_json(value), at, offset)
            except NO_REQUEST:
                self._totals.unreadable += 1
        for label, number in self._alike.items():
            outcome = label.rpartition(" ")[2]
            self._note((outcome, outcome), number)
        self._totals.schemas = sorted({*self._totals.schemas, *self._reader.needed})

    def _as_json(self, value: bytes) -> bytes:
        if len(value) > self._task.limits.record_in:
            raise ValueError("too large")
        value = self._reader.transcode("request", value) if is_avro(value) else value
        value.decode()
        return value

    def _one(self, value: bytes, at: int, offset: int) -> None:
        found = self._comparison.kept(value, at)
        if found is None:
            self._each(value, at, offset)
            return
        before, after, parts, at = found
        if not self._is_wanted(bytes(parts.system)):
            self._totals.records -= 1
        elif before.label is after.label:  # interned
            self._alike[before.label] += 1
        else:
            resource = msgspec.json.encode(parts.resource.id)[1:-1]
            was, now = (_verdict(b"{%b}" % resource.join(one.answer)).reasons for one in (before, after))
            outcomes = before.label.rpartition(" ")[2], after.label.rpartition(" ")[2]
            self._differ(_names(value), Answered(*outcomes, None, _reason(was, now)), at, offset)

    def _each(self, value: bytes, at: int, offset: int) -> None:
        envelope = open_envelope(value)
        if not self._is_wanted(msgspec.json.encode(envelope.system)):
            self._totals.records -= 1
            return
        for one in self._comparison.each(value, at):
            if one.before == one.after or one.request is None:
                self._note((one.before, one.after), 1)
                continue
            request = one.request
            named = (_Named(id=request.subject.id), _Named(name=request.action.name), _Named(id=request.resource.id))
            at = at if request.time is None else request.time
            self._differ(_Names(envelope.id, envelope.system, *named), one, at, offset)

    def _is_wanted(self, system: bytes) -> bool:
        return not self._task.systems or system in self._task.systems

    def _note(self, pair: tuple[str, str], number: int) -> None:
        if UNKNOWN in pair:
            self._totals.unknown += number
        else:
            self._totals.note(pair, number)

    def _differ(self, names: _Names, one: Answered, at: int, offset: int) -> None:
        self._note((one.before, one.after), 1)
        if UNKNOWN in (one.before, one.after):
            return
        reason = one.reason
        decision = f"{self._head}{offset}" if self._head else ""
        example = Example(
            *(to_text(at), decision, names.id, names.system, names.subject.id, names.action.name, names.resource.id),
            *(one.before, one.after),
        )
        if reason is not None:
            why = {"reason": reason.message, "document": reason.document or "", "statement": reason.statement}
            example = msgspec.structs.replace(example, **why)
        self._totals.differ(kind_of(one.before, one.after), example)
