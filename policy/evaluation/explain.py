"""Why: reasons and missing atoms as data and as sentences for people."""

from policy.core.decision import Missing
from policy.core.model import All, AnyOf, Condition, EngineResult, Grant, PermissionCheck, Reason
from policy.evaluation.trace import EvaluationTrace, ExpressionResult
from policy.store.memberships import Via


def reasons_of(trace: EvaluationTrace) -> tuple[Reason, ...]:
    """What decided: for an allow the grants, for a deny the denies or what was not held."""
    if not trace.result.items:
        return _reasons(trace.result, trace)
    return tuple({reason: None for leaf in trace.result.deciding(every=False) for reason in _reasons(leaf, trace)})


def missing_of(result: ExpressionResult) -> tuple[Missing, ...]:
    """The permission checks that are false or unknown. The policies of an engine name no permission that is missing."""
    leaves: list[ExpressionResult] = []
    _add_leaves(result, leaves)
    return tuple({_missing(leaf): None for leaf in leaves if not isinstance(leaf.expression, EngineResult)})


def _add_leaves(result: ExpressionResult, leaves: list[ExpressionResult]) -> None:
    """Those of what does not hold."""
    if result.held:
        return
    if not result.items:
        leaves.append(result)
    for item in result.items:
        _add_leaves(item, leaves)


def _reasons(leaf: ExpressionResult, trace: EvaluationTrace) -> tuple[Reason, ...]:
    if isinstance(leaf.expression, EngineResult):
        return leaf.expression.reasons or (_without_statement(leaf.expression),)
    return (_reason(leaf, trace),)


def _without_statement(result: EngineResult) -> Reason:
    """The reason of a result that names no statement."""
    code = {True: "allowed", False: "denied" if result.denied else "no-grant", None: "fact-missing"}[result.held]
    return Reason(code, result.message, result.rule)


def _reason(leaf: ExpressionResult, trace: EvaluationTrace) -> Reason:
    expression = leaf.expression
    if isinstance(expression, Condition):
        code = expression.code if expression.held is not None else "fact-missing"
        return Reason(code, expression.message, expression.rule)
    if isinstance(expression, All | AnyOf):
        return Reason("nothing-required", expression.text or "there is nothing that could be allowed", expression.rule)
    assert isinstance(expression, PermissionCheck)
    if leaf.grants:
        return _granted(expression, leaf.grants[0], trace)
    rule = trace.system.default_rule or expression.rule
    return Reason("no-grant", f"no grant of {sentence(expression)}", rule)


def _granted(expression: PermissionCheck, grant: Grant, trace: EvaluationTrace) -> Reason:
    verb, code = ("allows", "allowed") if grant.effect == "allow" else ("denies", "denied")
    rule = expression.rule if grant.effect == "allow" else trace.system.deny_rule
    message = (
        f"{grant.statement_id} {verb} {sentence(expression)} ({route(trace.effective_principals.via, grant.principal)})"
    )
    return Reason(code, message, rule, grant.statement_id.document, grant.statement_id.statement)


def sentence(expression: PermissionCheck) -> str:
    """ "READ on connection:db, a connection of pipeline:orders"."""
    because = f", {expression.because}" if expression.because else ""
    return f"{expression.permission_text} on {expression.object_text}{because}"


def route(via: Via, principal: str) -> str:
    """How the subject came to be ``principal``: "user:dana → group:readers → role:topic-readers"."""
    steps = [principal]
    while (membership := via.get(steps[0])) is not None:
        steps.insert(0, membership.member)
    return " → ".join(steps)


def _missing(leaf: ExpressionResult) -> Missing:
    expression = leaf.expression
    if isinstance(expression, PermissionCheck):
        verb = "is denied" if leaf.grants else "is not granted"
        message = f"{sentence(expression)} {verb}"
        return Missing(expression.permission_text, expression.object_text, expression.rule, message)
    message = expression.text if isinstance(expression, All | AnyOf) else expression.message
    return Missing("", "", expression.rule, message)
