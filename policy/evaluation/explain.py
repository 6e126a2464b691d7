"""Why: reasons and missing atoms as data and as sentences for people."""

from collections.abc import Iterator

from policy.core.decision import Missing
from policy.core.model import Condition, Grant, PermissionCheck, Reason
from policy.evaluation.trace import EvaluationTrace, ExpressionResult
from policy.store.snapshot import Via


def reasons_of(trace: EvaluationTrace) -> tuple[Reason, ...]:
    """What decided: for an allow the grants, for a deny the denies or what was not held."""
    if not trace.evidence.items:
        return (_reason(trace.evidence, trace),)
    told: dict[Reason, None] = {}
    for evidence in trace.evidence.deciding(every=False):
        told.setdefault(_reason(evidence, trace))
    return tuple(told)


def missing_of(evidence: ExpressionResult) -> tuple[Missing, ...]:
    """The atoms that failed or could not be told."""
    found = (_missing(leaf) for leaf in _leaves(evidence) if not leaf.held)
    return tuple(dict.fromkeys(found))


def _leaves(evidence: ExpressionResult) -> Iterator[ExpressionResult]:
    if not evidence.items:
        yield evidence
    for item in evidence.items:
        if not item.held:
            yield from _leaves(item)


def _reason(leaf: ExpressionResult, trace: EvaluationTrace) -> Reason:
    requirement = leaf.requirement
    if isinstance(requirement, Condition):
        code = requirement.code if requirement.held is not None else "fact-missing"
        return Reason(code, requirement.message, requirement.rule)
    if not isinstance(requirement, PermissionCheck):
        return Reason(
            "nothing-required", requirement.text or "there is nothing that could be allowed", requirement.rule
        )
    if leaf.grants:
        return _granted(requirement, leaf.grants[0], trace)
    rule = trace.system.default_rule or requirement.rule
    return Reason("no-grant", f"no grant of {sentence(requirement)}", rule)


def _granted(requirement: PermissionCheck, grant: Grant, trace: EvaluationTrace) -> Reason:
    verb, code = ("allows", "allowed") if grant.effect == "allow" else ("denies", "denied")
    rule = requirement.rule if grant.effect == "allow" else trace.system.deny_rule
    message = f"{grant.statement_id} {verb} {sentence(requirement)} ({route(trace.standing.via, grant.principal)})"
    return Reason(code, message, rule, grant.statement_id.document, grant.statement_id.statement)


def sentence(requirement: PermissionCheck) -> str:
    """ "READ on connection:db, a connection of pipeline:orders"."""
    because = f", {requirement.because}" if requirement.because else ""
    return f"{requirement.permission_text} on {requirement.object_text}{because}"


def route(via: Via, principal: str) -> str:
    """How the subject came to be ``principal``: "user:dana → group:readers → role:topic-readers"."""
    steps = [principal]
    while (membership := via.get(steps[0])) is not None:
        steps.insert(0, membership.member)
    return " → ".join(steps)


def _missing(leaf: ExpressionResult) -> Missing:
    requirement = leaf.requirement
    if isinstance(requirement, PermissionCheck):
        verb = "is denied" if leaf.grants else "is not granted"
        message = f"{sentence(requirement)} {verb}"
        return Missing(requirement.permission_text, requirement.object_text, requirement.rule, message)
    message = requirement.message if isinstance(requirement, Condition) else requirement.text
    return Missing("", "", requirement.rule, message)
