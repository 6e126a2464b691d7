"""Schemas that others wrote: made ready for reading, or refused where their data could do harm.

A few bytes must not stand for endless work: so every record and every item of an array takes at least a byte, and
no type holds itself, which would let a record be nested as deep as it has bytes.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import fastavro

from streaming.records.schemas import AvroSchema


class Unreadable(Exception):
    """A schema is none, or none to read by; the message says why."""


def parse_written(texts: Sequence[str], *readers: str) -> AvroSchema:
    """The last of the texts as a writer's schema of a record; the ones before define types that it names.

    Raises Unreadable, also when the record is not called like one of the `readers`, in whatever namespace.
    """
    named: dict[str, AvroSchema] = {}
    try:
        *_, schema = (fastavro.parse_schema(bare(json.loads(text)), named) for text in texts)
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
    """A schema without logical types: the plain values are what is wanted, and quicker to read."""
    if isinstance(schema, list):
        return [bare(part) for part in schema]
    if isinstance(schema, dict):
        kept = {name: part for name, part in schema.items() if name != "logicalType"}
        return {name: part if name == "default" else bare(part) for name, part in kept.items()}
    return schema


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
        if name not in self._weighed:
            self._within.add(name)
            weighing = [self.weighs(field["type"]) for field in schema["fields"]]  # all of them: each may do harm
            if not any(weighing):
                raise Unreadable(f"its record {name} takes no bytes")
            self._within.remove(name)
            self._weighed.add(name)
        return True
