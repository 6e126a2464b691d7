"""The JSON Schemas, ready to validate with."""

import functools
import json
from collections.abc import Iterator
from typing import Any

from jsonschema import Draft202012Validator
from referencing import Registry, Resource

from streaming.records.schemas import names, read


@functools.cache
def documents(release: str = "") -> dict[str, Any]:
    """The JSON Schemas in force or of a release, by their file's name."""
    folder = f"released/{release}/json/" if release else "json/"
    return {name.removeprefix(folder): json.loads(read(name)) for name in names() if name.startswith(folder)}


@functools.cache
def validator(where: str, release: str = "", closed: bool = False) -> Draft202012Validator:
    """For `request.json` or `policy-document.json#/$defs/published`. `closed`: with no field that it does not name."""
    found = {name: _closed(schema) if closed else schema for name, schema in documents(release).items()}
    registry = Registry().with_resources((name, Resource.from_contents(schema)) for name, schema in found.items())
    return Draft202012Validator({"$ref": where}, registry=registry)


def faults(where: str, value: Any, **options: Any) -> list[str]:
    """What is wrong with a value, each with its place; empty: nothing."""
    return [f"{error.json_path}: {error.message}" for error in _leaves(validator(where, **options).iter_errors(value))]


def _leaves(errors: Any) -> Iterator[Any]:
    for error in errors:
        if error.context:
            yield from _leaves(error.context)
        else:
            yield error


def _closed(schema: Any) -> Any:
    """The same schema, in which an object with named fields has no others."""
    if isinstance(schema, list):
        return [_closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {name: part if name == "examples" else _closed(part) for name, part in schema.items()}
    if schema.get("type") == "object" and schema.keys() & {"properties", "$ref"}:
        closed.setdefault("unevaluatedProperties", False)
    return closed
