"""The format of case files and their runner: what is read, what is refused, and that a wrong case fails."""

from pathlib import Path
from typing import Any

import pytest

from policy.core.model import StatementId
from policy.testing.casefile import CaseFile, CaseFileError, full_request, load_cases, parse_cases
from policy.testing.run import cover, run_cases

GROUP = {"kind": "Group", "name": "g", "spec": {"roles": ["r"], "members": ["user:dana"]}}
ALLOWED = {"subject": "user:dana", "action": "kafka:ListTopic", "resource": "kafka:topic:a/b/c"}


def role(*statements: dict[str, Any]) -> dict[str, Any]:
    """A role document, its system left to the file."""
    return {"kind": "Role", "name": "r", "spec": {"statements": list(statements)}}


LISTS = role({"effect": "allow", "action": "kafka:ListTopic", "resource": "kafka:topic/a/*"})


def file_of(*stages: dict[str, Any], **case: Any) -> CaseFile:
    """A case file with one case."""
    return parse_cases({"system": "lenses6", "cases": [{"case": "c", "stages": list(stages), **case}]})


def faults(*stages: dict[str, Any]) -> list[str]:
    """Why the expectations of a case fail."""
    return [result.why for result in run_cases(file_of(*stages)) if not result.passed]


def test_a_right_answer_passes() -> None:
    """An expected allow that comes, with its reason, document, statement and claims."""
    expected = {"says": "Role/r statement 0 allows", "document": "Role/r", "statement": 0, "claims": []}
    assert faults({"apply": [GROUP, LISTS], "expect": [{"ask": ALLOWED, "answer": "allow", **expected}]}) == []


@pytest.mark.parametrize(
    ("expected", "fault"),
    [
        ({"answer": "deny"}, "must be deny, was allow: lenses6/Role/r statement 0 allows"),
        ({"answer": ["allow", "deny"]}, "must be allow deny, was allow"),
        ({"answer": "allow", "says": "because"}, "nothing says 'because'"),
        ({"answer": "allow", "document": "Role/s"}, "no reason names lenses6/Role/s"),
        ({"answer": "allow", "document": ""}, "no reason names lenses6/"),
        ({"answer": "allow", "statement": 1}, "no reason names"),
        ({"answer": "allow", "document": "Role/r", "statement": 1}, "no reason names lenses6/Role/r statement 1"),
        ({"answer": "allow", "claims": ["groups"]}, "must rest on the claims ['groups'], rests on []"),
    ],
)
def test_a_wrong_answer_fails_and_says_how(expected: dict[str, Any], fault: str) -> None:
    """Each field of an expectation can fail."""
    (why,) = faults({"apply": [GROUP, LISTS], "expect": [{"ask": ALLOWED, **expected}]})
    assert fault in why


def test_a_document_must_be_accepted_unless_it_is_said_to_be_refused() -> None:
    """Both ways round, and the refusal must say what the case says."""
    bad = role({"effect": "allow", "action": "kafka", "resource": "*"})
    assert "must be accepted, was refused: statements[0].action" in faults({"apply": [bad]})[0]
    assert faults({"apply": [LISTS], "refused": {"Role/r": "action"}}) == ["must be refused, was accepted"]
    assert "no error says 'resource'" in faults({"apply": [bad], "refused": {"Role/r": "resource"}})[0]
    assert faults({"apply": [bad], "refused": {"lenses6/Role/r": "statements[0].action"}}) == []


def test_a_warning_that_is_expected_must_come() -> None:
    """`warns` names part of a warning of the document."""
    odd = role({"effect": "allow", "action": "kafka:Lost", "resource": "*"})
    assert faults({"apply": [odd], "warns": {"Role/r": "no such operation"}}) == []
    assert "no warning says 'no service'" in faults({"apply": [odd], "warns": {"Role/r": "no service"}})[0]
    assert faults({"apply": [LISTS], "warns": {"Role/r": "x"}}) == ["no warning says 'x': there is none"]


def test_stages_follow_one_another() -> None:
    """A later version replaces an earlier one; a deleted document stops granting."""
    ask = {"ask": ALLOWED}
    stages: tuple[dict[str, Any], ...] = (
        {"apply": [GROUP], "expect": [{**ask, "answer": "deny"}]},
        {"apply": [LISTS], "expect": [{**ask, "answer": "allow"}]},
        {"apply": [role()], "expect": [{**ask, "answer": "deny"}]},
        {"apply": [LISTS], "expect": [{**ask, "answer": "allow"}]},
        {"delete": ["Role/r"], "expect": [{**ask, "answer": "deny"}]},
    )
    assert faults(*stages) == []
    assert faults(*({"at": 1000 + number, **stage} for number, stage in enumerate(stages))) == []


def test_a_stage_lends_its_moment_to_requests() -> None:
    """A request without a time is asked at the stage's moment, or that of the stage before."""
    bound = {**LISTS, "valid_from": 1000, "valid_until": 2000}
    inside = {"at": 1500, "apply": [GROUP, bound], "expect": [{"ask": ALLOWED, "answer": "allow"}]}
    still = {"expect": [{"ask": ALLOWED, "answer": "allow"}, {"ask": {**ALLOWED, "time": 2000}, "answer": "deny"}]}
    assert faults(inside, still) == []


def test_deleting_what_is_nowhere_is_refused() -> None:
    """A slip in a name must not pass for a deletion."""
    with pytest.raises(CaseFileError, match="c, stage 1: delete: there is no lenses6/Role/q"):
        run_cases(file_of({"apply": [GROUP], "delete": ["Role/q"], "expect": [{"ask": ALLOWED, "answer": "deny"}]}))


def asking(ask: dict[str, Any]) -> dict[str, Any]:
    """A case file with one request, which is expected to be denied."""
    return {"cases": [{"case": "c", "stages": [{"expect": [{"ask": ask, "answer": "deny"}]}]}]}


OFFSETS = {"min_policy_offsets": {"authz.policies.lenses6.v1": {"0": 7}}}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([], "Expected `object`"),
        ({"cases": []}, "cases: at least one"),
        ({"cases": [{"case": "c", "stages": []}]}, r"cases\[0\] \(c\): expects nothing"),
        ({"cases": [{"case": "c", "stages": [{"trust": ["groups"]}]}]}, "expects nothing"),
        ({"cases": [{"case": "c", "stages": [{"expects": []}]}]}, r"unknown field `expects`.*cases"),
        ({"cases": [{"case": "c", "stages": [{"expect": [{"ask": {}, "answer": "yes"}]}]}]}, "yes"),
        ({"cases": [{"case": "c", "stages": [{"at": "noon", "apply": [GROUP]}]}]}, r"stages\[0\]: at: 'noon'"),
        ({"cases": [{"case": "c", "stages": [{"trust": ["all"], "apply": [GROUP]}]}]}, "trust: all not one of"),
        ({"cases": [{"case": "c", "stages": [{"apply": [GROUP], "refused": {"Role/q": ""}}]}]}, "Role/q is not a doc"),
        ({"cases": [{"case": "c", "stages": [{"apply": [GROUP], "delete": ["r"]}]}]}, "delete: r is not"),
        (
            {"cases": [{"case": "c", "stages": [{"expect": [{"ask": {"who": "x"}, "answer": "deny"}]}]}]},
            r"expect\[0\].ask: unknown field who",
        ),
        (asking({"evaluations": [{"who": "x"}]}), "unknown field who"),
        (asking({"subject": {"type": "user", "id": "a", "groups": ["g"]}}), "ask: subject: unknown field groups"),
        (asking({"action": {"name": "a", "property": {}}}), "ask: action: unknown field property"),
        (asking({"evaluations": [{"resource": {"id": "a", "scope": "b"}}]}), "ask: resource: unknown field scope"),
        (asking({"evaluations": 1, "subject": {1: "a", "who": "b"}}), "ask: subject: unknown field 1, who"),
        (asking({"options": {"semantics": "permit_on_first_permit"}}), "ask: options: unknown field semantics"),
        (asking({"subject": "user:a", "evaluations": [{"groups": ["g"]}]}), "groups: needs a subject beside it"),
        (asking({"groups": ["g"], "evaluations": [{"subject": "user:a"}]}), "groups: needs a subject beside it"),
        (asking({"properties": {}, "subject": "user:a"}), "properties: needs a resource beside it"),
        (asking({"context": OFFSETS}), r"ask: context.min_policy_offsets: .*; leave it out"),
        (asking({"evaluations": [{"context": OFFSETS}]}), "ask: context.min_policy_offsets: "),
    ],
)
def test_a_case_file_that_is_wrong_is_refused_with_the_place(value: object, message: str) -> None:
    """What, and where; above all a case that could never fail."""
    with pytest.raises(CaseFileError, match=message):
        parse_cases(value)


def test_short_forms_are_written_out() -> None:
    """Texts for subject, action and resource; claims beside the subject; properties of the resource."""
    ask = {
        "subject": "user:dana",
        "groups": ["a"],
        "token": {"sub": "x"},
        "action": "kafka:ListTopic",
        "resource": "kafka:topic:a",
        "properties": {"p": 1},
        "context": {"c": 2},
    }
    assert full_request(ask, "lenses6", 7) == {
        "id": "case",
        "system": "lenses6",
        "time": 7,
        "subject": {"type": "user", "id": "user:dana", "properties": {"groups": ["a"], "token": {"sub": "x"}}},
        "action": {"name": "kafka:ListTopic"},
        "resource": {"type": "lrn", "id": "kafka:topic:a", "properties": {"p": 1}},
        "context": {"c": 2},
    }


def test_full_forms_are_left_alone() -> None:
    """Whatever is a mapping already stays as it is; the envelope's own fields win."""
    ask = {
        "id": "r-9",
        "time": 5,
        "system": "cdap",
        "subject": {"type": "robot", "id": "x"},
        "resource": "plain",
        "evaluations": [{"action": "a"}, 7],
    }
    assert full_request(ask, "lenses6", 7) == {
        "id": "r-9",
        "time": 5,
        "system": "cdap",
        "subject": {"type": "robot", "id": "x"},
        "resource": {"type": "resource", "id": "plain"},
        "evaluations": [{"action": {"name": "a"}}, 7],
    }


def test_coverage_tells_the_statements_that_decided_something() -> None:
    """A statement that no request met is idle."""
    two = role(*LISTS["spec"]["statements"], {"effect": "deny", "action": "iam:*", "resource": "*"})
    coverage = cover(file_of({"apply": [GROUP, two], "expect": [{"ask": ALLOWED, "answer": "allow"}]}))
    assert coverage.decided == {StatementId("lenses6/Role/r", 0)}
    assert coverage.idle == [StatementId("lenses6/Role/r", 1)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("system: a\nsystem: b", "line 2: not YAML: duplicate key 'system'"),
        ("cases:\n  - {a: ]", "line 2: not YAML"),
        ("cases: *x", "undefined alias"),
        ("system: a\n---\nsystem: b", "line 2: a second YAML document begins here: a case file has one"),
        ("cases: [\n\0", r"line 2: not YAML: unacceptable character U\+0000; remove it"),
        ("cases: !!python/name:x y", "could not determine a constructor"),
    ],
)
def test_yaml_that_cannot_be_read_is_refused_with_the_line(tmp_path: Path, text: str, message: str) -> None:
    """With the file's name too."""
    path = tmp_path / "cases.yaml"
    path.write_text(text)
    with pytest.raises(CaseFileError, match=rf"cases\.yaml: .*{message}"):
        load_cases(path)


def test_scalars_mean_what_they_mean_in_documents_and_repetition_may_be_named(tmp_path: Path) -> None:
    """A date stays text, `on` stays text; anchors and merge keys are there for requests that are asked again."""
    path = tmp_path / "cases.yaml"
    path.write_text(
        "cases: [{case: on, stages: [{expect: [{ask: &a {subject: s, time: 2026-01-01T00:00:00Z}, answer: error}, "
        "{ask: {<<: *a, subject: no, deadline: 010}, answer: error}]}]}]"
    )
    first, second = load_cases(path).cases[0].stages[0].expect
    assert first.ask == {"subject": "s", "time": "2026-01-01T00:00:00Z"}
    assert second.ask == {"subject": "no", "time": "2026-01-01T00:00:00Z", "deadline": "010"}


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """No traceback for a slip in a path."""
    with pytest.raises(CaseFileError, match=r"none\.yaml: cannot be read"):
        load_cases(tmp_path / "none.yaml")


OTHER = {"system": "ververica", "kind": "InitialAccess", "name": "main"}


def test_documents_of_another_system_are_named_with_it() -> None:
    """In `refused`, `delete` and `document`, like those of the file's own system."""
    entry = {"userId": "dana", "workspaceId": "w", "namespaceId": "n", "role": "VIEWER"}
    broken = {**OTHER, "spec": {"initialAccess": [{**entry, "role": "viewer"}]}}
    sound = {**OTHER, "spec": {"initialAccess": [entry]}}
    where = {"type": "Job", "id": "j", "properties": {"workspaceId": "w", "namespaceId": "n"}}
    asked = {"system": "ververica", "subject": "dana", "action": "read", "resource": where}
    name = "ververica/InitialAccess/main"
    stages: list[dict[str, Any]] = [
        {"apply": [broken], "refused": {name: "viewer"}},
        {"apply": [sound], "expect": [{"ask": asked, "answer": "allow", "document": name}]},
        {"delete": [name], "expect": [{"ask": asked, "answer": "deny"}]},
    ]
    assert faults(*stages) == []
    assert "must be refused" in faults({"apply": [sound], "refused": {name: ""}})[0]


def test_a_warning_about_a_document_of_another_system_is_expected_by_its_name() -> None:
    """And another text is not found in it."""
    odd = {
        "system": "lenses5",
        "kind": "Group",
        "name": "g",
        "spec": {"namespaces": [], "application": ["ViewCustomApps"]},
    }
    assert faults({"apply": [odd], "warns": {"lenses5/Group/g": "ViewCustomApps"}}) == []
    assert "no warning says" in faults({"apply": [odd], "warns": {"lenses5/Group/g": "elsewhere"}})[0]


def test_a_document_whose_system_is_not_known_is_named_with_it() -> None:
    unknown = {**GROUP, "system": "lenses7"}
    assert faults({"apply": [unknown], "refused": {"lenses7/Group/g": "lenses7"}}) == []
