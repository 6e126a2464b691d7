"""The JSON Schemas against what the code reads and writes: a value is valid if and only if the code takes it."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from referencing import Registry, Resource

from policy import DecisionContext
from policy.core.request import MalformedRequest
from policy.systems import all_systems
from policy.systems.streamsets.catalogue import catalogue
from streaming.alert_kinds import MONITORED, AlertKind
from streaming.records.audit import read_event
from streaming.records.avro import Reader
from streaming.records.formats import JSON_ALONE
from streaming.records.schemas import read
from streaming.settings import Limits
from tests.contracts import examples
from tests.contracts.schemas import documents, faults

ID = "https://lockkeeper.invalid/contracts/v1/"

# What the systems' rules refuse beyond the fields of a document.
BY_RULE = re.compile(r"unknown field|required; must be|must be (a list|a mapping|true|text)|must hold texts")


@pytest.mark.parametrize("name", documents())
def test_every_schema_is_one_and_its_examples_are_valid(name: str) -> None:
    schema = documents()[name]
    Draft202012Validator.check_schema(schema)
    for example in schema.get("examples", []):
        assert faults(name, example, closed=True) == []


def test_a_request_of_the_cases_is_valid_if_and_only_if_it_is_a_request() -> None:
    compared = [(bool(faults("request.json", asked)), examples.is_request(asked)) for asked in examples.requests()]
    assert all(faulty is not request for faulty, request in compared)
    assert len(compared) > 1000


GOOD: dict[str, Any] = documents()["request.json"]["examples"][0]
NO_REQUESTS: dict[str, Any] = {
    "no id": {"id": None},
    "an empty id": {"id": ""},
    "a number for an id": {"id": 1},
    "no system": {"system": None},
    "an empty system": {"system": ""},
    "no subject": {"subject": None},
    "a text for a subject": {"subject": "dana"},
    "a subject without an id": {"subject": {"type": "user"}},
    "an empty subject": {"subject": {"type": "user", "id": ""}},
    "an empty action": {"action": {"name": ""}},
    "a resource without a type": {"resource": {"id": "x"}},
    "a list for properties": {"subject": {"type": "user", "id": "x", "properties": []}},
    "a list for a context": {"context": []},
    "a word for a time": {"time": "yesterday"},
    "a time without a zone": {"time": "2026-11-21T10:00:00"},
    "a fraction for a time": {"time": 1.5},
    "a negative deadline": {"deadline": -1},
    "a deadline after the year 9999": {"deadline": 253_402_300_800_000},
    "an object for evaluations": {"evaluations": {}},
    "an empty list and no subject": {"evaluations": [], "subject": None},
    "an unknown semantic": {"evaluations": [{}], "options": {"evaluations_semantic": "execute_some"}},
}


@pytest.mark.parametrize("changes", NO_REQUESTS.values(), ids=NO_REQUESTS.keys())
def test_what_is_no_request_is_not_valid(changes: dict[str, Any]) -> None:
    """None stands for a field left out."""
    value = {name: part for name, part in {**GOOD, **changes}.items() if part is not None}
    assert not examples.is_request(value)
    assert faults("request.json", value)


@pytest.mark.parametrize("more", [{"unknown": 1}, {"evaluations": [7, {}, {"subject": 1}]}, {"evaluations": []}])
def test_unknown_fields_and_incomplete_items_are_valid_as_they_are_requests(more: dict[str, Any]) -> None:
    assert examples.is_request({**GOOD, **more})
    assert faults("request.json", {**GOOD, **more}) == []


def test_every_decision_is_valid_and_has_no_field_that_the_schema_does_not_name() -> None:
    for record in examples.decisions():
        assert faults("decision.json", json.loads(record), closed=True) == []
    outcomes = {json.loads(record)["context"]["outcome"] for record in examples.decisions()}
    assert outcomes == {"allow", "deny", "error"}
    assert any(b'"evaluations"' in record for record in examples.decisions())


def _some_decision(**changes: Any) -> dict[str, Any]:
    allowed = next(json.loads(record) for record in examples.decisions() if b'"decision":true' in record)
    context = {**allowed["context"], **changes.pop("context", {})}
    return {**allowed, "context": context, **changes}


@pytest.mark.parametrize(
    "changes",
    [
        {"decision": "true"},
        {"decision": False},
        {"time": 1_795_000_000_000},
        {"context": {"outcome": "deny"}},
        {"context": {"outcome": "perhaps"}},
        {"context": {"reasons": [{"code": "x", "message": "y"}]}},
        {"context": {"policy_offsets": {"topic": 41}}},
        {"context": {"facts_offset": -2}},
        {"context": {"source": {"topic": "t", "partition": 0}}},
        {"evaluations": []},
        {"evaluations": [{"decision": True}]},
    ],
)
def test_what_no_decision_can_be_is_not_valid(changes: dict[str, Any]) -> None:
    assert faults("decision.json", _some_decision()) == []
    assert faults("decision.json", _some_decision(**changes))


def test_the_schema_of_decisions_has_every_field_that_the_evaluator_fills() -> None:
    fields = json.loads(read("json/decision.json"))["$defs"]["why"]["properties"]
    assert fields.keys() == {*DecisionContext.__struct_fields__, "request"}


def test_every_change_is_valid_and_has_no_field_that_the_schema_does_not_name() -> None:
    for record in examples.changes():
        assert faults("change.json", json.loads(record), closed=True) == []
        assert faults("change.json", {**json.loads(record), "time": "yesterday"})
    fields = {name for record in examples.changes() for name in json.loads(record)}
    assert fields == set(json.loads(read("json/change.json"))["properties"]), "the examples have every field"


def test_every_alert_is_valid_and_has_no_field_that_the_schema_does_not_name() -> None:
    for record in examples.alerts():
        assert faults("alert.json", json.loads(record), closed=True) == []
    kinds = {json.loads(record)["kind"] for record in examples.alerts()}
    assert kinds >= {"policy-rejected", "policy-stale", *MONITORED}
    listed = json.loads(read("json/alert.json"))["properties"]["kind"]["enum"]
    assert listed == [*AlertKind], "alert.json lists the kinds of streaming/alert_kinds.py"


def test_every_access_change_is_valid_and_has_no_field_that_the_schema_does_not_name() -> None:
    for record in examples.access_changes():
        assert faults("access-change.json", json.loads(record), closed=True) == []
        assert faults("access-change.json", {**json.loads(record), "before": {"outcome": "perhaps", "statements": []}})
    fields = {name for record in examples.access_changes() for name in json.loads(record)}
    assert fields == set(json.loads(read("json/access-change.json"))["properties"]), "the examples have every field"


@pytest.mark.parametrize("changes", [{"kind": "policy-odd"}, {"severity": "HIGH"}, {"evidence": {}}, {"subject": 7}])
def test_what_no_alert_can_be_is_not_valid(changes: dict[str, Any]) -> None:
    assert faults("alert.json", {**json.loads(examples.alerts()[0]), **changes})


EVENT: dict[str, Any] = documents()["audit-event.json"]["examples"][0]


@pytest.mark.parametrize(
    "changes",
    [
        {"outcome": "done"},
        {"outcome": None},
        {"subject": None},
        {"event": "job.failed"},
        {"event": "login", "subject": None},
        {"event": "job.started", "resource": None},
        {"decision_id": 7},
    ],
)
def test_what_is_no_audit_event_is_not_valid(changes: dict[str, Any]) -> None:
    value = {name: part for name, part in {**EVENT, **changes}.items() if part is not None}
    assert faults("audit-event.json", value)
    assert not _is_event(value)


@pytest.mark.parametrize(
    "event", [*documents()["audit-event.json"]["examples"], {**EVENT, "unknown": 1, "deadline": 5, "time": 0}]
)
def test_what_is_an_audit_event_is_valid(event: dict[str, Any]) -> None:
    assert faults("audit-event.json", event) == []
    assert _is_event(event)


def _is_event(value: dict[str, Any]) -> bool:
    """Whether the code takes it for an audit event."""
    try:
        read_event(json.dumps(value).encode(), None, Limits(), Reader(JSON_ALONE))
    except MalformedRequest:
        return False
    return True


def test_every_document_that_is_accepted_is_valid() -> None:
    accepted = [put.document for put in examples.documents() if put.rejected is None]
    for document in accepted:
        assert faults("policy-document.json", document) == [], document
    assert {(one["system"], one["kind"]) for one in accepted} == _kinds()


def test_every_document_that_is_refused_for_its_fields_is_not_valid() -> None:
    refused = [put for put in examples.documents() if put.rejected and BY_RULE.search(" ".join(put.rejected.errors))]
    for put in refused:
        assert faults("policy-document.json", put.document), put
    assert len(refused) > 20


def _kinds() -> set[tuple[str, str]]:
    return {(name, kind) for name, system in all_systems().items() for kind in system.kinds}


def test_every_kind_has_its_fields_and_no_other_kind_has() -> None:
    named = {ref["$ref"].rpartition("/")[2] for ref in documents()["policy-document.json"]["oneOf"]}
    assert named == {f"{system}.{kind}" for system, kind in _kinds()}


def test_objects_have_the_types_and_fields_that_the_code_knows() -> None:
    spec = documents()["policy-document.json"]["$defs"]["streamsets.Object"]["properties"]["spec"]
    by_type = {part["if"]["properties"]["type"]["const"]: set(part["then"]["properties"]) for part in spec["allOf"]}
    types = catalogue().types.items()
    known = {name: {*type_.one, *type_.many, *type_.lists, *type_.texts, *type_.flags} for name, type_ in types}
    assert spec["properties"]["type"]["enum"] == sorted(known)
    assert by_type == {name: fields for name, fields in known.items() if fields}


ROLE: dict[str, Any] = {
    "system": "lenses6",
    "kind": "Role",
    "name": "r",
    "spec": {"statements": [{"effect": "allow", "action": "*", "resource": ["*"], "sid": 1}], "metadata": {}},
}


def _role(**changes: Any) -> dict[str, Any]:
    statement = {**ROLE["spec"]["statements"][0], **changes}
    return {**ROLE, "spec": {"statements": [statement]}}


@pytest.mark.parametrize(
    "document",
    [
        {**ROLE, "specs": {}},
        {**ROLE, "system": "lenses7"},
        {**ROLE, "kind": "role"},
        {**ROLE, "name": ""},
        {**ROLE, "spec": []},
        {**ROLE, "valid_from": "soon"},
        {**ROLE, "spec": {"statements": [], "statement": []}},
        _role(effekt="deny"),
        _role(effect="Allow"),
        _role(action=[]),
        _role(resource=""),
        {"system": "streamsets", "kind": "Organization", "name": "o", "spec": {"enforcment": True}},
        {"system": "streamsets", "kind": "Object", "name": "job:j", "spec": {"type": "job", "owner": "x", "jobs": []}},
        {"system": "ververica", "kind": "Authentication", "name": "a", "spec": {"oidc": {"clientSecret": "s"}}},
    ],
)
def test_a_document_with_a_field_that_is_unknown_or_of_a_wrong_form_is_not_valid(document: dict[str, Any]) -> None:
    assert faults("policy-document.json", ROLE) == []
    assert faults("policy-document.json", document)


def test_on_a_topic_a_document_does_not_say_from_when_it_counts() -> None:
    dated = {**ROLE, "effective_at": 0}
    assert faults("policy-document.json", dated) == []
    assert faults("policy-document.json#/$defs/published", ROLE) == []
    assert faults("policy-document.json#/$defs/published", dated)


def test_the_schemas_are_files_of_their_own_that_need_no_other_place() -> None:
    """References lead to files beside them: a folder with all of them is complete."""
    refs = {ref for schema in documents().values() for ref in _refs(schema)}
    assert {ref.partition("#")[0] for ref in refs} <= {"", *documents()}
    assert not any(Path(ref).is_absolute() or "://" in ref for ref in refs)


def test_every_schema_has_an_id_by_which_validators_find_it_and_it_the_others() -> None:
    """`.invalid` is nobody's (RFC 6761): a validator without the files fails, and fetches no schema from elsewhere."""
    schemas = documents()
    assert {name: schema.get("$id") for name, schema in schemas.items()} == {name: ID + name for name in schemas}
    registry = Registry().with_resources((one["$id"], Resource.from_contents(one)) for one in schemas.values())
    for name, schema in schemas.items():
        asked = Draft202012Validator({"$ref": schema["$id"]}, registry=registry)
        assert [list(asked.iter_errors(example)) for example in schema.get("examples", [])] == [
            [] for _ in schema.get("examples", [])
        ], name
    assert list(Draft202012Validator({"$ref": f"{ID}request.json"}, registry=registry).iter_errors({"id": ""}))


def test_the_schemas_of_a_release_stay_as_they_were() -> None:
    """The first had no ids."""
    assert all("$id" not in schema for schema in documents("0.1.0").values())


def _refs(schema: Any) -> list[str]:
    parts = schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else []
    own = [schema["$ref"]] if isinstance(schema, dict) and isinstance(schema.get("$ref"), str) else []
    return own + [ref for part in parts for ref in _refs(part)]
