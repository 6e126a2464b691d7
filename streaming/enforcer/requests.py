"""Request records decoded only as far as needed: the envelope always, its parts when they were not seen before."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, Generic, TypeVar

import msgspec

from policy import (
    MAX_NESTING,
    REQUEST_NAMES,
    Action,
    Batch,
    Decision,
    MalformedRequest,
    Reason,
    Request,
    Resource,
    Snapshot,
    Subject,
    answer,
    check_letter_case,
    decode_json,
    decode_request,
    parse_request,
    to_ms,
    to_text,
    usable_time,
)
from policy.evaluation import Cache, weight_of
from streaming.settings import Limits
from streaming.topics import Offsets

PART_BYTES = 1024  # larger parts are not worth their memory
PLAIN_CONTEXTS = (b"", b"{}")
NO_CONTEXT: Final[dict[str, Any]] = {}


class Envelope(msgspec.Struct, gc=False):
    """A request with the parts that only a cache miss reads left undecoded."""

    id: str
    system: str
    subject: msgspec.Raw = msgspec.Raw()
    action: msgspec.Raw = msgspec.Raw()
    resource: msgspec.Raw = msgspec.Raw()
    context: msgspec.Raw = msgspec.Raw()
    time: str | int | None = None
    deadline: str | int | None = None
    evaluations: msgspec.Raw = msgspec.Raw()
    options: msgspec.Raw = msgspec.Raw()


_decode = msgspec.json.Decoder(Envelope).decode


def open_envelope(value: bytes) -> Envelope:
    """The envelope of a request in JSON; raises MalformedRequest."""
    try:
        # What is left undecoded is checked here: that it is UTF-8, and that no name stands twice, in whatever case.
        check_letter_case(decode_json(value), REQUEST_NAMES)
        envelope = _decode(value)
    except (ValueError, RecursionError) as error:
        raise MalformedRequest(f"not a request: {error}") from error
    if not envelope.id:  # no answer depends on this field, so it is checked here
        raise MalformedRequest("not a request: id must not be empty")
    return envelope


def must_be_read_whole(envelope: Envelope, value: bytes) -> bool:
    """Whether a request is more than its parts: several requests, or perhaps nested too deep where none of them is."""
    return bool(envelope.evaluations or envelope.options) or value.count(b"{") + value.count(b"[") > MAX_NESTING


def moment(value: str | int) -> int:
    """A time or deadline in ms; raises MalformedRequest."""
    try:
        return to_ms(value)
    except ValueError as error:
        raise MalformedRequest(f"not a request: {error}") from error


Part = TypeVar("Part", Subject, Action)


class _Seen(Generic[Part]):
    """Parts of one kind that were seen before, by their bytes."""

    def __init__(self, kind: type[Part]) -> None:
        self._decode: Callable[[bytes], Part] = msgspec.json.Decoder(kind).decode
        self._parts: Cache[bytes, Part] = Cache()

    def get(self, raw: bytes) -> Part:
        """The part, typed. Raises ValueError, also for an empty type, id or name."""
        part = self._parts.get(raw)
        if part is None:
            part = self._decode(raw)
            fields = msgspec.structs.astuple(part)
            if "" in fields:
                raise ValueError("empty")
            if len(raw) <= PART_BYTES:
                self._parts.hold(raw, part, len(raw) + weight_of(fields))
        return part


class Parts:
    """Requests of which subject and action were seen before. Resources are too many to be worth it."""

    def __init__(self) -> None:
        self._subjects, self._actions = _Seen(Subject), _Seen(Action)
        self._resource = msgspec.json.Decoder(Resource).decode

    def request(self, envelope: Envelope, value: bytes, at: int) -> Request | Batch:
        """The request to answer, with `at` for its time and without a deadline; raises MalformedRequest.

        The same as `decode_request(value)`, which it leaves everything to that is not plain.
        """
        if must_be_read_whole(envelope, value) or bytes(envelope.context) not in PLAIN_CONTEXTS:
            return _with_time(decode_request(value), at)
        try:
            subject, action = self._subjects.get(bytes(envelope.subject)), self._actions.get(bytes(envelope.action))
            resource = self._resource(envelope.resource)
        except ValueError:
            return _with_time(decode_request(value), at)
        if not (envelope.system and resource.type and resource.id):
            return _with_time(decode_request(value), at)
        return Request(envelope.id, envelope.system, subject, action, resource, NO_CONTEXT, at, None)


def _with_time(parsed: Request | Batch, at: int) -> Request | Batch:
    if isinstance(parsed, Request):
        return msgspec.structs.replace(parsed, time=at, deadline=None)
    items = tuple(_with_time(item, at) if isinstance(item, Request) else item for item in parsed.items)
    return msgspec.structs.replace(parsed, items=items, time=at, deadline=None)


def may_name_offsets(context: msgspec.Raw) -> bool:
    """Whether `min_policy_offsets` may be in it: also with a letter written as an escape."""
    if len(context) <= 2:
        return False
    text = bytes(context)
    return b"min_policy_offsets" in text or b"\\u" in text


FIELD = "min_policy_offsets"


def staleness(parsed: Request | Batch, read: Offsets) -> str | None:
    """Why the policies read do not cover what the request (or an item of it) asks for; None when they do."""
    if isinstance(parsed, Request) and not parsed.context:
        return None
    items = parsed.items if isinstance(parsed, Batch) else (parsed,)
    wanted = (item.context[FIELD] for item in items if isinstance(item, Request) and FIELD in item.context)
    return next((lack for demand in wanted for lack in _lacks(demand, read)), None)


def _lacks(demand: Any, read: Offsets) -> Iterator[str]:
    if not isinstance(demand, Mapping):
        yield f"{FIELD} must be {{topic: {{partition: offset}}}}"
        return
    for topic, partitions in demand.items():
        if topic not in read or not isinstance(partitions, Mapping):
            yield f"{FIELD}: {topic!r} is not a policy topic, or has no {{partition: offset}}"
            continue
        for partition, offset in partitions.items():
            yield from _lack(topic, partition, offset, read[topic].get(partition))


def _lack(topic: str, partition: object, offset: object, newest: int | None) -> Iterator[str]:
    if newest is None or isinstance(offset, bool) or not isinstance(offset, int):
        yield f"{FIELD}: {topic} has no partition {partition!r}, or {offset!r} is not an offset"
    elif offset > newest:
        yield f"{FIELD}: offset {offset} of {topic}-{partition} is beyond the newest, {newest}"


def decide_lines(snapshot: Snapshot, lines: Iterable[bytes], trust: frozenset[str]) -> Iterator[dict[str, Any]]:
    """One record for each line that is not blank: a decision as in the stream, or `line` and `error`.

    Decisions have no offsets and no source. Requests are evaluated at the requests' own time, if `trust` has it.
    """
    limits = Limits()
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                yield _decide(snapshot, number, line, trust, limits)
            except MalformedRequest as malformed:
                yield {"line": number, "error": f"line {number}: {malformed}"}


def _decide(snapshot: Snapshot, number: int, line: bytes, trust: frozenset[str], limits: Limits) -> dict[str, Any]:
    parsed = _parse(line, limits)
    at = usable_time(parsed, trust)
    record = _answer(snapshot, parsed, trust).to_record()
    record["context"]["policy_version"] = snapshot.version
    envelope = {
        "id": hashlib.sha256(b"%d %s" % (number, line.strip())).hexdigest()[:32],
        "request_id": parsed.id,
        "system": parsed.system,
        "time": None if at is None else to_text(at),
    }
    return envelope | record


def _parse(line: bytes, limits: Limits) -> Request | Batch:
    if len(line) > limits.record_in:
        raise MalformedRequest(f"not a request: {len(line)} bytes; at most {limits.record_in}")
    try:
        value = decode_json(line)
    except (ValueError, RecursionError) as error:
        raise MalformedRequest(f"not a request: {error}") from error
    if not isinstance(value, Mapping):
        raise MalformedRequest(f"not a request: a request is an object, not {type(value).__name__}")
    return parse_request(value)


def _answer(snapshot: Snapshot, parsed: Request | Batch, trust: frozenset[str]) -> Decision:
    """Documents from files have no offsets, so a request that names some cannot be answered."""
    stale = staleness(parsed, {})
    if stale is not None:
        return Decision("error", (Reason("policies-behind", stale),))
    return answer(snapshot, parsed, trust)
