"""Avro schemas that others have registered and write by: whether they can be read by, and what of theirs counts."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import fastavro

from policy import check_letter_case
from streaming.records.avro_moments import WRITTEN, NoMoment, with_written_units
from streaming.records.schemas import AvroSchema, Kind, avro_schema


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
        *_, schema = (fastavro.parse_schema(with_pairs(written) if in_pairs else written, named) for written in plain)
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


def check_written(kinds: Iterable[Kind], texts: tuple[str, ...]) -> None:
    """Raise Unreadable unless a schema from the registry is one of these kinds of records."""
    contracts, named = {(contract := avro_schema(kind))["name"]: contract for kind in kinds}, dict[str, AvroSchema]()
    writer = parse_written(texts, *contracts, named=named)
    with_units(contracts[writer["name"].rpartition(".")[2]], writer, named)


def with_units(contract: AvroSchema, writer: AvroSchema, named: Mapping[str, AvroSchema]) -> AvroSchema:
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
