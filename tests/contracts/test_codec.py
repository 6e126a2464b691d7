"""Avro at the edges: the two encodings byte for byte, schemas that others wrote, and bytes that mean harm."""

import copy
import io
import json
import random
from collections.abc import Callable
from typing import Any

import fastavro
import pytest

from policy import Batch, parse_request
from streaming.records.avro import (
    CONFLUENT,
    SINGLE_OBJECT,
    Reader,
    Undecodable,
    Writer,
    is_avro,
    print_of,
)
from streaming.records.avro_written import Unreadable, check_written, parse_written
from streaming.records.formats import JSON_ALONE, Formats
from streaming.records.schemas import AvroSchema, avro_schema

ASKED: dict[str, Any] = {
    "id": "r-1",
    "system": "lenses6",
    "subject": {"type": "user", "id": "user:dana", "properties": {"groups": ["readers"]}},
    "action": {"name": "kafka:GetTopicDetails"},
    "resource": {"type": "lrn", "id": "kafka:topic:prod/main/orders"},
}
SCHEMA_ID = 7
AT = 1_795_000_000_123


def _single_object(asked: dict[str, Any] = ASKED) -> bytes:
    return Writer("request", "avro-single-object").encode(json.dumps(asked).encode())


def _datum(**changes: Any) -> dict[str, Any]:
    """The request as a writer of the schema in force holds it."""
    parts = {name: {**ASKED[name], "properties": None} for name in ("subject", "action", "resource")}
    return {**ASKED, **parts, **changes}


def _written(schema: AvroSchema, datum: dict[str, Any]) -> bytes:
    """A record in the Confluent wire format, by the library alone."""
    stream = io.BytesIO()
    stream.write(CONFLUENT + SCHEMA_ID.to_bytes(4))
    fastavro.schemaless_writer(stream, schema, datum)
    return stream.getvalue()


def _read(value: bytes, schema: AvroSchema | None = None) -> Any:
    known = {} if schema is None else {SCHEMA_ID: (json.dumps(schema),)}
    return json.loads(Reader(Formats(registry=True, known=known)).transcode("request", value))


def test_a_fingerprint_is_that_of_the_specification_in_little_endian() -> None:
    """CRC-64-AVRO of the schema "int" is 0x7275d51a3f395c8f in Avro's own tests."""
    assert print_of("int").hex() == "8f5c393f1ad57572"  # type: ignore[arg-type]


def test_single_object_encoding_is_mark_fingerprint_and_data() -> None:
    value, schema = _single_object(), fastavro.parse_schema(avro_schema("request"))
    assert value[:2] == b"\xc3\x01"
    assert value[2:10] == print_of(schema)
    datum = fastavro.schemaless_reader(io.BytesIO(value[10:]), schema, None)
    assert datum["subject"] == {"type": "user", "id": "user:dana", "properties": '{"groups":["readers"]}'}
    assert _read(value) == ASKED


def test_the_confluent_wire_format_is_zero_id_and_data() -> None:
    value = Writer("request", "avro-confluent", SCHEMA_ID).encode(json.dumps(ASKED).encode())
    assert value[:5] == b"\x00\x00\x00\x00\x07"
    assert value[5:] == _single_object()[10:]
    assert _read(value, avro_schema("request")) == ASKED


@pytest.mark.parametrize(("value", "is_it"), [(b"", False), (b"{}", False), (b"\xc3", False), (b"\xc3\x01", True)])
def test_the_first_bytes_tell_the_encoding(value: bytes, is_it: bool) -> None:
    assert is_avro(value) is is_it


def _changed(change: Callable[[dict[str, AvroSchema]], Any]) -> AvroSchema:
    """The schema of requests after a change of its fields."""
    schema = copy.deepcopy(avro_schema("request"))
    fields = {field["name"]: field for field in schema["fields"]}
    change(fields)
    return {**schema, "fields": list(fields.values())}


def _with_field(name: str, type_: Any) -> AvroSchema:
    return _changed(lambda fields: fields.update({name: {"name": name, "type": type_}}))


def test_a_schema_with_more_fields_is_read_and_they_are_left_behind() -> None:
    schema = _with_field("tenant", "string")
    assert "tenant" not in _read(_written(schema, _datum(tenant="x")), schema)


def _renamed(path: str, name: str) -> AvroSchema:
    """The schema of requests with another name for a field, given by those of the records it is in."""
    schema = copy.deepcopy(avro_schema("request"))
    record, *steps = schema, *path.split(".")
    for step in steps[:-1]:
        type_ = next(field["type"] for field in record["fields"] if field["name"] == step)[1]
        record = type_.get("items", type_)
    next(field for field in record["fields"] if field["name"] == steps[-1])["name"] = name
    return schema


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("deadline", "Deadline"),
        ("context", "CONTEXT"),
        ("evaluations", "Evaluations"),
        ("subject.properties", "Properties"),
        ("resource.properties", "pRoperties"),
        ("evaluations.context", "Context"),
        ("options.evaluations_semantic", "Evaluations_Semantic"),
    ],
)
def test_a_schema_whose_names_differ_from_those_of_requests_in_case_alone_is_refused(path: str, name: str) -> None:
    """As JSON is: without its deadline or context a request would be allowed that must not be."""
    schema = _renamed(path, name)
    with pytest.raises(Unreadable, match=f"{name}: some readers ignore case"):
        check_written(("request", "audit-event"), (json.dumps(schema),))
    with pytest.raises(Undecodable, match=f"{name}: some readers ignore case"):
        _read(CONFLUENT + SCHEMA_ID.to_bytes(4), schema)


ITEMS = {
    "none": {},
    "null": {"system": None, "deadline": None},
    "the batch's": {"system": "lenses6", "deadline": AT},
    "another system": {"system": "streamsets"},
    "another deadline": {"deadline": AT - 1},
}


@pytest.mark.parametrize("unit", [1, 1000])
@pytest.mark.parametrize("extra", ITEMS.values(), ids=ITEMS)
def test_an_item_that_names_a_system_or_deadline_is_decided_as_in_json(extra: dict[str, Any], unit: int) -> None:
    """Without them it could be allowed by another system's policies, or too late."""
    moment = {"type": "long", "logicalType": "timestamp-millis" if unit == 1 else "timestamp-micros"}

    def add(fields: dict[str, AvroSchema]) -> None:
        item = fields["evaluations"]["type"][1]["items"]
        types = {"system": "string", "deadline": moment}
        item["fields"] += [{"name": name, "type": ["null", type_], "default": None} for name, type_ in types.items()]
        fields["deadline"]["type"] = ["null", moment]

    schema = _changed(add)
    in_avro = {name: value * unit if isinstance(value, int) else value for name, value in extra.items()}
    empty = {"subject": None, "action": None, "resource": None, "context": None}
    read = _read(_written(schema, _datum(deadline=AT * unit, evaluations=[{**empty, **in_avro}, empty])), schema)
    as_json = parse_request({**ASKED, "deadline": AT, "evaluations": [extra, {}]})
    from_avro = parse_request(read)
    assert isinstance(as_json, Batch)
    assert isinstance(from_avro, Batch)
    assert list(map(type, from_avro.items)) == list(map(type, as_json.items))


def test_a_schema_whose_items_have_evaluations_of_their_own_is_refused() -> None:
    def nest(fields: dict[str, AvroSchema]) -> None:
        fields["evaluations"]["type"][1]["items"]["fields"].append(
            {"name": "evaluations", "type": {"type": "array", "items": "string"}}
        )

    with pytest.raises(Unreadable, match="an item has none of its own"):
        check_written(("request",), (json.dumps(_changed(nest)),))


def test_names_are_compared_in_each_type_that_an_item_may_have() -> None:
    def add_second_item_type(fields: dict[str, AvroSchema]) -> None:
        array = fields["evaluations"]["type"][1]
        context = {"name": "Context", "type": "string"}
        array["items"] = [{"type": "record", "name": "Other", "fields": [context]}, array["items"]]

    with pytest.raises(Unreadable, match="Context: some readers ignore case"):
        check_written(("request",), (json.dumps(_changed(add_second_item_type)),))


@pytest.mark.parametrize(("name", "part"), [("subject", "subject."), ("evaluations", "")])
def test_names_are_compared_in_each_type_of_a_union(name: str, part: str) -> None:
    def add_union_branches(fields: dict[str, AvroSchema]) -> None:
        context = {"name": "Context", "type": "string"} if name == "evaluations" else {"name": "ID", "type": "string"}
        record = {"type": "record", "name": "Other", "fields": [context]}
        array = {"type": "array", "items": {**record, "name": "Item"}}
        fields[name]["type"] = [record, array]

    schema = _changed(add_union_branches)
    schema["fields"] = [field for field in schema["fields"] if field["name"] in ("id", "system", name)]
    with pytest.raises(Unreadable, match=f"{part}.*some readers ignore case"):
        check_written(("request",), (json.dumps(schema),))


def test_the_names_of_types_that_use_each_other_twice_are_compared_at_once() -> None:
    type_: Any = "string"
    for depth in range(40):
        first = {"name": "a", "type": type_}
        second = {"name": "b", "type": f"T{depth - 1}" if depth else "string"}
        type_ = {"type": "record", "name": f"T{depth}", "fields": [first, second]}
    check_written(("request",), (json.dumps(_with_field("nested", type_)),))


def test_a_schema_in_another_order_and_namespace_is_read() -> None:
    """Without evaluations, which refer to types that the fields after it would then define."""
    own = avro_schema("request")
    fields = [field for field in reversed(own["fields"]) if field["name"] != "evaluations"]
    schema = {**own, "namespace": "com.example", "fields": fields}
    assert _read(_written(schema, _datum()), schema) == {**ASKED, "subject": {"type": "user", "id": "user:dana"}}


def test_a_schema_without_fields_that_have_defaults_is_read() -> None:
    def leave_out(fields: dict[str, AvroSchema]) -> None:
        for name in ("time", "deadline", "context", "evaluations", "options"):
            del fields[name]

    schema = _changed(leave_out)
    assert _read(_written(schema, _datum()), schema)["resource"]["id"] == ASKED["resource"]["id"]


def test_a_schema_without_a_field_that_is_needed_is_refused() -> None:
    schema = _changed(lambda fields: fields.pop("system"))
    with pytest.raises(Undecodable, match="system"):
        _read(_written(schema, _datum()), schema)


def test_logical_types_do_no_harm_ours_or_those_of_others() -> None:
    schema = _changed(lambda fields: fields["id"].update(type={"type": "string", "logicalType": "uuid"}))
    read = _read(_written(schema, _datum(id="12345678-1234-5678-1234-567812345678", time=AT)), schema)
    assert read["id"] == "12345678-1234-5678-1234-567812345678"
    assert read["time"] == "2026-11-18T11:06:40.123Z"


def test_types_may_be_defined_by_a_schema_of_their_own() -> None:
    subject = avro_schema("request")["fields"][2]["type"][1]
    main = _changed(lambda fields: fields["subject"].update(type=["null", "lockkeeper.v1.Subject"]))
    main["fields"] = [field for field in main["fields"] if field["name"] != "evaluations"]
    texts = (json.dumps({**subject, "namespace": "lockkeeper.v1"}), json.dumps(main))
    reader = Reader(Formats(registry=True, known={SCHEMA_ID: texts}))
    value = _written(parse_written(texts, "AccessRequest"), _datum())
    assert json.loads(reader.transcode("request", value))["subject"]["id"] == "user:dana"


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (SINGLE_OBJECT + bytes(8) + b"x", "fingerprint 0000000000000000.*avro/request.avsc"),
        (SINGLE_OBJECT, "fingerprint"),
        (CONFLUENT + b"\x00\x00\x07", "4 bytes"),
        (CONFLUENT + SCHEMA_ID.to_bytes(4), r"set schema_registry\.url"),
    ],
)
def test_what_cannot_be_read_without_a_registry_says_what_to_do(value: bytes, says: str) -> None:
    with pytest.raises(Undecodable, match=says):
        Reader(JSON_ALONE).transcode("request", value)


def test_a_decision_is_no_request() -> None:
    """Its fingerprint is known, but not for this topic."""
    print_ = print_of(fastavro.parse_schema(avro_schema("decision")))
    with pytest.raises(Undecodable, match="for this topic"):
        Reader(JSON_ALONE).transcode("request", SINGLE_OBJECT + print_ + b"x")


def test_an_id_that_nobody_asked_for_is_needed_and_one_of_no_use_says_why() -> None:
    reader = Reader(Formats(registry=True, unusable={8: "there is none"}))
    with pytest.raises(Undecodable, match="not asked for yet"):
        reader.transcode("request", CONFLUENT + SCHEMA_ID.to_bytes(4) + b"x")
    with pytest.raises(Undecodable, match="8 cannot be read by: there is none"):
        reader.transcode("request", CONFLUENT + (8).to_bytes(4) + b"x")
    with pytest.raises(Undecodable, match="as large as 4294967295"):
        reader.transcode("request", CONFLUENT + b"\xff\xff\xff\xff" + b"x")
    assert reader.needed == {SCHEMA_ID}


@pytest.mark.parametrize("text", ["", "{", '{}},"system":{"a":1', "{} {}", '{"a":"\0"}', "nul", "[" * 100_000])
def test_text_that_is_not_one_json_value_is_refused(text: str) -> None:
    """Else it could close the object that it stands in and add fields of its own."""
    with pytest.raises(Undecodable):
        _read(_written(avro_schema("request"), _datum(context=text)), avro_schema("request"))


@pytest.mark.parametrize("time", [-1, 253_402_300_800_000, 2**63 - 1])
def test_a_moment_that_is_none_is_refused(time: int) -> None:
    with pytest.raises(Undecodable):
        _read(_written(avro_schema("request"), _datum(time=time)), avro_schema("request"))


def test_bytes_after_the_record_are_refused() -> None:
    with pytest.raises(Undecodable, match="1 bytes follow"):
        _read(_single_object() + b"\0")


def test_whatever_the_bytes_are_they_are_a_request_or_refused() -> None:
    """Cut short, and with bytes changed at random: never another error, and always JSON."""
    dice, whole = random.Random(1), _single_object({**ASKED, "evaluations": [{"context": {"a": 1}}, {}]})
    for end in range(10, len(whole)):
        with pytest.raises(Undecodable):
            _read(whole[:end])
    for _ in range(3000):
        broken = bytearray(whole)
        for _ in range(dice.randint(1, 4)):
            broken[dice.randrange(10, len(whole))] = dice.randrange(256)
        try:
            assert isinstance(_read(bytes(broken)), dict)
        except Undecodable:
            continue


NODE = {"type": "record", "name": "Node", "fields": [{"name": "next", "type": ["null", "Node"]}]}
EMPTY = {"type": "record", "name": "Empty", "fields": [{"name": "n", "type": "null"}]}


@pytest.mark.parametrize(
    ("type_", "says"),
    [
        ({"type": "array", "items": "null"}, "take no bytes"),
        ({"type": "map", "values": {"type": "array", "items": ["null", EMPTY]}}, "Empty takes no bytes"),
        ({"type": "array", "items": {"type": "fixed", "name": "None", "size": 0}}, "take no bytes"),
        (NODE, "Node holds itself"),
        (["null", {"type": "array", "items": NODE}], "Node holds itself"),
    ],
)
def test_a_schema_by_which_few_bytes_are_endless_work_is_refused(type_: Any, says: str) -> None:
    with pytest.raises(Unreadable, match=says):
        parse_written((json.dumps(_with_field("more", type_)),), "AccessRequest")


@pytest.mark.parametrize("text", ["", "[]", '"string"', "7", '{"type": "enum"}', "[" * 100_000, '{"type":"record"}'])
def test_a_schema_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(Unreadable):
        parse_written((text,), "AccessRequest")


def test_a_schema_that_has_a_field_twice_is_refused() -> None:
    """Avro's own library refuses it, and fastavro takes the last: the subject of a request would be another."""
    schema = avro_schema("request")
    twice = {**schema, "fields": [*schema["fields"], {"name": "id", "type": "string"}]}
    with pytest.raises(Unreadable, match="AccessRequest has a field twice"):
        parse_written((json.dumps(twice),), "AccessRequest")


def test_a_schema_of_another_record_is_refused_and_named() -> None:
    with pytest.raises(Unreadable, match="a record Decision, not AccessRequest or AuditEvent"):
        parse_written((json.dumps(avro_schema("decision")),), "AccessRequest", "AuditEvent")


def _moments_as(type_: Any) -> AvroSchema:
    return _changed(lambda fields: fields.update(time={"name": "time", "type": type_}))


@pytest.mark.parametrize(
    ("type_", "written"),
    [
        ({"type": "long", "logicalType": "timestamp-millis"}, AT),
        ({"type": "long", "logicalType": "timestamp-micros"}, AT * 1_000 + 999),
        ({"type": "long", "logicalType": "timestamp-nanos"}, AT * 1_000_000 + 999_999),
        (["null", {"type": "long", "logicalType": "timestamp-micros"}], AT * 1_000),
        ("long", AT),
    ],
)
def test_a_moment_has_the_unit_that_its_writer_says(type_: Any, written: int) -> None:
    """The numbers as they stand in the record, whatever the library makes of them."""
    schema = _moments_as(type_)
    value = _written(parse_written((json.dumps(schema),), "AccessRequest"), _datum(time=written))
    assert _read(value, schema)["time"] == "2026-11-18T11:06:40.123Z"


@pytest.mark.parametrize(
    ("base", "logical"),
    [
        ("int", "date"),
        ("int", "time-millis"),
        ("long", "time-micros"),
        ("long", "local-timestamp-millis"),
        ("long", "local-timestamp-micros"),
        ("bytes", "decimal"),
        ("long", "seconds"),
    ],
)
def test_what_is_no_moment_by_its_writers_schema_is_refused(base: str, logical: str) -> None:
    """In a union, too; and where the job learns a schema, it notes why no record of it can be read."""
    for type_ in (part := {"type": base, "logicalType": logical}, ["null", part]):
        schema = _moments_as(type_)
        with pytest.raises(Unreadable, match=f"field time has the logical type {logical}, which is no moment"):
            check_written(["audit-event", "request"], (json.dumps(schema),))
        with pytest.raises(Undecodable, match=f"logical type {logical}, which is no moment"):
            _read(CONFLUENT + SCHEMA_ID.to_bytes(4), schema)


def test_units_that_differ_within_a_field_are_refused() -> None:
    schema = _moments_as(["int", {"type": "long", "logicalType": "timestamp-micros"}])
    with pytest.raises(Unreadable, match="field time has moments in several units"):
        check_written(["request"], (json.dumps(schema),))


def test_the_unit_of_a_nested_moment_and_of_a_type_of_its_own_counts() -> None:
    answered = next(field for field in avro_schema("request")["fields"] if field["name"] == "answered")["type"][1]
    micros = {"type": "long", "logicalType": "timestamp-micros"}
    fields = [{**field, "type": micros} if field["name"] == "time" else field for field in answered["fields"]]
    own = {**answered, "fields": fields, "namespace": "lockkeeper.v1"}
    schema = _changed(lambda changed: changed["answered"].update(type=["null", "lockkeeper.v1.Answered"]))
    texts = (json.dumps(own), json.dumps(schema))
    freshness = {"kind": "full", "age_ms": 1, "max_ms": 1}
    answer = {"by": "a", "time": AT * 1000, "decision": False, "outcome": "deny", "policy_version": "v"}
    datum = _datum(answered={**answer, "policy_offsets": {}, "facts_offset": 1, "freshness": freshness})
    reader = Reader(Formats(registry=True, known={SCHEMA_ID: texts}))
    read = json.loads(reader.transcode("request", _written(parse_written(texts, "AccessRequest"), datum)))
    assert read["answered"]["time"] == "2026-11-18T11:06:40.123Z"


def test_a_number_in_seconds_is_refused_in_avro_too() -> None:
    with pytest.raises(Undecodable, match=r"1798711200 may be .* in seconds"):
        _read(_written(avro_schema("request"), _datum(time=1_798_711_200)), avro_schema("request"))


@pytest.mark.parametrize(
    "kind", ["request", "audit-event", "decision", "alert", "change", "access-change", "policy-document"]
)
def test_no_named_type_with_a_moment_is_used_twice(kind: Any) -> None:
    """Else the unit of its first use would be that of all."""

    def names(schema: Any) -> Any:
        if isinstance(schema, str):
            yield schema
        elif isinstance(schema, list):
            for part in schema:
                yield from names(part)
        else:
            for part in ("items", "values"):
                yield from names(schema.get(part, []))
            for field in schema.get("fields", ()):
                yield from names(field["type"])

    schema = avro_schema(kind)
    text, again = json.dumps(schema), set(names(schema))
    for definition in _definitions(schema):
        assert definition["name"] not in again or "timestamp" not in json.dumps(definition), text


def _definitions(schema: Any) -> Any:
    if isinstance(schema, list):
        for part in schema:
            yield from _definitions(part)
    elif isinstance(schema, dict):
        if "name" in schema and "type" in schema and schema["type"] in ("record", "enum", "fixed"):
            yield schema
        for part in ("type", "items", "values", "fields"):
            yield from _definitions(schema.get(part, []))
