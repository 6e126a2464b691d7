"""Lenses 6: a deny is never lost; who holds what may be one is denied everything."""

from typing import Any

import pytest
import yaml

from policy import Snapshot
from policy.importers import Translation
from tests.policy.importers.running import (
    allows,
    as_json,
    documents,
    findings_of_level,
    fixture,
    imported,
    places,
    snapshot,
    text,
)

ALLOW_ALL = {"name": "everything", "policy": [{"effect": "allow", "action": "*", "resource": "*"}]}
TOPIC = "kafka:topic:prod/main/orders"


def run(**lists: Any) -> Translation:
    """An import of records under their lists."""
    return imported("lenses6", as_json(lists))


def team(**fields: Any) -> dict[str, Any]:
    """A group that dana is in, with the role that allows everything."""
    return {"name": "team", "roles": ["everything"], "members": ["user:dana"], **fields}


def reads(found: Translation | Snapshot, who: str = "user:dana", topic: str = TOPIC, **more: Any) -> bool:
    """Whether somebody may read a topic."""
    at = snapshot(found) if isinstance(found, Translation) else found
    return allows(at, "lenses6", who, "kafka:ReadTopicData", topic, **more)


def test_roles_and_groups_mean_what_they_mean_on_the_platform() -> None:
    """Members by name, whichever kind they are; groups by their SSO name; a deny over any allow."""
    at = snapshot(imported("lenses6", fixture("lenses6.yaml")))
    assert reads(at, "user:imani")
    assert reads(at, "service-account:checkout")
    assert not reads(at, "user:checkout")
    assert not reads(at, "user:imani", "kafka:topic:prod/main/audit-log")
    assert not reads(at, "user:imani", "kafka:topic:dev/main/orders")
    assert reads(at, "user:else", groups=["f3f2e850-b5d4-11ef-ac7e-96584d5248b2"])
    assert allows(
        at, "lenses6", "user:imani", "kafka-connect:StopConnector", "kafka-connect:connector:prod/main/orders-1"
    )


def test_the_forms_of_lists_files_and_the_api_come_to_the_same() -> None:
    """One record to a document, all under `items`, all under their lists."""
    whole = yaml.safe_load(fixture("lenses6.yaml").data)
    whole["service_accounts"][0].pop("token")
    lists = imported("lenses6", as_json(whole))
    records = [record for inner in whole.values() for record in inner]
    assert imported("lenses6", text(yaml.safe_dump_all(records))).documents == lists.documents
    assert imported("lenses6", as_json({"items": records})).documents == lists.documents
    assert imported("lenses6", *(as_json(record) for record in reversed(records))).documents == lists.documents


def test_an_allow_that_cannot_be_taken_over_is_left_out_alone() -> None:
    """With its reason and its place."""
    odd = {"effect": "allow", "action": "kafka:List*Topic", "resource": "*", "condition": {"ip": "10.0.0.0/8"}}
    found = run(roles=[{"name": "r", "policy": [odd, *ALLOW_ALL["policy"]]}])
    (finding,) = findings_of_level(found, "warning")
    assert finding.place == "roles[0].policy[0]"
    assert "condition: unknown field" in finding.why
    assert len(documents(found)["Role/r"]["statements"]) == 1


@pytest.mark.parametrize(
    "statement",
    [
        {"effect": "deny", "action": "kafka:*Topic", "resource": "*"},
        {"effect": "deny", "action": "*", "resource": "kafka:top*"},
        {"effect": "deny", "action": "*", "resource": "*", "unless": {"group": "admins"}},
        {"effect": "Deny", "action": "*", "resource": "*"},
        {"action": "*", "resource": "*"},
        {"effect": "deny", "actions": ["*"], "resource": "*"},
        "deny everything",
        None,
    ],
)
def test_what_may_be_a_deny_denies_everything_to_principals_with_the_role(statement: Any) -> None:
    """Also by another role and another group; others are not concerned."""
    roles = [ALLOW_ALL, {"name": "guard", "policy": [statement]}]
    groups = [team(), {"name": "guarded", "roles": ["guard"], "members": ["user:dana"]}]
    groups.append({"name": "others", "roles": ["everything"], "members": ["user:erik"]})
    found = run(roles=roles, groups=groups)
    assert places(found, "error") == ["roles[1].policy[0]"]
    assert not reads(found)
    assert reads(found, "user:erik")
    assert not reads(found, "user:erik", groups=["guarded"])


@pytest.mark.parametrize(
    "role",
    [
        {**ALLOW_ALL, "data_policies": [{"mask": "all"}]},
        {**ALLOW_ALL, "valid_on": "Mondays"},
        {"name": "everything", "policy": {"effect": "deny"}},
    ],
)
def test_a_role_with_more_than_statements_denies_everything(role: dict[str, Any]) -> None:
    """Masks, fields nobody knows, a policy that is no list."""
    found = run(roles=[role], groups=[team()])
    assert len(found.errors) == 1
    assert not reads(found)


def test_a_role_that_the_run_does_not_have_denies_everything() -> None:
    """It may have held a deny."""
    found = run(roles=[ALLOW_ALL], groups=[team(roles=["everything", "guardrails"])])
    assert "'guardrails' is not in this run" in found.errors[0].why
    assert not reads(found)


def test_two_versions_of_a_role_deny_everything_and_the_same_one_twice_is_one() -> None:
    """Which of them is in force is not known."""
    found = run(roles=[ALLOW_ALL, {"name": "everything", "policy": []}], groups=[team()])
    assert len(found.errors) == 1
    assert not reads(found)
    again = run(roles=[ALLOW_ALL, ALLOW_ALL], groups=[team()])
    assert not again.findings
    assert reads(again)


def test_two_versions_of_a_group_leave_nothing_safe() -> None:
    """A member of one of them may have left the other."""
    found = run(roles=[ALLOW_ALL], groups=[team(), team(members=[])])
    assert "no document of this run is safe" in found.errors[0].why
    assert not found.documents


@pytest.mark.parametrize("people", [{}, {"users": [{"name": "kim"}], "service_accounts": [{"name": "kim"}]}])
def test_a_member_that_may_be_a_user_or_a_service_account_is_denied_everything(people: Any) -> None:
    """Both that it may be, in whatever group."""
    groups = [team(members=["kim", "user:dana"]), {"name": "more", "roles": ["everything"], "members": ["user:kim"]}]
    found = run(roles=[ALLOW_ALL], groups=groups, **people)
    assert places(found, "error") == ["groups[0].members"]
    assert not reads(found, "user:kim")
    assert not reads(found, "service-account:kim")
    assert reads(found)


@pytest.mark.parametrize(
    "users",
    [
        [{"name": "dana", "groups": ["team", "gone"]}],
        [{"name": "dana", "groups": []}],
        [{"name": "dana", "groups": ["team"]}, {"name": "dana", "groups": ["team", "guests"]}],
        [{"name": "dana", "groups": ["team", "guests"]}],
    ],
)
def test_who_is_in_which_group_must_be_stated_in_one_way(users: list[Any]) -> None:
    """A group that is not there, or lists that contradict each other: an older one may have lost a deny."""
    groups = [team(), {"name": "guests", "roles": [], "members": []}]
    found = run(roles=[ALLOW_ALL], groups=groups, users=users)
    assert found.errors
    assert not reads(found)


@pytest.mark.parametrize(
    "record",
    [17, {"name": "x"}, {"policy": []}, {"name": ["x"], "policy": []}, {"name": "x", "policy": [], "members": []}],
)
def test_a_record_that_cannot_be_converted_leaves_nothing_safe(record: Any) -> None:
    """It may be a role that denies."""
    found = imported("lenses6", as_json({"items": [ALLOW_ALL, team(), record]}))
    assert found.errors
    assert not found.documents


@pytest.mark.parametrize("field", [{"roles": "everything"}, {"members": {"user:dana": 1}}, {"sso_name": 17}])
def test_a_group_of_which_a_list_cannot_be_converted_leaves_nothing_safe(field: dict[str, Any]) -> None:
    """A deny may come with it, to any principal."""
    found = run(roles=[ALLOW_ALL], groups=[team(**field)])
    assert found.errors
    assert not found.documents


def test_a_field_of_a_group_that_nobody_knows_denies_its_members() -> None:
    """It may restrict the group."""
    found = run(roles=[ALLOW_ALL], groups=[team(only_on="Mondays")])
    assert found.errors
    assert not reads(found)


@pytest.mark.parametrize("field", [{"disabled": True}, {"enabled": False}, {"valid_until": "2020-01-01"}])
def test_an_unknown_field_of_a_user_denies_him_alone(field: dict[str, Any]) -> None:
    """He may be disabled."""
    users = [{"name": "dana", "groups": ["team"], **field}, {"name": "erik", "groups": ["team"], "nickname": None}]
    translation = run(roles=[ALLOW_ALL], groups=[team(members=["user:dana", "user:erik"])], users=users)
    assert places(translation, "error") == ["users[0]"]
    assert (reads(translation), reads(translation, "user:erik")) == (False, True)


BAN = {"name": "ban", "policy": [{"effect": "deny", "action": "*", "resource": "*"}]}
OF_OTHERS = {"name": "banned", "roles": ["ban"], "members": ["user:erik"]}


@pytest.mark.parametrize(
    ("role", "group"),
    [
        (BAN, {"name": "banned", "roles": ["ban"], "user_count": 1}),
        (BAN, {**OF_OTHERS, "user_count": 1, "sa_count": 1}),
        (BAN, {**OF_OTHERS, "user_count": 2}),
        ({**BAN, "group_count": 2}, OF_OTHERS),
        (BAN, {"name": "banned", "roles": [], "role_count": 1, "user_count": 1}),
    ],
)
def test_who_has_a_deny_beside_those_whom_the_run_knows_is_not_known(role: Any, group: Any) -> None:
    """By the counts of an export: dana may be banned, and would be allowed all that her other group is."""
    found = run(roles=[ALLOW_ALL, role], groups=[team(), group])
    assert found.fatal
    assert not found.documents


UNLISTED = {"name": "banned", "roles": ["ban"]}


def test_a_deny_of_a_group_that_lists_no_members_needs_the_groups_of_every_principal() -> None:
    """dana's record does not say them: she may be banned. erik's does, and ci is a member by a list alone."""
    teams = team(members=["user:dana", "user:erik", "service-account:ci"])
    users = [{"name": "dana", "profile": {}}, {"name": "erik", "groups": ["team"]}]
    found = run(roles=[ALLOW_ALL, BAN], groups=[teams, UNLISTED], users=users)
    assert len(found.errors) == 2
    assert [reads(found, who) for who in ("user:dana", "service-account:ci", "user:erik")] == [False, False, True]


def test_a_deny_of_a_group_whose_members_nothing_says_leaves_nothing_safe() -> None:
    """Neither the group lists or counts them, nor does the run have anybody who lists his groups."""
    found = run(roles=[ALLOW_ALL, BAN], groups=[team(), UNLISTED])
    assert found.fatal
    assert not found.documents


@pytest.mark.parametrize(
    "group",
    [{**UNLISTED, "members": []}, {**UNLISTED, "user_count": 0, "sa_count": 0}, {**UNLISTED, "roles": ["everything"]}],
)
def test_a_group_that_has_nobody_or_no_deny_withholds_nothing(group: dict[str, Any]) -> None:
    found = run(roles=[ALLOW_ALL, BAN], groups=[team(), group], users=[{"name": "dana"}])
    assert not found.errors
    assert reads(found)


def test_counts_that_hold_and_members_who_miss_an_allow_change_nothing() -> None:
    group = {**OF_OTHERS, "user_count": 1, "sa_count": 0, "role_count": 1}
    people = [{"name": "erik", "groups": ["banned"]}]
    found = run(roles=[ALLOW_ALL, {**BAN, "group_count": 1}], groups=[team(user_count=5), group], users=people)
    assert not found.errors
    (warning,) = findings_of_level(found, "warning")
    assert "1 of the 5 members" in warning.why
    assert reads(found)
    assert not reads(found, "user:erik")


@pytest.mark.parametrize("count", ["2", 2.0, [2]])
def test_a_count_that_is_no_number_leaves_nothing(count: Any) -> None:
    """Whether all roles are listed is not known, and the others may deny."""
    found = run(roles=[ALLOW_ALL], groups=[team(role_count=count)])
    assert found.fatal
    assert found.documents == ()


def test_roles_of_a_group_that_are_counted_and_not_listed_deny_its_members() -> None:
    found = run(roles=[ALLOW_ALL], groups=[team(role_count=2), team(name="other", members=["user:erik"])])
    assert "1 of its 2 roles are listed" in found.errors[0].why
    assert (reads(found), reads(found, "user:erik")) == (False, True)


def test_secrets_and_administration_are_reported() -> None:
    """The token is not shown; rights that no role gives are."""
    account = {"name": "ci", "token": "do-not-print", "is_admin": True, "groups": []}
    found = run(roles=[], service_accounts=[account])
    assert places(found, "note") == ["service_accounts[0].token"]
    assert places(found, "warning") == ["service_accounts[0].is_admin"]
    assert "do-not-print" not in "".join(map(str, found.findings))
