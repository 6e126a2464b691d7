"""A decision and its form as a record (contracts, "Decision")."""

import operator
from typing import Any, Literal, get_args

import msgspec

from policy.core.model import Reason

Outcome = Literal["allow", "deny", "error"]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)


class Missing(msgspec.Struct, frozen=True, gc=False):
    """An atom that failed on deny: the permission, the object, its rule, and a sentence."""

    permission: str
    object: str
    rule: str
    message: str


class DecisionContext(msgspec.Struct, frozen=True, gc=False):
    """What a decision says in its ``context``. ``claims``: what the request asserted and the decision rests on."""

    outcome: Outcome
    reasons: tuple[Reason, ...] = ()
    missing: tuple[Missing, ...] = ()
    claims: tuple[str, ...] = ()


class Decision(DecisionContext, frozen=True, gc=False):
    """The answer to a request. ``evaluations``: of a batch, in order."""

    evaluations: tuple["Decision", ...] = ()

    @property
    def allowed(self) -> bool:
        """Whether the request is allowed; false for deny and for error."""
        return self.outcome == "allow"

    def to_record(self) -> dict[str, Any]:
        """``decision``, ``context`` and, for a batch, ``evaluations``: plain data, with lists."""
        context = msgspec.to_builtins(context_of(self))
        lists = {name: list(value) for name, value in context.items() if isinstance(value, tuple)}
        record: dict[str, Any] = {"decision": self.allowed, "context": {**context, **lists}}
        if self.evaluations:
            record["evaluations"] = [item.to_record() for item in self.evaluations]
        return record


_values = operator.attrgetter(*DecisionContext.__struct_fields__)


def context_of(decision: DecisionContext) -> DecisionContext:
    """The fields of a decision, or of what else derives from it, that its ``context`` has."""
    return DecisionContext(*_values(decision))
