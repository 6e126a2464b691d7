"""Whom a change of policies concerns: the decisions of all others are the same after it."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policy import Decision, Snapshot
from policy.core.facts import Reads
from policy.core.request import CLAIMS, Request, parse_request
from policy.evaluation.evaluate import conclude, failed, resolve
from tests.examples import examples
from tests.policy.changing import Changing
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
def test_only_those_whom_a_change_concerns_get_other_decisions(system: str, data: st.DataObject) -> None:
    documents = data.draw(dated(system))
    asked = [data.draw(requests_of(system)) for _ in range(4)] if documents else []
    policies = Changing.of(documents[1:])
    for order, document in enumerate(documents[:2], 100):
        edit = data.draw(st.sampled_from([dict, dict, deletion, spoiled]))
        before, after = policies.snapshot, policies.change(edit(document), order)
        concerned = before.policy_sets[system].concerned(after.policy_sets[system])
        for plain in asked if concerned is not None else ():
            for at in (None, *MOMENTS):
                request = parse_request({**plain, "time": at} if at is not None else plain)
                assert isinstance(request, Request)
                decision, principals = _decision(before, request)
                if principals.isdisjoint(concerned or ()):
                    assert _decision(after, request) == (decision, principals), (edit, document, plain, at)


def _concerned(*changes: dict[str, Any]) -> set[str] | None:
    """By the last one of changes."""
    policies = Changing.of([*TOM, group("all", "user:tom", "group:tom")])
    for order, document in enumerate(changes, 1):
        before, after = policies.snapshot, policies.change(document, order)
    return before.policy_sets["lenses6"].concerned(after.policy_sets["lenses6"])


def test_members_are_concerned_by_what_their_groups_may_do() -> None:
    assert _concerned(role("tom", "kafka:topic:prod/main/tim")) == {"role:tom", "group:tom", "claim:tom", "user:tom"}


def test_a_new_member_is_concerned_and_no_other_member() -> None:
    assert _concerned(group("tom", "user:tom", "user:eve")) == {"user:eve"}
    assert _concerned(group("tom")) == {"user:tom"}


def test_a_document_that_says_the_same_concerns_nobody() -> None:
    assert _concerned(TOM[1]) == set()
    assert _concerned({**TOM[1], "spec": {**TOM[1]["spec"], "metadata": {}}}) in (set(), None)


def test_a_refused_document_concerns_everybody() -> None:
    never = {**group("never", "user:eve"), "spec": {"roles": 1}}
    assert _concerned(never) is None
    assert _concerned(never, deletion(never)) is None
