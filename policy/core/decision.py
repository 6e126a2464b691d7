"""A decision and its form as a record (contracts, "Decision")."""

from typing import Any, Literal

import msgspec

from policy.core.model import Reason

Outcome = Literal["allow", "deny", "error"]


class Missing(msgspec.Struct, frozen=True, gc=False):
    """An atom that failed on deny: the permission, the object, its rule, and a sentence."""

    permission: str
    object: str
    rule: str
    message: str


class Decision(msgspec.Struct, frozen=True, gc=False):
    """The answer to a request. ``evaluations``: of a batch, in order."""

    outcome: Outcome
    reasons: tuple[Reason, ...]
    missing: tuple[Missing, ...] = ()
    claims: tuple[str, ...] = ()
    evaluations: tuple["Decision", ...] = ()

    @property
    def allowed(self) -> bool:
        """Whether the request is allowed; false for deny and for error."""
        return self.outcome == "allow"

    def to_record(self) -> dict[str, Any]:
        """``decision``, ``context`` and, for a batch, ``evaluations``, ready for an encoder."""
        context = {
            "outcome": self.outcome,
            "reasons": msgspec.to_builtins(self.reasons),
            "missing": msgspec.to_builtins(self.missing),
            "claims": list(self.claims),
        }
        record: dict[str, Any] = {"decision": self.allowed, "context": context}
        if self.evaluations:
            record["evaluations"] = [item.to_record() for item in self.evaluations]
        return record
