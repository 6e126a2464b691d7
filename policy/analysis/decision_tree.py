"""A decision as a tree: every part of the requirement, whether it held, and what decided it."""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from policy.core.model import All, AnyOf, Condition, EngineResult, Expression, Unanswerable
from policy.core.request import CLAIMS, IncompleteItem, Request, parse_request
from policy.evaluation.authorize import answer, evaluated_items
from policy.evaluation.evaluate import evaluate_request
from policy.evaluation.explain import route, sentence
from policy.evaluation.trace import EvaluationTrace, ExpressionResult
from policy.store.snapshot import Snapshot

ABOVE_ALL_PARTS = ("untrusted-claim", "deadline-exceeded", "time-needed")  # codes of errors though every part is known


class Node(msgspec.Struct, frozen=True):
    """One part: ``held`` True, False, or None where it is not known; ``notes``: what decided, line by line."""

    text: str
    held: bool | None
    rule: str = ""
    notes: tuple[str, ...] = ()
    items: tuple["Node", ...] = ()


def draw_trees(snapshot: Snapshot, request: Mapping[str, Any], trust: frozenset[str] = CLAIMS) -> list[Node]:
    """The tree of a request, of a batch one for each item that is evaluated. Raises MalformedRequest."""
    return [_tree(snapshot, item, trust) for item in evaluated_items(snapshot, parse_request(request), trust)]


def _tree(snapshot: Snapshot, request: Request | IncompleteItem, trust: frozenset[str]) -> Node:
    """The top node is the answer itself, with the outcome as its truth."""
    if isinstance(request, IncompleteItem):
        return Node("error", None, notes=(request.message,))
    decision = answer(snapshot, request, trust)
    holds = {"allow": True, "deny": False}.get(decision.outcome)
    title = f"{decision.outcome}: {request.subject.id} {request.action.name} {request.resource.id}"
    try:
        trace = evaluate_request(snapshot, request, trust)
    except Unanswerable as unanswerable:
        return Node(title, holds, unanswerable.reason.rule or "", (unanswerable.reason.message,))
    query = trace.query
    notes = [f"rests on what the request claims: {', '.join(query.claims)}"] if query.claims else []
    notes += [note.message for note in query.notes]
    notes += [reason.message for reason in decision.reasons if reason.code in ABOVE_ALL_PARTS]
    return Node(title, holds, "", tuple(notes), (_node(trace.result, trace),))


def error_tree(node: Node, why: str) -> Node:
    """The tree of a request that is an error whatever its parts are."""
    asked = node.text.partition(": ")[2]  # an incomplete item has none
    text = f"error: {asked}" if asked else node.text
    return msgspec.structs.replace(node, text=text, held=None, notes=(*node.notes, why))


def _node(result: ExpressionResult, trace: EvaluationTrace) -> Node:
    expression = result.expression
    items = tuple(_node(item, trace) for item in result.items)
    return Node(_text(expression), result.held, expression.rule, tuple(_notes(result, trace)), items)


def _text(expression: Expression) -> str:
    if isinstance(expression, All | AnyOf):
        needed = "all of" if isinstance(expression, All) else "any of"
        return f"{expression.text}: {needed}" if expression.text else needed
    return expression.message if isinstance(expression, Condition | EngineResult) else sentence(expression)


def _notes(result: ExpressionResult, trace: EvaluationTrace) -> Iterator[str]:
    if isinstance(result.expression, EngineResult):
        messages = dict.fromkeys(reason.message for reason in result.expression.reasons)
        yield from (message for message in messages if message != result.expression.message)
    for grant in sorted(result.grants, key=lambda grant: (grant.statement_id.place, grant.principal)):
        verb = "allowed" if grant.effect == "allow" else "denied"
        yield f"{verb} by {grant.statement_id} ({route(trace.effective_principals.via, grant.principal)})"
