"""What is said to be nearest to a denied request really would allow it, by the reference evaluator."""

from collections import Counter
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from msgspec import structs

from policy import CLAIMS, Snapshot, compile_documents
from policy.analysis import grant_text, nearest_grants, who_can
from policy.analysis.nearest_grants import NearestGrant
from policy.analysis.wording import membership_text
from policy.core.model import All, AnyOf, Expression, Grant, PermissionCheck
from policy.core.pattern import Exact, Pattern
from policy.core.request import Batch, Request, parse_request, usable_time
from policy.core.times import ALWAYS
from policy.evaluation import reference
from policy.store.policy_set import PolicySet
from policy.systems import all_systems
from policy.systems.kit.query import authorization_query
from policy.systems.kit.system import System
from tests.examples import examples
from tests.policy.test_properties import WITH_GRANTS, WRITTEN, documents_of, requests_of

# With fewer nothing is near: of Kafka's ACLs only entries of the requested resource type are.
FEWEST = {"kafka-acls": 600, "lenses6": 150, "streamsets": 250}


def _checks(expression: Expression) -> Iterator[PermissionCheck]:
    if isinstance(expression, PermissionCheck):
        yield expression
    for item in expression.items if isinstance(expression, All | AnyOf) else ():
        yield from _checks(item)


def _exactly(names: tuple[str, ...]) -> Pattern:
    return Pattern(tuple(map(Exact, names)))


def _widened(near: NearestGrant, grant: Grant, checks: list[PermissionCheck]) -> Iterator[Grant]:
    """The grant with no more than the action or resource that it is said to lack."""
    for check in checks:
        if near.lacks == "action" and near.detail == f"not {check.permission_text}":
            yield structs.replace(grant, permission=_exactly(check.permission))
        if near.lacks == "resource" and near.detail == f"not on {check.object_text}":
            yield structs.replace(grant, object=_exactly(check.object))


def _changed(policy_set: PolicySet, near: NearestGrant, own: System, checks: list[PermissionCheck]) -> Iterator[Any]:
    """The policies, as far as the reference evaluator reads them, with what a statement is said to lack."""
    plain = {"facts": policy_set.facts, "broken_at": policy_set.broken_at}
    if near.lacks == "validity":
        memberships = [one for of_member in policy_set.memberships.values() for one in of_member]
        named = {
            one.statement_id.document
            for one in memberships
            if near.detail == f"{membership_text(one)} ({one.statement_id})"
        }
        for document in named or {near.document}:
            grants, memberships_ = (_valid(side, document) for side in (policy_set.grants, policy_set.memberships))
            yield SimpleNamespace(**plain, grants=grants, memberships=memberships_)
    for grant in [grant for of_principal in policy_set.grants.values() for grant in of_principal]:
        stated = (grant.statement_id.document, grant.statement_id.statement, grant_text(grant, own))
        for wider in _widened(near, grant, checks) if stated == (near.document, near.statement, near.text) else ():
            grants = {**policy_set.grants, grant.principal: [*policy_set.grants[grant.principal], wider]}
            yield SimpleNamespace(**plain, grants=grants, memberships=policy_set.memberships)


def _valid(written: Mapping[str, Any], document: str) -> dict[str, Any]:
    """What a document says, at all times."""
    return {
        name: [structs.replace(one, window=ALWAYS) if one.statement_id.document == document else one for one in items]
        for name, items in written.items()
    }


def _allows(snapshot: Snapshot, request: Request, near: NearestGrant) -> bool:
    """Whether the statement, with what it lacks, makes the reference evaluator allow the request."""
    policy_set, own = snapshot.policy_sets[request.system], all_systems()[request.system]
    query = authorization_query(own, request, policy_set.facts.at(usable_time(request, CLAIMS)), CLAIMS)
    changed = _changed(policy_set, near, own, list(_checks(query.expression)))
    answers = [reference._one(SimpleNamespace(policy_sets={request.system: one}), request, CLAIMS) for one in changed]
    assert answers, near
    return "allow" in answers


@pytest.mark.parametrize("system", WRITTEN)
def test_a_statement_with_what_it_lacks_allows_the_request_and_who_is_said_to_be_allowed_is(system: str) -> None:
    """Unless it is said that this alone would not: then a statement of the subject comes near to a part.

    Who is allowed is told by deciding, principal by principal; `who_can` has all of them. Both are checked on the same
    examples, which take most of the time.
    """
    near_seen, denied = Counter[tuple[str, bool]](), 0

    @settings(
        max_examples=max(examples(150), FEWEST.get(system, 60)),
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.explicit, Phase.generate],
    )
    @given(documents_of(system), requests_of(system))
    def check(documents: list[Any], asked: dict[str, Any]) -> None:
        nonlocal denied
        snapshot, request = compile_documents(documents), parse_request(asked)
        if isinstance(request, Batch):
            return
        [found] = nearest_grants(snapshot, asked)
        if found is None:
            return
        denied += 1
        reach = who_can(snapshot, asked)
        assert {*found.principals} <= {*reach.allowed}, (found, reach)
        assert found.principals or found.more or not reach.allowed, (found, reach)
        for near in found.near if system in WITH_GRANTS else ():
            near_seen[near.lacks, near.suffices] += 1
            if near.lacks != "condition":
                assert _allows(snapshot, request, near) or not near.suffices, (near, found)
                assert not (near.suffices and found.denies), found

    check()
    assert denied, "nothing was denied"
    assert near_seen or system not in WITH_GRANTS, "nothing was near"
