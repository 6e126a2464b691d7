"""Ranger's policies of CDAP: exact or reported, and nothing near a deny."""

import json
from typing import Any

import pytest

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
)

READ, WRITE = ({"type": kind, "isAllowed": True} for kind in ("read", "write"))
IN_NOVEMBER, IN_DECEMBER = "2026-11-10T00:00:00Z", "2026-12-10T00:00:00Z"


def level(*values: str, excludes: bool = False) -> dict[str, Any]:
    """The values of a resource."""
    return {"values": list(values), "isExcludes": excludes, "isRecursive": False}


def on(**levels: Any) -> dict[str, Any]:
    """Resources, with an instance."""
    return {"instance": level("cdap"), **{name: level(v) if isinstance(v, str) else v for name, v in levels.items()}}


def item(*users: str, accesses: Any = (READ,), **more: Any) -> dict[str, Any]:
    """A condition for users."""
    return {"users": list(users), "accesses": list(accesses), **more}


def policy(*items: Any, resources: Any = None, **more: Any) -> dict[str, Any]:
    """A policy on the dataset shop.orders."""
    where = on(namespace="shop", dataset="orders") if resources is None else resources
    return {"service": "cdapdev", "name": "p", "resources": where, "policyItems": list(items), **more}


def run(*policies: Any, **more: Any) -> Translation:
    """An import of an export."""
    return imported("ranger", as_json({"policies": list(policies), **more}))


def reads(found: Translation, user: str = "dana", entity: str = "dataset:shop.orders", **more: Any) -> bool:
    """Whether somebody may read an entity."""
    return allows(snapshot(found), "cdap", user, f"{entity.partition(':')[0]}.read", entity, **more)


def test_policies_mean_what_they_mean_on_the_platform() -> None:
    """Users, groups and roles; wildcards; a namespace itself; a validity period."""
    at = snapshot(imported("ranger", fixture("ranger.json")))
    assert allows(at, "cdap", "dana", "dataset.read", "dataset:shop.orders-eu")
    assert allows(at, "cdap", "dana", "dataset.write", "dataset:shop.orders")
    assert not allows(at, "cdap", "dana", "dataset.admin", "dataset:shop.orders")
    assert not allows(at, "cdap", "erik", "dataset.write", "dataset:shop.orders")
    assert allows(at, "cdap", "kim", "dataset.read", "dataset:shop.orders", groups=["analysts"])
    assert allows(at, "cdap", "rashmi", "namespace.admin", "namespace:shop")
    assert not allows(at, "cdap", "rashmi", "artifact.admin", "artifact:shop.lib")
    assert allows(
        at, "cdap", "kim", "kerberos-principal.admin", "kerberos-principal:etl@EXAMPLE.COM", roles=["platform"]
    )
    assert not allows(at, "cdap", "mallory", "namespace.admin", "namespace:shop")
    program = "program:shop.checkout.workflow.daily"
    assert allows(at, "cdap", "shankar", "program.execute", program, time=IN_NOVEMBER)
    assert not allows(at, "cdap", "shankar", "program.execute", program, time=IN_DECEMBER)
    assert not allows(at, "cdap", "shankar", "program.execute", "program:shop.checkout.spark.x", time=IN_NOVEMBER)


def test_a_disabled_policy_gives_nothing_and_takes_nothing() -> None:
    """Its deny is none; it is noted."""
    found = run(policy(item("dana")), policy(item("erik"), isEnabled=False, denyPolicyItems=[item("dana")]))
    assert reads(found)
    assert not reads(found, "erik")
    assert [finding.level for finding in found.findings] == ["note"]


@pytest.mark.parametrize(
    "restriction",
    [
        {"denyPolicyItems": [item("dana", accesses=[WRITE])]},
        {"denyPolicyItems": [item(groups=["interns"])]},
        {"denyPolicyItems": [item("{USER}")]},
        {"denyPolicyItems": [{"users": "dana"}]},
        {"denyPolicyItems": "all"},
        {"isDenyAllElse": True},
        {"policyType": 1},
        {"dataMaskPolicyItems": [{"dataMaskInfo": {"dataMaskType": "MASK"}, **item("dana")}]},
        {"rowFilterPolicyItems": [item("dana")]},
    ],
)
def test_what_takes_away_is_an_error_and_grants_near_it_are_withheld(restriction: dict[str, Any]) -> None:
    """In the same namespace, in a policy of its own; in others they stay."""
    elsewhere = policy(item("dana"), resources=on(namespace="home", dataset="orders"))
    found = run(policy(item("dana")), elsewhere, policy(**restriction))
    assert found.errors
    assert not reads(found)
    assert not allows(snapshot(found), "cdap", "dana", "namespace.get", "namespace:shop")
    assert reads(found, entity="dataset:home.orders")


def test_a_deny_of_one_user_leaves_other_users_theirs() -> None:
    """But not groups: he may be in them."""
    deny = policy(denyPolicyItems=[item("dana")], resources=on(namespace="sh*"))
    found = run(policy(item("dana", "erik", groups=["analysts"])), deny)
    assert reads(found, "erik")
    assert not reads(found)
    assert not reads(found, "kim", groups=["analysts"])


@pytest.mark.parametrize(
    ("allowed", "excepted", "dana", "erik", "errors"),
    [
        (item("dana", "erik"), item("dana"), False, True, 0),
        (item("dana", "erik"), item("dana", accesses=[READ, WRITE]), False, True, 0),
        (item("dana", "erik"), item("dana", accesses=[WRITE]), True, True, 0),
        (item("dana", "erik", accesses=[READ, WRITE]), item("dana", accesses=[WRITE]), False, True, 1),
        (item("dana", "erik"), item(groups=["interns"]), False, False, 2),
        (item("dana", "erik"), item("kim", conditions=[{"type": "ip"}]), False, False, 2),
        (item("dana", groups=["all"]), item("erik"), True, False, 1),
        (item("dana", "erik"), {"users": 17}, False, False, 1),
    ],
)
def test_exceptions_are_worked_in_where_they_name_users_and_take_all(
    allowed: Any, excepted: Any, dana: bool, erik: bool, errors: int
) -> None:
    """Anything else is an error, and the condition gives nothing to whom it may concern."""
    found = run(policy(allowed, allowExceptions=[excepted]))
    assert len(found.errors) == errors
    assert (reads(found), reads(found, "erik", groups=["all"])) == (dana, erik)


@pytest.mark.parametrize(
    "fields",
    [
        {"conditions": [{"type": "ip", "values": ["10.0.0.0/8"]}]},
        {"options": {"POLICY_VALIDITY_SCHEDULES": "x"}},
        {"onlyWhen": "asked"},
        {"isEnabled": "true"},
        {"validitySchedules": [{"startTime": "2026/11/01 00:00:00"}]},
        {"validitySchedules": [{"startTime": "1 Nov", "timeZone": "UTC"}]},
        {"validitySchedules": [{"startTime": "2026/10/25 02:30:00", "timeZone": "Europe/Vienna"}]},
        {"validitySchedules": [{"timeZone": "UTC", "recurrences": [{"schedule": {"hour": "8-17"}}]}]},
        {"validitySchedules": {"timeZone": "UTC"}},
        {
            "validitySchedules": [
                {"startTime": "2026/11/02 00:00:00", "endTime": "2026/11/01 00:00:00", "timeZone": "UTC"}
            ]
        },
    ],
)
def test_a_policy_that_holds_less_often_than_it_seems_is_left_out(fields: dict[str, Any]) -> None:
    """A warning, since it only allows."""
    found = run(policy(item("dana"), **fields))
    assert not found.documents
    assert not found.errors
    assert len(findings_of_level(found, "warning")) == 1


@pytest.mark.parametrize(
    "odd",
    [
        item("dana", conditions=[{"type": "ip", "values": ["10.0.0.0/8"]}]),
        item("dana", accesses=[{"type": "own", "isAllowed": True}]),
        item("dana", accesses=[{"type": "read", "isAllowed": "yes"}]),
        item("{OWNER}"),
        item("dana", until="Monday"),
        {"users": ["dana"], "accesses": "read"},
        17,
    ],
)
def test_a_condition_that_cannot_be_converted_is_left_out_alone(odd: Any) -> None:
    """The others of the policy are imported."""
    found = run(policy(odd, item("erik")))
    assert places(found, "warning") == ["policies[0] (p).policyItems[0]"]
    assert not reads(found)
    assert reads(found, "erik")


@pytest.mark.parametrize(
    ("resources", "entities"),
    [
        (
            on(namespace=level("a", "b"), stream=level("x", "y*")),
            ["stream:a.x", "stream:a.y*", "stream:b.x", "stream:b.y*"],
        ),
        (on(namespace="sh?p"), ["namespace:sh?p"]),
        (on(namespace="s*", dataset="?*"), ["dataset:s*.?*"]),
        (on(namespace="n", application="a*", program="?*"), ["program:n.a*.?*"]),
        (on(namespace="n", dataset_type="co.example.*"), ["dataset-type:n.co.example.*"]),
        (on(namespace="n", securekey="k"), ["secure-key:n.k"]),
        (on(namespace="n", application=level("*", excludes=True), program=level("*", excludes=True)), ["namespace:n"]),
        (on(namespace="n", application="a", program=level("*", excludes=True)), ["application:n.a"]),
        ({"namespace": level("n")}, ["namespace:n"]),
        ({"instance": level("*"), "namespace": {"values": ["n"], "isRecursive": True}}, ["namespace:n"]),
    ],
)
def test_resources_become_entities(resources: Any, entities: list[str]) -> None:
    """A grant each; an excluded * stands for the level above."""
    found = run(policy(item("dana"), resources=resources))
    assert [spec["entity"] for spec in documents(found).values()] == entities
    assert not found.findings


@pytest.mark.parametrize(
    "resources",
    [
        on(namespace="*", dataset="orders"),
        on(namespace="sh?p", dataset="orders"),
        on(namespace="*p", dataset="?*"),
        on(namespace="n", application="my.app", program="workflow.x"),
        on(namespace=level("n", excludes=True), dataset="orders"),
        on(namespace="n", dataset=level("orders", excludes=True)),
        on(namespace=level("*", excludes=True), dataset="orders"),
        on(namespace="n", application="a", dataset="d"),
        on(namespace="n", program="p"),
        on(namespace=level()),
        on(namespace="{USER}"),
        on(namespace="n", table="t"),
        on(namespace="n", dataset={"values": "orders"}),
        on(namespace="n", dataset={"values": ["orders"], "isExcludes": "no"}),
        on(namespace="n", dataset="x" * 600),
        on(namespace=level(*map(str, range(200))), dataset=level(*map(str, range(200)))),
        on(),
        {"instance": level("cdap", excludes=True), "namespace": level("n")},
        {},
        "everything",
    ],
)
def test_resources_that_grants_cannot_say_are_left_out(resources: Any) -> None:
    """Never more than they match."""
    found = run(policy(item("dana"), resources=resources))
    assert not found.documents
    assert len(findings_of_level(found, "warning")) == 1


def test_a_lone_star_is_not_taken_for_the_level_above() -> None:
    """Which some versions of Ranger do: it is said."""
    found = run(policy(item("dana"), resources=on(namespace="n", application="*", program="*")))
    assert [spec["entity"] for spec in documents(found).values()] == ["program:n.*.*"]
    assert "a lone *" in findings_of_level(found, "warning")[0].why


def test_administration_and_the_group_of_everybody_are_reported() -> None:
    """Neither is what it is in Ranger."""
    found = run(policy(item("dana", groups=["public"], delegateAdmin=True)))
    assert {place.rpartition(".")[2] for place in places(found, "warning")} == {"delegateAdmin", "policyItems[0]"}
    assert reads(found, "kim", groups=["public"])
    assert not allows(snapshot(found), "cdap", "dana", "privilege.grant", "dataset:shop.orders")


@pytest.mark.parametrize(
    "more",
    [
        {"tagPolicies": {"policies": [{"name": "deny PII"}]}},
        {"securityZones": {"finance": {}}},
        {"policyDeltas": [{"changeType": 1}]},
        {"totalCount": 3},
        {"totalCount": "3"},
        {"resultSize": 3},
        {"restrictions": ["all"]},
    ],
)
def test_an_export_that_is_not_the_whole_truth_leaves_nothing_safe(more: dict[str, Any]) -> None:
    """Elsewhere something may deny."""
    found = run(policy(item("dana")), **more)
    assert found.errors
    assert not found.documents


@pytest.mark.parametrize(
    "other",
    [
        policy(item("dana"), zoneName="finance"),
        policy(item("dana"), service="cdapprod"),
        policy(item("dana"), resources={"instance": level("prod"), "namespace": level("n")}),
        policy(serviceType="tag", service="tags", resources={"tag": level("PII")}, denyPolicyItems=[item("dana")]),
        policy(serviceType="CDAP", denyPolicyItems=[item("dana")]),
        policy(serviceType=["cdap"], denyPolicyItems=[item("dana")]),
        "a policy",
    ],
)
def test_policies_of_two_worlds_leave_nothing_safe(other: Any) -> None:
    """What is allowed in one would be allowed in the other."""
    found = run(policy(item("dana")), other)
    assert found.errors
    assert not found.documents


def test_policies_of_other_services_are_noted() -> None:
    found = run(policy(item("dana")), policy(item("dana"), serviceType="hive", service="hivedev", denyPolicyItems=[1]))
    assert reads(found)
    assert "hive" in findings_of_level(found, "note")[0].why


def test_the_same_from_an_export_a_list_and_single_policies_in_any_order() -> None:
    """The forms that Ranger's API has; privileges on one entity add up in one document."""
    policies = json.loads(fixture("ranger.json").data)["policies"]
    whole = imported("ranger", fixture("ranger.json"))
    assert imported("ranger", as_json(policies[::-1])).documents == whole.documents
    assert imported("ranger", *(as_json(one) for one in policies)).documents == whole.documents
    assert imported("ranger", fixture("ranger.json"), fixture("ranger.json")).documents == whole.documents


def test_names_cannot_be_made_to_meet() -> None:
    """Principals with spaces, slashes and percent signs have documents of their own."""
    users = ["a", "a dataset:n.d", "a%20dataset:n.d", "a/b", "..", "ü"]
    where = on(namespace="n", dataset=level("d", "d dataset:n.d"))
    found = run(policy(*(item(user) for user in users), resources=where))
    assert len(found.documents) == 2 * len(users)
