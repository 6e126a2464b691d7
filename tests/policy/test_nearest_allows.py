"""What is said to be nearest to a denied request really would allow it, by the reference evaluator."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import policy
from policy import CLAIMS, Snapshot, compile_documents
from policy.analysis import Nearest, grant_text, nearest_grants, who_can
from policy.core.model import All, AnyOf, Condition, Expression, Grant, PermissionCheck
from policy.core.pattern import Exact, Pattern
from policy.core.request import Batch, Request, parse_request, usable_time
from policy.core.times import ALWAYS
from policy.evaluation import reference
from policy.systems import all_systems
from policy.systems.kit.query import authorization_query
from tests.examples import examples
from tests.policy.test_properties import WITH_GRANTS, WRITTEN, documents_of, requests_of

checked = settings(
    max_examples=examples(150),
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.generate],
)


def _checks(expression: Expression) -> Iterator[PermissionCheck]:
    if isinstance(expression, PermissionCheck):
        yield expression
    for item in expression.items if isinstance(expression, All | AnyOf) else ():
        yield from _checks(item)


def _exactly(names: tuple[str, ...]) -> Pattern:
    return Pattern(tuple(map(Exact, names)))


def _widened(near: Any, grant: Grant, checks: list[PermissionCheck]) -> Iterator[Grant]:
    """The grant with no more than what it is said to lack."""
    if near.lacks == "validity":
        yield policy.core.model.msgspec.structs.replace(grant, window=ALWAYS)
    for check in checks:
        if near.lacks == "action" and near.detail == f"not {check.permission_text}":
            yield policy.core.model.msgspec.structs.replace(grant, permission=_exactly(check.permission))
        if near.lacks == "resource" and near.detail == f"not on {check.object_text}":
            yield policy.core.model.msgspec.structs.replace(grant, object=_exactly(check.object))


def _allows(snapshot: Snapshot, request: Request, near: Any) -> bool:
    """Whether the statement, with what it lacks, makes the reference evaluator allow the request."""
    policy_set, at = snapshot.policy_sets[request.system], usable_time(request, CLAIMS)
    system = all_systems()[request.system]
    query = authorization_query(system, request, policy_set.facts.at(at), CLAIMS)
    grants = reference._grants(policy_set, query.principals, at)
    everyone = (grant for of_principal in policy_set.grants.values() for grant in of_principal)
    stated = [
        grant
        for grant in everyone
        if (grant.statement_id.document, grant.statement_id.statement) == (near.document, near.statement)
        and grant_text(grant, system) == near.text
    ]
    checks = list(_checks(query.expression))
    return any(
        reference._holds(query.expression, policy_set, [*grants, more], at, []) is True
        for grant in stated
        for more in _widened(near, grant, checks)
    )


@pytest.mark.parametrize("system", WITH_GRANTS)
def test_a_statement_with_what_it_lacks_allows_the_request(system: str) -> None:
    seen = Counter[str]()

    @checked
    @given(documents_of(system), requests_of(system))
    def check(documents: list[Any], asked: dict[str, Any]) -> None:
        snapshot, request = compile_documents(documents), parse_request(asked)
        if isinstance(request, Batch):
            return
        [found] = nearest_grants(snapshot, asked)
        for near in found.near if found is not None and not found.denies else ():
            if near.lacks != "condition":
                seen[near.lacks] += 1
                assert _allows(snapshot, request, near), (near, found)

    check()
    assert seen, "nothing was near"
