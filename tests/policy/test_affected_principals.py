"""The principals that a change of policies affects: the decisions of all others are the same after it."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policy import Decision, Snapshot
from policy.core.facts import Reads
from policy.core.request import CLAIMS, Request, parse_request
from policy.evaluation.evaluate import conclude, failed, resolve
from tests.examples import examples
from tests.policy.incremental import IncrementalPolicies
from tests.policy.test_answers import MOMENTS, UNHURRIED, deletion, spoiled
from tests.policy.test_properties import WRITTEN, dated, requests_of
from tests.stream.world import group, role

TOM = [group("tom", "user:tom"), role("tom", "kafka:topic:prod/main/tom")]


def _decision(snapshot: Snapshot, request: Request) -> tuple[Decision, set[str]]:
    """And the principals that it starts from."""
    reads = Reads()
    try:
        return conclude(resolve(snapshot.policy_sets, request, CLAIMS, reads).evaluate()), reads.principals
    except Exception as failure:
        return failed(failure), reads.principals


@pytest.mark.parametrize("system", WRITTEN)
@settings(max_examples=examples(60), deadline=None, suppress_health_check=UNHURRIED)
@given(data=st.data())
def test_only_affected_principals_get_other_decisions(system: str, data: st.DataObject) -> None:
    documents = data.draw(dated(system))
    asked = [data.draw(requests_of(system)) for _ in range(4)] if documents else []
    policies = IncrementalPolicies.of(documents[1:])
    for order, document in enumerate(documents[:2], 100):
        edit = data.draw(st.sampled_from([dict, dict, deletion, spoiled]))
        before, after = policies.snapshot, policies.change(edit(document), order)
        affected = before.policy_sets[system].affected_principals(after.policy_sets[system])
        for plain in asked if affected is not None else ():
            for at in (None, *MOMENTS):
                request = parse_request({**plain, "time": at} if at is not None else plain)
                assert isinstance(request, Request)
                decision, principals = _decision(before, request)
                if principals.isdisjoint(affected or ()):
                    assert _decision(after, request) == (decision, principals), (edit, document, plain, at)


def _affected(*changes: dict[str, Any]) -> set[str] | None:
    """By the last one of changes."""
    policies = IncrementalPolicies.of([*TOM, group("all", "user:tom", "group:tom")])
    for order, document in enumerate(changes, 1):
        before, after = policies.snapshot, policies.change(document, order)
    return before.policy_sets["lenses6"].affected_principals(after.policy_sets["lenses6"])


def test_members_are_affected_by_what_their_groups_may_do() -> None:
    assert _affected(role("tom", "kafka:topic:prod/main/tim")) == {"role:tom", "group:tom", "claim:tom", "user:tom"}


def test_a_new_member_is_affected_and_no_other_member() -> None:
    assert _affected(group("tom", "user:tom", "user:eve")) == {"user:eve"}
    assert _affected(group("tom")) == {"user:tom"}


def test_a_document_that_says_the_same_affects_nobody() -> None:
    assert _affected(TOM[1]) == set()
    assert _affected({**TOM[1], "spec": {**TOM[1]["spec"], "metadata": {}}}) in (set(), None)


def test_a_refused_document_affects_everybody() -> None:
    never = {**group("never", "user:eve"), "spec": {"roles": 1}}
    assert _affected(never) is None
    assert _affected(never, deletion(never)) is None
