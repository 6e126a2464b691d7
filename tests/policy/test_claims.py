"""How many groups and roles a request may claim: beyond the limit it is an error, in every system, never an allow."""

from typing import Any

import pytest

from policy import compile_documents, decide
from policy.core.request import MAX_CLAIMED_GROUPS
from policy.evaluation import reference
from policy.store.snapshot import Snapshot

LENSES6 = [
    {"kind": "Role", "name": "all", "spec": {"statements": [{"effect": "allow", "action": "*", "resource": "*"}]}},
    {"kind": "Group", "name": "g0", "spec": {"roles": ["all"]}},
]
OIDC = {"kind": "Authentication", "name": "a", "spec": {"oidc": {"enabled": True, "groupsClaim": "groups"}}}
DEFAULTS = {"lenses6": LENSES6, "ververica": [OIDC]}
ACTIONS = {
    "lenses6": ("lrn", "kafka:topic:a/b/c", "kafka:ListTopic"),
    "lenses5": ("topic", "orders", "kafka.topic.view-data"),
    "ververica": ("Deployment", "d", "read"),
    "streamsets": ("job", "job:a", "job.view"),
    "cdap": ("namespace", "namespace:shop", "namespace.get"),
}
WHERE = {
    "lenses5": {"connection": "kafka", "dataset": "orders"},
    "ververica": {"workspaceId": "w", "namespaceId": "n"},
}


def _snapshot(system: str) -> Snapshot:
    return compile_documents({"system": system, **document} for document in DEFAULTS.get(system, []))


def _request(system: str, properties: dict[str, Any], **more: Any) -> dict[str, Any]:
    type_, resource, action = ACTIONS[system]
    subject = {"type": "user", "id": "user:dana" if system == "lenses6" else "dana", "properties": properties}
    asked = {"id": "r", "system": system, "subject": subject, "action": {"name": action}}
    where = WHERE.get(system, {})
    return {**asked, "resource": {"type": type_, "id": resource, "properties": where}, **more}


def _codes(snapshot: Snapshot, request: dict[str, Any], **more: Any) -> list[str]:
    return [reason.code for reason in decide(snapshot, request, **more).reasons]


def _names(count: int) -> list[str]:
    return [f"g{number}" for number in range(count)]


@pytest.mark.parametrize(
    ("system", "claim"),
    [
        *((system, "groups") for system in ACTIONS),
        ("streamsets", "roles"),
        ("cdap", "roles"),
    ],
)
def test_more_groups_or_roles_than_a_request_may_claim_are_an_error(system: str, claim: str) -> None:
    snapshot = _snapshot(system)
    most, more = (_request(system, {claim: _names(MAX_CLAIMED_GROUPS + extra)}) for extra in (0, 1))
    assert "too-many-claims" not in _codes(snapshot, most)
    assert _codes(snapshot, more) == ["too-many-claims"]
    assert decide(snapshot, more).outcome == reference.decide(snapshot, more) == "error"


def test_at_the_limit_groups_count_and_beyond_it_none_does() -> None:
    snapshot, request = _snapshot("lenses6"), _request("lenses6", {"groups": _names(3)})
    assert decide(snapshot, request, max_claimed_groups=3).outcome == "allow"
    assert decide(snapshot, request, max_claimed_groups=2).outcome == "error"
    assert decide(snapshot, request, max_claimed_groups=2, trust=frozenset()).outcome != "allow"


def test_an_item_of_a_batch_with_too_many_groups_is_an_error_for_itself_alone() -> None:
    few, many = (_request("lenses6", {"groups": _names(count)})["subject"] for count in (1, 3))
    request = _request("lenses6", {}, evaluations=[{"subject": few}, {"subject": many}])
    answers = decide(_snapshot("lenses6"), request, max_claimed_groups=2).evaluations
    assert [answer.outcome for answer in answers] == ["allow", "error"]


@pytest.mark.parametrize("groups", [_names(3), ",".join(_names(3))], ids=["list", "text"])
def test_the_groups_of_a_token_are_counted_too(groups: Any) -> None:
    request = _request("ververica", {"token": {"sub": "dana", "groups": groups}})
    snapshot = _snapshot("ververica")
    assert snapshot.rejected == ()
    assert "too-many-claims" not in _codes(snapshot, request, max_claimed_groups=3)
    assert _codes(snapshot, request, max_claimed_groups=2) == ["too-many-claims"]
