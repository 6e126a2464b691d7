"""What an evaluation found out, kept for the answer, the explanation and the tools that draw it."""

import msgspec

from policy.model import Grant, Reason, Requirement
from policy.snapshot import Standing
from policy.system import System


class Evidence(msgspec.Struct, frozen=True):
    """A requirement with its truth (None: cannot be told), the grants that decided, and its parts."""

    requirement: Requirement
    held: bool | None
    grants: tuple[Grant, ...] = ()
    items: tuple["Evidence", ...] = ()

    @property
    def denied(self) -> bool:
        """A matching deny stood in the way, here or below."""
        return any(grant.effect == "deny" for grant in self.grants) or any(item.denied for item in self.items)


class Trial(msgspec.Struct, frozen=True):
    """A question with its evidence: what `decide` answers from, and what tools draw."""

    system: System
    evidence: Evidence
    standing: Standing
    claims: tuple[str, ...]
    notes: tuple[Reason, ...]
    contested: tuple[str, ...]
