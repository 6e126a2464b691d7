"""Which statements decide a request: all that do, and none that only matched."""

from typing import Any

import pytest

from policy import compile_documents, parse_request
from policy.analysis.usage import statements, uses
from policy.testing.casefile import CaseFile, parse_cases
from policy.testing.run import cover

ORDERS = "kafka:topic:prod/main/orders"


def _role(name: str, effect: str, action: str) -> dict[str, Any]:
    spec = {"statements": [{"effect": effect, "action": action, "resource": ORDERS}]}
    return {"system": "lenses6", "kind": "Role", "name": name, "spec": spec}


def _group(*roles: str) -> dict[str, Any]:
    spec = {"roles": list(roles), "members": ["user:dana"]}
    return {"system": "lenses6", "kind": "Group", "name": "g", "spec": spec}


def _request(action: str, **more: Any) -> dict[str, Any]:
    subject = {"type": "user", "id": "user:dana"}
    asked = {"id": "r", "system": "lenses6", "subject": subject, "action": {"name": action}}
    return {**asked, "resource": {"type": "lrn", "id": ORDERS}, **more}


SNAPSHOT = compile_documents(
    [
        _role("get", "allow", "kafka:Get*"),
        _role("all", "allow", "kafka:*"),
        _role("no-delete", "deny", "kafka:DeleteTopic"),
        _role("never", "deny", "kafka:Delete*"),
        _group("get", "all", "no-delete", "never"),
    ]
)


def _used(request: dict[str, Any]) -> list[list[str]]:
    found = uses(SNAPSHOT, parse_request(request))
    return [sorted(statement_id.document.rpartition("/")[2] for statement_id in use) for use in found]


def test_every_statement_is_listed_with_its_grants() -> None:
    assert sorted(str(statement_id) for statement_id in statements(SNAPSHOT)) == [
        f"lenses6/Role/{name} statement 0" for name in ("all", "get", "never", "no-delete")
    ]


@pytest.mark.parametrize(
    ("action", "used"),
    [
        ("kafka:GetTopicDetails", [["all", "get"]]),
        ("kafka:ListTopic", [["all"]]),
        ("kafka:DeleteTopic", [["never", "no-delete"]]),
        ("schemas:ListSchemas", []),
    ],
)
def test_an_allow_is_decided_by_all_allows_that_match_and_a_deny_by_the_denies(
    action: str, used: list[list[str]]
) -> None:
    assert _used(_request(action)) == used


def test_what_is_answered_error_is_decided_by_none() -> None:
    assert _used(_request("kafka:GetTopicDetails", subject={"type": "user", "id": "nobody"})) == []
    assert _used(_request("kafka:GetTopicDetails", system="nothing")) == []


@pytest.mark.parametrize(
    ("semantic", "used"),
    [
        ("execute_all", [["all"], ["never", "no-delete"], ["all", "get"]]),
        ("deny_on_first_deny", [["all"], ["never", "no-delete"]]),
        ("permit_on_first_permit", [["all"]]),
    ],
)
def test_of_a_batch_count_the_evaluations_that_are_answered(semantic: str, used: list[list[str]]) -> None:
    items = [{"action": {"name": f"kafka:{name}"}} for name in ("ListTopic", "DeleteTopic", "GetTopicDetails")]
    options = {"evaluations_semantic": semantic}
    assert _used(_request("kafka:ListTopic", evaluations=items, options=options)) == used


def _entity_grant(name: str, entity: str) -> dict[str, Any]:
    spec = {"user": "dana", "entity": entity, "privileges": ["ADMIN"]}
    return {"system": "cdap", "kind": "Grant", "name": name, "spec": spec}


NAMESPACE = _entity_grant("namespace", "namespace:ns")
PRINCIPAL = _entity_grant("principal", "kerberos-principal:etl")
DATASET = _entity_grant("dataset", "dataset:ns.d")
BELOW = {"system": "cdap", "kind": "Entity", "name": "dataset:ns.d", "spec": {"parent": "namespace:ns"}}


@pytest.mark.parametrize(
    ("documents", "action", "used"),
    [
        ([NAMESPACE], "namespace.create", []),
        ([NAMESPACE, PRINCIPAL], "namespace.create", ["namespace", "principal"]),
        ([NAMESPACE, DATASET, BELOW], "namespace.list", ["namespace", "dataset"]),
    ],
    ids=["one of two that are needed", "both of two that are needed", "two of which one is enough"],
)
def test_what_held_counts_where_the_whole_held(documents: list[Any], action: str, used: list[str]) -> None:
    """And of several ways to it all count, where the reasons name the first."""
    asked = {"id": "r", "system": "cdap", "subject": {"type": "user", "id": "dana"}, "action": {"name": action}}
    context = {"owner_principal": "kerberos-principal:etl"} if action == "namespace.create" else {}
    request = {**asked, "resource": {"type": "namespace", "id": "namespace:ns"}, "context": context}
    found = uses(compile_documents(documents), parse_request(request))
    assert [statement_id.document.rpartition("/")[2] for use in found for statement_id in use] == used


def _case_file(documents: list[Any], request: dict[str, Any]) -> CaseFile:
    stage = {"apply": documents, "expect": [{"ask": request, "answer": "deny"}]}
    return parse_cases({"cases": [{"case": "x", "stages": [stage]}]})


@pytest.mark.parametrize(
    ("documents", "changes", "used"),
    [
        ([NAMESPACE], {}, []),
        ([NAMESPACE, PRINCIPAL], {}, ["namespace", "principal"]),
        ([NAMESPACE, PRINCIPAL], {"time": 5, "deadline": 4}, []),
        ([NAMESPACE, PRINCIPAL], {"subject": {"type": "robot", "id": "dana"}}, []),
    ],
    ids=["a part that held of what failed", "the whole held", "too late", "an error"],
)
def test_coverage_and_usage_mean_the_same_by_a_statement_that_decided(
    documents: list[Any], changes: dict[str, Any], used: list[str]
) -> None:
    """What the tests of a team call covered is what the report calls used."""
    asked = {"id": "r", "system": "cdap", "subject": {"type": "user", "id": "dana"}}
    asked |= {"action": {"name": "namespace.create"}, "resource": {"type": "namespace", "id": "namespace:ns"}}
    request = {**asked, "context": {"owner_principal": "kerberos-principal:etl"}, **changes}
    found = {statement_id for use in uses(compile_documents(documents), parse_request(request)) for statement_id in use}
    assert sorted(statement_id.document.rpartition("/")[2] for statement_id in found) == used
    assert cover(_case_file(documents, request)).decided == found


def test_coverage_of_a_batch_counts_the_evaluations_that_are_answered() -> None:
    items = [{"action": {"name": f"kafka:{name}"}} for name in ("ListTopic", "DeleteTopic", "GetTopicDetails")]
    documents = [_role("all", "allow", "kafka:*"), _role("never", "deny", "kafka:Delete*")]
    documents += [_role("get", "allow", "kafka:Get*"), _group("all", "never", "get")]
    request = _request("x:y", evaluations=items, options={"evaluations_semantic": "deny_on_first_deny"})
    decided = cover(_case_file(documents, request)).decided
    assert {statement_id.document.rpartition("/")[2] for statement_id in decided} == {"all", "never"}


def test_the_moment_of_a_stage_is_no_claim_for_coverage_either() -> None:
    """As for the answer: requests that may not claim a time are judged at the stage's."""
    documents = [{**_role("all", "allow", "kafka:*"), "valid_from": 5}, _group("all")]
    expect = [{"ask": _request("kafka:ListTopic"), "answer": "allow"}]
    stage = {"at": 10, "trust": [], "apply": documents, "expect": expect}
    decided = cover(parse_cases({"cases": [{"case": "x", "stages": [stage]}]})).decided
    assert {statement_id.document.rpartition("/")[2] for statement_id in decided} == {"all"}
