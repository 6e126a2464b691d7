"""Decisions without Kafka: lines of JSON in, lines of JSON out, by the engine of the stream."""

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
    parse_request,
    to_text,
    usable_time,
)
from streaming.enforcer.questions import staleness
from streaming.settings import Limits


def decide_lines(
    snapshot: Snapshot, lines: Iterable[bytes], trust: frozenset[str], limits: Limits | None = None
) -> Iterator[dict[str, Any]]:
    """One record for each line that is not blank: a decision as in the stream, or `line` and `error`.

    Decisions have no offsets and no source, since there are none. Judged by the requests' own time, if `trust` has it.
    """
    limits = limits or Limits()
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                yield _decide(snapshot, number, line, trust, limits)
            except MalformedRequest as malformed:
                yield {"line": number, "error": f"line {number}: {malformed}"}


def _decide(snapshot: Snapshot, number: int, line: bytes, trust: frozenset[str], limits: Limits) -> dict[str, Any]:
    asked = _parse(line, limits)
    at = usable_time(asked, trust)
    record = _answer(snapshot, asked, trust).to_record()
    record["context"]["policy_version"] = snapshot.version
    envelope = {
        "id": hashlib.sha256(b"%d %s" % (number, line.strip())).hexdigest()[:32],
        "request_id": asked.id,
        "system": asked.system,
        "time": None if at is None else to_text(at),
    }
    return envelope | record


def _parse(line: bytes, limits: Limits) -> Request | Batch:
    if len(line) > limits.record_in:
        raise MalformedRequest(f"not a request: {len(line)} bytes; at most {limits.record_in}")
    try:
        value = msgspec.json.decode(line)
    except (ValueError, RecursionError) as error:
        raise MalformedRequest(f"not a request: {error}") from error
    if not isinstance(value, Mapping):
        raise MalformedRequest(f"not a request: a request is an object, not {type(value).__name__}")
    return parse_request(value, limits.claimed_groups)


def _answer(snapshot: Snapshot, asked: Request | Batch, trust: frozenset[str]) -> Decision:
    """Documents from files have no offsets, so whoever demands some cannot be answered."""
    stale = staleness(asked, {})
    if stale is not None:
        return Decision("error", (Reason("policies-behind", stale),))
    return answer(snapshot, asked, trust)
