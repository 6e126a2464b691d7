"""Requests decided under two snapshots: what runs in Spark's Python workers. Bytes in, a summary out."""

import gc
from collections import Counter
from collections.abc import Iterator, Mapping

import msgspec
import pyarrow as pa
from pyspark.core.broadcast import Broadcast

from policy import MalformedRequest, Reason, Unanswerable, decode_request, to_text
from streaming.enforcer.source import Records
from streaming.history.span import Span
from streaming.records.avro import Reader, Undecodable, is_avro
from streaming.records.formats import JSON_ALONE, Formats
from streaming.replay.comparison import UNKNOWN, Answered, Comparison, Sides, reason_of
from streaming.replay.result import Example, Totals, kind_of
from streaming.settings import Limits

NO_REQUEST = (msgspec.MsgspecError, ValueError, RecursionError, Unanswerable, MalformedRequest, Undecodable)
COLUMN = "totals"

EVER = Span(0, 1 << 62)

encode = msgspec.msgpack.Encoder().encode


class Task(msgspec.Struct, frozen=True):
    """What the workers need beside the policies. Plain data.

    ``id``: of the replay. ``trust``: by topic, what its producers may claim; of files that of "". ``topic_ids``: which
    begin the ids of decisions. ``systems``: in JSON, those whose requests are replayed; none: all. ``now``: the time of
    a request in a file that says none, ms. ``schemas``: for records in Avro. ``span``: of the records' times; a range
    of offsets has others, too.
    """

    id: str
    trust: Mapping[str, frozenset[str]]
    topic_ids: Mapping[str, str]
    systems: frozenset[bytes]
    now: int
    limits: Limits
    schemas: Formats = JSON_ALONE
    span: Span = EVER


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
        comparison = _held.get((key, trust))
        if comparison is None:
            for other in [replayed for replayed in _held if replayed[0] != key]:
                del _held[other]
            comparison = _held[key, trust] = Comparison(self._sides.value, trust)
            gc.freeze()  # snapshots and caches hold no cycles
        return comparison


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
        span = self._task.span
        for value, at, offset in rows:
            if not span.start <= at < span.end:
                continue
            if not self._head and not (value and value.strip()):
                continue  # an empty line of a file
            self._totals.records += 1
            try:
                self._one(self._as_json(value or b""), at, offset)
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
        kept = self._comparison.kept(value, at)
        if kept is None:
            self._each(value, at, offset)
            return
        before, after, parts, at = kept
        if not self._is_wanted(bytes(parts.system)):
            self._totals.records -= 1
        elif before.label is after.label:  # interned
            self._alike[before.label] += 1
        else:
            resource = msgspec.json.encode(parts.resource.id)[1:-1]
            was, now = (_verdict(b"{%b}" % resource.join(side.answer)).reasons for side in (before, after))
            outcomes = before.label.rpartition(" ")[2], after.label.rpartition(" ")[2]
            self._differ(_names(value), Answered(*outcomes, None, reason_of(was, now, outcomes[1])), at, offset)

    def _each(self, value: bytes, at: int, offset: int) -> None:
        asked = decode_request(value)
        if not self._is_wanted(msgspec.json.encode(asked.system)):
            self._totals.records -= 1
            return
        for answered in self._comparison.each(asked, at):
            if answered.before == answered.after or answered.request is None:
                self._note((answered.before, answered.after), 1)
                continue
            request = answered.request
            named = (_Named(id=request.subject.id), _Named(name=request.action.name), _Named(id=request.resource.id))
            at = at if request.time is None else request.time
            self._differ(_Names(asked.id, asked.system, *named), answered, at, offset)

    def _is_wanted(self, system: bytes) -> bool:
        return not self._task.systems or system in self._task.systems

    def _note(self, pair: tuple[str, str], number: int) -> None:
        if UNKNOWN in pair:
            self._totals.unknown += number
        else:
            self._totals.note(pair, number)

    def _differ(self, names: _Names, answered: Answered, at: int, offset: int) -> None:
        self._note((answered.before, answered.after), 1)
        if UNKNOWN in (answered.before, answered.after):
            return
        reason = answered.reason
        decision = f"{self._head}{offset}" if self._head else ""
        example = Example(
            *(to_text(at), decision, names.id, names.system, names.subject.id, names.action.name, names.resource.id),
            *(answered.before, answered.after),
        )
        if reason is not None:
            why = {"reason": reason.message, "document": reason.document or "", "statement": reason.statement}
            example = msgspec.structs.replace(example, **why)
        self._totals.differ(kind_of(answered.before, answered.after), example)
