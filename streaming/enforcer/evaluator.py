"""Decides request records: bytes in, bytes out. One evaluator for each worker process and snapshot.

Most requests have an answer that is kept, or is worth keeping: `PartitionEvaluator.kept_answer`. All others, such as
batches, are decoded and decided one by one.
"""

import functools
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import structlog

from policy import (
    Batch,
    Decision,
    MalformedRequest,
    Outcome,
    Reason,
    Request,
    Snapshot,
    Unanswerable,
    answer,
    decode_request,
    to_text,
)
from policy.evaluation import ANSWERS_KEPT, AnswerCache, Lookup
from streaming.enforcer.answers import (
    TIME,
    QueryParts,
    RenderedDecision,
    check_members,
    content_of,
    may_be_kept,
    may_share,
    render,
)
from streaming.enforcer.lessons import NOTHING, Lessons
from streaming.enforcer.ranges import UNLIMITED, Usage
from streaming.enforcer.requests import may_name_offsets, moment, staleness, with_time
from streaming.enforcer.source import LENGTH_BYTES, Records, decode_headers, single_header_prefix
from streaming.ops.tally import DEAD, Label, label, no_counts
from streaming.records.avro import Reader, Undecodable, Unencodable, Writer, is_avro
from streaming.records.dead_letter import Rejection, dead_letter
from streaming.records.decision import DecisionEnvelope, echo, evaluations, to_json
from streaming.records.formats import JSON, JSON_ALONE, Formats, Header, content_type, shorten_id, with_content_type
from streaming.records.packing import (
    DECISIONS,
    ColumnarBatch,
    Outgoing,
    Packed,
    encode_headers,
    encode_text,
)
from streaming.records.size_gate import TooLarge, check_size, record_size
from streaming.settings import Limits
from streaming.topics import Offsets

log = structlog.get_logger()

COLUMN_BYTES = 16 << 10  # of a decision that travels with others in one column
HEADERS_KEPT = 1000  # that are alike
EXPECTED = (msgspec.MsgspecError, ValueError, RecursionError, Undecodable, Unanswerable, MalformedRequest)
"""What an invalid request or audit event raises."""

CLOCK_EVERY = 256  # records, for the budget
CARRIED = ("traceparent", "tracestate")
CARRIED_BYTES = 1024

_encode = msgspec.json.encode


class Given(NamedTuple):
    """An answer: its text, up to `claims` and with the request, the evaluations of a batch, as what it is counted.

    `items`: the outcomes of these evaluations.
    """

    text: bytes
    evaluations: bytes
    label: Label
    items: tuple[Outcome, ...] = ()

    @property
    def outcome(self) -> str:
        """Of the request, or of the batch as a whole."""
        return self.label.rpartition(" ")[2]


Answers = AnswerCache[RenderedDecision]


class Source(msgspec.Struct, frozen=True):
    """Where records come from, what their producers may claim, and the output number of their dead letters."""

    topic: str
    partition: int
    topic_id: str
    trust: frozenset[str]
    dead_letters: int


class EvaluationContext(msgspec.Struct, frozen=True):
    """The versions that a batch is evaluated with, as its decisions report them. `now`: ms, for deadlines.

    `read`: the newest offset read of every documents' topic, for `min_policy_offsets`. `enforced`: whether
    clients must act on the decisions.
    """

    policy_version: str
    policy_offsets: Offsets
    facts_offset: int
    read: Offsets
    now: int
    enforced: bool = True


class Evaluator:
    """A snapshot with the answers it has given, by trust."""

    def __init__(self, snapshot: Snapshot, limits: Limits, most: int = ANSWERS_KEPT) -> None:
        """`most`: queries whose answers are kept, for each trust."""
        self.snapshot = snapshot
        self.limits, self._most = limits, most
        self._answers: dict[frozenset[str], Answers] = {}

    def for_partition(
        self, source: Source, context: EvaluationContext, reader: Reader | None = None
    ) -> "PartitionEvaluator":
        """Begin to decide records of one partition. `reader`: of those in Avro; None knows no registry."""
        return PartitionEvaluator(self, self.answers(source.trust), source, context, reader or Reader(JSON_ALONE))

    def answers(self, trust: frozenset[str]) -> Answers:
        """The answers to producers with this trust."""
        answers = self._answers.get(trust)
        if answers is None:
            policy_sets = self.snapshot.policy_sets
            answers = self._answers[trust] = AnswerCache(policy_sets, trust | TIME, render, self._most)
        return answers

    def follow(self, snapshot: Snapshot, changed: Iterable[tuple[str, Lookup]]) -> None:
        """Go on with other policies and facts; the facts of their layers differ in these lookups, by system."""
        self.snapshot, changed = snapshot, tuple(changed)
        for answers in self._answers.values():
            answers.follow(snapshot.policy_sets, changed)


class Clock:
    """Writes moments; most of a batch lie within a few seconds."""

    def __init__(self) -> None:
        self._second, self._begin = -1, b""
        self._at, self._text = -1, b""

    def text(self, at: int) -> bytes:
        """RFC 3339 in UTC, with milliseconds."""
        if at != self._at:
            self._at, self._text = at, self._write(at)
        return self._text

    def _write(self, at: int) -> bytes:
        second, rest = divmod(at, 1000)
        if second != self._second:
            self._second, self._begin = second, to_text(second * 1000).encode()[: -len("000Z")]
        return b"%b%03dZ" % (self._begin, rest)


_parts = msgspec.json.Decoder(QueryParts).decode


def _rejected(
    source: Source,
    offset: int,
    why: Exception,
    key: bytes | None,
    value: bytes | None,
    headers: list[dict[str, Any]] | None,
    limits: Limits,
) -> Outgoing:
    """The dead letter of a record, as it is to be written.

    The exception's traceback has its caller's frame. A variable there that holds the exception would be a cycle, which
    keeps the record; here is none.
    """
    rejection = Rejection(source.topic, source.partition, offset, why)
    return (source.dead_letters, *dead_letter(rejection, key, value, headers, limits))


class RecordEvaluator:
    """Evaluates records one by one. `counts`: what it made, for the metrics. `output`: the number of what it writes."""

    def __init__(self, source: Source, limits: Limits, output: int = DECISIONS) -> None:
        self._source, self._limits, self._output, self.counts = source, limits, output, no_counts()

    def decide(
        self, key: bytes | None, value: bytes | None, headers: list[dict[str, Any]] | None, offset: int, at: int
    ) -> Outgoing:
        """The record to write for one record: its decision or verdict, or its dead letter. Never raises."""
        try:
            record = self._record(key, value, offset, at)
            return self._output, key, record, carried(headers) if headers and self._output == DECISIONS else None
        except Exception as refusal:  # a bug too: one poisonous record must not stop the stream, nor be allowed
            self.counts[DEAD] += 1
            return _rejected(self._source, offset, refusal, key, value, headers, self._limits)

    def _record(self, key: bytes | None, value: bytes | None, offset: int, at: int) -> bytes:
        """The decision or verdict. Raises what makes it a dead letter."""
        raise NotImplementedError


def envelope_of(source: Source, context: EvaluationContext) -> DecisionEnvelope:
    """What the decisions on a partition's records begin and end with."""
    fields = {
        "policy_version": context.policy_version,
        "policy_offsets": context.policy_offsets,
        "facts_offset": context.facts_offset,
        **({} if context.enforced else {"enforced": False}),
    }
    return DecisionEnvelope.of(source.topic_id, fields, source.topic, source.partition)


class PartitionEvaluator(RecordEvaluator):
    """Decides the records of one partition in one batch. `lessons`: what of it Java is to know."""

    def __init__(
        self, evaluator: Evaluator, answers: Answers, source: Source, context: EvaluationContext, reader: Reader
    ) -> None:
        super().__init__(source, evaluator.limits)
        self._evaluator, self._answers, self._reader = evaluator, answers, reader
        self._clock, self._context = Clock(), context
        self._trusts_time = "time" in source.trust
        self._has_failed = False
        self._envelope, self.lessons = envelope_of(source, context), Lessons(answers)

    def decide_all(self, records: Records, usage: Usage | None = None) -> Packed:
        """The records to write for these as far as the budget goes. Never raises."""
        usage, column, others = usage or Usage(UNLIMITED), dict[int, bytes](), dict[int, Outgoing]()
        room = min(COLUMN_BYTES, self._limits.record_out - records.longest_key)
        most = self._limits.record_in - records.longest_key
        values, sizes, decided = records.texts, records.sizes.tolist(), len(records)
        fields = values, records.offsets.tolist(), records.times.tolist(), records.missing.tolist()
        for number, (value, offset, at, missing) in enumerate(zip(*fields, strict=True)):
            if number and not number % CLOCK_EVERY and usage.is_over(first=False):
                decided = number
                break
            is_short = value is not None and len(value) <= most
            quick = self._decide_quickly(value or b"", offset, at, room, missing) if is_short else None
            if quick is not None:
                column[number] = quick
                usage.bytes += sizes[number]
                continue
            outgoing = usage.decide(self.decide, records.row(number), sizes[number], self.counts, first=not number)
            if outgoing is None:
                decided = number
                break
            others[number] = outgoing
        columns = [self._in_column(column, records)] if column else []
        return Packed(columns, list(others.values()), list(others), decided)

    def _in_column(self, decisions: Mapping[int, bytes], records: Records) -> ColumnarBatch:
        """Decisions, by the numbers of their requests."""
        rows, headers = np.fromiter(decisions, np.int32, len(decisions)), records.header_texts()
        carried = pa.array([None if (text := headers[row]) is None else _carried_text(text) for row in decisions])
        values = pa.array(decisions.values(), pa.binary())
        return ColumnarBatch(records.keys.take(rows), carried.cast(pa.binary()), values, rows)

    def _decide_quickly(self, value: bytes, offset: int, at: int, room: int, missing: int) -> bytes | None:
        """The decision by an answer that is kept; None: there is none, or it has more bytes than there is room for."""
        try:
            parts = _parts(value)
            if parts.time is not None:
                claimed = moment(parts.time)
                at = claimed if self._trusts_time else at
            late = parts.deadline is not None and self._context.now > moment(parts.deadline)
            answer = None if late else self._answer(parts, value, at, missing)
        except Exception as failure:
            self._note(failure)
            return None
        if answer is None:
            return None
        text = _encode(parts.resource.id)[1:-1].join(answer.pieces)
        decision = self._envelope.write(offset, _encode(parts.id), answer.system, self._clock.text(at), text)
        if len(decision) > room:
            return None
        self.counts[answer.label] += 1
        return decision

    def _answer(self, parts: QueryParts, value: bytes, at: int, missing: int = NOTHING) -> RenderedDecision | None:
        """The answer that is kept for a request; None: it is none that is kept. Raises where it is malformed.

        `missing`: what Java does not know of it.
        """
        if not may_be_kept(parts):
            return None
        content, repeats = content_of(parts)
        answer = self._answers.find(content, parts.resource.id, at)
        if answer is None:
            request = None if may_name_offsets(parts.context) else self._request(value, at)
            if request is None:
                return None
            answer = self._answers.add(content, request, repeats, may_share(content))  # read whole: it is sound
        else:
            if not value.isascii():
                value.decode()  # no decoder checks that undecoded fields are UTF-8
            check_members(value, parts, content, repeats)
        if missing:
            self.lessons.add(content, parts.resource.id, missing)
        return answer.rendered

    def _request(self, value: bytes, at: int) -> Request | None:
        parsed = with_time(decode_request(value), at)
        return parsed if isinstance(parsed, Request) else None

    def _note(self, failure: Exception) -> None:
        """A bug costs time alone, for the record is decided by itself. It is logged, without the request."""
        if not isinstance(failure, EXPECTED) and not self._has_failed:
            self._has_failed = True
            log.warning("records are decided the slow way; please report it", error=type(failure).__name__)

    def _record(self, key: bytes | None, value: bytes | None, offset: int, at: int) -> bytes:
        value = self.in_json(key, value)
        kept = self._decide_quickly(value, offset, at, self._limits.record_out - len(key or b""), NOTHING)
        if kept is not None:
            return kept
        request = decode_request(value)
        if request.time is not None and self._trusts_time:
            at = request.time
        rendered = self._evaluated(request, at, self._context.now)
        decision = self.assemble(request, offset, at, rendered, rendered.evaluations)
        if record_size(key, decision) > self._limits.record_out:
            decision, rendered = self._too_large(key, request, offset, at)
        self.counts[rendered.label] += 1
        return decision

    def _too_large(self, key: bytes | None, request: Request | Batch, offset: int, at: int) -> tuple[bytes, Given]:
        """In place of an answer that is too large: `error`, with the request's id whole where there is room for it.

        Raises TooLarge where not even that can be written.
        """
        limit = self._limits.record_out
        why, id_, system = f"the answer has more than {limit} bytes", request.id, request.system
        for note, name in (("", str), ("; so would its request_id and system, which are shortened", shorten_id)):
            error = Decision("error", (Reason("answer-too-large", why + note),))
            rendered = Given(to_json(error), b"", label(system, error.outcome))
            named = _encode(name(id_)), _encode(name(system))
            decision = self._envelope.write(offset, *named, self._clock.text(at), rendered.text)
            size = record_size(key, decision)
            if size <= limit:
                return decision, rendered
        check_size("the decision", size, limit)
        return decision, rendered

    def in_json(self, key: bytes | None, value: bytes | None) -> bytes:
        """A record of bounded size in JSON. Raises MalformedRequest."""
        if value is None:
            raise MalformedRequest("not a request: the record has no value")
        size = len(value) + len(key or b"")
        if size > self._limits.record_in:
            raise MalformedRequest(f"not a request: {size} bytes; at most {self._limits.record_in}")
        try:
            return self._reader.transcode("request", value) if is_avro(value) else value
        except Undecodable as error:
            raise MalformedRequest(f"not a request: {error}") from error

    def assemble(self, request: Request | Batch, offset: int, at: int, given: Given, evaluations: bytes) -> bytes:
        """A decision record. `evaluations`: those of the answer, and what follows them."""
        named = _encode(request.id), _encode(request.system)
        return self._envelope.write(offset, *named, self._clock.text(at), given.text, evaluations)

    def answer_at(self, request: Request | Batch, value: bytes, at: int) -> Given:
        """The answer at a moment (ms), with which its deadline is compared, too. `value`: the request in JSON."""
        late = request.deadline is not None and at > request.deadline
        kept = None if late else self.kept_answer(value, at)
        return self._evaluated(request, at, at) if kept is None else kept

    def _evaluated(self, request: Request | Batch, at: int, now: int) -> Given:
        """The answer, `at` being the time of evaluation, and `now` the one that its deadline is compared with; ms."""
        parsed = with_time(request, at)
        if request.deadline is not None and now > request.deadline:
            return _error(parsed, "deadline-exceeded", "the request was judged after its deadline")
        stale = staleness(parsed, self._context.read)
        if stale is not None:
            return _error(parsed, "policies-behind", stale)
        return given_of(parsed, answer(self._evaluator.snapshot, parsed, self._answers.trust))

    def kept_answer(self, value: bytes, at: int) -> Given | None:
        """The answer to a request in JSON at a moment (ms) that is kept; None: it is none that is kept."""
        try:
            parts = _parts(value)
            answer = self._answer(parts, value, at)
        except Exception as failure:
            self._note(failure)
            return None
        return (
            None if answer is None else Given(_encode(parts.resource.id)[1:-1].join(answer.pieces), b"", answer.label)
        )


def given_of(parsed: Request | Batch, decision: Decision) -> Given:
    """A decision as an answer. One for a batch as a whole has no evaluations."""
    text, name = to_json(decision), label(parsed.system, decision.outcome)
    if isinstance(parsed, Request):
        return Given(text + echo(parsed), b"", name)
    if not decision.evaluations:
        return Given(text, b"", name)
    return Given(text, evaluations(parsed, decision), name, tuple(item.outcome for item in decision.evaluations))


def _error(parsed: Request | Batch, code: str, message: str) -> Given:
    return given_of(parsed, Decision("error", (Reason(code, message),)))


def _carried_text(text: bytes) -> bytes | None:
    """The headers to carry over of those that the source has in this form; None: there are none."""
    # Each request of the client has a traceparent of its own, and no other header.
    value = text[_TRACE_START:]
    if len(value) > CARRIED_BYTES or text[:_TRACE_START] != _TRACE_NAME + len(value).to_bytes(LENGTH_BYTES):
        return _carried_of_many(text)
    return _BEFORE_TRACE + encode_text(value)


_TRACE_NAME = single_header_prefix(CARRIED[0])
_TRACE_START = len(_TRACE_NAME) + LENGTH_BYTES
_BEFORE_TRACE = encode_headers([JSON, (CARRIED[0], b"")]).removesuffix(encode_text(b""))
"""The encoded headers of a decision up to the value of a trace header that is alone."""


@functools.lru_cache(HEADERS_KEPT)
def _carried_of_many(text: bytes) -> bytes | None:
    headers = decode_headers(text)
    return encode_headers(carried(headers)) if headers else None


def carried(headers: list[dict[str, Any]]) -> list[Header]:
    """Our content type and the trace headers, of each the last one."""
    last = {h["key"]: h["value"] for h in headers if h["value"] is not None and len(h["value"]) <= CARRIED_BYTES}
    return [JSON, *((name, last[name]) for name in CARRIED if name in last)]


class EncodedEvaluator:
    """An evaluator of records whose decisions are Avro."""

    def __init__(self, evaluator: RecordEvaluator, source: Source, limits: Limits, formats: Formats) -> None:
        self._evaluator, self._source, self._limits = evaluator, source, limits
        self._encode = Writer("decision", formats.output, formats.ids.get("decision", 0)).encode
        self._content_type = content_type(formats.output)

    def decide(
        self, key: bytes | None, value: bytes | None, headers: list[dict[str, Any]] | None, offset: int, at: int
    ) -> Outgoing:
        """The record to write for one request record, as `RecordEvaluator.decide` has it. Never raises."""
        record = number, decision_key, decision, carried = self._evaluator.decide(key, value, headers, offset, at)
        if number != DECISIONS or decision is None:
            return record
        try:
            encoded = self._encode(decision)
            check_size("the decision", record_size(decision_key, encoded), self._limits.record_out)
            return number, decision_key, encoded, carried and with_content_type(carried, self._content_type)
        except (Unencodable, TooLarge) as refusal:  # a bug, which must not stop the stream
            return _rejected(self._source, offset, refusal, key, value, headers, self._limits)
