"""Decides request records: bytes in, bytes out. The fast path of the stream, one judge a worker process and snapshot.

What a decision reads (system, subject, action, resource, context, and the validity epoch of its time) is the key
of a bounded cache; the cached answer is JSON already, and a decision record is put together from pieces.
"""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import structlog

from policy.caching import Cache
from policy.decisions import Decision
from policy.model import Reason
from policy.requests import MalformedRequest, Request
from policy.snapshot import Snapshot
from policy.times import to_text
from streaming.contracts.avro import Reader, Undecodable, is_avro
from streaming.contracts.formats import JSON_ALONE
from streaming.enforcer.answers import Answer, Answers, Labelled, echo, to_json
from streaming.enforcer.budget import UNLIMITED, Usage
from streaming.enforcer.columns import Beside, Frame, layout, lot_of, sizes
from streaming.enforcer.deadletters import Rejection, dead_letter
from streaming.enforcer.freshness import staleness
from streaming.enforcer.headers import JSON, Header
from streaming.enforcer.plans import TEXT_BYTES, Answered, Plans
from streaming.enforcer.questions import PLAIN_CONTEXTS, Envelope, Parts, moment, must_be_read_whole, open_envelope
from streaming.enforcer.records import Records
from streaming.enforcer.texts import Numbers, Rows, Texts
from streaming.enforcer.wire import DECISIONS, Lot, Outgoing, Packed, Picked, encode_headers
from streaming.observability.tally import DEAD, label, no_counts, outcome_of
from streaming.records.shortening import shorten_id
from streaming.records.size_gate import TooLarge, fits, record_size
from streaming.settings import Limits

log = structlog.get_logger()

CAREFUL_AT_FIRST = 1000  # records of which plans are made before the short way is tried once more
CACHED_KEY_BYTES = 4096  # larger questions are not worth their memory
CARRIED = ("traceparent", "tracestate")
CARRIED_BYTES = 1024

_encode = msgspec.json.encode


class Source(msgspec.Struct, frozen=True):
    """Where records come from, what their producers may claim, and the output number of their dead letters."""

    topic: str
    partition: int
    topic_id: str
    trust: frozenset[str]
    dead_letters: int


class Basis(msgspec.Struct, frozen=True):
    """What a batch is judged by, as its decisions tell it. `now`: ms, what deadlines are held against.

    `read`: the newest offset read of every documents' topic, which `min_policy_offsets` is held against. `enforced`:
    whether anybody is to act by the decisions.
    """

    policy_version: str
    policy_offsets: Mapping[str, Mapping[str, int]]
    facts_offset: int
    read: Mapping[str, Mapping[str, int]]
    now: int
    enforced: bool = True


class Judge:
    """A snapshot with the answers it has given, by trust."""

    def __init__(self, snapshot: Snapshot, limits: Limits) -> None:
        self.snapshot = snapshot
        self.limits = limits
        self.parts = Parts(limits.claimed_groups)
        self.answers = Answers(snapshot)
        self._caches: dict[frozenset[str], Cache[bytes, Labelled]] = {}
        self._plans: dict[frozenset[str], Plans] = {}

    def sit(self, source: Source, basis: Basis, reader: Reader | None = None) -> "Sitting":
        """Begin to decide records of one partition. `reader`: of those in Avro; None knows no registry."""
        cache = self._caches.get(source.trust)
        if cache is None:
            cache = self._caches[source.trust] = Cache()
        return Sitting(self, cache, source, basis, reader or Reader(JSON_ALONE))

    def plans(self, trust: frozenset[str], first: int, last: int) -> Plans | None:
        """The plans for these moments (ms); None where some document begins or ceases to be valid between them."""
        realms = self.snapshot.realms.values()
        epoch = tuple(realm.epoch(first) for realm in realms)
        if epoch != tuple(realm.epoch(last) for realm in realms):
            return None
        plans = self._plans.get(trust)
        if plans is None or plans.epoch != epoch:
            plans = self._plans[trust] = Plans(self.answers, trust, epoch)
        return plans


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


class Sitting:
    """Decides the records of one partition in one batch. `counts`: what it made, for the metrics."""

    def __init__(
        self, judge: Judge, cache: Cache[bytes, Labelled], source: Source, basis: Basis, reader: Reader
    ) -> None:
        self._judge, self._limits, self._cache, self._reader = judge, judge.limits, cache, reader
        self._clock = Clock()
        self.counts = no_counts()
        self._plans: Plans | None = None
        self._source, self._basis = source, basis
        place = {"topic": source.topic, "partition": source.partition, "offset": 0}
        told = {
            "policy_version": basis.policy_version,
            "policy_offsets": basis.policy_offsets,
            "facts_offset": basis.facts_offset,
            **({} if basis.enforced else {"enforced": False}),
            "source": place,
        }
        head = f'{{"id":"{source.topic_id}-{source.partition}-'.encode()
        self._frame = Frame(head, b"," + _encode(told)[1:].removesuffix(b"0}}"))

    def decide_all(self, records: Records, usage: Usage | None = None) -> Packed:
        """The records to write for these as far as the budget goes, by the short way where a plan fits. Never raises.

        Where few do, plans are made of some records, and the others tried once more: after a change of policies there
        are none, and a large batch would go the careful way whole.
        """
        lots, others, left = list[tuple[Answered, Lot]](), list[tuple[int, Outgoing]](), np.ones(len(records), np.bool_)
        texts, some, usage = None, CAREFUL_AT_FIRST, usage or Usage(UNLIMITED)
        while left.any():
            try:
                texts = texts or self._texts(records)
                for answered in self._shortly(texts, left, self._limits.record_out - records.longest_key):
                    lots.append((answered, self._lot(answered, records)))
                    left[answered.rows] = False
                    usage.bytes += int(records.sizes[answered.rows].sum())
            except Exception as error:  # a bug: it costs time alone, and what it says may hold what was asked
                log.warning("records are decided the slow way; please report it", error=type(error).__name__)
                some = len(records)
            rows = np.flatnonzero(left)[:some]
            sizes, first = records.sizes[rows].tolist(), bool(left[0])
            decided = list(usage.decide(self.decide, records.rows(rows), sizes, self.counts, first))
            others.extend(zip(rows.tolist(), decided, strict=False))
            left[rows[: len(decided)]] = False
            if len(decided) < len(rows):
                break
            some *= 2
        return self._packed(lots, others, int(np.argmax(left)) if left.any() else len(left))

    def _packed(self, lots: list[tuple[Answered, Lot]], others: list[tuple[int, Outgoing]], decided: int) -> Packed:
        """What was made of the first records, so many. Others of those that follow may be among the lots."""
        for answered, _ in lots:
            self._count(answered, decided)
        others.sort(key=lambda pair: pair[0])
        made, positions = [record for _, record in others], [position for position, _ in others]
        shortly = (lot.before(decided) for _, lot in lots)
        return Packed([lot for lot in shortly if len(lot.keys)], made, positions, decided)

    def _texts(self, records: Records) -> Texts:
        """The records' values, and from now on the plans for their moments."""
        self._plans = self._judge.plans(self._source.trust, records.first, records.last)
        return Texts(records.values, min(TEXT_BYTES, self._limits.record_in - records.longest_key))

    def _shortly(self, texts: Texts, left: Rows, room: int) -> Iterator[Answered]:
        """What is decided by plans of those that are left: answers that are known and not too large."""
        for answered in self._plans.answer(texts, left) if self._plans is not None else ():
            fitting = answered.among(sizes(self._frame, answered) <= room)
            if len(fitting.rows):
                yield fitting

    def _lot(self, answered: Answered, records: Records) -> Lot:
        rows = answered.rows
        times, which = np.unique(records.times[rows], return_inverse=True)
        told = pa.array(map(self._clock.text, times.tolist()), pa.binary())
        keys, headers = records.keys.take(pa.array(rows)), self._headers(records, rows)
        beside = Beside(keys, records.offsets[rows], Picked(told, which.astype(np.int32)), headers)
        return lot_of(self._frame, answered, beside)

    def _headers(self, records: Records, rows: Numbers) -> pa.BinaryArray:
        """The headers to carry over, of those of the records that have any."""
        some = set(records.with_headers().tolist())
        if not some:
            return pa.nulls(len(rows), pa.binary())
        carried = (
            encode_headers(_carried(records.headers(row) or [])) if row in some else None for row in rows.tolist()
        )
        return pa.array(carried, pa.binary())

    def _count(self, answered: Answered, decided: int) -> None:
        answers = answered.answers[answered.rows < decided]
        for told, count in zip(answered.told, np.bincount(answers).tolist(), strict=False):
            self.counts[told.label] += count

    def decide(
        self, key: bytes | None, value: bytes | None, headers: list[dict[str, Any]] | None, offset: int, at: int
    ) -> Outgoing:
        """The record to write for one request record: its decision, or its dead letter. Never raises."""
        try:
            return DECISIONS, key, self._record(key, value, offset, at), _carried(headers) if headers else None
        except Exception as refusal:  # a bug too: one poisonous record must not stop the stream, nor be allowed
            self.counts[DEAD] += 1
            rejection = Rejection(self._source.topic, self._source.partition, offset, refusal)
            return (self._source.dead_letters, *dead_letter(rejection, key, value, headers, self._limits))

    def _record(self, key: bytes | None, value: bytes | None, offset: int, at: int) -> bytes:
        envelope, value = self._open(key, value)
        if envelope.time is not None:
            claimed = moment(envelope.time)
            at = claimed if "time" in self._source.trust else at
        asker, system = _encode(envelope.id), _encode(envelope.system)
        given = self._answer(envelope, system, value, at)
        made = self._assemble(asker, system, offset, at, given[0] + given[1], given[2])
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

    def _open(self, key: bytes | None, value: bytes | None) -> tuple[Envelope, bytes]:
        if value is None:
            raise MalformedRequest("not a request: the record has no value")
        size = len(value) + len(key or b"")
        if size > self._limits.record_in:
            raise MalformedRequest(f"not a request: {size} bytes; at most {self._limits.record_in}")
        try:
            return open_envelope(value), value
        except MalformedRequest:  # only now is it looked whether it is Avro: JSON pays nothing for it
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
        self, asker: bytes, system: bytes, offset: int, at: int, told: bytes, evaluations: bytes = b""
    ) -> bytes:
        """A decision record; `told`: the answer and its request, as `Answer` has them."""
        parts = layout(self._frame, b"%d" % offset, asker, system, self._clock.text(at), (told,), evaluations)
        return b"".join(parts)

    def _answer(self, envelope: Envelope, system: bytes, value: bytes, at: int) -> Labelled:
        if must_be_read_whole(envelope, value) or _may_name_offsets(envelope.context):
            given = self._work_out(envelope, value, at)
        else:
            given = self._recall(envelope, system, value, at)
        if envelope.deadline is not None and self._basis.now > moment(envelope.deadline):
            return _error(envelope.system, "deadline-exceeded", "the request was judged after its deadline", given[1])
        return given

    def _recall(self, envelope: Envelope, system: bytes, value: bytes, at: int) -> Labelled:
        realm = self._judge.snapshot.realms.get(envelope.system)
        epoch = realm.epoch(at) if realm is not None and realm.edges else 0
        # No part of a well-formed request holds a NUL, so the parts cannot be mistaken for others.
        parts = (b"%d" % epoch, system, envelope.subject, envelope.action, envelope.resource, envelope.context)
        question = b"\0".join(parts)
        given = self._cache.get(question)
        if given is None:
            given = self._work_out(envelope, value, at)
            if len(question) <= CACHED_KEY_BYTES:
                self._remember(question, given)
        return given

    def _remember(self, question: bytes, given: Labelled) -> None:
        if len(self._cache) >= self._limits.cached_decisions:
            self._cache.clear()
        self._cache.hold(question, given, len(question) + sum(map(len, given)))

    def _work_out(self, envelope: Envelope, value: bytes, at: int) -> Labelled:
        """Decide, `at` being the moment to judge by; deadlines are looked at later, for they are not cached."""
        asked = self._judge.parts.request(envelope, value, at)
        if self._plans is not None and isinstance(asked, Request) and _is_timeless(envelope):
            with contextlib.suppress(Exception):  # whatever it is: without a plan its like is decided with care
                self._plans.learn(value, asked)
        stale = staleness(asked, self._basis.read)
        if stale is not None:
            asker = echo(asked) if isinstance(asked, Request) else b""
            return _error(envelope.system, "policies-behind", stale, asker)
        return _labelled(envelope.system, self._judge.answers.of(asked, self._source.trust))


def _labelled(system: str, given: Answer) -> Labelled:
    return *given, label(system, outcome_of(given[0]))


def _error(system: str, code: str, message: str, echoed: bytes = b"") -> Labelled:
    return _labelled(system, (to_json(Decision("error", (Reason(code, message),))), echoed, b""))


def _is_timeless(envelope: Envelope) -> bool:
    return envelope.time is None and envelope.deadline is None and bytes(envelope.context) in PLAIN_CONTEXTS


def _may_name_offsets(context: msgspec.Raw) -> bool:
    """Whether `min_policy_offsets` may be in it: also with a letter written as an escape."""
    if len(context) <= 2:
        return False
    text = bytes(context)
    return b"min_policy_offsets" in text or b"\\u" in text


def _carried(headers: list[dict[str, Any]]) -> list[Header]:
    """The trace headers, of each the last one, and our content type."""
    kept = ((h["key"], h["value"]) for h in headers if h["key"] in CARRIED and h["value"] is not None)
    return [JSON, *dict(header for header in kept if len(header[1]) <= CARRIED_BYTES).items()]
