"""Requests at the moment by which they are evaluated, and whether the policies are new enough for them."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from policy import (
    Batch,
    Decision,
    MalformedRequest,
    Reason,
    Request,
    Snapshot,
    answer,
    decode_json,
    parse_request,
    to_ms,
    to_text,
    usable_time,
)
from streaming.settings import Limits
from streaming.topics import Offsets


def moment(value: str | int) -> int:
    """A time or deadline in ms; raises MalformedRequest."""
    try:
        return to_ms(value)
    except ValueError as error:
        raise MalformedRequest(f"not a request: {error}") from error


def with_time(parsed: Request | Batch, at: int) -> Request | Batch:
    """The request as it is asked at a moment (ms), without a deadline."""
    if isinstance(parsed, Request):
        return msgspec.structs.replace(parsed, time=at, deadline=None)
    items = tuple(with_time(item, at) if isinstance(item, Request) else item for item in parsed.items)
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
