"""What is nearest to a denied request: statements that fall short, who is allowed, and denies against it."""

from typing import Any

import pytest

from policy import compile_documents
from policy.analysis import Nearest, nearest_grants
from tests.policy.test_unknown_names import DOCUMENTS, ORDERS, PLACE, request_for


def _nearest(documents: list[dict[str, Any]], request: dict[str, Any]) -> Nearest:
    snapshot = compile_documents(documents)
    assert snapshot.rejected == ()
    [found] = nearest_grants(snapshot, request)
    assert found is not None
    return found


LENSES5 = {
    "system": "lenses5",
    "kind": "Group",
    "name": "readers",
    "spec": {
        "namespaces": [
            {"connection": "kafka", "type": "Kafka", "datasets": ["orders"], "permissions": ["ShowTopic", "QueryTopic"]}
        ],
        "members": ["dana"],
    },
}
ANSWERS = [
    (DOCUMENTS["lenses6"], request_for("lenses6", "user:dana", "kafka:DeleteTopic", ORDERS, "lrn"), "action"),
    (
        DOCUMENTS["lenses6"],
        request_for("lenses6", "user:dana", "kafka:GetTopicDetails", "kafka:topic:prod/main/salaries", "lrn"),
        "resource",
    ),
    (DOCUMENTS["cdap"], request_for("cdap", "dana", "dataset.write", "dataset:shop.orders", "dataset"), "action"),
    (
        DOCUMENTS["streamsets"],
        request_for("streamsets", "erik", "pipeline.edit", "pipeline:orders", "pipeline"),
        "action",
    ),
    (
        DOCUMENTS["ververica"],
        request_for("ververica", "dana@example.com", "write", "d", "Deployment", **PLACE),
        "action",
    ),
    (
        [LENSES5],
        request_for(
            "lenses5",
            "dana",
            "kafka.topic.insert-data",
            "orders",
            "topic",
            connection="kafka",
            dataset="orders",
        ),
        "action",
    ),
    (DOCUMENTS["kafka-acls"], request_for("kafka-acls", "User:dana", "Write", "orders", "Topic"), "action"),
    (DOCUMENTS["kafka-acls"], request_for("kafka-acls", "User:dana", "Read", "payments", "Topic"), "resource"),
]


@pytest.mark.parametrize(
    ("documents", "request_", "lacks"), ANSWERS, ids=[f"{one[1]['system']}-{one[2]}" for one in ANSWERS]
)
def test_a_statement_that_falls_short_in_one_thing_is_named(
    documents: list[dict[str, Any]], request_: dict[str, Any], lacks: str
) -> None:
    """With its document and the way by which the subject has it; no other subject's statement is."""
    found = _nearest(documents, request_)
    assert found.near
    assert found.near[0].lacks == lacks
    assert all(request_["subject"]["id"] in one.route for one in found.near)
    assert all(one.document.startswith(f"{request_['system']}/") for one in found.near)


def _acls(*entries: dict[str, Any]) -> list[dict[str, Any]]:
    acls = {"system": "kafka-acls", "kind": "Acls", "name": "all", "spec": {"entries": list(entries)}}
    spec = {"allow_everyone_if_no_acl_found": True}
    return [acls, {"system": "kafka-acls", "kind": "Authorizer", "name": "authorizer", "spec": spec}]


def _entry(principal: str, operation: str, name: str) -> dict[str, Any]:
    return {"principal": principal, "operation": operation, "resource_type": "Topic", "name": name}


def _entity(name: str, parent: str | None) -> dict[str, Any]:
    return {"system": "cdap", "kind": "Entity", "name": name, "spec": {"parent": parent}}


GRANT = {"user": "dana", "entity": "application:shop.a", "privileges": ["READ"]}
CDAP = [
    _entity("namespace:shop", None),
    _entity("application:shop.a", "namespace:shop"),
    {"system": "cdap", "kind": "Grant", "name": "dana", "spec": GRANT},
]
OPEN = [
    {"system": "streamsets", "kind": "Organization", "name": "acme", "spec": {"enforcement": False}},
    DOCUMENTS["streamsets"][1],
]
ACME = {"organization": "acme", "roles": ["Auth Token Administrator"]}
CANNOT = {
    "an entry for topics is not about groups (KA-TYPES)": (
        _acls(_entry("User:dana", "Read", "shop"), {**_entry("User:erik", "Read", "shop"), "resource_type": "Group"}),
        request_for("kafka-acls", "User:dana", "Delete", "shop", "Group"),
    ),
    "that what has no entry is open gives nothing where one is (KA-EMPTY)": (
        _acls(_entry("User:erik", "Read", "shop")),
        request_for("kafka-acls", "User:dana", "Write", "shop", "Topic"),
    ),
    "a namespace of Kafka holds no permission of Elasticsearch (L5-NS-AVAILABLE)": (
        [LENSES5],
        request_for(
            "lenses5", "dana", "elasticsearch.index.show", "orders", "index", connection="kafka", dataset="orders"
        ),
    ),
    "a privilege below an entity is none on it (CD-EXACT-ENTITY)": (
        CDAP,
        request_for("cdap", "dana", "namespace.admin", "namespace:shop", "namespace"),
    ),
    "a share gives no ownership (SS-SHARE)": (
        DOCUMENTS["streamsets"],
        request_for("streamsets", "erik", "object.change-owner", "pipeline:orders", "pipeline"),
    ),
    "that nothing is enforced, or another role, makes nobody an administrator (SS-ENF-TOGGLE)": (
        OPEN,
        request_for("streamsets", "erik", "organization.set-enforcement", "organization:acme", "organization"),
    ),
}


@pytest.mark.parametrize("what", CANNOT)
def test_a_statement_that_could_not_grant_it_is_not_near(what: str) -> None:
    """Written with the action that it lacks it would be refused, or be another statement."""
    documents, request_ = CANNOT[what]
    if request_["system"] == "streamsets":
        request_ = {
            **request_,
            "subject": {**request_["subject"], "properties": ACME},
            "context": {"new_owner": "user:erik"},
        }
    assert _nearest(documents, request_).near == ()


def test_a_statement_is_named_once_for_what_it_lacks() -> None:
    """Read brings Describe, and where the client's host is not known two checks look for the entry."""
    documents = _acls(_entry("User:dana", "Read", "shop"), {**_entry("User:dana", "Read", "shop"), "host": "10.0.0.1"})
    near = _nearest(documents, request_for("kafka-acls", "User:dana", "Write", "shop", "Topic")).near
    assert [(one.statement, one.lacks, one.suffices) for one in near] == [(0, "action", True), (1, "action", False)]
    assert "Topic/Read" in near[0].text


def _of(role: str, *members: str, **more: Any) -> dict[str, Any]:
    spec = {"roles": [role], "members": list(members)}
    return {"system": "lenses6", "kind": "Group", "name": f"group-{role}", "spec": spec, **more}


def _role(name: str, action: str, resource: str, effect: str = "allow") -> dict[str, Any]:
    statement = {"effect": effect, "action": action, "resource": resource}
    return {"system": "lenses6", "kind": "Role", "name": name, "spec": {"statements": [statement]}}


def test_validity_that_has_ended_is_nearer_than_another_action() -> None:
    """Of a grant and of a membership; the whole way is named."""
    documents = [
        _role("admins", "*", "kafka:*"),
        _of("admins", "user:dana", valid_until="2026-01-01T00:00:00Z"),
        _role("readers", "kafka:Get*", ORDERS),
        _of("readers", "user:dana"),
    ]
    asked = request_for("lenses6", "user:dana", "kafka:DeleteTopic", ORDERS, "lrn") | {"time": "2026-03-01T00:00:00Z"}
    first, second = _nearest(documents, asked).near
    assert (first.lacks, first.document) == ("validity", "lenses6/Role/admins")
    assert first.route == "user:dana → group:group-admins → role:admins"
    assert "until 2026-01-01T00:00:00.000Z (lenses6/Group/group-admins)" in first.detail
    assert second.lacks == "action"


def test_a_deny_and_those_who_are_allowed_are_named() -> None:
    """A deny may stand against some who have a grant: each is decided."""
    documents = [
        _role("admins", "*", "kafka:*"),
        _of("admins", "user:dana", "user:root", "user:erik"),
        _role("no-orders", "*", ORDERS, "deny"),
        _of("no-orders", "user:dana", "user:erik"),
    ]
    found = _nearest(documents, request_for("lenses6", "user:dana", "kafka:DeleteTopic", ORDERS, "lrn"))
    [deny] = found.denies
    assert (deny.document, deny.statement) == ("lenses6/Role/no-orders", 0)
    assert deny.route == "user:dana → group:group-no-orders → role:no-orders"
    assert [(who.name, who.claim) for who in found.principals] == [("group-admins", "groups"), ("user:root", "")]
    assert found.near == ()
    [note] = found.notes
    assert note.startswith("but for the denies, lenses6/Role/admins statement 0 allows kafka:DeleteTopic")


def test_many_holders_are_not_all_listed() -> None:
    """The rest is `who-can`'s."""
    members = [f"user:u{number}" for number in range(30)]
    documents = [_role("admins", "*", "kafka:*"), _of("admins", *members)]
    found = _nearest(documents, request_for("lenses6", "user:dana", "kafka:DeleteTopic", ORDERS, "lrn"))
    assert (len(found.principals), found.more) == (10, True)


def test_cedar_says_scope_validity_and_that_a_condition_is_not_satisfied() -> None:
    """Which part of a condition it is, its engine does not say, and so a note says."""
    text = """
    permit(principal == User::"dana", action == Action::"write", resource == Doc::"orders");
    permit(principal == User::"dana", action == Action::"read", resource == Doc::"orders") when { context.mfa };
    permit(principal == User::"dana", action == Action::"read", resource == Doc::"other");
    permit(principal == User::"erik", action == Action::"read", resource == Doc::"orders");
    """
    documents = [{"system": "cedar", "kind": "PolicySet", "name": "all", "spec": {"policies": text}}]
    asked = request_for("cedar", "dana", "read", "orders", "Doc") | {"context": {"mfa": False}}
    asked["subject"]["type"] = "User"
    found = _nearest(documents, asked)
    assert [(one.statement, one.lacks) for one in found.near] == [(1, "condition"), (0, "action"), (2, "resource")]
    assert [(who.type, who.name) for who in found.principals] == [("User", "erik")]
    assert found.notes


def test_only_denies_have_something_nearest() -> None:
    """An allow has not, nor has an error, nor an incomplete item of a batch."""
    snapshot = compile_documents(DOCUMENTS["lenses6"])
    asked = request_for("lenses6", "user:dana", "kafka:GetTopicDetails", ORDERS, "lrn")
    items = [{}, {"subject": {"type": "user", "id": "dana"}}, {"action": 7}, {"action": {"name": "kafka:DeleteTopic"}}]
    found = nearest_grants(snapshot, asked | {"evaluations": items})
    assert [one is None for one in found] == [True, True, True, False]
