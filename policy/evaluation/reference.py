"""The slow, obvious evaluator: nested loops straight from the rules. No index, no cache, no cleverness.

Property tests hold `policy.decide` to it, and `lockkeeper verify` the decisions of a cluster.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from policy.core.model import (
    All,
    AnyOf,
    Condition,
    EngineResult,
    Expression,
    Grant,
    Membership,
    PermissionCheck,
    Unanswerable,
)
from policy.core.pattern import Exact, Part, Pattern, Prefix
from policy.core.request import CLAIMS, Batch, IncompleteItem, MalformedRequest, Request, parse_request
from policy.core.times import Window, to_ms
from policy.store.policy_set import PolicySet
from policy.store.snapshot import Snapshot
from policy.systems import all_systems
from policy.systems.kit.query import authorization_query
from policy.systems.kit.system import EVERYONE


def decide(snapshot: Snapshot, request: Mapping[str, Any], *, trust: frozenset[str] = CLAIMS) -> str | list[str]:
    """``allow``, ``deny`` or ``error``; for a batch the list of them."""
    try:
        parsed = parse_request(request)
    except MalformedRequest:
        return "error"
    return answer(snapshot, parsed, trust)


def answer(snapshot: Snapshot, parsed: Request | Batch, trust: frozenset[str] = CLAIMS) -> str | list[str]:
    """The same for a request that is parsed already."""
    return _batch(snapshot, parsed, trust) if isinstance(parsed, Batch) else _one(snapshot, parsed, trust)


def _batch(snapshot: Snapshot, batch: Batch, trust: frozenset[str]) -> list[str]:
    outcomes: list[str] = []
    for item in batch.items:
        outcomes.append("error" if isinstance(item, IncompleteItem) else _one(snapshot, item, trust))
        if batch.semantic == "deny_on_first_deny" and outcomes[-1] != "allow":
            break
        if batch.semantic == "permit_on_first_permit" and outcomes[-1] == "allow":
            break
    return outcomes


def _one(snapshot: Snapshot, request: Request, trust: frozenset[str]) -> str:
    at = request.time if "time" in trust else None
    if request.deadline is not None and (at is None or at > request.deadline):
        return "error"
    try:
        policy_set = snapshot.policy_sets[request.system]
        query = authorization_query(all_systems()[request.system], request, policy_set.facts.at(at), trust)
        denies = [False]
        grants = _grants(policy_set, query.principals, at)
        result = _holds(query.expression, policy_set, grants, at, denies)
    except (KeyError, Unanswerable):
        return "error"
    if result is None or (not result and query.untrusted and not any(denies)):
        return "error"
    return "allow" if result else "deny"


def _grants(policy_set: PolicySet, start: Iterable[str], at: int | None) -> list[Grant]:
    principals = _effective_principals(policy_set, start, at)
    if any(principal in policy_set.broken_at(at) for principal in principals):
        raise Unanswerable("refused-document", "a refused document binds a principal")
    return [grant for principal in principals for grant in policy_set.grants.get(principal, [])]


def _effective_principals(policy_set: PolicySet, start: Iterable[str], at: int | None) -> set[str]:
    """First by the memberships that hold for ever: only what goes beyond these depends on the time."""
    memberships = [membership for of_member in policy_set.memberships.values() for membership in of_member]
    principals = _closed({*start, EVERYONE}, [m for m in memberships if m.window == Window()], at)
    return _closed(principals, memberships, at)


def _closed(principals: set[str], memberships: list[Membership], at: int | None) -> set[str]:
    grown = True
    while grown:
        grown = False
        for membership in memberships:
            if membership.member in principals and membership.principal not in principals and _now(membership, at):
                principals.add(membership.principal)
                grown = True
    return principals


def in_force(documents: Iterable[Mapping[str, Any]], at: int) -> list[Mapping[str, Any]]:
    """The documents as if there were no others: of each the versions that have begun by ``at`` (ms), oldest first.

    Compiled, they answer at ``at`` what all documents do.
    """
    begun = [document for document in documents if to_ms(document.get("effective_at", 0)) <= at]
    return sorted(begun, key=lambda document: to_ms(document.get("effective_at", 0)))


def _now(dated: Grant | Membership, at: int | None) -> bool:
    if dated.window == Window():
        return True
    if at is None:
        raise Unanswerable("time-needed", "time-bound, and no time")
    return (dated.window.start or 0) <= at and (dated.window.end is None or at < dated.window.end)


def _holds(
    needed: Expression, policy_set: PolicySet, grants: list[Grant], at: int | None, denies: list[bool]
) -> bool | None:
    if isinstance(needed, Condition):
        return needed.held
    if isinstance(needed, EngineResult):
        denies.append(needed.denied)
        return needed.held
    if isinstance(needed, PermissionCheck):
        if needed.principals:
            grants = _grants(policy_set, needed.principals, at)
        effects = {grant.effect for grant in grants if _applies(grant, needed) and _now(grant, at)}
        denies.append("deny" in effects)
        return effects == {"allow"}
    parts = [_holds(item, policy_set, grants, at, denies) for item in needed.items]
    if isinstance(needed, AnyOf):
        return True if True in parts else None if None in parts else False
    assert isinstance(needed, All)
    return False if False in parts or not parts else None if None in parts else True


def _applies(grant: Grant, atom: PermissionCheck) -> bool:
    if not _matches(grant.permission, atom.permission):
        return False
    return _matches(grant.object, atom.object)


def _matches(pattern: Pattern, name: tuple[str, ...]) -> bool:
    fits = len(name) == len(pattern.parts) or (pattern.open and len(name) > len(pattern.parts))
    return fits and all(_part(part, text) for part, text in zip(pattern.parts, name, strict=False))


def _part(part: Part, text: str) -> bool:
    if isinstance(part, Exact):
        return part.text == text
    if isinstance(part, Prefix):
        return text[: len(part.text)] == part.text
    return _glob(part.text, text, part.single)


def _glob(glob: str, text: str, single: bool) -> bool:
    """One character of the glob after the other: where in the text what is matched so far may end.

    Every length is tried for a ``*``, all at once: one after the other takes hours for a text that almost matches.
    """
    ends = {0}
    for mark in glob:
        if mark == "*":
            ends = set(range(min(ends, default=len(text) + 1), len(text) + 1))
        else:
            ends = {
                end + 1 for end in ends if text[end : end + 1] == mark or (single and mark == "?" and end < len(text))
            }
    return len(text) in ends
