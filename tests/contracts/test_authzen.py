"""Requests and decisions without their envelope have the shapes of the OpenID AuthZEN Authorization API 1.0."""

import json
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from tests.contracts import examples
from tests.contracts.schemas import faults

REQUEST_ENVELOPE = ("id", "system", "time", "deadline")
DECISION_ENVELOPE = ("id", "request_id", "system", "time")


def _entity(*needed: str) -> dict[str, Any]:
    """An entity of the information model: texts that it needs, and an object of properties."""
    texts = {name: {"type": "string"} for name in needed}
    return {"type": "object", "required": list(needed), "properties": {**texts, "properties": {"type": "object"}}}


# Sections 5 to 7 of the specification, closed: no other fields than it has.
FOUR = {
    "subject": _entity("type", "id"),
    "action": _entity("name"),
    "resource": _entity("type", "id"),
    "context": {"type": "object"},
}
EVALUATION = {
    "type": "object",
    "required": ["subject", "action", "resource"],
    "properties": FOUR,
    "additionalProperties": False,
}
SEMANTICS = {"enum": ["execute_all", "deny_on_first_deny", "permit_on_first_permit"]}
EVALUATIONS = {
    "type": "object",
    "required": ["evaluations"],
    "properties": {
        **FOUR,
        "evaluations": {
            "type": "array",
            "items": {"type": "object", "properties": FOUR, "additionalProperties": False},
        },
        "options": {"type": "object", "properties": {"evaluations_semantic": SEMANTICS}},
    },
    "additionalProperties": False,
}
ANSWER = {
    "type": "object",
    "required": ["decision"],
    "properties": {"decision": {"type": "boolean"}, "context": {"type": "object"}},
    "additionalProperties": False,
}
ANSWERS = {
    "type": "object",
    "required": ["evaluations"],
    "properties": {**ANSWER["properties"], "evaluations": {"type": "array", "items": ANSWER}},  # type: ignore[dict-item]
    "additionalProperties": False,
}


def _valid(shape: dict[str, Any], value: Any) -> bool:
    return bool(Draft202012Validator(shape).is_valid(value))


def _without(envelope: tuple[str, ...], record: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name not in envelope}


def test_requests_have_the_shapes_of_access_evaluation_and_access_evaluations() -> None:
    seen = {"one": 0, "several": 0}
    for request in examples.good_requests():
        asked, items = _without(REQUEST_ENVELOPE, request), request.get("evaluations", ())
        if not all(faults("request.json#/$defs/evaluation", item) == [] for item in items):
            continue  # an item that is no evaluation: AuthZEN has no such thing, and we answer it false
        assert _valid(EVALUATIONS if items else EVALUATION, asked), request
        seen["several" if items else "one"] += 1
    assert seen["one"] > 1000
    assert seen["several"] > 0


def test_decisions_have_the_shapes_of_their_answers() -> None:
    seen = set()
    for record in map(json.loads, examples.decisions()):
        several = "evaluations" in record
        assert _valid(ANSWERS if several else ANSWER, _without(DECISION_ENVELOPE, record)), record
        seen.add(several)
    assert seen == {True, False}


@pytest.mark.parametrize(
    "request_",
    [
        {
            "subject": {"type": "user", "id": "alice"},
            "action": {"name": "read"},
            "resource": {"type": "doc", "id": "1"},
        },
        {
            "subject": {"type": "user", "id": "alice", "properties": {"department": "Sales"}},
            "action": {"name": "read", "properties": {"method": "GET"}},
            "evaluations": [{"resource": {"type": "doc", "id": "1"}}, {"resource": {"type": "doc", "id": "2"}}],
            "options": {"evaluations_semantic": "deny_on_first_deny", "another": 1},
        },
    ],
)
def test_a_request_of_authzen_with_an_envelope_is_one_of_ours(request_: dict[str, Any]) -> None:
    ours = {"id": "r-1", "system": "lenses6", **request_}
    assert examples.is_request(ours)
    assert faults("request.json", ours) == []


@pytest.mark.parametrize("wrong", [{"decision": "true"}, {"context": {}}, {"decision": True, "context": []}])
def test_the_shapes_refuse_what_is_no_answer(wrong: dict[str, Any]) -> None:
    assert not _valid(ANSWER, wrong)
