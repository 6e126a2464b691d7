"""Avro records in and out, one function for every kind of record: JSON is what all else works on.

Single-object encoding: C3 01, the schema's CRC-64-AVRO fingerprint (little-endian), the data. Confluent's wire format:
00, the schema's id in the registry (big-endian), the data. No JSON begins with either.
"""

import functools
import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import fastavro
import msgspec
from fastavro.schema import fingerprint, to_parsing_canonical_form

from policy import check_letter_case, to_ms, to_text, unique_members
from streaming.records.avro_moments import PER_MS, WRITTEN, NoMoment, with_written_units
from streaming.records.formats import Formats
from streaming.records.schemas import AvroSchema, Kind, avro_schema, names, releases
from streaming.settings import Encoding

SINGLE_OBJECT = b"\xc3\x01"
CONFLUENT = b"\x00"
FINGERPRINT_END = len(SINGLE_OBJECT) + 8
ID_END = len(CONFLUENT) + 4
LARGEST_ID = 2**31 - 1
MARKS = (SINGLE_OBJECT, CONFLUENT)
SCHEMAS_PARSED = 256

_encode = msgspec.json.encode
_decode = msgspec.json.decode

Decode = Callable[[bytes, int], bytes]
"""From a record and where its data begins to JSON."""


class Undecodable(Exception):
    """A record is no Avro that can be read; the message says why, and what would fix it."""


class UnknownSchema(Undecodable):
    """The same of a record by a schema that is not known here: another release, or the registry later, may know it."""


class Unencodable(Exception):
    """A record in JSON does not fit its Avro schema; the message says where."""


def is_avro(value: bytes) -> bool:
    """Whether a record says it is Avro, by its first bytes."""
    return value.startswith(MARKS)


class Reader:
    """Makes JSON of Avro records.

    `needed`: ids of schemas that it met and that were not looked up in the registry yet. Whatever was read while
    there are any must be thrown away, and be read once more when they are known.
    """

    def __init__(self, formats: Formats) -> None:
        self._formats = formats
        self.needed = set[int]()

    def transcode(self, kind: Kind, value: bytes) -> bytes:
        """The record as JSON, whichever schema it was written by; raises Undecodable."""
        if value.startswith(SINGLE_OBJECT):
            return self._by_fingerprint(kind, value[len(SINGLE_OBJECT) : FINGERPRINT_END])(value, FINGERPRINT_END)
        return self._by_id(kind, value)(value, ID_END)

    def _by_fingerprint(self, kind: Kind, print_: bytes) -> Decode:
        if len(print_) < FINGERPRINT_END - len(SINGLE_OBJECT):
            raise Undecodable("Avro in single-object encoding has a fingerprint of 8 bytes; this ends before")
        decode = _own_decoders(kind).get(print_)
        if decode is None:
            raise UnknownSchema(
                f"no release knows the Avro schema with fingerprint {print_[::-1].hex()} for this topic; write by that "
                f"of `lockkeeper contracts avro/{kind}.avsc`, or in the Confluent wire format with a schema registry"
            )
        return decode

    def _by_id(self, kind: Kind, value: bytes) -> Decode:
        id_, formats = int.from_bytes(value[len(CONFLUENT) : ID_END]), self._formats
        if len(value) < ID_END:
            raise Undecodable("Avro in the Confluent wire format has a schema id of 4 bytes; this ends before")
        if id_ > LARGEST_ID:
            raise Undecodable(f"no schema registry has an id as large as {id_}")
        if not formats.registry:
            raise UnknownSchema(
                f"Avro in the Confluent wire format (schema id {id_}) needs a schema registry: "
                "set schema_registry.url, or send JSON or Avro in single-object encoding"
            )
        if id_ in formats.unusable:
            raise Undecodable(f"the Avro schema with id {id_} cannot be read by: {formats.unusable[id_]}")
        if id_ not in formats.known:
            self.needed.add(id_)
            raise UnknownSchema(f"the Avro schema with id {id_} was not asked for yet")
        return _written_decoder(kind, formats.known[id_])


class Writer:
    """Makes records in an encoding of records in JSON. `id_`: of our schema in the registry, for `avro-confluent`."""

    def __init__(self, kind: Kind, encoding: Encoding, id_: int = 0) -> None:
        self._schema, contract = _own_schema(kind), avro_schema(kind)
        self._convert: Any = _Writing(contract["namespace"]).of(contract)
        self._begin = (
            CONFLUENT + id_.to_bytes(4) if encoding == "avro-confluent" else SINGLE_OBJECT + print_of(self._schema)
        )

    def encode(self, value: bytes) -> bytes:
        """A record in JSON as Avro; raises Unencodable."""
        stream = io.BytesIO()
        stream.write(self._begin)
        try:
            fastavro.schemaless_writer(stream, self._schema, self._convert(_decode(value)))
        except Exception as error:  # the writer has one of its own for every way not to fit
            raise Unencodable(f"not a record {self._schema['name']}: {error}") from error
        return stream.getvalue()


def print_of(schema: AvroSchema) -> bytes:
    """A schema's CRC-64-AVRO fingerprint, little-endian, as it stands in single-object encoding."""
    return bytes.fromhex(fingerprint(to_parsing_canonical_form(schema), "CRC-64-AVRO"))


@functools.cache
def _own_schema(kind: Kind, release: str = "", in_pairs: bool = False) -> AvroSchema:
    """`in_pairs`: to read by, see `with_pairs`."""
    plain = bare(avro_schema(kind, release))
    schema = fastavro.parse_schema(with_pairs(plain) if in_pairs else plain, {})
    assert isinstance(schema, dict), "every kind is a record"
    return schema


@functools.cache
def _own_decoders(kind: Kind) -> dict[bytes, Decode]:
    """By the fingerprints of the schema in force and those of every release that had the kind."""
    files = names()
    with_kind = [release for release in releases() if f"released/{release}/avro/{kind}.avsc" in files]
    prints = {print_of(_own_schema(kind, release)): release for release in (*reversed(with_kind), "")}
    return {print_: _decoder(kind, _own_schema(kind, release, in_pairs=True)) for print_, release in prints.items()}


@functools.lru_cache(maxsize=SCHEMAS_PARSED)
def _written_decoder(kind: Kind, texts: tuple[str, ...]) -> Decode:
    """By a schema from the registry; raises Undecodable."""
    try:
        contract, named = avro_schema(kind), dict[str, AvroSchema]()
        units = _with_units(contract, parse_written(texts, contract["name"], named=named), named)
        return _decoder(kind, parse_written(texts, contract["name"], in_pairs=True), units)
    except Unreadable as error:
        raise Undecodable(f"the Avro schema cannot be read by: {error}") from error


def check_written(kinds: Iterable[Kind], texts: tuple[str, ...]) -> None:
    """Raise Unreadable unless a schema from the registry is one of these kinds of records."""
    contracts, named = {(contract := avro_schema(kind))["name"]: contract for kind in kinds}, dict[str, AvroSchema]()
    writer = parse_written(texts, *contracts, named=named)
    _with_units(contracts[writer["name"].rpartition(".")[2]], writer, named)


def _with_units(contract: AvroSchema, writer: AvroSchema, named: Mapping[str, AvroSchema]) -> AvroSchema:
    """The contract with the units of the writer's moments. Raises Unreadable."""
    try:
        # Of JSON too: schema resolution would drop the writer's `Deadline` as a field that the contract does not have.
        members = _MemberNames(named).of(writer)
        check_letter_case(members, frozenset(field["name"] for field in contract["fields"]))
        schema: AvroSchema = with_written_units(_with_batch_fields(contract, members), writer, named)
    except (NoMoment, ValueError) as error:
        raise Unreadable(str(error)) from error
    return schema


def _with_batch_fields(contract: AvroSchema, members: Mapping[str, Any]) -> AvroSchema:
    """The contract with what items of a batch may repeat of it, for a writer that has it: it is compared, as in JSON.

    `members`: see `_MemberNames`. Raises ValueError for items that have evaluations of their own.
    """
    fields = {field["name"]: field for field in contract["fields"]}
    items_members = members.get("evaluations")
    if "deadline" not in fields or not isinstance(items_members, list):  # not a request, or no batch
        return contract
    written = {name for item in items_members if isinstance(item, dict) for name in item}
    if "evaluations" in written:
        raise ValueError("its field evaluations.evaluations: an item has none of its own: list them in the batch")
    repeated = [
        {"name": "system", "type": ["null", "string"], "default": None},
        {"name": "deadline", "type": fields["deadline"]["type"], "default": None},
    ]
    null, items = fields["evaluations"]["type"]
    record = items["items"]
    item = {**record, "fields": [*record["fields"], *(field for field in repeated if field["name"] in written)]}
    evaluations = {**fields["evaluations"], "type": [null, {**items, "items": item}]}
    return {**contract, "fields": list({**fields, "evaluations": evaluations}.values())}


class _MemberNames:
    """Values with all names of members that values of a schema may have. `named`: every named type by its full name."""

    def __init__(self, named: Mapping[str, AvroSchema]) -> None:
        self._named, self._seen = named, dict[str, Any]()  # else types that use others twice would double each time

    def of(self, schema: Any, is_array: bool = False) -> Any:
        """A mapping, an array of one for each type of its items, or None, where they have no names.

        `is_array`: which of both it is of a union that has both.
        """
        if isinstance(schema, list):
            branches = [self.of(branch) for branch in schema]
            if is_array:
                return next((value for value in branches if isinstance(value, list)), None)
            mappings = (value for value in branches if isinstance(value, dict))
            return {name: members for value in mappings for name, members in value.items()}
        if isinstance(schema, str):
            return self._of_named(schema) if schema in self._named else None
        if schema["type"] == "array":
            items = schema["items"]
            return [self.of(item) for item in (items if isinstance(items, list) else [items])]
        if schema["type"] in ("record", "error"):
            return self._of_named(schema["name"])
        return None if isinstance(schema["type"], str) else self.of(schema["type"], is_array)

    def _of_named(self, name: str) -> Any:
        if name not in self._seen:
            fields = {field["name"]: field["type"] for field in self._named[name].get("fields", ())}
            self._seen[name] = {field: self.of(type_, field == "evaluations") for field, type_ in fields.items()}
        return self._seen[name]


def _decoder(kind: Kind, writer: AvroSchema, contract: AvroSchema | None = None) -> Decode:
    """Reads by the schema in force what was written by another, as Avro's schema resolution has it.

    `writer`: with pairs. `contract`: the schema in force with the units of the writer's moments; None: its own.
    """
    own: Any = _own_schema(kind, in_pairs=True)
    if contract is not None:
        own = fastavro.parse_schema(with_pairs(bare(contract)), {})
    convert = _Reading().of(contract or avro_schema(kind))
    reader = None if to_parsing_canonical_form(writer) == to_parsing_canonical_form(own) else own
    assert convert is not None, "every kind is a record"

    def decode(value: bytes, begin: int) -> bytes:
        stream = io.BytesIO(value)
        stream.seek(begin)
        try:
            encoded = _encode(convert(fastavro.schemaless_reader(stream, writer, reader)))
            if stream.tell() != len(value):
                raise ValueError(f"{len(value) - stream.tell()} bytes follow the record")
        except Exception as error:  # the reader has one of its own for every way of being broken
            raise Undecodable(_why(own, error)) from error
        return encoded

    return decode


def _why(own: AvroSchema, error: Exception) -> str:
    said = str(error) or "the data ends too early"
    return f"Avro that does not follow its schema, or one that {own['name']} cannot be read from: {said}"


Convert = Callable[[Any], Any] | None
"""Makes one value from another; None: they are the same."""

BUILT_IN = frozenset({"array", "map", "boolean", "int", "long", "float", "double", "bytes", "string"})

_raw = msgspec.json.Decoder(msgspec.Raw).decode


class _Conversions:
    """Follows a schema. `_text`: of JSON; `_moment`: of a timestamp; `_record`: of a record's fields."""

    def __init__(self) -> None:
        self._named: dict[str, Convert] = {}

    def of(self, schema: Any) -> Convert:
        """The conversion for a schema: a type's name, a union with null, or a definition."""
        if isinstance(schema, str):
            return self._named.get(schema)
        if isinstance(schema, list):
            other = _other_than_null(schema)
            return self._unless_null(self.of(other), other)
        if schema.get("logicalType") == "json":
            return self._text
        if (per_ms := PER_MS.get(schema.get("logicalType", ""))) is not None:
            return self._moment if per_ms == 1 else lambda value: self._moment(value // per_ms)
        return self._composite(schema)

    def _composite(self, schema: Mapping[str, Any]) -> Convert:
        if schema["type"] == "array":
            return _each_item(self.of(schema["items"]))
        if schema["type"] == "map":
            return self._map(self.of(schema["values"]))
        if schema["type"] == "record":
            convert = self._record([(field, self.of(field["type"])) for field in schema["fields"]])
            self._named[schema["name"]] = convert
            return convert
        return None

    def _unless_null(self, convert: Convert, other: Any) -> Convert:
        return None if convert is None else lambda value: None if value is None else convert(value)

    def _text(self, value: Any) -> Any:
        raise NotImplementedError

    def _moment(self, value: Any) -> Any:
        raise NotImplementedError

    def _map(self, convert: Convert) -> Convert:
        raise NotImplementedError

    def _record(self, fields: list[tuple[Mapping[str, Any], Convert]]) -> Convert:
        raise NotImplementedError


class _Reading(_Conversions):
    """From what an Avro reader returns to what a JSON encoder takes. The conversions raise ValueError."""

    def _text(self, value: str) -> msgspec.Raw:
        """As it is, once it is known to be one JSON value: else it could close the object it stands in."""
        return _raw(value.encode())

    def _moment(self, value: int) -> str:
        try:
            return to_text(to_ms(value))
        except OverflowError as error:
            raise ValueError(f"{value} ms is not between 1970 and 9999") from error

    def _map(self, convert: Convert) -> Convert:
        def members(pairs: list[dict[str, Any]]) -> dict[str, Any]:
            return unique_members(
                [(pair["key"], pair["value"] if convert is None else convert(pair["value"])) for pair in pairs]
            )

        return members

    def _record(self, fields: list[tuple[Mapping[str, Any], Convert]]) -> Convert:
        optional = {field["name"] for field, _ in fields if _may_be_left_out(field)}
        converts = [(field["name"], convert) for field, convert in fields if convert is not None]

        def convert(record: dict[str, Any]) -> dict[str, Any]:
            for name, change in converts:
                record[name] = change(record[name])
            return {name: value for name, value in record.items() if value is not None or name not in optional}

        return convert


class _Writing(_Conversions):
    """From what a JSON decoder returns to what an Avro writer takes. The conversions raise ValueError.

    `namespace`: of the schema, in which all its types are.
    """

    def __init__(self, namespace: str) -> None:
        super().__init__()
        self._namespace = namespace

    def _unless_null(self, convert: Convert, other: Any) -> Convert:
        """The type is named beside the value: else the writer would try which of the two types fits."""
        name = self._name(other)
        if convert is None:
            return lambda value: None if value is None else (name, value)
        return lambda value: None if value is None else (name, convert(value))

    def _name(self, schema: Any) -> str:
        name: str = schema if isinstance(schema, str) else schema.get("name", schema["type"])
        return name if name in BUILT_IN else f"{self._namespace}.{name}"

    def _text(self, value: Any) -> str:
        return msgspec.json.encode(value).decode()

    def _moment(self, value: Any) -> int:
        return to_ms(value)

    def _map(self, convert: Convert) -> Convert:
        return None if convert is None else lambda values: {key: convert(value) for key, value in values.items()}

    def _record(self, fields: list[tuple[Mapping[str, Any], Convert]]) -> Convert:
        read = [(field["name"], _may_be_left_out(field), convert) for field, convert in fields]

        def convert(given: Any) -> dict[str, Any]:
            if not isinstance(given, dict):
                raise ValueError(f"an object is needed, not {type(given).__name__}")
            record = {}
            for name, optional, change in read:
                if not optional and name not in given:
                    raise ValueError(f"the field {name} is missing")
                value = given.get(name)
                record[name] = value if change is None else change(value)
            return record

        return convert


def _may_be_left_out(field: Mapping[str, Any]) -> bool:
    return "default" in field and field["default"] is None


def _other_than_null(union: list[Any]) -> Any:
    others = [branch for branch in union if branch != "null"]
    if len(others) != 1 or len(union) != 2:
        raise ValueError(f"the contracts know unions of null and one type alone, not {union}")
    return others[0]


def _each_item(convert: Convert) -> Convert:
    return None if convert is None else lambda items: [convert(item) for item in items]


class Unreadable(Exception):
    """A schema is none, or none to read by; the message says why."""


def parse_written(
    texts: Sequence[str], *readers: str, named: dict[str, AvroSchema] | None = None, in_pairs: bool = False
) -> AvroSchema:
    """The last of the texts as a writer's schema of a record; the ones before define types that it names.

    Raises Unreadable, also when the record is not called like one of the `readers`, in whatever namespace. `named`:
    takes the named types. `in_pairs`: see `with_pairs`.
    """
    named = {} if named is None else named
    try:
        plain = (bare(json.loads(text)) for text in texts)
        *_, schema = (fastavro.parse_schema(with_pairs(one) if in_pairs else one, named) for one in plain)
        if not isinstance(schema, dict) or schema["type"] != "record":
            raise Unreadable(f"it is not a record {' or '.join(readers)}")
        if (name := schema["name"].rpartition(".")[2]) not in readers:
            raise Unreadable(f"it is a record {name}, not {' or '.join(readers)}")
        _Scale(named).weighs(schema)
    except Unreadable:
        raise
    except Exception as error:  # whatever the parser raises for a registered schema
        raise Unreadable(f"it is no Avro schema: {type(error).__name__}: {error}") from error
    return schema


def bare(schema: Any) -> Any:
    """A schema whose logical types have another name: the plain values are what is wanted, and quicker to read."""
    if isinstance(schema, list):
        return [bare(part) for part in schema]
    if isinstance(schema, dict):
        kept = {name: part for name, part in schema.items() if name not in ("logicalType", WRITTEN)}
        logical = {WRITTEN: schema["logicalType"]} if "logicalType" in schema else {}
        return {name: part if name == "default" else bare(part) for name, part in kept.items()} | logical
    return schema


PAIRS = "_pairs"


def with_pairs(schema: Any, within: str = "") -> Any:
    """A schema that reads each map as an array of its keys and values, which is encoded alike (Avro, "Maps").

    A reader of maps takes the last of two values with one key, in silence. `within`: the record and field that it is
    of: writer and reader give a type of pairs one name by it.
    """
    if isinstance(schema, list):
        return [with_pairs(part, within) for part in schema]
    if not isinstance(schema, dict):
        return schema
    type_ = schema["type"]
    if type_ == "map":
        fields = [
            {"name": "key", "type": "string"},
            {"name": "value", "type": with_pairs(schema["values"], f"{within}_")},
        ]
        return {"type": "array", "items": {"type": "record", "name": f"{within}{PAIRS}", "fields": fields}}
    if type_ == "array":
        return {**schema, "items": with_pairs(schema["items"], f"{within}_")}
    if type_ in ("record", "error"):
        name = schema["name"].rpartition(".")[2]
        return {**schema, "fields": [_field_with_pairs(field, f"{name}_{field['name']}") for field in schema["fields"]]}
    return schema if isinstance(type_, str) else {**schema, "type": with_pairs(type_, within)}


def _field_with_pairs(field: Mapping[str, Any], within: str) -> dict[str, Any]:
    """A default that is a mapping is left out: the contracts have none, and of a writer's schema none counts."""
    has_default = "default" in field and not isinstance(field["default"], dict)
    kept = {name: part for name, part in field.items() if name != "default" or has_default}
    return {**kept, "type": with_pairs(field["type"], within)}


class _Scale:
    """Whether values of a type take any bytes. `named`: every named type by its full name."""

    def __init__(self, named: Mapping[str, AvroSchema]) -> None:
        self._named = named
        self._within, self._weighed = set[str](), set[str]()

    def weighs(self, schema: Any) -> bool:
        """Whether every value takes at least a byte; raises Unreadable for a type that could do harm."""
        if isinstance(schema, list):
            for branch in schema:
                self.weighs(branch)
            return True  # the number of the branch
        if isinstance(schema, str):
            return self.weighs(self._named[schema]) if schema in self._named else schema != "null"
        return self._definition_weighs(schema)

    def _definition_weighs(self, schema: AvroSchema) -> bool:
        type_ = schema["type"]
        if type_ == "array" and not self.weighs(schema["items"]):
            raise Unreadable("it has an array of items that take no bytes")
        if type_ == "map":
            self.weighs(schema["values"])
        if type_ in ("record", "error"):
            return self._record_weighs(schema)
        if type_ == "fixed":
            return int(schema["size"]) > 0
        return type_ in ("array", "map", "enum") or self.weighs(type_)

    def _record_weighs(self, schema: AvroSchema) -> bool:
        name = schema["name"]
        if name in self._within:
            raise Unreadable(f"its type {name} holds itself")
        names = [field["name"] for field in schema["fields"]]
        if len(set(names)) < len(names):
            raise Unreadable(f"its record {name} has a field twice")  # the last would count
        if name not in self._weighed:
            self._within.add(name)
            weighing = [self.weighs(field["type"]) for field in schema["fields"]]  # all of them: each may do harm
            if not any(weighing):
                raise Unreadable(f"its record {name} takes no bytes")
            self._within.remove(name)
            self._weighed.add(name)
        return True
