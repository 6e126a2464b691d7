"""A decision leads to a form that asks the same; a subject leads to its access, or to why that cannot be said."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy import compile_documents
from policy.analysis import impact
from streaming.console import access
from streaming.console.access import Uses, access_in, statements_in, subject_in
from streaming.console.addresses import address
from streaming.console.console import _asked_again, _request
from streaming.console.pages import Pages, StaticFiles
from streaming.console.viewer import EVERYTHING
from streaming.snapshots.at_offsets import DocumentLog
from streaming.topics import TopicNames
from tests.console.decided import READERS
from tests.console.test_in_force import GROUP
from tests.policy.test_unknown_names import DOCUMENTS

NAMES = st.one_of(
    st.sampled_from(['{"id": "user:root"}', "{", 'User::"dana"', "a, b", " a ", "<script>", "'", "\u202ea"]),
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20),
)
TYPES = st.sampled_from(["user", "User", "Service", "lrn", "Topic", "{a}"])
SYSTEMS = st.sampled_from(["lenses6", "lenses5", "cdap", "kafka-acls", "cedar", "streamsets", "ververica"])
PROPERTIES = st.sampled_from([{}, {"connection": "kafka", "dataset": "{"}])


@given(SYSTEMS, TYPES, NAMES, NAMES, TYPES, NAMES, PROPERTIES, st.booleans())
def test_a_decision_is_asked_again_as_it_was(
    system: str, subject_type: str, subject: str, action: str, type_: str, id_: str, properties: Any, is_batch: bool
) -> None:
    """With its types and properties, which the names alone do not say; of a batch the first evaluation."""
    echo = {
        "subject": {"type": subject_type, "id": subject},
        "action": {"name": action, "properties": {}},
        "resource": {"type": type_, "id": id_, "properties": properties},
    }
    answered: dict[str, Any] = {"context": {"outcome": "deny", "request": echo}}
    beside = {"context": {"outcome": "deny"}, "evaluations": [answered]} if is_batch else answered
    fields = {"groups": "", "more": "", **_asked_again({"id": "d", "system": system, **beside})}
    asked = _request(fields, EVERYTHING)
    assert asked["system"] == system
    assert asked["subject"] == {"type": subject_type, "id": subject}
    assert asked["action"]["name"] == action
    assert {"properties": {}, **asked["resource"]} == {"type": type_, "id": id_, "properties": properties}


def test_what_the_names_say_is_not_said_twice() -> None:
    request = {
        "subject": {"type": "user", "id": "user:dana"},
        "action": {"name": "kafka:GetTopicDetails"},
        "resource": {"type": "lrn", "id": "kafka:topic:prod/main/orders"},
    }
    fields = _asked_again({"system": "lenses6", "context": {"request": request}})
    assert "more" not in fields
    assert address("/ask", _asked_again({"system": "lenses6", "context": {}})).count("%3F") == 3, "nothing is repeated"


def _access(system: str, documents: list[Any], is_chosen: bool = False, **fields: str) -> dict[str, Any] | None:
    short = subject_in({"subject": "", "groups": "", "more": "", **fields})
    return access_in(compile_documents(documents), system, short, Uses({}), is_chosen)


def test_the_access_of_a_subject_counts_its_type() -> None:
    text = 'permit(principal == Service::"ci", action == Action::"read", resource == Doc::"orders");'
    documents = [{"system": "cedar", "kind": "PolicySet", "name": "all", "spec": {"policies": text}}]
    found = _access("cedar", documents, subject="ci", more="{subject: {type: Service}, resource: {type: Doc}}")
    assert found is not None
    assert [line["text"] for line in found["lines"]] == ["read on Doc orders"]
    named = _access("cedar", documents, subject="{type: Service, id: ci}")
    assert named is not None
    assert named["lines"] == [], "it is a name"


def _access_page(system: str, subject: str, permissions: list[Any], statements: Any = None) -> str:
    fields = {"system": system, "subject": subject, "groups": "", "resource": "", "more": ""}
    values = {"fields": fields, "permissions": permissions, "statements": statements, "answers": [], "most": 500}
    page = {"here": "/access", "viewer": EVERYTHING, "systems": [], "old": None, "problem": "", "since": ""}
    return Pages(StaticFiles()).render("access.html.j2", **page, **values)


def test_only_a_statement_is_said_not_to_have_decided_lately() -> None:
    """Of Cedar what is permitted is listed, without statements: "–" would say that nobody did it lately."""
    text = 'permit(principal == User::"dana", action == Action::"read", resource == Doc::"orders");'
    cedar = [{"system": "cedar", "kind": "PolicySet", "name": "all", "spec": {"policies": text}}]
    shown = []
    for system, documents, subject in (("cedar", cedar, 'User::"dana"'), ("lenses6", [READERS, GROUP], "user:dana")):
        page = _access_page(system, subject, [_access(system, documents, subject=subject)])
        shown.append(re.findall(r'<td class="t">(.*?)</td>', page))
    assert shown == [[""], ["–"]]


def test_statements_of_a_language_are_not_called_all_where_documents_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """ "No document grants or denies anything" is no whole answer where each of them is refused."""
    monkeypatch.setattr(access, "MOST_LINTED", -1)
    broken = {**READERS, "spec": {"statements": 7}}
    said = []
    for documents in ([broken], [READERS]):
        log = DocumentLog(TopicNames(), 1 << 20, 0)
        statements = statements_in(compile_documents(documents), "lenses6", Uses({}), log, "policies")
        fields = {"system": "lenses6", "subject": "", "groups": "", "resource": "", "more": ""}
        values = {
            "fields": fields,
            "permissions": [],
            "statements": statements,
            "problem": "",
            "since": "",
            "most": 500,
        }
        page = Pages(StaticFiles()).render(
            "access.html.j2", here="/access", viewer=EVERYTHING, systems=[], old=None, answers=[], **values
        )
        said.append("1 document of this language is refused" in page)
    assert said == [True, False]


def test_an_access_that_cannot_be_said_is_not_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a subject that a refused document names, and of more pairs than are evaluated."""
    refused = {"system": "lenses6", "kind": "Role", "name": "r", "spec": {"statements": "user:dana"}}
    group = {"system": "lenses6", "kind": "Group", "name": "g", "spec": {"roles": ["r"], "members": ["user:dana"]}}
    found = _access("lenses6", [refused, group], subject="user:dana")
    assert found is not None
    assert "lenses6/Role/r" in found["why"]
    monkeypatch.setattr(impact, "MOST_PAIRS", 0)
    policy = {"policies": 'permit(principal == User::"dana", action == Action::"read", resource == Doc::"orders");'}
    documents = [{"system": "cedar", "kind": "PolicySet", "name": "all", "spec": policy}]
    many = _access("cedar", documents, subject='User::"dana"')
    assert many is not None
    assert "pairs of an action and a resource" in many["why"]
    assert _access("cdap", DOCUMENTS["cdap"], subject="user:nobody") is None
