"""Drafts: what the playground shows is what `lockkeeper policy test` says of the case file that it saves."""

import copy
from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from policy import Batch, compile_documents, decide, dump_yaml, parse_request
from policy.testing import NAMED, CaseFileError, DraftPolicies, DraftRequest, evaluate_draft, run_cases
from policy.testing.casefile import parse_cases
from policy.testing.caseyaml import read_case_yaml
from policy.testing.drafts import Draft, short_form_of
from tests.examples import examples
from tests.policy.test_properties import WRITTEN, documents_of, requests_of

DOCUMENTS = """\
kind: Role
name: readers
spec:
  statements:
    - {effect: allow, action: "kafka:GetTopicDetails", resource: "kafka:topic:prod/*"}
    - {effect: deny, action: "kafka:GetTopicDetails", resource: "kafka:topic:prod/main/audit"}
---
kind: Group
name: readers
spec: {roles: [readers], members: ["user:dana"]}
"""
ASKED = DraftRequest("user:dana", "", "kafka:GetTopicDetails", "kafka:topic:prod/main/orders")


def _of(asked: DraftRequest, **changes: str) -> DraftRequest:
    return msgspec.structs.replace(asked, **changes)


def test_each_answer_names_the_line_of_its_statement() -> None:
    policies = DraftPolicies("lenses6", DOCUMENTS)
    allowed = policies.answer(ASKED)
    denied = policies.answer(_of(ASKED, resource="kafka:topic:prod/main/audit", answer="deny"))
    assert (allowed.passed, allowed.outcome, allowed.line) == (True, "allow", 5)
    assert (denied.passed, denied.outcome, denied.line) == (True, "deny", 6)
    assert policies.answer(_of(ASKED, answer="deny")).passed is False


def test_findings_about_documents_name_their_lines() -> None:
    draft = Draft("lenses6", DOCUMENTS.replace("effect: deny", "efect: deny") + "---\n- text\n")
    problems = evaluate_draft(draft, DraftPolicies(draft.system, draft.documents)).problems
    found = {(one.line, one.message) for one in problems if one.level == "error"}
    assert any(line == 6 and "efect" in message for line, message in found), found
    assert any("a document is a mapping" in message for _, message in found), found


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"more": "context: ["}, "more: not YAML"),
        ({"more": "just text"}, "more: must be a mapping"),
        ({"more": "{a: 1}"}, "unknown field a"),
        ({"more": "context: {min_policy_offsets: {t: {'0': 1}}}"}, "context.min_policy_offsets: "),
        ({"more": "resource: {id: other}"}, "resource: more has another id"),
        ({"more": "subject: user:erik"}, "subject: more has another id"),
        ({"groups": "a", "more": "groups: [b]"}, "groups: more has others"),
        ({"more": "{context: " + "{a: " * 40 + "1" + "}" * 40 + "}"}, "more: nested deeper"),
    ],
)
def test_a_field_that_cannot_be_read_leaves_the_other_requests_alone(changes: dict[str, str], message: str) -> None:
    draft = Draft("lenses6", DOCUMENTS, (_of(ASKED, **changes), ASKED))
    answers = evaluate_draft(draft, DraftPolicies(draft.system, draft.documents)).answers
    assert (answers[0].passed, message in answers[0].message) == (None, True), answers[0].message
    assert answers[1].passed is True


def test_the_short_form_has_groups_and_what_more_says() -> None:
    asked = DraftRequest("user:dana", "a, b,", "read", "t", "{context: {host: h}, resource: {type: Topic}}")
    assert short_form_of(asked) == {
        "subject": "user:dana",
        "action": "read",
        "resource": {"type": "Topic", "id": "t"},
        "groups": ["a", "b"],
        "context": {"host": "h"},
    }


@pytest.mark.parametrize("name", ["{", "{id: user:root}", '{"id": "user:root"}', "[a]", "- a", "'a'", "#", " a"])
def test_a_name_is_a_name_whatever_it_begins_with(name: str) -> None:
    """What is YAML stands in one field alone: a name that clients choose must not ask about somebody else."""
    assert short_form_of(DraftRequest(name, "", name, name)) == {"subject": name, "action": name, "resource": name}
    typed = DraftRequest(name, "", name, name, "{subject: {type: Service}, action: {properties: {a: 1}}}")
    assert short_form_of(typed)["subject"] == {"type": "Service", "id": name}
    assert short_form_of(typed)["action"] == {"properties": {"a": 1}, "name": name}


def test_the_case_file_has_the_same_answers() -> None:
    wrong = _of(ASKED, answer="deny")
    policies = DraftPolicies("lenses6", DOCUMENTS, "2026-11-21T10:00:00Z")
    file = parse_cases(read_case_yaml(policies.case_file((ASKED, wrong))))
    results = [result.passed for result in run_cases(file)][-2:]
    assert results == [policies.answer(ASKED).passed, policies.answer(wrong).passed] == [True, False]


def test_what_is_no_case_file_is_not_saved() -> None:
    with pytest.raises(CaseFileError, match="more: not YAML"):
        DraftPolicies("lenses6", DOCUMENTS).case_file((_of(ASKED, more="["),))
    with pytest.raises(CaseFileError, match="a document is a mapping"):
        DraftPolicies("lenses6", "- text\n").case_file((ASKED,))
    with pytest.raises(CaseFileError, match="moment: "):
        DraftPolicies("lenses6", DOCUMENTS, "yesterday")


def test_the_moment_is_that_of_documents_and_requests() -> None:
    bound = DOCUMENTS.replace("name: readers\nspec: {roles", 'name: readers\nvalid_until: "2026-11-21"\nspec: {roles')
    bound = bound.replace('"2026-11-21"', '"2026-11-21T00:00:00Z"')
    outcomes = [
        DraftPolicies("lenses6", bound, at).answer(ASKED).outcome
        for at in ("2026-11-20T00:00:00Z", "2026-11-22T00:00:00Z", "")
    ]
    assert outcomes == ["allow", "deny", "error"]


def test_the_detail_explains_a_deny_and_a_misspelt_name() -> None:
    detail = DraftPolicies("lenses6", DOCUMENTS).detail(_of(ASKED, subject="user:dane"))
    assert [node.held for node in detail.trees] == [False]
    assert detail.nearest[0] is not None
    assert any("user:dana" in name for name in detail.names), detail.names


@pytest.mark.parametrize("system", WRITTEN)
def test_a_draft_answers_as_the_policies_do(system: str) -> None:
    """Whatever the documents, as they are written as YAML, and the request, in the fields of a form."""
    seen = Counter[str]()

    @settings(max_examples=examples(60), deadline=None, suppress_health_check=list(HealthCheck))
    @given(documents_of(system), st.lists(requests_of(system), min_size=1, max_size=4))
    def check(documents: list[Any], requests: list[dict[str, Any]]) -> None:
        policies = DraftPolicies(system, "---\n".join(map(dump_yaml, documents)))
        snapshot = compile_documents(documents)
        for request in requests:
            if isinstance(parse_request(request), Batch) or "evaluations" in request:
                continue
            answer = policies.answer(_in_fields(request))
            seen[answer.outcome] += 1
            decision = decide(snapshot, request)
            assert answer.outcome == decision.outcome, (answer, decision)
            assert answer.message == next((reason.message for reason in decision.reasons), "")

    check()
    assert len(seen) > 1, seen


def _in_fields(request: dict[str, Any]) -> DraftRequest:
    more = copy.deepcopy({name: part for name, part in request.items() if name not in ("id", "system")})
    named = {part: more[part].pop(name) for part, name in NAMED.items()}
    return DraftRequest(named["subject"], "", named["action"], named["resource"], dump_yaml(more))
