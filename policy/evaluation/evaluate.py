"""The evaluation of one request over a snapshot: from an expression to a decision with its reasons.

An expression is true, false or unknown; only true allows. ``True`` needs a matching allow grant
and no matching deny for every atom, so a deny anywhere wins and the absence of grants denies.
"""

from collections.abc import Mapping, Sequence

import msgspec

from policy.core.decision import Decision
from policy.core.document import Key
from policy.core.facts import Reads
from policy.core.limits import BESIDE, MAX_PARTS, MAX_RELATED
from policy.core.model import (
    DENY,
    All,
    AnyOf,
    AuthorizationQuery,
    Condition,
    EngineResult,
    Expression,
    Grant,
    PermissionCheck,
    Reason,
    Unanswerable,
)
from policy.core.request import CLAIMS, Request, usable_time
from policy.evaluation.explain import missing_of, reasons_of
from policy.evaluation.trace import EvaluationTrace, ExpressionResult
from policy.store.policy_set import EffectivePrincipals, PolicySet
from policy.store.snapshot import Snapshot
from policy.systems import all_systems
from policy.systems.kit.query import authorization_query
from policy.systems.kit.system import EVERYONE, System


def evaluate_request(snapshot: Snapshot, request: Request, trust: frozenset[str] = CLAIMS) -> EvaluationTrace:
    """Evaluate one request and keep the evidence; raises Unanswerable."""
    return resolve(snapshot.policy_sets, request, trust).evaluate()


class ResolvedQuery(msgspec.Struct, frozen=True, gc=False):
    """The query of a request, with who its subject is, before its expression is evaluated at a moment (ms)."""

    system: System
    policy_set: PolicySet
    query: AuthorizationQuery
    effective_principals: EffectivePrincipals
    at: int | None
    reads: Reads | None

    def evaluate(self) -> EvaluationTrace:
        """Evaluate the expression; raises Unanswerable."""
        evaluation = Evaluation(self.policy_set, self.effective_principals, self.at, self.reads)
        return self.to_trace(evaluation.of(self.query.expression))

    def to_trace(self, result: ExpressionResult) -> EvaluationTrace:
        """The evidence, where this is the result of the expression."""
        return EvaluationTrace(self.system, self.query, result, self.effective_principals)


def resolve(
    policy_sets: Mapping[str, PolicySet],
    request: Request,
    trust: frozenset[str] = CLAIMS,
    reads: Reads | None = None,
) -> ResolvedQuery:
    """The query of a request and its effective principals; raises Unanswerable. ``reads``: notes what is read."""
    policy_set = policy_sets.get(request.system)
    if policy_set is None:
        names = ", ".join(policy_sets)
        raise Unanswerable("unknown-system", f"system {request.system!r} is not one of {names}")
    system = all_systems()[request.system]
    at = usable_time(request, trust)
    query = authorization_query(system, request, policy_set.facts.at(at, reads), trust)
    principals = _sound_principals(policy_set, query.principals, at, reads)
    return ResolvedQuery(system, policy_set, query, principals, at, reads)


def _sound_principals(
    policy_set: PolicySet, principals: tuple[str, ...], at: int | None, reads: Reads | None
) -> EffectivePrincipals:
    """The effective principals; raises Unanswerable where a refused document affects one: it may have held a deny."""
    if reads is not None:
        reads.principals.update(principals)  # before anything is raised that rests on them
    effective_principals, broken = policy_set.effective_principals(principals, at), policy_set.broken_at(at)
    for principal in sorted(effective_principals.via.keys() & broken.keys()) if broken else ():
        raise Unanswerable("refused-document", _refusal(broken[principal], principal))
    return effective_principals


def _refusal(document: Key, principal: str) -> str:
    refused = f"{document} was refused, has no earlier good version, and"
    if principal != EVERYONE:
        return f"{refused} binds {principal}"
    return f"{refused} whom it affects cannot be determined: correct or delete it, until then all requests are errors"


class Evaluation:
    """Evaluates expressions for one subject at one moment (``at``: ms, None: not known)."""

    def __init__(
        self, policy_set: PolicySet, effective_principals: EffectivePrincipals, at: int | None, reads: Reads | None
    ) -> None:
        self._policy_set = policy_set
        self._effective_principals = effective_principals
        self._at, self._reads = at, reads
        self._parts = 0
        self._objects: set[str] = set()

    def of(self, expression: Expression) -> ExpressionResult:
        """The evidence for ``expression``; raises Unanswerable past the limit of related objects."""
        if isinstance(expression, PermissionCheck):
            self._objects.add(expression.object_text)
            effective_principals = self._effective_principals
            if expression.principals:
                effective_principals = _sound_principals(self._policy_set, expression.principals, self._at, self._reads)
            matching = effective_principals.permissions(expression.permission).on(expression.object)
            return leaf(expression, deny_overrides(matching))
        if isinstance(expression, Condition | EngineResult):
            return ExpressionResult(expression, expression.held)
        self._bound(len(expression.items))
        items = tuple([self.of(item) for item in expression.items])
        self._bound(0)
        return ExpressionResult(expression, combine(expression, [item.held for item in items]), (), items)

    def _bound(self, more: int) -> None:
        """Count ``more`` parts; objects are counted by permission checks or, where one serves for all, by the parts."""
        self._parts += more
        many = more > MAX_RELATED or len(self._objects) > MAX_RELATED + BESIDE
        if many or self._parts > MAX_PARTS:
            raise Unanswerable("too-many-objects", f"the request touches more than {MAX_RELATED} objects")


def deny_overrides(matching: Sequence[Grant]) -> tuple[Grant, ...]:
    """The determining ones of the grants that match a permission check: the denies where there are any, else the
    allows. The first one by document and statement is the reason that is given.
    """
    # As Kafka's authorizer (KA-DENY-WINS) and Lenses (L6-DECIDE-DENY-WINS) have it; the other systems have no deny.
    if len(matching) < 2:
        return tuple(matching)
    denies = [grant for grant in matching if grant.effect == DENY]
    return tuple(sorted(denies or matching, key=by_statement))


def by_statement(grant: Grant) -> tuple[tuple[str, int], str]:
    """By what grants of one effect are sorted: the same reason is given in whatever order the documents came."""
    return grant.statement_id.place, grant.principal


def leaf(expression: PermissionCheck, grants: tuple[Grant, ...]) -> ExpressionResult:
    """The evidence for a permission check that these grants determine."""
    return ExpressionResult(expression, bool(grants) and grants[0].effect != DENY, grants)


def combine(expression: All | AnyOf, values: list[bool | None]) -> bool | None:
    """Kleene's three values; an empty All does not hold.

    True or false is kept only where nothing that is not known could turn it: so what is not known never allows.
    """
    deciding = isinstance(expression, AnyOf)
    if deciding in values:
        return deciding
    if None in values:
        return None
    return not deciding and bool(values)


def conclude(trace: EvaluationTrace) -> Decision:
    """The decision of an evaluation."""
    result, query = trace.result, trace.query
    reasons = (*reasons_of(trace), *query.notes)
    if result.held:
        return Decision("allow", reasons, (), query.claims)
    if result.held is None:
        return Decision("error", reasons, missing_of(result), query.claims)
    # Who asked may have what was claimed, so a plain deny could be wrong; where a deny matches, claims change nothing.
    if query.untrusted and not result.denied:
        needed = ", ".join(query.untrusted)
        message = f"rests on {needed}, which this request topic is not trusted to claim and no document gives"
        return error(Reason("untrusted-claim", message))
    return Decision("deny", reasons, missing_of(result), query.claims)


def failed(failure: Exception) -> Decision:
    """The decision where an evaluation has raised: ``error``."""
    if isinstance(failure, Unanswerable):
        return error(failure.reason)
    return error(Reason("internal-error", f"{type(failure).__name__}: {failure}; please report it"))


def error(reason: Reason) -> Decision:
    """The decision where there is no answer, and why."""
    return Decision("error", (reason,))
