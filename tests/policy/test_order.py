"""The order in which documents come changes nothing of a decision: also not by which way a subject holds a grant."""

import itertools
import pickle
from typing import Any

import pytest

import policy
from policy.core.model import Membership, StatementId
from policy.evaluation.explain import route
from policy.store.delta import PolicySetChange
from policy.store.policy_set import PolicySet
from policy.store.snapshot import Snapshot

ROLE = {"statements": [{"effect": "allow", "action": "*", "resource": "*"}]}
ASK = {
    "id": "r",
    "system": "lenses6",
    "subject": {"type": "user", "id": "user:dana", "properties": {"groups": ["okta", "b", "a"]}},
    "action": {"name": "kafka:ListTopic"},
    "resource": {"type": "lrn", "id": "kafka:topic:a/b/c"},
}


def _document(kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {"system": "lenses6", "kind": kind, "name": name, "spec": spec}


def _group(name: str, *roles: str, **spec: Any) -> dict[str, Any]:
    return _document("Group", name, {"roles": list(roles), "members": ["user:dana"], **spec})


DOCUMENTS = [
    _group("b", "r", "s"),
    _group("a", "s", "r"),
    _group("c", "r", sso_name="okta"),
    _document("Role", "s", ROLE),
    _document("Role", "r", ROLE),
]


@pytest.mark.parametrize("packed", [False, True])
def test_of_several_ways_to_a_grant_the_same_is_reported(packed: bool) -> None:
    decisions = set()
    for documents in itertools.permutations(DOCUMENTS):
        snapshot = policy.compile_documents(documents)
        shared: Snapshot = pickle.loads(pickle.dumps(snapshot)) if packed else snapshot
        decisions.add(policy.decide(shared, ASK))
    (decision,) = decisions
    assert decision.reasons[0].message.startswith(
        "lenses6/Role/r statement 0 allows kafka:ListTopic on kafka:topic:a/b/c"
    )
    assert decision.reasons[0].message.endswith("(user:dana → group:a → role:r)")


@pytest.mark.parametrize("claimed", list(itertools.permutations(["okta", "b", "a"])))
def test_the_order_of_claimed_groups_changes_nothing(claimed: tuple[str, ...]) -> None:
    snapshot = policy.compile_documents(DOCUMENTS)
    asked = {**ASK, "subject": {"type": "user", "id": "user:eve", "properties": {"groups": list(claimed)}}}
    assert policy.decide(snapshot, asked).reasons[0].message.endswith("(claim:a → group:a → role:r)")


def test_the_shortest_way_is_reported_and_of_two_the_first_by_name() -> None:
    """However the memberships were come across."""
    ways = ["user > long", "long > longer", "longer > held", "user > d", "d > held", "user > c", "c > held"]
    ends = [way.split(" > ") for way in ways]
    memberships = [Membership(member, principal, StatementId(f"{member}/{principal}")) for member, principal in ends]
    for order in itertools.islice(itertools.permutations(memberships), 0, 5040, 7):
        policy_set = PolicySet().with_change(PolicySetChange(memberships=order))
        assert route(policy_set.effective_principals(("user",), 0).via, "held") == "user → c → held"
