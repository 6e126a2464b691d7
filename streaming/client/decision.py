"""Decisions as a service sees them: read from records, or made here when there is no answer."""

from collections.abc import Mapping
from typing import Any

import msgspec

from policy import Decision as Answer
from policy import Missing, Outcome, Reason

Offsets = Mapping[str, Mapping[str, int]]
"""Offsets by topic and partition: what publishing returned, what a decision rests on."""


class Place(msgspec.Struct, frozen=True):
    """Where a record stands."""

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"offset {self.offset} of {self.topic}, partition {self.partition}"


class Decision(Answer, frozen=True, kw_only=True, repr_omit_defaults=True):
    """The answer to one request. It is true in `if decision:` exactly when the outcome is allow.

    `evaluations`: of a batch, one for each item and in their order. `source`: the request's record; None when no
    decision record came. `raw`: that record as it came. `seconds`: what the answer took; 0 without a waiting caller.
    `enforced`: False in shadow mode, where the outcome is what the policies would answer, and allows nothing.
    """

    evaluations: tuple["Decision", ...] = ()
    request_id: str = ""
    id: str = ""
    system: str = ""
    time: str = ""
    policy_version: str = ""
    policy_offsets: Offsets = {}
    facts_offset: int = -1
    source: Place | None = None
    seconds: float = 0.0
    raw: bytes = b""
    enforced: bool = True

    @property
    def allowed(self) -> bool:
        """Whether the request is allowed; false for deny, for error, and for whatever is not enforced."""
        return self.enforced and self.outcome == "allow"

    def __bool__(self) -> bool:
        return self.allowed

    def __str__(self) -> str:
        why = "; ".join([reason.message for reason in self.reasons] + [lack.message for lack in self.missing])
        return f"{self.outcome}, request {self.request_id}: {why}"

    @property
    def code(self) -> str:
        """The code of the first reason, such as `timeout`; empty when there is none."""
        return self.reasons[0].code if self.reasons else ""

    def or_raise(self) -> "Decision":
        """Itself when it is an allow. Raises NotDecided for an error, AccessDenied for all else."""
        if self.allowed:
            return self
        raise (NotDecided if self.outcome == "error" else AccessDenied)(self)

    def to_record(self) -> dict[str, Any]:
        """The record as it came; of an answer that was made here, the fields it would have had."""
        if self.raw:
            record: dict[str, Any] = msgspec.json.decode(self.raw)
            return record
        return {"request_id": self.request_id, "system": self.system, **super().to_record()}


class _Context(msgspec.Struct):
    outcome: Outcome
    reasons: tuple[Reason, ...] = ()
    missing: tuple[Missing, ...] = ()
    claims: tuple[str, ...] = ()
    policy_version: str = ""
    policy_offsets: dict[str, dict[str, int]] = {}
    facts_offset: int = -1
    source: Place | None = None
    enforced: bool = True


class _WireDecision(msgspec.Struct):
    decision: bool
    context: _Context
    id: str = ""
    request_id: str = ""
    system: str = ""
    time: str = ""
    evaluations: tuple["_WireDecision", ...] = ()


class _SourceAlone(msgspec.Struct):
    source: Place


class _Glance(msgspec.Struct):
    context: _SourceAlone
    request_id: str = ""


_read = msgspec.json.Decoder(_WireDecision).decode
_glance = msgspec.json.Decoder(_Glance).decode


def glance(value: bytes) -> tuple[Place, str] | None:
    """The request's place and id from a decision record, without reading the rest; None when it is none."""
    try:
        seen = _glance(value)
    except (ValueError, RecursionError):
        return None
    return seen.context.source, seen.request_id


def read_decision(value: bytes) -> Decision:
    """The decision in a record in JSON. Raises Unreadable, also for one that contradicts itself."""
    try:
        return _typed(_read(value), value)
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"not a decision: {error}") from error


def _typed(record: _WireDecision, raw: bytes, enforced: bool = True) -> Decision:
    context = record.context
    if record.decision is not (context.outcome == "allow"):
        raise Unreadable(f"not a decision: decision is {record.decision}, and the outcome is {context.outcome}")
    return Decision(
        context.outcome,
        context.reasons,
        context.missing,
        context.claims,
        evaluations=tuple(_typed(item, b"", context.enforced) for item in record.evaluations),
        request_id=record.request_id,
        id=record.id,
        system=record.system,
        time=record.time,
        policy_version=context.policy_version,
        policy_offsets=context.policy_offsets,
        facts_offset=context.facts_offset,
        source=context.source,
        raw=raw,
        enforced=context.enforced and enforced,
    )


def undecided(request_id: str, code: str, message: str, source: Place | None = None) -> Decision:
    """What is answered here when there is no decision: an error, and why."""
    return Decision("error", (Reason(code, message),), request_id=request_id, source=source)


def complete(decision: Decision, items: int) -> Decision:
    """The decision with one evaluation for each of `items`: what is not answered is an error.

    Else `all(…)` over the answers to a batch would hold when there are none.
    """
    lacking = items - len(decision.evaluations)
    if lacking <= 0:
        return decision
    if decision.outcome == "error" and decision.reasons:
        why = decision.reasons[0]
    else:
        why = Reason("not-evaluated", "an item before it decided the batch")
    rest = undecided(decision.request_id, why.code, why.message, decision.source)
    return msgspec.structs.replace(decision, evaluations=(*decision.evaluations, *(rest,) * lacking))


class AccessDenied(Exception):
    """The answer was not allow; `decision` says why."""

    def __init__(self, decision: "Decision") -> None:
        super().__init__(str(decision))
        self.decision = decision


class NotDecided(AccessDenied):
    """There was no answer, or the answer was `error`; `decision` says why."""


class ClientError(Exception):
    """The client cannot work as it was set up; the message says what to change. It never holds a secret."""


class NotReported(Exception):
    """An audit event was not published, or it is not known whether it was; the message says why."""


class Unreadable(ValueError):
    """A record is not what its topic should hold; the message says which record and why."""
