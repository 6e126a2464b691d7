"""One request under two snapshots, as a worker keeps them with the answers it has given.

Both sides are answered as the job answers accesses of the past (`streaming.enforcer.auditing`): answers are kept, and
are those with the facts that were known at the time of the request. Deadlines and `min_policy_offsets` do not count:
they were about the decision of that time.
"""

from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from policy import NO_LONGER_KNOWN, Batch, Decision, FactOverlay, Reason, Request, Snapshot, answer, decode_request
from streaming.enforcer.answers import QueryParts, check_members, content_of, may_be_kept, may_share
from streaming.enforcer.auditing import AuditAnswers, RenderedVerdict
from streaming.enforcer.requests import moment, with_time

UNKNOWN = "unknown"
"""The outcome where facts would be needed that are not known any more."""

_parts = msgspec.json.Decoder(QueryParts).decode


class Sides(msgspec.Struct, frozen=True):
    """The policies before and after, and the facts beside both, with their past; None: the documents have all facts."""

    before: Snapshot
    after: Snapshot
    facts: FactOverlay | None = None


class Answered(NamedTuple):
    """One answer by both sides. ``reason``: the one that is shown if they differ: see `reason_of`."""

    before: str
    after: str
    request: Request | None = None
    reason: Reason | None = None


class Kept(NamedTuple):
    """Both answers to a request, rendered, and the time of evaluation (ms)."""

    before: RenderedVerdict
    after: RenderedVerdict
    parts: QueryParts
    at: int


class Comparison:
    """Decides requests of producers with one trust under both sides. It keeps its answers: a process has one."""

    def __init__(self, sides: Sides, trust: frozenset[str]) -> None:
        self._sides = sides
        self._before, self._after = (
            AuditAnswers(side, trust, facts=sides.facts) for side in (sides.before, sides.after)
        )
        self._trusts_time = "time" in trust

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
        before, after = (side.find(content, parts.resource.id, at) for side in (self._before, self._after))
        if before is None or after is None:
            request = with_time(decode_request(value), at)
            if not isinstance(request, Request):
                return None
            before = before or self._before.add(content, request, repeats, may_share(content))
            after = after or self._after.add(content, request, repeats, may_share(content))
        check_members(value, parts, content, repeats)
        return Kept(before.rendered, after.rendered, parts, at)

    def _time(self, asked: QueryParts, at: int) -> int:
        """The time of evaluation (ms): of the record, or what the request says where that is trusted."""
        claimed = at if asked.time is None else moment(asked.time)
        if asked.deadline is not None:
            moment(asked.deadline)  # raises where it is none
        return claimed if self._trusts_time else at

    def each(self, request: Request | Batch, at: int) -> Iterator[Answered]:
        """The answers of a request, or of a batch, one by one."""
        at = request.time if self._trusts_time and request.time is not None else at
        parsed = with_time(request, at)
        before, after = (
            answer(self._at(side, at), parsed, self._before.trust) for side in (self._sides.before, self._sides.after)
        )
        if not isinstance(parsed, Batch):
            yield _answered(before, after, parsed)
            return
        most = max(len(before.evaluations), len(after.evaluations))
        for number, item in enumerate(parsed.items[:most]):
            was, now = (
                decision.evaluations[number] if number < len(decision.evaluations) else decision
                for decision in (before, after)
            )
            yield _answered(was, now, item if isinstance(item, Request) else None)

    def _at(self, policies: Snapshot, at: int) -> Snapshot:
        """With the facts of a moment (ms)."""
        return policies if self._sides.facts is None else policies.with_facts(self._sides.facts, at)


def _answered(before: Decision, after: Decision, request: Request | None) -> Answered:
    outcomes = _outcome(before), _outcome(after)
    return Answered(*outcomes, request, reason_of(before.reasons, after.reasons, outcomes[1]))


def _outcome(decision: Decision) -> str:
    unknown = any(reason.code == NO_LONGER_KNOWN for reason in decision.reasons)
    return UNKNOWN if unknown else decision.outcome


def reason_of(before: tuple[Reason, ...], after: tuple[Reason, ...], outcome: str) -> Reason | None:
    """Why it is answered otherwise: the statement that decides now, else the one that did before, else what is
    missing. An ``outcome`` of ``error`` has a reason of its own, whatever was allowed or denied before.
    """
    placed = (reason for reason in (*after, *(before if outcome != "error" else ())) if reason.document is not None)
    return next(placed, None) or next(iter(after), None)
