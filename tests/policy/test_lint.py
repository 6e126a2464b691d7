"""What `policy lint` finds, and what it does not complain about."""

from typing import Any

import pytest

from policy.analysis.lint import Finding, lint, lint_documents
from policy.core.document import MAX_BYTES
from policy.store.documents import DocumentStore


def role(name: str, *statements: tuple[str, str, str], **envelope: Any) -> dict[str, Any]:
    """A role of (effect, action, resource) statements."""
    listed = [{"effect": effect, "action": action, "resource": resource} for effect, action, resource in statements]
    return {"system": "lenses6", "kind": "Role", "name": name, "spec": {"statements": listed}, **envelope}


def group(name: str, *roles: str, **envelope: Any) -> dict[str, Any]:
    """A group with roles."""
    return {"system": "lenses6", "kind": "Group", "name": name, "spec": {"roles": list(roles)}, **envelope}


def found(*documents: Any) -> list[tuple[str, int | None, str]]:
    """(document, statement, code) of every finding, the default system left out."""
    return [(f.document.removeprefix("lenses6/"), f.statement, f.code) for f in lint(documents)]


READ = ("allow", "kafka:ReadTopicData", "kafka:topic:a/*")


def test_good_policies_have_no_findings() -> None:
    """An allow, a narrower deny, a group for each role, an empty role."""
    narrow = ("deny", "kafka:ReadTopicData", "kafka:topic:a/b/*")
    assert found(group("g", "r", "empty"), role("r", READ, narrow), role("empty")) == []


def test_a_document_that_topics_do_not_take_is_found_before_it_is_applied() -> None:
    """It is valid in files; at the default limit `apply` refuses it."""
    large = role("large", READ)
    large["spec"]["description"] = "x" * MAX_BYTES
    assert ("Role/large", None, "too-large") in found(group("g", "large"), large)
    assert found(group("g", "large"), role("large", READ)) == []


def test_every_error_of_a_refused_document_is_an_error() -> None:
    """One finding for each, with the document's key."""
    bad = role("r", ("perhaps", "kafka", "*"))
    assert [f.level for f in lint([bad])] == ["error", "error"]
    closed = [("?", None, "answers-error"), ("?", None, "refused")]
    assert found(bad, "no document") == [*closed, *[("Role/r", None, "refused")] * 2]


def test_a_translators_warnings_are_findings() -> None:
    """What only the system knows, such as an operation that it has not."""
    (finding,) = lint([group("g", "r"), role("r", ("deny", "kafka:ListTopics", "kafka:topic:*"))])
    assert (finding.level, finding.code) == ("warning", "odd")
    assert "did you mean ListTopic?" in finding.message


def test_a_role_that_nobody_has() -> None:
    """No group names it."""
    assert found(role("r", READ)) == [("Role/r", None, "nobody-has-it")]
    assert found(role("r", READ), group("g", "q"), role("q")) == [("Role/r", None, "nobody-has-it")]


def test_a_role_that_does_not_exist() -> None:
    """A group names it, and no document has it; a refused document is there all the same."""
    assert found(group("g", "r")) == [("Group/g", None, "does-not-exist")]
    assert found(group("g", "r"), role("r", ("perhaps", "*", "*"))) == [("Role/r", None, "refused")]


def test_a_role_that_was_deleted_does_not_exist() -> None:
    """In a log, where deletions stand among the versions."""
    store = DocumentStore()
    store.put(group("g", "r"), at=1, order=1)
    store.put(role("r", READ), at=2, order=2)
    assert lint_documents(store) == []
    (key,) = [key for key in store.histories if key.kind == "Role"]
    store.delete(key, at=3, order=3)
    assert [finding.code for finding in lint_documents(store)] == ["does-not-exist"]


@pytest.mark.parametrize(
    "wide",
    [("allow", "*", "*"), ("allow", "kafka:*", "kafka:*"), ("allow", "kafka:Read*", "kafka:topic:a*/*")],
)
def test_a_statement_that_another_covers(wide: tuple[str, str, str]) -> None:
    """Wherever the wider one stands in the role."""
    assert found(group("g", "r"), role("r", READ, wide)) == [("Role/r", 0, "covered")]
    assert found(group("g", "r"), role("r", wide, READ)) == [("Role/r", 1, "covered")]


def test_of_two_statements_that_say_the_same_the_later_is_covered() -> None:
    """One of them can go, not both."""
    assert found(group("g", "r"), role("r", READ, READ)) == [("Role/r", 1, "covered")]


@pytest.mark.parametrize(
    "other",
    [
        ("allow", "kafka:ReadTopicData", "kafka:topic:a/b/*"),
        ("allow", "kafka:WriteTopicData", "kafka:topic:*"),
        ("deny", "kafka:ReadTopicData", "kafka:topic:b/*"),
    ],
)
def test_a_statement_is_not_covered_by_less_or_by_something_else(other: tuple[str, str, str]) -> None:
    """The first statement stays without a finding."""
    assert ("Role/r", 0, "covered") not in found(group("g", "r"), role("r", READ, other))


def test_roles_do_not_cover_each_other_since_groups_may_have_one_alone() -> None:
    """Only what every principal has in any case counts."""
    assert found(group("g", "r", "s"), role("r", READ), role("s", ("allow", "*", "*"))) == []


def test_a_window_of_the_whole_document_is_no_matter() -> None:
    """Both statements end together."""
    bound = role("r", READ, ("allow", "*", "*"), valid_until=1000)
    assert found(group("g", "r"), bound) == [("Role/r", 0, "covered")]


def test_an_allow_that_a_deny_cancels() -> None:
    """All of it is denied to all who have it; which deny, is said."""
    cancelled = role("r", READ, ("deny", "kafka:*", "kafka:topic:*"))
    (finding,) = lint([group("g", "r"), cancelled])
    place = ("lenses6/Role/r", 0, "warning", "cancelled-by-deny")
    assert (finding.document, finding.statement, finding.level, finding.code) == place
    assert finding.message == (
        "the allow of kafka/ReadTopicData on kafka/topic/a/** does nothing: lenses6/Role/r statement 1 denies all of it"
    )


def test_findings_are_sorted_by_document_and_statement() -> None:
    """So that two runs can be compared."""
    findings = lint([role("b", READ, READ), role("a", READ), group("g", "b", "none")])
    assert findings == sorted(findings, key=lambda f: (f.document, -1 if f.statement is None else f.statement))
    assert len(findings) == 3
    assert isinstance(findings[0], Finding)


def test_an_allow_is_cancelled_by_the_deny_of_a_role_that_always_comes_with_it() -> None:
    """Every group that gives the one gives the other; a group that does not, or not for ever, saves the allow."""
    roles = [role("r", READ), role("ban", ("deny", "*", "*"))]
    both = group("g", "r", "ban")
    assert found(*roles, both) == [("Role/r", 0, "cancelled-by-deny")]
    assert found(*roles, both, group("h", "r")) == []
    assert found(*roles, both, group("h", "ban", "r")) == [("Role/r", 0, "cancelled-by-deny")]
    assert found(*roles, {**both, "valid_until": 1000}) == []
