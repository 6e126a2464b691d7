"""Typing errors: actions, types, subjects and resources that nothing knows, for each system."""

from typing import Any

import pytest

from policy import compile_documents
from policy.analysis import unknown_names, unknown_subject, unknown_terms
from policy.core.suggest import misspelt, nearest


def _role(name: str, *statements: dict[str, Any]) -> dict[str, Any]:
    return {"system": "lenses6", "kind": "Role", "name": name, "spec": {"statements": list(statements)}}


def _group(name: str, roles: list[str], members: list[str]) -> dict[str, Any]:
    return {"system": "lenses6", "kind": "Group", "name": name, "spec": {"roles": roles, "members": members}}


DOCUMENTS: dict[str, list[dict[str, Any]]] = {
    "lenses6": [
        _role("readers", {"effect": "allow", "action": "kafka:Get*", "resource": "kafka:topic:prod/main/orders"}),
        _role("odd", {"effect": "allow", "action": "k2k:CreateApp", "resource": "k2k:app:*"}),
        _group("staff", ["readers", "odd"], ["user:dana"]),
    ],
    "cdap": [
        {"system": "cdap", "kind": "Entity", "name": "namespace:shop", "spec": {"parent": None}},
        {"system": "cdap", "kind": "Entity", "name": "dataset:shop.orders", "spec": {"parent": "namespace:shop"}},
        {
            "system": "cdap",
            "kind": "Grant",
            "name": "dana",
            "spec": {"user": "dana", "entity": "dataset:shop.orders", "privileges": ["READ"]},
        },
    ],
    "streamsets": [
        {"system": "streamsets", "kind": "Organization", "name": "acme", "spec": {"enforcement": True}},
        {
            "system": "streamsets",
            "kind": "Object",
            "name": "pipeline:orders",
            "spec": {"type": "pipeline", "owner": "dana", "organization": "acme", "acl": {"user:erik": ["READ"]}},
        },
    ],
    "ververica": [
        {
            "system": "ververica",
            "kind": "InitialAccess",
            "name": "all",
            "spec": {
                "initialAccess": [
                    {"userId": "dana@example.com", "workspaceId": "w", "namespaceId": "shop", "role": "VIEWER"}
                ]
            },
        }
    ],
    "kafka-acls": [
        {
            "system": "kafka-acls",
            "kind": "Acls",
            "name": "dana",
            "spec": {
                "entries": [
                    {"principal": "User:dana", "operation": "Read", "resource_type": "Topic", "name": "orders"},
                    {"principal": "User:erik", "operation": "All", "resource_type": "Topic", "name": "x", "host": "h"},
                ]
            },
        }
    ],
}

PERMIT = 'permit(principal == User::"dana", action == Action::"read", resource == Doc::"orders");'
CEDAR = [{"system": "cedar", "kind": "PolicySet", "name": "all", "spec": {"policies": PERMIT}}]


def request_for(system: str, subject: str, action: str, resource: str, type_: str, **properties: Any) -> dict[str, Any]:
    """A request of a user. ``type_``: of the resource, as ``properties`` are."""
    return {
        "id": "r",
        "system": system,
        "subject": {"type": "user", "id": subject},
        "action": {"name": action},
        "resource": {"type": type_, "id": resource, "properties": properties},
    }


def _found(system: str, request: dict[str, Any]) -> list[str]:
    snapshot = compile_documents(DOCUMENTS[system])
    assert snapshot.rejected == ()
    return [str(name) for name in unknown_names(snapshot, request)]


ORDERS = "kafka:topic:prod/main/orders"
PLACE = {"workspaceId": "w", "namespaceId": "shop"}


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (
            request_for("lenses6", "user:dana", "kafka:DeleteTopci", ORDERS, "lrn"),
            "no action kafka:DeleteTopci; did you mean kafka:DeleteTopic?",
        ),
        (
            request_for("lenses6", "user:dana", "kafka:DeleteTopic", "kafka:topci:prod/main/orders", "lrn"),
            "no resource type kafka:topci; did you mean kafka:topic?",
        ),
        (
            request_for("lenses6", "user:dnaa", "kafka:GetTopicDetails", ORDERS, "lrn"),
            "no subject user:dnaa in the documents; did you mean user:dana?",
        ),
        (
            request_for("lenses6", "user:dana", "kafka:GetTopicDetails", "kafka:topic:prod/main/ordres", "lrn"),
            "no resource kafka:topic:prod/main/ordres in the documents; did you mean kafka:topic:prod/main/orders?",
        ),
        (
            request_for("cdap", "dana", "dataset.raed", "dataset:shop.orders", "dataset"),
            "no action dataset.raed; did you mean dataset.read?",
        ),
        (
            request_for("cdap", "dana", "dataset.read", "datasett:shop.orders", "dataset"),
            "no resource type datasett; did you mean dataset?",
        ),
        (
            request_for("cdap", "dnaa", "dataset.read", "dataset:shop.orders", "dataset"),
            "no subject dnaa in the documents; did you mean dana?",
        ),
        (
            request_for("cdap", "dana", "dataset.read", "dataset:shop.ordres", "dataset"),
            "no resource dataset:shop.ordres in the documents; did you mean dataset:shop.orders?",
        ),
        (
            request_for("streamsets", "dana", "pipeline.veiw", "pipeline:orders", "pipeline"),
            "no action pipeline.veiw; did you mean pipeline.view?",
        ),
        (
            request_for("streamsets", "eirk", "pipeline.view", "pipeline:orders", "pipeline"),
            "no subject eirk in the documents; did you mean erik?",
        ),
        (
            request_for("streamsets", "dana", "pipeline.view", "pipeline:ordres", "pipeline"),
            "no resource pipeline:ordres in the documents; did you mean pipeline:orders?",
        ),
        (
            request_for("ververica", "dana@example.com", "raed", "d", "Deployment", **PLACE),
            "no action raed; did you mean read?",
        ),
        (
            request_for("ververica", "dnaa@example.com", "read", "d", "Deployment", **PLACE),
            "no subject dnaa@example.com in the documents; did you mean dana@example.com?",
        ),
        (
            request_for("kafka-acls", "User:dana", "Read", "orders", "Topci"),
            "no resource type Topci; did you mean Topic?",
        ),
        (
            request_for("kafka-acls", "User:dana", "Raed", "orders", "Topic"),
            "no action Raed; did you mean Read?",
        ),
        (
            request_for("kafka-acls", "User:dnaa", "Read", "orders", "Topic"),
            "no subject User:dnaa in the documents; did you mean User:dana?",
        ),
        (
            request_for("kafka-acls", "User:dana", "Read", "ordres", "Topic"),
            "no resource ordres in the documents; did you mean orders?",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else value["system"],
)
def test_a_typing_error_is_named_with_what_was_meant(request_: dict[str, Any], expected: str) -> None:
    """It would be answered as a deny or an error."""
    assert _found(request_["system"], request_) == [expected]


@pytest.mark.parametrize(
    "request_",
    [
        request_for("lenses6", "user:dana", "kafka:DeleteTopic", ORDERS, "lrn"),
        request_for("lenses6", "user:dana", "k2k:CreateApp", "k2k:app:x", "lrn"),
        request_for("cdap", "dana", "dataset.write", "dataset:shop.orders", "dataset"),
        request_for("streamsets", "erik", "pipeline.edit", "pipeline:orders", "pipeline"),
        request_for("ververica", "dana@example.com", "write", "d", "Deployment", **PLACE),
        request_for("kafka-acls", "User:dana", "DESCRIBE_CONFIGS", "orders", "Topic"),
        request_for("kafka-acls", "User:erik", "Read", "orders", "Topic"),
    ],
    ids=lambda value: value["system"],
)
def test_names_that_catalogue_and_documents_know_are_not_reported(request_: dict[str, Any]) -> None:
    """Also where the answer is a deny, and where documents name what the catalogue lacks."""
    assert _found(request_["system"], request_) == []


def test_a_subject_that_claims_a_known_group_is_known() -> None:
    """Documents need not name it."""
    request = request_for("lenses6", "user:new", "kafka:DeleteTopic", ORDERS, "lrn")
    assert _found("lenses6", request) == ["no subject user:new in the documents"]
    request["subject"]["properties"] = {"groups": ["staff"]}
    assert _found("lenses6", request) == []


def test_a_claimed_group_that_is_spelt_nearly_as_a_known_one_is_reported() -> None:
    """It would count as no group. Platforms have groups that no document names."""
    request = request_for("lenses6", "user:dana", "kafka:DeleteTopic", ORDERS, "lrn")
    request["subject"]["properties"] = {"groups": ["stfaf", "others"]}
    assert _found("lenses6", request) == ["no group stfaf in the documents; did you mean staff?"]


def _unknown(system: str, subject: str, type_: str = "user", **properties: Any) -> list[str]:
    snapshot = compile_documents([*DOCUMENTS.get(system, []), *CEDAR])
    entity = {"type": type_, "id": subject, "properties": properties}
    return [str(name) for name in unknown_subject(snapshot, system, entity)]


@pytest.mark.parametrize(
    ("system", "subject", "expected"),
    [
        ("lenses6", "user:dnaa", "no subject user:dnaa in the documents; did you mean user:dana?"),
        ("lenses6", "user:new", "no subject user:new in the documents"),
        ("lense6", "user:dana", "no system lense6; did you mean lenses6?"),
        ("cdap", "dnaa", "no subject dnaa in the documents; did you mean dana?"),
        ("streamsets", "eirk", "no subject eirk in the documents; did you mean erik?"),
        (
            "ververica",
            "dnaa@example.com",
            "no subject dnaa@example.com in the documents; did you mean dana@example.com?",
        ),
        ("kafka-acls", "User:dnaa", "no subject User:dnaa in the documents; did you mean User:dana?"),
    ],
)
def test_a_subject_alone_is_looked_up_for_what_it_can_do(system: str, subject: str, expected: str) -> None:
    """Without an action and a resource."""
    assert _unknown(system, subject) == [expected]


def test_a_subject_alone_that_is_known_is_not_reported() -> None:
    """By its name, by a group that it claims, or where a refused document may name it."""
    for system, subject in (("lenses6", "user:dana"), ("cdap", "dana"), ("streamsets", "dana"), ("streamsets", "erik")):
        assert _unknown(system, subject) == []
    assert _unknown("lenses6", "user:new", groups=["staff"]) == []
    broken = {"system": "lenses6", "kind": "Role", "name": "broken", "spec": {"statments": []}}
    snapshot = compile_documents([*DOCUMENTS["lenses6"], broken])
    assert unknown_subject(snapshot, "lenses6", {"type": "user", "id": "user:dnaa"}) == []


def test_a_subject_of_cedar_alone_has_a_type() -> None:
    """An action or resource is not part of the search, so neither is reported."""
    assert _unknown("cedar", "dnaa", "User") == ["no subject dnaa in the documents; did you mean dana?"]
    assert _unknown("cedar", "dana", "Uesr") == ["no subject type Uesr; did you mean User?"]
    assert _unknown("cedar", "dana", "User") == []


def test_a_refused_document_may_name_anything() -> None:
    """So nothing is said of subjects and resources."""
    broken = {"system": "lenses6", "kind": "Role", "name": "broken", "spec": {"statments": []}}
    snapshot = compile_documents([*DOCUMENTS["lenses6"], broken])
    assert unknown_names(snapshot, request_for("lenses6", "user:dnaa", "kafka:DeleteTopic", ORDERS, "lrn")) == []


def test_terms_need_no_documents() -> None:
    """Each item of a batch is looked at, and each name is reported once."""
    request = request_for("lenses6", "user:dnaa", "kafka:DeleteTopci", ORDERS, "lrn")
    request["evaluations"] = [{}, {}, {"action": {"name": "kafka:DeleteTopic"}}, {"action": 7}]
    assert [str(name) for name in unknown_terms(request)] == [
        "no action kafka:DeleteTopci; did you mean kafka:DeleteTopic?"
    ]
    assert [str(name) for name in unknown_terms({**request, "system": "lense6"})] == [
        "no system lense6; did you mean lenses6?"
    ]


def test_cedar_knows_what_its_documents_name() -> None:
    """Policies may match types and ids that they do not name: a name counts as unknown near to a known one alone."""
    snapshot = compile_documents(CEDAR)
    assert snapshot.rejected == ()

    def found(subject: str, type_: str, action: str, resource: str) -> list[str]:
        request = request_for("cedar", subject, action, resource, "Doc")
        request["subject"]["type"] = type_
        return [str(name) for name in unknown_names(snapshot, request)]

    assert found("dana", "User", "raed", "orders") == ["no action raed; did you mean read?"]
    assert found("dana", "user", "read", "orders") == ["no subject type user; did you mean User?"]
    assert found("dnaa", "User", "read", "orders") == ["no subject dnaa in the documents; did you mean dana?"]
    assert found("dana", "User", "read", "ordres") == ["no resource ordres in the documents; did you mean orders?"]
    assert found("erik", "User", "delete", "other") == []


@pytest.mark.parametrize(
    ("name", "known", "found"),
    [
        ("orders-2", "orders-1", ""),
        ("bob@example.com", "alice@example.com", ""),
        ("prod/main/ordres", "prod/main/orders", "; did you mean prod/main/orders?"),
        ("orders_eu", "orders-eu", "; did you mean orders-eu?"),
        ("orders-eu", "orders-us", ""),
        ("Dana", "dana", "; did you mean dana?"),
        ("dana", "dana", ""),
    ],
)
def test_one_misspelt_word_is_a_typing_error_and_another_name_is_not(name: str, known: str, found: str) -> None:
    """Names with other numbers or other short words are names of other things."""
    assert misspelt(name, [known]) == found


def test_an_action_that_the_catalogue_has_is_not_said_to_be_misspelt() -> None:
    """Kafka's authorizer enforces Write on groups; "no action Write; did you mean Write?" helps nobody."""
    asked = {"id": "r", "system": "kafka-acls", "subject": {"type": "user", "id": "User:dana"}}
    asked |= {"action": {"name": "Write"}, "resource": {"type": "Group", "id": "billing"}}
    assert unknown_terms(asked) == []
    assert nearest("Write", ["Write", "Read"]) == ""
    assert nearest("Wrte", ["Write", "Read"], most=1) == "; did you mean Write?"
