"""Values between JSON and Avro, by a schema of the contracts: JSON in texts, moments, maps, and fields left out."""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from policy import to_ms, to_text, unique_members
from streaming.records.avro_moments import PER_MS

Convert = Callable[[Any], Any] | None
"""Makes one value from another; None: they are the same."""

BUILT_IN = frozenset({"array", "map", "boolean", "int", "long", "float", "double", "bytes", "string"})

_raw = msgspec.json.Decoder(msgspec.Raw).decode


class _Conversions:
    """Follows a schema. `_text`: of JSON; `_moment`: of a timestamp; `_record`: of a record's fields."""

    _text: Callable[[Any], Any]
    _moment: Callable[[Any], Any]
    _map: Callable[[Convert], Convert]
    _record: Callable[[list[tuple[Mapping[str, Any], Convert]]], Convert]

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


class Reading(_Conversions):
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


class Writing(_Conversions):
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

        def convert(source: Any) -> dict[str, Any]:
            if not isinstance(source, dict):
                raise ValueError(f"an object is needed, not {type(source).__name__}")
            record = {}
            for name, optional, change in read:
                if not optional and name not in source:
                    raise ValueError(f"the field {name} is missing")
                value = source.get(name)
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
