"""Lenses 6, what a case file cannot say: the catalogue as data, both spellings, sizes."""

from importlib.resources import files
from typing import Any

import pytest
import yaml

import policy
from policy.systems.lenses6.catalogue import catalogue
from policy.systems.lenses6.grammar import resource_name, resource_pattern
from tests.policy.test_cases import shown

LIBRARY = ("ADMIN", "BLUE", "LA", "OPERATOR", "DENY-PROD", "DEV")

STRING_MATCH_TABLE = [
    ("lit", "lit", True),
    ("lit", "li", False),
    ("lit", "litt", False),
    ("lit", "oth", False),
    ("*", "some", True),
    ("foo*", "foo", True),
    ("foo*", "foo-bar", True),
    ("", "", True),
    ("x", "", False),
    ("", "x", False),
]


def role(*statements: dict[str, Any]) -> dict[str, Any]:
    """A role document."""
    return {"system": "lenses6", "kind": "Role", "name": "r", "spec": {"statements": list(statements)}}


@pytest.mark.parametrize(("pattern", "text", "expected"), STRING_MATCH_TABLE)
def test_the_string_match_table(pattern: str, text: str, expected: bool) -> None:
    """L6-MATCH-STRING, through the public API."""
    assert policy.matches(pattern, text) is expected


def test_the_catalogue_has_fourteen_services_and_141_operations() -> None:
    """L6-SERVICES, L6-CATALOGUE: no operation is lost; the duplicate row of the source adds none (L6-Q15)."""
    operations = catalogue()["operations"]
    assert len(operations) == 14
    assert sum(map(len, operations.values())) == 141
    assert "Delete" + "Evironment" in operations["environments"], "the vendor's own spelling"


def test_every_operation_is_on_a_resource_type_of_the_catalogue() -> None:
    """L6-CATALOGUE: operations and resource types fit together."""
    data = catalogue()
    types = {f"{service}:{type_}" for service, known in data["resources"].items() for type_ in known}
    used = {type_ for known in data["operations"].values() for type_ in known.values()}
    assert used <= types
    assert types - used == {"alerts:alert"}, "the one type that the source gives no operation for"


def test_every_operation_is_allowed_where_it_belongs_without_a_warning() -> None:
    """Each operation of the catalogue, granted alone on its own type, warns of nothing."""
    for service, known in catalogue()["operations"].items():
        for operation, type_ in known.items():
            statement = {"effect": "allow", "action": f"{service}:{operation}", "resource": f"{type_}:*"}
            snapshot = policy.compile_documents([role(statement)])
            assert not snapshot.rejected
            assert not snapshot.warnings, (service, operation)


@pytest.mark.parametrize("service", ["kafka", "administration", "admin"])
def test_both_separators_have_one_inner_form(service: str) -> None:
    """L6-Q1, L6-Q3: spellings are gone before anything is matched."""
    assert resource_pattern(f"{service}:topic:a/b/c") == resource_pattern(f"{service}:topic/a/b/c")
    assert resource_name(f"{service}:topic:a/b/c") == resource_name(f"{service}:topic/a/b/c")
    assert resource_name("admin:setting:x") == resource_name("administration:setting/x")


@pytest.mark.parametrize("written", ["kafka:topic:a/*", "kafka:topic:a/*/*", "kafka:topic/a/*"])
def test_left_out_segments_are_wildcards(written: str) -> None:
    """L6-LRN-EXPAND: every way to write the wildcards is one pattern."""
    assert resource_pattern(written) == resource_pattern("kafka:topic:a/*/*")


def test_a_role_that_is_too_big_is_refused() -> None:
    """Too many statements, or too many pairs of patterns in them, refuse the role and name the limit."""
    statement = {"effect": "allow", "action": "*", "resource": "*"}
    (rejected,) = policy.compile_documents([role(*[statement] * 10_001)]).rejected
    assert rejected.errors == ("statements: 10001 statements; at most 10000: split the document",)
    wide = {
        **statement,
        "action": [f"kafka:A{n}" for n in range(500)],
        "resource": [f"iam:role:{n}" for n in range(500)],
    }
    (rejected,) = policy.compile_documents([role(wide)]).rejected
    assert rejected.errors == ("statements: 250000 pairs of an action and a resource; at most 200000: split the role",)


def test_every_error_of_a_document_is_named() -> None:
    """One reading finds all: an author corrects a role once."""
    wrong = [{"effect": "perhaps", "action": "kafka", "resource": "kafka:top*"}, {"action": "*", "resource": "*"}]
    (rejected,) = policy.compile_documents([role(*wrong)]).rejected
    places = [error.split(":")[0] for error in rejected.errors]
    assert places == ["statements[0].effect", "statements[0].action", "statements[0].resource", "statements[1].effect"]


@pytest.mark.parametrize("number", range(1, 20))
def test_every_open_question_is_answered_by_cases(number: int) -> None:
    """For and against the reading that lockkeeper takes."""
    signs = {sign for rule, sign in shown() if rule == f"L6-Q{number}"}
    assert signs == {True, False}


@pytest.mark.parametrize("example", ["EVAL-1", "EVAL-2", "EVAL-3", "RED", *(f"LIB-{n}" for n in LIBRARY)])
def test_every_worked_example_is_a_case(example: str) -> None:
    """Each example of the vendor's pages is asked under its id."""
    assert any(rule == f"L6-EX-{example}" for rule, _ in shown())


def test_the_rules_are_listed_once() -> None:
    """rules.yaml has every id of the specification's 26 rules once."""
    ids = [rule["id"] for rule in yaml.safe_load(files("policy.systems.lenses6").joinpath("rules.yaml").read_text())]
    assert len(ids) == len(set(ids)) == 26


@pytest.mark.parametrize(
    "pattern",
    [
        "kafka:topic:prod /main/orders",
        "kafka:topic:prod/ main/*",
        "kafka:topic: prod/*",
        "kafka:topic/prod/main/ ord*",
        "kafka:topic :prod/*",
        "kafka:topic:prod/main/a: b",
    ],
)
def test_a_pattern_has_no_part_that_no_request_may_have(pattern: str) -> None:
    """A request with such a part is an error (L6-LRN-FORMAT): a deny of it would never match, and nobody would know."""
    rejected = policy.compile_documents([role({"effect": "deny", "action": "*", "resource": pattern})]).rejected
    assert [error for refusal in rejected for error in refusal.errors if "has a blank at an end" in error]


def test_a_pattern_may_have_a_blank_within_a_part() -> None:
    """Also before its closing wildcard: text follows it in what that matches."""
    statement = {"effect": "deny", "action": "*", "resource": "kafka:topic:a b/c d/e *"}
    assert not policy.compile_documents([role(statement)]).rejected
