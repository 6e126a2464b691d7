"""Decisions as a service sees them: read from records, or made here when there is no answer."""

from typing import Any

import msgspec

from policy import Decision as Answer
from policy import Reason, context_of
from streaming.records.decision import Answer as RecordedAnswer
from streaming.records.decision import Place
from streaming.records.decision import read_decision as read_record
from streaming.topics import Offsets


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


def read_decision(value: bytes) -> Decision:
    """The decision in a record in JSON. Raises Unreadable, also for one that contradicts itself."""
    try:
        record = read_record(value)
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"not a decision: {error}") from error
    context, items = record.context, record.evaluations
    return Decision(
        **_fields(record.decision, context),
        evaluations=tuple(
            Decision(**_fields(item.decision, item.context), enforced=context.enforced) for item in items
        ),
        request_id=record.request_id,
        id=record.id,
        system=record.system,
        time=record.time,
        policy_version=context.policy_version,
        policy_offsets=context.policy_offsets,
        facts_offset=context.facts_offset,
        source=context.source,
        raw=value,
        enforced=context.enforced,
    )


def _fields(allows: bool, answer: RecordedAnswer) -> dict[str, Any]:
    """The fields that a `Decision` has of its `context`. Raises Unreadable where both parts do not say the same."""
    if allows is not (answer.outcome == "allow"):
        raise Unreadable(f"not a decision: decision is {allows}, and the outcome is {answer.outcome}")
    return msgspec.structs.asdict(context_of(answer))


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
