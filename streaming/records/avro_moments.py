"""The units of moments in Avro records: those of the logical types of the schema that wrote them."""

from collections.abc import Iterator, Mapping
from typing import Any

from streaming.records.schemas import AvroSchema

PER_MS = {"timestamp-millis": 1, "timestamp-micros": 1_000, "timestamp-nanos": 1_000_000}
"""Units of the logical types that name a moment. A local timestamp lacks its zone, a date or time the other half."""

MILLIS = "timestamp-millis"  # also of a number without logical type, as in JSON
WRITTEN = "lockkeeper.logicalType"
"""The attribute under which `bare` keeps a logical type: the reader converts nothing then."""


class NoMoment(Exception):
    """A schema has a logical type that is no moment where one is needed; the message says which and where."""


def with_written_units(own: Any, writer: Any, named: Mapping[str, AvroSchema], where: str = "") -> Any:
    """A contract's schema with the logical types that a writer's schema has for its moments. Raises NoMoment.

    `writer`: without logical types, see `WRITTEN`; `named`: its named types; `where`: the field that is looked at.
    """
    if isinstance(own, list):
        return [with_written_units(part, writer, named, where) for part in own]
    if isinstance(own, str):  # a type's name; no named type that is used again has a moment
        return own
    branches = list(_branches(writer, named))
    if own.get("logicalType") == MILLIS:
        return {**own, "logicalType": _unit(branches, where)}
    changed = dict(own)
    for part, type_ in (("items", "array"), ("values", "map")):
        if own["type"] == type_:
            written = [branch[part] for branch in branches if branch["type"] == type_]
            changed[part] = with_written_units(own[part], written, named, where)
    if own["type"] == "record":
        changed["fields"] = [_field(field, branches, named, where) for field in own["fields"]]
    return changed


def _field(
    field: Mapping[str, Any], branches: list[AvroSchema], named: Mapping[str, AvroSchema], where: str
) -> dict[str, Any]:
    fields = (written for branch in branches for written in branch.get("fields", ()))
    types = [written["type"] for written in fields if written["name"] == field["name"]]
    path = f"{where}.{field['name']}".removeprefix(".")
    return {**field, "type": with_written_units(field["type"], types, named, path)}


def _branches(schema: Any, named: Mapping[str, AvroSchema]) -> Iterator[AvroSchema]:
    """The types that a value of a schema may have, null left out; none of them is a union or a name."""
    if isinstance(schema, list):
        for part in schema:
            yield from _branches(part, named)
    elif isinstance(schema, str):
        if schema != "null":
            yield named.get(schema, {"type": schema})
    elif isinstance(schema["type"], str) and schema["type"] not in named:
        yield schema
    else:  # {"type": {"type": "long", …}, …}
        outer = {WRITTEN: schema[WRITTEN]} if WRITTEN in schema else {}
        yield from ({**branch, **outer} for branch in _branches(schema["type"], named))


def _unit(branches: list[AvroSchema], where: str) -> str:
    units = {branch.get(WRITTEN, MILLIS) for branch in branches} or {MILLIS}
    if wrong := sorted(str(unit) for unit in units if unit not in PER_MS):
        raise NoMoment(f"its field {where} has the logical type {wrong[0]}, which is no moment; use {MILLIS}")
    if len(units) > 1:
        raise NoMoment(f"its field {where} has moments in several units: {', '.join(sorted(units))}; use {MILLIS}")
    return str(units.pop())
