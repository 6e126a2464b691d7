"""Decisions on requests and batches; what was asked before is answered from a cache (`policy.evaluation.answers`)."""

import functools
import marshal
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from policy.core.decision import Decision, Missing, Outcome
from policy.core.model import Reason, Unanswerable
from policy.core.request import (
    CLAIMS,
    MAX_CLAIMED_GROUPS,
    Batch,
    IncompleteItem,
    MalformedRequest,
    Request,
    parse_request,
    usable_time,
)
from policy.core.times import to_ms
from policy.evaluation.answers import ID, Answer, AnswerCache
from policy.evaluation.evaluate import conclude, error, evaluate_request, failed
from policy.store.snapshot import Snapshot
from policy.systems import all_systems

# AuthZEN 1.0, evaluations_semantic: the item after which the others are not evaluated. An error is no permit, so it
# ends the first as a deny does.
STOPS = {"deny_on_first_deny": False, "permit_on_first_permit": True}
MEMBERS = frozenset({"id", "system", "subject", "action", "resource", "context", "time", "deadline"})
OF_RESOURCE = frozenset({"type", "id", "properties"})
# From version 3 on, what is the very same object twice is written as a reference: equal requests would differ.
MARSHAL = 2
DECISION_BYTES = 500  # of a decision and of each of its reasons, beside their texts: structs, tuples and short strings
SCALARS = frozenset({str, int, float, bool, type(None)})
RECENT = 4  # decisions of one answer, by the resource's id
ID_BYTES = ID.encode()

Question = tuple[bytes, str, int | None, bool]
"""All that an answer reads but the time and the id of the resource; that id; the time (ms; None: not known); and
whether exactly one property is the id, where the first says which.
"""


class Kept(msgspec.Struct, frozen=True, gc=False):
    """A decision that is kept. ``recent``: where ``ID`` stands for the resource's id, the last decisions by this id."""

    decision: Decision
    recent: dict[str, Decision] | None


Answers = AnswerCache[Kept]


def decide(
    snapshot: Snapshot,
    request: Mapping[str, Any],
    *,
    trust: frozenset[str] = CLAIMS,
    max_claimed_groups: int = MAX_CLAIMED_GROUPS,
) -> Decision:
    """Decide a request (or a batch of evaluations). Never raises for a bad one: that is ``error``.

    ``trust``: the claims (``groups, roles, token, facts, time``) that the request may make. Without ``time`` its time
    is not known, and whatever depends on that is ``error``: a deadline too. ``max_claimed_groups``: of groups, and of
    roles, that it may claim; with more of them the answer is ``error``.
    """
    answers: Answers | None = snapshot.answers.get((trust, max_claimed_groups))
    if answers is None:
        answers = snapshot.answers[trust, max_claimed_groups] = AnswerCache(snapshot.policy_sets, trust, kept)
    question = _question(request, answers.trust)
    if question is not None and (decision := _find(answers, question)) is not None:
        return decision
    try:
        parsed = parse_request(request, max_claimed_groups)
    except MalformedRequest as malformed:
        return error(Reason("malformed-request", str(malformed)))
    if isinstance(parsed, Batch):
        return _answer_batch(parsed, functools.partial(_decide_item, snapshot, answers))
    return _work_out(snapshot, answers, question, parsed)


def _question(request: Mapping[str, Any], trust: frozenset[str]) -> Question | None:
    """What a request asks before it is parsed; None: it has another form, is too late, or perhaps malformed.

    Of two with the same content both are malformed, or none: the members that are no part of it are checked here.
    """
    if type(request) is not dict or not request.keys() <= MEMBERS:
        return None
    get = request.get
    resource, request_id, time, deadline = get("resource"), get("id"), get("time"), get("deadline")
    if type(request_id) is not str or not request_id or type(resource) is not dict:
        return None
    id_, properties, repeating = resource.get("id"), resource.get("properties"), None
    if type(id_) is not str or not id_ or not resource.keys() <= OF_RESOURCE:
        return None
    try:
        at = None if time is None else to_ms(time)
        at = at if "time" in trust else None
        if deadline is not None and (at is None or at > to_ms(deadline)):
            return None
        if properties and type(properties) is dict:
            repeating, properties = _without_id(properties, id_)
        of_resource = resource.get("type"), properties, repeating
        has_parts = "properties" in resource, "context" in request  # null is malformed, and no value can mean "none"
        system, context = get("system"), get("context")
        context = _context_in_key(system, context) if context and type(context) is dict else context
        parts = system, get("subject"), get("action"), *of_resource, context, has_parts
        return marshal.dumps(parts, MARSHAL), id_, at, repeating is not None
    except ValueError:  # no moment, or no plain data
        return None


def _without_id(properties: dict[str, Any], id_: str) -> tuple[str | None, dict[str, Any]]:
    """The property of a resource that is its id, and the others; None and all of them unless exactly one is."""
    repeating = [name for name, value in properties.items() if type(value) is str and value == id_]
    if len(repeating) != 1 or type(repeating[0]) is not str:
        return None, properties
    return repeating[0], {name: value for name, value in properties.items() if name != repeating[0]}


def _context_in_key(system: Any, context: dict[str, Any]) -> dict[str, Any]:
    """The context without what its system is not shown, as far as that cannot be malformed."""
    shown_to = all_systems().get(system) if type(system) is str else None
    fields = None if shown_to is None else shown_to.context_fields
    if fields is None:
        return context
    return {
        name: value
        for name, value in context.items()
        if name in fields or type(name) is not str or type(value) not in SCALARS
    }


def _decide_item(snapshot: Snapshot, answers: Answers, item: Request) -> Decision:
    """The decision on an item of a batch."""
    parts = {name: msgspec.structs.asdict(getattr(item, name)) for name in ("subject", "action", "resource")}
    more = {name: getattr(item, name) for name in ("id", "system", "context", "time", "deadline")}
    question = _question(parts | more, answers.trust)
    if question is not None and (decision := _find(answers, question)) is not None:
        return decision
    return _work_out(snapshot, answers, question, item)


def _find(answers: Answers, question: Question) -> Decision | None:
    content, id_, at, _ = question
    kept_answer = answers.find(content, id_, at)
    return None if kept_answer is None else decision_for(kept_answer, id_)


def _work_out(snapshot: Snapshot, answers: Answers, question: Question | None, request: Request) -> Decision:
    """The decision on a request whose answer is not kept."""
    if question is None:
        return answer(snapshot, request, answers.trust)
    content, id_, _, repeats_id = question
    return decision_for(answers.add(content, request, repeats_id, ID_BYTES not in content), id_)


def kept(_request: Request, decision: Decision, shared: bool) -> tuple[Kept, int]:
    """A decision as answers are kept, and about how many bytes it takes, with those that may become recent."""
    size = DECISION_BYTES
    for reason in decision.reasons:
        size += DECISION_BYTES + 4 * len(reason.message)
    for missing in decision.missing:
        size += DECISION_BYTES + 4 * (len(missing.object) + len(missing.message))
    return (Kept(decision, {}), (1 + RECENT) * size) if shared else (Kept(decision, None), size)


def decision_for(answer: Answer[Kept], id_: str) -> Decision:
    """The decision for the resource with this id."""
    decision, recent = answer.rendered.decision, answer.rendered.recent
    if recent is None:
        return decision
    if (with_id := recent.get(id_)) is None:
        if len(recent) >= RECENT:
            recent.clear()
        with_id = recent[id_] = _with_id(decision, id_)
    return with_id


def _with_id(decision: Decision, id_: str) -> Decision:
    reasons = [
        Reason(item.code, item.message.replace(ID, id_), item.rule, item.document, item.statement)
        for item in decision.reasons
    ]
    missing = [
        Missing(item.permission, item.object.replace(ID, id_), item.rule, item.message.replace(ID, id_))
        for item in decision.missing
    ]
    return msgspec.structs.replace(decision, reasons=tuple(reasons), missing=tuple(missing))


def answer(snapshot: Snapshot, parsed: Request | Batch, trust: frozenset[str] = CLAIMS) -> Decision:
    """Decide a request that is parsed already. Whatever goes wrong, the answer is ``error``, never an allow.

    Its ``time`` counts for a claim, like any other: a caller who has set it says so by ``time`` in ``trust``.
    """
    if isinstance(parsed, Batch):
        return _answer_batch(parsed, lambda item: answer(snapshot, item, trust))
    try:
        _check_deadline(parsed.deadline, usable_time(parsed, trust))
        return conclude(evaluate_request(snapshot, parsed, trust))
    except Exception as failure:
        return failed(failure)


def evaluated_items(
    snapshot: Snapshot, parsed: Request | Batch, trust: frozenset[str] = CLAIMS
) -> tuple[Request | IncompleteItem, ...]:
    """What is evaluated of a request: itself; of a batch its items up to the one with which its semantic ends it."""
    if not isinstance(parsed, Batch):
        return parsed.items
    return parsed.items[: len(answer(snapshot, parsed, trust).evaluations)]


def _check_deadline(deadline: int | None, at: int | None) -> None:
    if deadline is None:
        return
    if at is None:  # a late answer may allow what has been revoked since: without a clock no deadline is kept
        raise Unanswerable("time-needed", "the request has a deadline, and no time (or is not trusted to say it)")
    if at > deadline:
        raise Unanswerable("deadline-exceeded", "the request was judged after its deadline")


def _answer_batch(batch: Batch, decide_item: Callable[[Request], Decision]) -> Decision:
    answers: list[Decision] = []
    for item in batch.items:
        if isinstance(item, IncompleteItem):
            answers.append(error(Reason("incomplete-evaluation", item.message)))
        else:
            answers.append(decide_item(item))
        if STOPS.get(batch.semantic) is answers[-1].allowed:
            break
    return _sum_up(batch, answers)


def _sum_up(batch: Batch, answers: list[Decision]) -> Decision:
    """The record's own answer: for permit_on_first_permit that of the last item, else whether all are allowed."""
    # AuthZEN has no answer for a batch as a whole, Kafka's consumers read one for each record: it allows no more than
    # the items that its semantic counts.
    counted = answers[-1:] if batch.semantic == "permit_on_first_permit" else answers
    reason = Reason("evaluations", f"{sum(a.allowed for a in answers)} of {len(answers)} evaluations allowed")
    claims = tuple(sorted({claim for item in answers for claim in item.claims}))
    return Decision(_worst([item.outcome for item in counted]), (reason,), (), claims, evaluations=tuple(answers))


def _worst(outcomes: list[Outcome]) -> Outcome:
    if "error" in outcomes:
        return "error"
    return "deny" if "deny" in outcomes else "allow"
