"""Decides request records: bytes in, bytes out. One evaluator for each worker process and snapshot.

Most requests are answered by a prepared query, and their decisions leave as columns. All others are decided one by one.
"""

import functools
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import structlog

from policy import (
    MAX_NESTING,
    Decision,
    MalformedRequest,
    Reason,
    Request,
    Snapshot,
    Unanswerable,
    decode_json,
    to_text,
)
from policy.evaluation import Lookup
from streaming.enforcer.answers import (
    MOMENT_QUOTES,
    REQUEST_BYTES,
    Answer,
    Answers,
    QueryParts,
    RenderedQuery,
    has_many_parts,
    is_plain,
)
from streaming.enforcer.ranges import UNLIMITED, Usage
from streaming.enforcer.rendering import (
    ANSWER_BYTES,
    SLOTS,
    Answered,
    AnsweredColumns,
    Beside,
    DecisionEnvelope,
    RenderedAnswer,
    coded,
    columnar_batch,
    echo,
    layout,
    to_json,
)
from streaming.enforcer.requests import Envelope, Parts, may_name_offsets, moment, open_envelope, staleness
from streaming.enforcer.source import Records, decode_headers, single_header_prefix
from streaming.ops.tally import DEAD, Label, label, no_counts, outcome_of
from streaming.records.avro import Reader, Undecodable, Unencodable, Writer, is_avro
from streaming.records.dead_letter import rejected
from streaming.records.formats import JSON, JSON_ALONE, Formats, Header, content_type, shorten_id, with_content_type
from streaming.records.packing import (
    DECISIONS,
    ColumnarBatch,
    DictionaryColumn,
    Outgoing,
    Packed,
    encode_headers,
    encode_text,
)
from streaming.records.size_gate import TooLarge, fits, record_size
from streaming.settings import Limits

log = structlog.get_logger()

TEXT_BYTES = 4096  # longer requests are decided one by one: a batch of decisions is no larger than Arrow can have it
LARGEST_BYTES = (
    REQUEST_BYTES + ANSWER_BYTES + (SLOTS + 3) * TEXT_BYTES
)  # of a decision in columns: the resource's id stands in it a few times
AROUND_BYTES = 300  # of a decision, beside all that
HEADERS_KEPT = 1000  # that are alike
EXPECTED = (msgspec.MsgspecError, ValueError, RecursionError, Unanswerable, MalformedRequest)
"""What an invalid request raises."""

LARGEST_LENGTH = np.iinfo(np.int32).max
CLOCK_EVERY = 256  # records, for the budget
CARRIED = ("traceparent", "tracestate")
CARRIED_BYTES = 1024

_encode = msgspec.json.encode


Labelled = tuple[bytes, bytes, bytes, Label]
"""An answer, and as what it is counted."""


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
    policy_offsets: Mapping[str, Mapping[str, int]]
    facts_offset: int
    read: Mapping[str, Mapping[str, int]]
    now: int
    enforced: bool = True


class Evaluator:
    """A snapshot with the answers it has given, by trust."""

    def __init__(self, snapshot: Snapshot, limits: Limits) -> None:
        self.snapshot = snapshot
        self.limits = limits
        self.parts = Parts(limits.claimed_groups)
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
            answers = self._answers[trust] = Answers(self.snapshot, trust, self.limits.cached_decisions)
        return answers

    def follow(self, snapshot: Snapshot, changed: Iterable[tuple[str, Lookup]]) -> None:
        """Go on with other policies and facts; the facts of their layers differ in these lookups, by system."""
        self.snapshot, changed = snapshot, tuple(changed)
        for answers in self._answers.values():
            answers.follow(snapshot, changed)


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


class RecordEvaluator:
    """Decides records one by one. `counts`: what it made, for the metrics."""

    def __init__(self, source: Source, limits: Limits) -> None:
        self._source, self._limits, self.counts = source, limits, no_counts()

    def decide(
        self, key: bytes | None, value: bytes | None, headers: list[dict[str, Any]] | None, offset: int, at: int
    ) -> Outgoing:
        """The record to write for one record: its decision, or its dead letter. Never raises."""
        try:
            return DECISIONS, key, self._record(key, value, offset, at), carried(headers) if headers else None
        except Exception as refusal:  # a bug too: one poisonous record must not stop the stream, nor be allowed
            self.counts[DEAD] += 1
            return rejected(self._source, offset, refusal, key, value, headers, self._limits)

    def _record(self, key: bytes | None, value: bytes | None, offset: int, at: int) -> bytes:
        """The decision. Raises what makes it a dead letter."""
        raise NotImplementedError


class PartitionEvaluator(RecordEvaluator):
    """Decides the records of one partition in one batch."""

    def __init__(
        self, evaluator: Evaluator, answers: Answers, source: Source, context: EvaluationContext, reader: Reader
    ) -> None:
        super().__init__(source, evaluator.limits)
        self._evaluator, self._answers, self._reader = evaluator, answers, reader
        self._clock, self._context = Clock(), context
        self._trusts_time = "time" in source.trust
        self._has_failed = False
        place = {"topic": source.topic, "partition": source.partition, "offset": 0}
        fields = {
            "policy_version": context.policy_version,
            "policy_offsets": context.policy_offsets,
            "facts_offset": context.facts_offset,
            **({} if context.enforced else {"enforced": False}),
            "source": place,
        }
        head = f'{{"id":"{source.topic_id}-{source.partition}-'.encode()
        self._envelope = DecisionEnvelope(head, b"," + _encode(fields)[1:].removesuffix(b"0}}"))

    def decide_all(self, records: Records, usage: Usage | None = None) -> Packed:
        """The records to write for these as far as the budget goes. Never raises."""
        usage, answered, others = usage or Usage(UNLIMITED), list[Answered](), list[tuple[int, Outgoing]]()
        is_text, may_be_prepared = _is_text(records.values), self._may_be_prepared(records)
        values, sizes, times = records.texts, records.sizes.tolist(), records.times.tolist()
        decided = len(values)
        for number, value in enumerate(values):
            if number and not number % CLOCK_EVERY and usage.is_over(first=False):
                decided = number
                break
            if may_be_prepared[number]:
                found = self._answer_prepared(value or b"", is_text, number, times[number])
                if found is not None:
                    answered.append(found)
                    usage.bytes += sizes[number]
                    continue
            made = usage.decide(self.decide, records.row(number), sizes[number], self.counts, first=not number)
            if made is None:
                decided = number
                break
            others.append((number, made))
        batches = self._batches(answered, records, others)
        others.sort(key=lambda pair: pair[0])
        return Packed(batches, [record for _, record in others], [number for number, _ in others], decided)

    def _may_be_prepared(self, records: Records) -> list[bool]:
        """Which of the records are short enough to be decided in columns, and not nested too deep."""
        lengths = pc.fill_null(pc.binary_length(records.values), LARGEST_LENGTH).to_numpy()
        fits = (lengths <= self._longest(records)) & (records.count(b"{[") <= MAX_NESTING)
        found: list[bool] = fits.tolist()
        return found

    def _longest(self, records: Records) -> int:
        """How many bytes a value may have whose decision is made in columns: no decision may be too large there."""
        around = len(self._envelope.head) + len(self._envelope.tail) + AROUND_BYTES
        if around + LARGEST_BYTES + records.longest_key > self._limits.record_out:
            return -1
        return min(TEXT_BYTES, self._limits.record_in - records.longest_key)

    def _answer_prepared(self, value: bytes, is_text: bool, number: int, at: int) -> Answered | None:
        """A record, which is not nested too deep, with its answer by a prepared query; None: it is decided alone."""
        try:
            if not is_text:
                value.decode()
            parts = _parts(value)
            deadline, id_, resource = parts.deadline, bytes(parts.id), bytes(parts.resource.id)
            if parts.time is not None:
                claimed = moment(parts.time)
                at = claimed if self._trusts_time else at
            if deadline is not None and not self._context.now <= moment(deadline):
                return None
            if not (is_plain(id_) and is_plain(resource)) or parts.evaluations or parts.options:
                return None
            found = self._look_up(parts, value, resource, at)
            if found is None:
                return None
            if value.count(b'"') != found[0].quotes + MOMENT_QUOTES[type(parts.time)] + MOMENT_QUOTES[type(deadline)]:
                decode_json(value)  # raises where a name stands twice; there may be unknown fields, too
        except Exception as failure:
            self._note(failure)
            return None
        return number, id_, resource, at, found[1], found[0].request_text

    def _find(self, parts: QueryParts, value: bytes, at: int) -> tuple[RenderedQuery, RenderedAnswer, bytes] | None:
        """The prepared query and its answer for the resource's id in JSON; None: the request is decided by itself."""
        resource = bytes(parts.resource.id)
        if has_many_parts(parts, value) or not is_plain(resource):
            return None
        found = self._look_up(parts, value, resource, at)
        return None if found is None else (*found, resource)

    def _look_up(
        self, parts: QueryParts, value: bytes, resource: bytes, at: int
    ) -> tuple[RenderedQuery, RenderedAnswer] | None:
        """The same for a request whose form is checked. `resource`: the id in JSON, without escapes."""
        query = self._answers.find(parts, resource, at) or self._prepare(parts, value, resource, at)
        if query is None:
            return None
        answer = query.answer_for(resource)
        return None if answer.is_large else (query, answer)

    def _prepare(self, parts: QueryParts, value: bytes, resource: bytes, at: int) -> RenderedQuery | None:
        if may_name_offsets(parts.context):
            return None
        parsed = self._evaluator.parts.request(open_envelope(value), value, at)
        return self._answers.prepare(parts, resource, parsed) if isinstance(parsed, Request) else None

    def _note(self, failure: Exception) -> None:
        """A bug costs time alone, for the record is decided by itself. It is logged, without the request."""
        if not isinstance(failure, EXPECTED) and not self._has_failed:
            self._has_failed = True
            log.warning("records are decided the slow way; please report it", error=type(failure).__name__)

    def _batches(
        self, answered: list[Answered], records: Records, others: list[tuple[int, Outgoing]]
    ) -> list[ColumnarBatch]:
        if not answered:
            return []
        try:
            columns = AnsweredColumns(*zip(*answered, strict=True))
            which, distinct = coded(columns.answers)
            batch = columnar_batch(self._envelope, columns, self._beside(columns, records), which, distinct)
        except Exception as failure:
            self._note(failure)
            others.extend((number, self.decide(*records.row(number))) for number, *_ in answered)
            return []
        for answer, count in zip(distinct, np.bincount(which).tolist(), strict=True):
            self.counts[answer.label] += count
        return [batch]

    def _beside(self, answered: AnsweredColumns, records: Records) -> Beside:
        rows = pa.array(answered.rows, pa.int32())
        texts = {at: self._clock.text(at) for at in sorted(set(answered.times))}
        indexes = {at: index for index, at in enumerate(texts)}
        times = np.fromiter(map(indexes.__getitem__, answered.times), np.int32, len(answered.times))
        headers = records.header_texts()
        carried = pa.array([None if (text := headers[row]) is None else _carried_text(text) for row in answered.rows])
        written = DictionaryColumn(pa.array(texts.values(), pa.binary()), times)
        return Beside(records.keys.take(rows), pa.array(records.offsets).take(rows), written, carried.cast(pa.binary()))

    def _record(self, key: bytes | None, value: bytes | None, offset: int, at: int) -> bytes:
        envelope, value = self.open(key, value)
        if envelope.time is not None:
            claimed = moment(envelope.time)
            at = claimed if "time" in self._source.trust else at
        request_id, system = _encode(envelope.id), _encode(envelope.system)
        given = self.answer_at(envelope, value, at, self._context.now)
        made = self._assemble(request_id, system, offset, at, given[0] + given[1], given[2])
        if record_size(key, made) > self._limits.record_out:
            made, given = self._too_large(key, envelope, offset, at)
        self.counts[given[3]] += 1
        return made

    def _too_large(self, key: bytes | None, envelope: Envelope, offset: int, at: int) -> tuple[bytes, Labelled]:
        """In place of an answer that is too large: `error`, with the request's id whole where there is room for it.

        Raises TooLarge where not even that can be written.
        """
        limit = self._limits.record_out
        why, id_, system = f"the answer has more than {limit} bytes", envelope.id, envelope.system
        for note, name in (("", str), ("; so would its request_id and system, which are shortened", shorten_id)):
            given = _error(system, "answer-too-large", why + note)
            made = self._assemble(_encode(name(id_)), _encode(name(system)), offset, at, given[0] + given[1])
            size = record_size(key, made)
            if size <= limit:
                return made, given
        if not fits(size, limit):
            raise TooLarge("the decision", size, limit)
        return made, given

    def open(self, key: bytes | None, value: bytes | None) -> tuple[Envelope, bytes]:
        """The envelope of a record of bounded size, and the record in JSON. Raises MalformedRequest."""
        if value is None:
            raise MalformedRequest("not a request: the record has no value")
        size = len(value) + len(key or b"")
        if size > self._limits.record_in:
            raise MalformedRequest(f"not a request: {size} bytes; at most {self._limits.record_in}")
        try:
            return open_envelope(value), value
        except MalformedRequest:  # the check for Avro comes last, so JSON does not pay for it
            if not is_avro(value):
                raise
        return self._open_avro(value)

    def _open_avro(self, value: bytes) -> tuple[Envelope, bytes]:
        try:
            value = self._reader.transcode("request", value)
        except Undecodable as error:
            raise MalformedRequest(f"not a request: {error}") from error
        return open_envelope(value), value

    def _assemble(
        self, request_id: bytes, system: bytes, offset: int, at: int, answer: bytes, evaluations: bytes = b""
    ) -> bytes:
        """A decision record; `answer`: the answer and its request, as `Answer` has them."""
        parts = layout(self._envelope, b"%d" % offset, request_id, system, self._clock.text(at), (answer,), evaluations)
        return b"".join(parts)

    def assemble(self, envelope: Envelope, offset: int, at: int, given: Labelled, evaluations: bytes) -> bytes:
        """A decision record. `evaluations`: as `Answer` has them, and what follows them."""
        request_id, system = _encode(envelope.id), _encode(envelope.system)
        return self._assemble(request_id, system, offset, at, given[0] + given[1], evaluations)

    def answer_at(self, envelope: Envelope, value: bytes, at: int, now: int) -> Labelled:
        """The answer, `at` being the time of evaluation, and `now` the one that its deadline is compared with; ms."""
        given = self._prepared(value, at) or self._evaluate(envelope, value, at)
        if envelope.deadline is not None and now > moment(envelope.deadline):
            return _error(envelope.system, "deadline-exceeded", "the request was judged after its deadline", given[1])
        return given

    def _prepared(self, value: bytes, at: int) -> Labelled | None:
        """The answer by a prepared query, `at` being the time of evaluation."""
        try:
            found = self._find(_parts(value), value, at)
        except Exception as failure:
            self._note(failure)
            return None
        if found is None:
            return None
        query, answer, resource = found
        id_, request = resource[1:-1], query.request_text
        return id_.join(answer.pieces), id_.join(request.pieces), b"", answer.label

    def _evaluate(self, envelope: Envelope, value: bytes, at: int) -> Labelled:
        """Decide, `at` being the time of evaluation; deadlines are looked at later."""
        parsed = self._evaluator.parts.request(envelope, value, at)
        stale = staleness(parsed, self._context.read)
        if stale is not None:
            echoed = echo(parsed) if isinstance(parsed, Request) else b""
            return _error(envelope.system, "policies-behind", stale, echoed)
        return labelled(envelope.system, self._answers.of(parsed))


def labelled(system: str, given: Answer) -> Labelled:
    """An answer with what it is counted as."""
    return *given, label(system, outcome_of(given[0]))


def _error(system: str, code: str, message: str, echoed: bytes = b"") -> Labelled:
    return labelled(system, (to_json(Decision("error", (Reason(code, message),))), echoed, b""))


def _is_text(values: pa.BinaryArray) -> bool:
    """Whether all values are UTF-8."""
    try:
        values.cast(pa.string())
    except pa.ArrowInvalid:
        return False
    return True


def _carried_text(text: bytes) -> bytes | None:
    """The headers to carry over of those that the source has in this form; None: there are none."""
    # Each request of the client has a traceparent of its own, and no other header.
    value = text.removeprefix(_SINGLE_TRACE)
    if len(value) == len(text) or len(value) > CARRIED_BYTES:
        return _carried_of_many(text)
    return _BEFORE_TRACE + encode_text(value)


_SINGLE_TRACE = single_header_prefix(CARRIED[0])
_BEFORE_TRACE = encode_headers([JSON, (CARRIED[0], b"")]).removesuffix(encode_text(b""))
"""The encoded headers of a decision up to the value of a trace header that is alone."""


@functools.lru_cache(HEADERS_KEPT)
def _carried_of_many(text: bytes) -> bytes | None:
    headers = decode_headers(text)
    return encode_headers(carried(headers)) if headers else None


def carried(headers: list[dict[str, Any]]) -> list[Header]:
    """The trace headers, of each the last one, and our content type."""
    kept = ((h["key"], h["value"]) for h in headers if h["key"] in CARRIED and h["value"] is not None)
    return [JSON, *dict(header for header in kept if len(header[1]) <= CARRIED_BYTES).items()]


class Decides(Protocol):
    """Makes the record to write for a record. Never raises."""

    def decide(
        self, key: bytes | None, value: bytes | None, headers: list[dict[str, Any]] | None, offset: int, at: int
    ) -> Outgoing:
        """See `PartitionEvaluator.decide`."""


class EncodedEvaluator:
    """An evaluator of records whose decisions are Avro."""

    def __init__(self, evaluator: "Decides", source: Source, limits: Limits, formats: Formats) -> None:
        self._evaluator, self._source, self._limits = evaluator, source, limits
        self._encode = Writer("decision", formats.output, formats.ids.get("decision", 0)).encode
        self._content_type = content_type(formats.output)

    def decide(
        self, key: bytes | None, value: bytes | None, headers: list[dict[str, Any]] | None, offset: int, at: int
    ) -> Outgoing:
        """The record to write for one request record, as `PartitionEvaluator.decide` has it. Never raises."""
        record = number, key_, made, carried = self._evaluator.decide(key, value, headers, offset, at)
        if number != DECISIONS or made is None:
            return record
        try:
            encoded = self._encode(made)
            size = record_size(key_, encoded)
            if not fits(size, self._limits.record_out):
                raise TooLarge("the decision", size, self._limits.record_out)
            return number, key_, encoded, carried and with_content_type(carried, self._content_type)
        except (Unencodable, TooLarge) as refusal:  # a bug, which must not stop the stream
            return rejected(self._source, offset, refusal, key, value, headers, self._limits)
