"""Decisions on requests and batches; what was asked before is answered from a cache (`policy.evaluation.answers`)."""

import functools
import marshal
from collections.abc import Callable, Mapping
from typing import Any

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
from policy.evaluation.answers import ID, Answer, AnswerCache
from policy.evaluation.evaluate import conclude, error, evaluate_request, failed
from policy.store.snapshot import Snapshot

STOPS = {"deny_on_first_deny": False, "permit_on_first_permit": True}
MARSHAL = 2  # the version in which equal plain data of equal types is written alike
DECISION_BYTES = 500

Answers = AnswerCache[tuple[Decision, bool]]


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
    try:
        parsed = parse_request(request, max_claimed_groups)
    except MalformedRequest as malformed:
        return error(Reason("malformed-request", str(malformed)))
    answers: Answers | None = snapshot.answers.get((trust, max_claimed_groups))
    if answers is None:
        answers = snapshot.answers[trust, max_claimed_groups] = AnswerCache(snapshot.policy_sets, trust, kept)
    if isinstance(parsed, Batch):
        return _answer_batch(parsed, functools.partial(_decide, snapshot, answers))
    return _decide(snapshot, answers, parsed)


def _decide(snapshot: Snapshot, answers: Answers, request: Request) -> Decision:
    at, id_ = usable_time(request, answers.trust), request.resource.id
    properties = _without_id(request.resource.properties, id_)
    content = _content(request, properties)
    if content is None or (request.deadline is not None and (at is None or at > request.deadline)):
        return answer(snapshot, request, answers.trust)
    found = answers.find(content, id_, at) or answers.add(content, request, properties is not None)
    return decision_for(found, id_)


def _content(request: Request, properties: dict[str, Any] | None) -> bytes | None:
    """All that a decision reads but the time and the resource's id; None: it is not plain data.

    ``properties``: the resource's, where one is the id.
    """
    subject, action, resource = request.subject, request.action, request.resource
    of_subject, of_action = (subject.type, subject.id, subject.properties), (action.name, action.properties)
    of_resource = resource.type, properties is not None, resource.properties if properties is None else properties
    try:
        return marshal.dumps((request.system, of_subject, of_action, of_resource, request.context), MARSHAL)
    except ValueError:
        return None


def _without_id(properties: dict[str, Any], id_: str) -> dict[str, Any] | None:
    """The properties of a resource with None for the one that is its id; None unless exactly one is."""
    if not properties or list(properties.values()).count(id_) != 1:
        return None
    return {name: None if type(value) is str and value == id_ else value for name, value in properties.items()}


def kept(_request: Request, decision: Decision, shared: bool) -> tuple[tuple[Decision, bool], int]:
    """A decision as answers are kept, and about how many bytes it takes."""
    size = DECISION_BYTES
    for reason in decision.reasons:
        size += DECISION_BYTES + 4 * len(reason.message)
    for missing in decision.missing:
        size += DECISION_BYTES + 4 * (len(missing.object) + len(missing.message))
    return (decision, shared), size


def decision_for(answer: Answer[tuple[Decision, bool]], id_: str) -> Decision:
    """The decision for the resource with this id."""
    decision, shared = answer.rendered
    if not shared:
        return decision
    reasons = [
        Reason(one.code, one.message.replace(ID, id_), one.rule, one.document, one.statement)
        for one in decision.reasons
    ]
    missing = [
        Missing(one.permission, one.object.replace(ID, id_), one.rule, one.message.replace(ID, id_))
        for one in decision.missing
    ]
    return Decision(decision.outcome, tuple(reasons), tuple(missing), decision.claims)


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


def _check_deadline(deadline: int | None, at: int | None) -> None:
    if deadline is None:
        return
    if at is None:
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
    counted = answers[-1:] if batch.semantic == "permit_on_first_permit" else answers
    reason = Reason("evaluations", f"{sum(a.allowed for a in answers)} of {len(answers)} evaluations allowed")
    claims = tuple(sorted({claim for item in answers for claim in item.claims}))
    return Decision(_worst([item.outcome for item in counted]), (reason,), (), claims, tuple(answers))


def _worst(outcomes: list[Outcome]) -> Outcome:
    if "error" in outcomes:
        return "error"
    return "deny" if "deny" in outcomes else "allow"
