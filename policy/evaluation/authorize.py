"""Decisions on requests and batches.

What a request reads beside its id, its resource's id and its time is prepared as a query
(`policy.evaluation.prepared`), which later requests like it use again.
"""

import marshal
import secrets
from collections.abc import Callable, Mapping
from typing import Any

from policy.core.decision import Decision, Outcome
from policy.core.model import Reason, Unanswerable
from policy.core.request import (
    CLAIMS,
    MAX_CLAIMED_GROUPS,
    MAX_NESTING,
    Batch,
    IncompleteItem,
    MalformedRequest,
    Request,
    parse_flat_request,
    parse_request,
    usable_time,
)
from policy.core.times import to_ms
from policy.evaluation.evaluate import conclude, error, evaluate_request, failed
from policy.evaluation.prepared import QUERY_BYTES, PreparedQueries, PreparedQuery
from policy.store.snapshot import Snapshot

STOPS = {"deny_on_first_deny": False, "permit_on_first_permit": True}
PREPARED = frozenset({"id", "system", "subject", "action", "resource", "context", "time", "deadline"})
"""The fields of requests whose query is prepared; those with others are decided by themselves."""

RESOURCE = frozenset({"type", "id", "properties"})
MARSHAL = 2  # the version in which equal plain data of equal types is written alike
ID = secrets.token_hex(16)  # in keys, a property that is the resource's id; unknown to clients


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
        found = _prepared(snapshot, request, trust, max_claimed_groups)
        return found or _decide_parsed(snapshot, parse_request(request, max_claimed_groups), trust)
    except MalformedRequest as malformed:
        return error(Reason("malformed-request", str(malformed)))


def _prepared(snapshot: Snapshot, request: Mapping[str, Any], trust: frozenset[str], most: int) -> Decision | None:
    """The decision by a prepared query; None: the request is not of the usual form. Raises MalformedRequest."""
    if type(request) is not dict or not request.keys() <= PREPARED:
        return None
    resource, id_, get = request.get("resource"), request.get("id"), request.get
    if type(resource) is not dict or not resource.keys() <= RESOURCE or type(id_) is not str or not id_:
        return None
    name = resource.get("id")
    if type(name) is not str or not name:
        return None
    try:
        at = None if get("time") is None else to_ms(request["time"])
        deadline = None if get("deadline") is None else to_ms(request["deadline"])
        properties = resource.get("properties", ...)
        others = _without_id(properties, name) if type(properties) is dict else None
        of_resource = resource.get("type"), properties if others is None else others
        parts = (get("system"), get("subject"), get("action"), get("context", ...), *of_resource)
        key = marshal.dumps(parts, MARSHAL)
    except ValueError:  # not plain data
        return None
    queries = _queries(snapshot, trust, most)
    at = at if "time" in trust else None
    if _is_late(deadline, at):
        return None  # an error
    query = queries.find(key, at) or queries.find((key, name), at)
    if query is None:
        containers = key.count(b"{") + key.count(b"[") + key.count(b"(")
        parse = parse_flat_request if containers <= MAX_NESTING else parse_request
        parsed = parse(request, most)
        assert isinstance(parsed, Request)
        query = _prepare(snapshot, parsed, trust, queries, key, others is not None)
    return query.answer(name)


def _prepare(
    snapshot: Snapshot,
    request: Request,
    trust: frozenset[str],
    queries: "PreparedQueries[PreparedQuery]",
    key: bytes,
    repeats_id: bool,
) -> PreparedQuery:
    query, name = PreparedQuery(snapshot, request, trust, repeats_id), request.resource.id
    queries.add(key if query.for_every_id else (key, name), query, QUERY_BYTES + 3 * len(key) + len(name))
    return query


def _decide_parsed(snapshot: Snapshot, parsed: Request | Batch, trust: frozenset[str]) -> Decision:
    """As `answer`; the items of a batch by prepared queries."""
    if isinstance(parsed, Batch):
        return _answer_batch(parsed, lambda item: _decide_item(snapshot, item, trust))
    return answer(snapshot, parsed, trust)


def _decide_item(snapshot: Snapshot, request: Request, trust: frozenset[str]) -> Decision:
    """The decision by a prepared query. Its key has one part more than that of a single request: they never meet."""
    subject, action, resource = request.subject, request.action, request.resource
    at, name = usable_time(request, trust), resource.id
    if _is_late(request.deadline, at):
        return answer(snapshot, request, trust)
    others = _without_id(resource.properties, name)
    of_subject = subject.type, subject.id, subject.properties
    of_resource = resource.type, resource.properties if others is None else others
    parts = request.system, of_subject, action.name, action.properties, request.context, *of_resource
    try:
        key = marshal.dumps(parts, MARSHAL)
    except ValueError:  # not plain data
        return answer(snapshot, request, trust)
    queries = _queries(snapshot, trust, request.max_claimed_groups)
    query = queries.find(key, at) or queries.find((key, name), at)
    if query is None:
        query = _prepare(snapshot, request, trust, queries, key, others is not None)
    return query.answer(name)


def _without_id(properties: dict[str, Any], id_: str) -> dict[str, Any] | None:
    """The properties of a resource without the one that is its id; None unless exactly one is."""
    if list(properties.values()).count(id_) != 1:
        return None
    return {name: ID if type(value) is str and value == id_ else value for name, value in properties.items()}


def _queries(snapshot: Snapshot, trust: frozenset[str], most: int) -> PreparedQueries[PreparedQuery]:
    """Those that the snapshot keeps."""
    found: PreparedQueries[PreparedQuery] | None = snapshot.prepared.get((trust, most))
    if found is None:
        found = snapshot.prepared[trust, most] = PreparedQueries()
    return found


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


def _is_late(deadline: int | None, at: int | None) -> bool:
    """Whether `_check_deadline` raises."""
    return deadline is not None and (at is None or at > deadline)


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
