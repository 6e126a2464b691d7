"""What a change of policies changes: which differences are reported, and which of them let more through."""

from typing import Any

import pytest

import policy
from policy.analysis.diff import compare, replay
from tests.policy.test_lint import READ, group, role

ALL = ("allow", "*", "*")
LESS = ("allow", "kafka:ReadTopicData", "kafka:topic:a/b/*")
BAN = ("deny", "kafka:ReadTopicData", "kafka:topic:a/*")


def differences(old: list[Any], new: list[Any]) -> list[tuple[str, str, bool]]:
    """(sign, text, widens) of every difference."""
    before, after = policy.compile_documents(old), policy.compile_documents(new)
    return [(d.sign, d.text, d.widens) for d in compare(before, after)]


def test_the_order_and_place_of_statements_is_no_difference() -> None:
    """A statement moved within its role, or written twice, changes nothing."""
    assert differences([role("r", READ, BAN)], [role("r", BAN, READ, READ)]) == []


@pytest.mark.parametrize(
    ("old", "new", "widens"),
    [
        ([], [READ], [True]),
        ([READ], [], [False]),
        ([READ], [READ, BAN], [False]),
        ([READ, BAN], [READ], [True]),
        ([READ], [READ, LESS], [False]),
        ([LESS], [READ], [False, True]),
        ([READ], [LESS], [False, False]),
        ([READ, ALL], [ALL], [False]),
    ],
    ids=["allow added", "allow lost", "deny added", "deny lost", "covered", "wider", "narrower", "needless one lost"],
)
def test_what_lets_more_through_is_reported(old: list[Any], new: list[Any], widens: list[bool]) -> None:
    """An allow more or a deny less, unless another says as much on the other side."""
    assert [widening for _, _, widening in differences([role("r", *old)], [role("r", *new)])] == widens


def test_a_new_membership_widens_by_the_allows_and_a_lost_one_by_the_denies_it_leads_to() -> None:
    """A role given, a role taken away."""
    roles = [role("reads", READ), role("bans", BAN)]
    bare, reader, banned = group("g"), group("g", "reads"), group("g", "bans")
    assert differences([*roles, bare], [*roles, reader]) == [("added", "group:g is role:reads", True)]
    assert differences([*roles, reader], [*roles, bare]) == [("removed", "group:g is role:reads", False)]
    assert differences([*roles, bare], [*roles, banned]) == [("added", "group:g is role:bans", False)]
    assert differences([*roles, banned], [*roles, bare]) == [("removed", "group:g is role:bans", True)]


def test_a_window_is_part_of_a_grant() -> None:
    """The same statement for a longer time is another grant, and reported with its time."""
    bound = role("r", READ, valid_until="2026-01-01T00:00:00Z")
    (lost, new) = differences([bound], [role("r", READ)])
    assert lost == (
        "removed",
        "role:r allow kafka:ReadTopicData on kafka:topic:a/* until 2026-01-01T00:00:00.000Z",
        False,
    )
    assert (new[0], new[2]) == ("added", True)


def test_a_changed_fact_is_reported() -> None:
    """What it opens, the grant of the switch says; of tasks' roles, the fact itself."""
    enforced = {"system": "streamsets", "kind": "Organization", "name": "o", "spec": {"enforcement": True}}
    open_ = {**enforced, "spec": {"enforcement": False}}
    assert differences([enforced], [enforced]) == []
    found = differences([enforced], [open_])
    assert [widens for _, _, widens in found] == [False, True]
    assert any("Organization o" in text for _, text, _ in found)


def test_replay_tells_the_requests_that_are_answered_otherwise() -> None:
    """By number, with both decisions; of batches also when a single evaluation changes."""
    old = policy.compile_documents([group("g", "r"), role("r", READ)])
    new = policy.compile_documents([group("g", "r"), role("r", LESS)])
    one = {
        "id": "r",
        "system": "lenses6",
        "subject": {"type": "user", "id": "user:x", "properties": {"groups": ["g"]}},
        "action": {"name": "kafka:ReadTopicData"},
        "resource": {"type": "lrn", "id": "kafka:topic:a/b/c"},
    }
    other = {**one, "resource": {"type": "lrn", "id": "kafka:topic:a/c/c"}}
    nothing = {**one, "resource": {"type": "lrn", "id": "iam:role:x"}}
    batch = {**one, "evaluations": [{}, {"resource": other["resource"]}, {"resource": nothing["resource"]}]}
    changes = list(replay(old, new, [one, other, batch]))
    assert [(c.number, c.before.outcome, c.after.outcome) for c in changes] == [
        (2, "allow", "deny"),
        (3, "deny", "deny"),
    ]
    assert list(replay(old, new, [one, other], trust=frozenset())) == []


def acl(name: str, *resources: str) -> dict[str, Any]:
    """Entries of dana's on topics."""
    entries = [
        {"principal": "User:dana", "operation": "Read", "resource_type": "Topic", "name": one} for one in resources
    ]
    return {"system": "kafka-acls", "kind": "Acls", "name": name, "spec": {"entries": entries}}


@pytest.mark.parametrize(("is_open", "widens"), [(True, ["* is no longer denied Topic/* on b"]), (False, [])])
def test_the_last_entry_of_a_resource_that_is_open_without_one_widens(is_open: bool, widens: list[str]) -> None:
    """Everyone may use b then; a moved to another document, and c has an entry still."""
    spec = {"allow_everyone_if_no_acl_found": is_open}
    settings = {"system": "kafka-acls", "kind": "Authorizer", "name": "authorizer", "spec": spec}
    found = differences([settings, acl("x", "a", "b", "c"), acl("y", "c")], [settings, acl("z", "a"), acl("y", "c")])
    assert [text.partition(":")[0] for _, text, opens in found if opens] == widens


def test_a_refused_document_that_goes_widens() -> None:
    """Requests that it affected were errors, and may be allowed now."""
    bad = {"system": "lenses6", "kind": "Role", "name": "bad", "spec": {"statements": 7}}
    found = differences([group("g", "r", "bad"), role("r", READ), bad], [group("g", "r", "bad"), role("r", READ)])
    assert [(sign, widens) for sign, _, widens in found] == [("removed", True)]


@pytest.mark.parametrize("old", ["VIEWER", "EDITOR", "OWNER", "ADMIN"])
@pytest.mark.parametrize("new", ["VIEWER", "EDITOR", "OWNER", "ADMIN"])
def test_a_role_in_place_of_another_widens_what_decisions_say(old: str, new: str) -> None:
    """Ververica's roles include one another, and ADMIN those of every namespace but OWNER."""

    def assigned(role: str) -> list[Any]:
        entry = {"userId": "dana", "workspaceId": "w", "role": role}
        entries = [entry if role == "ADMIN" else {**entry, "namespaceId": "n"}]
        access = {"kind": "InitialAccess", "spec": {"initialAccess": entries}}
        reserved = {"kind": "ReservedKinds", "spec": {"kinds": ["ApiToken"]}}
        return [{"system": "ververica", "name": "main", **document} for document in (access, reserved)]

    requests = [
        {
            "id": "r",
            "system": "ververica",
            "subject": {"type": "user", "id": "dana"},
            "action": {"name": action},
            "resource": {"type": kind, "id": "x", "properties": {"workspaceId": "w", "namespaceId": namespace}},
        }
        for action in ("read", "write", "full")
        for kind in ("Job", "ApiToken")
        for namespace in ("n", "other")
    ]
    before, after = policy.compile_documents(assigned(old)), policy.compile_documents(assigned(new))
    turned = [changed.after.allowed for changed in replay(before, after, requests)]
    compared = compare(before, after)
    assert any(difference.widens for difference in compared) == any(turned)
    assert any(difference.narrows for difference in compared) == (not all(turned))
