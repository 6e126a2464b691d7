"""The Avro schemas hold the same fields as the JSON Schemas, and what the code reads and writes comes through them."""

import functools
import json
from collections.abc import Iterator
from typing import Any

import fastavro
import pytest

from policy.core.request import parse_request
from streaming.records.avro import Reader, Unencodable, Writer
from streaming.records.formats import JSON_ALONE
from streaming.records.schemas import KINDS, AvroSchema, Kind, avro_schema
from tests.contracts import examples
from tests.contracts.schemas import documents, faults


def _through(kind: Kind, value: bytes) -> Any:
    """A record in JSON as it comes back from Avro."""
    return json.loads(Reader(JSON_ALONE).transcode(kind, _writer(kind).encode(value)))


@functools.cache
def _writer(kind: Kind) -> Writer:
    return Writer(kind, "avro-single-object")


@pytest.mark.parametrize("kind", KINDS)
def test_every_schema_is_one_and_every_record_in_it_says_what_it_is(kind: Kind) -> None:
    schema = avro_schema(kind)
    fastavro.parse_schema(schema)
    assert schema["namespace"] == "lockkeeper.v1"
    assert schema["doc"]


def test_types_of_one_name_are_one_type_whatever_the_file() -> None:
    found: dict[str, AvroSchema] = {}
    for kind in KINDS:
        for record in _named(avro_schema(kind)):
            assert found.setdefault(record["name"], record) == record
    assert {"Subject", "Action", "Resource", "Reason"} <= found.keys()


def _named(schema: Any) -> Iterator[AvroSchema]:
    if isinstance(schema, dict) and "name" in schema and schema.get("type") in ("record", "enum"):
        yield schema
    for part in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else []:
        yield from _named(part)


@pytest.mark.parametrize("kind", KINDS)
def test_the_fields_are_those_of_the_json_schema_and_so_is_what_must_be_there(kind: Kind) -> None:
    assert list(_differences(avro_schema(kind), f"{kind}.json", documents()[f"{kind}.json"], {})) == []


def _differences(record: AvroSchema, file: str, schema: Any, known: dict[str, AvroSchema]) -> Iterator[str]:
    """Fields of a record that the object's schema lacks, and the other way round, down to the last record."""
    known[record["name"]] = record
    file, schema = _resolved(file, schema)
    fields = {field["name"]: field for field in record["fields"]}
    if fields.keys() != schema["properties"].keys():
        yield f"{record['name']}: {sorted(fields.keys() ^ schema['properties'].keys())}"
    needed = {name for name, field in fields.items() if "default" not in field}
    if needed != set(schema.get("required", ())):
        yield f"{record['name']}: needed are {sorted(needed)}, not {sorted(schema.get('required', ()))}"
    for name, field in fields.items():
        inner = _record_in(field["type"], known)
        if inner is not None:
            yield from _differences(inner, file, schema["properties"][name], known)


def _resolved(file: str, schema: Any) -> tuple[str, Any]:
    """The object's own schema, behind references, lists and what several schemas say of it together."""
    while True:
        if "$ref" in schema:
            place, _, path = schema["$ref"].partition("#/")
            file = place or file
            found = documents()[file]
            for step in path.split("/"):
                found = found[step]
            schema = {**found, **{name: part for name, part in schema.items() if name != "$ref"}}
        elif "items" in schema:
            schema = schema["items"]["anyOf"][0] if "anyOf" in schema["items"] else schema["items"]
        elif "allOf" in schema and "$ref" in schema["allOf"][0] and "why" in schema["allOf"][0]["$ref"]:
            _, why = _resolved(file, schema["allOf"][0])
            return file, {
                "properties": {**why["properties"], **schema.get("properties", {})},
                "required": [*why["required"], *schema.get("required", ())],
            }
        else:
            return file, schema


def _record_in(type_: Any, known: dict[str, AvroSchema]) -> AvroSchema | None:
    for branch in type_ if isinstance(type_, list) else [type_]:
        found = branch["items"] if isinstance(branch, dict) and branch.get("type") == "array" else branch
        if isinstance(found, dict) and found.get("type") == "record":
            return found
        if isinstance(found, str) and found in known:
            return known[found]
    return None


def test_every_request_of_the_cases_is_the_same_after_avro() -> None:
    """Word for word in what counts: times are written in another way, and what no system reads is left behind."""
    came = 0
    for asked in examples.good_requests():
        if all(faults("request.json#/$defs/evaluation", item) == [] for item in asked.get("evaluations", ())):
            back = _through("request", json.dumps(asked).encode())
            assert parse_request(back) == parse_request(asked)
            came += 1
    assert came > 1000


def test_every_decision_alert_and_change_is_the_same_after_avro() -> None:
    for record in examples.decisions():
        assert _through("decision", record) == json.loads(record)
    for record in examples.alerts():
        assert _through("alert", record) == json.loads(record)
    for record in examples.changes():
        assert _through("change", record) == json.loads(record)
    for record in examples.access_changes():
        assert _through("access-change", record) == json.loads(record)


def test_every_accepted_document_is_the_same_after_avro() -> None:
    for put in examples.documents():
        if put.rejected is None and not {"effective_at", "valid_from", "valid_until"} & put.document.keys():
            assert _through("policy-document", json.dumps(put.document).encode()) == put.document


def test_audit_events_are_the_same_after_avro() -> None:
    for event in documents()["audit-event.json"]["examples"]:
        back = _through("audit-event", json.dumps(event).encode())
        assert {**back, "time": 0} == {**event, "time": 0} if "time" in event else back == event


@pytest.mark.parametrize(
    "value",
    [{"a": 1.5, "b": [1, None, True, {"c": "ü\n\0"}], "d": 2**60, "e": {}}, {}, {"n": 1e-9, "z": "\U0001f511"}],
)
def test_free_parts_come_back_to_the_last_digit(value: Any) -> None:
    asked = {**documents()["request.json"]["examples"][0], "context": value}
    back = _through("request", json.dumps(asked).encode())
    assert json.dumps(back["context"], sort_keys=True) == json.dumps(value, sort_keys=True)


@pytest.mark.parametrize(
    "value",
    [b"", b"[]", b"{}", b'{"id": 1, "system": "x"}', b'{"id": "1", "system": "x", "time": "soon"}', b'{"id": "1"}'],
)
def test_what_is_no_request_does_not_become_avro(value: bytes) -> None:
    with pytest.raises(Unencodable, match="AccessRequest"):
        Writer("request", "avro-single-object").encode(value)
