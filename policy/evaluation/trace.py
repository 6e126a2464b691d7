"""What an evaluation found out, kept for the answer, the explanation and the tools that draw it."""

import msgspec

from policy.core.model import AnyOf, AuthorizationQuery, EngineResult, Expression, Grant
from policy.store.policy_set import EffectivePrincipals
from policy.systems.kit.system import System


class ExpressionResult(msgspec.Struct, frozen=True, gc=False):
    """An expression with its value (None: unknown), the determining grants, and its parts."""

    expression: Expression
    held: bool | None
    grants: tuple[Grant, ...] = ()
    items: tuple["ExpressionResult", ...] = ()

    @property
    def denied(self) -> bool:
        """A matching deny stood in the way, here or below."""
        if isinstance(self.expression, EngineResult):
            return self.expression.denied
        return any(grant.effect == "deny" for grant in self.grants) or any(item.denied for item in self.items)

    def deciding(self, every: bool = True) -> list["ExpressionResult"]:
        """The leaves that made the whole what it is: not what held where the whole failed, nor the contrary.

        Of several ways that each made it hold, all; unless ``every``, the first.
        """
        if not self.items:
            return [self]
        items = [item for item in self.items if item.held is self.held]
        enough = self.held and isinstance(self.expression, AnyOf) and not every
        leaves: list[ExpressionResult] = []
        for item in items[:1] if enough else items:
            leaves += item.deciding(every)
        return leaves


class EvaluationTrace(msgspec.Struct, frozen=True, gc=False):
    """A question with its evidence: what `decide` answers from, and what tools draw."""

    system: System
    query: AuthorizationQuery
    result: ExpressionResult
    effective_principals: EffectivePrincipals
