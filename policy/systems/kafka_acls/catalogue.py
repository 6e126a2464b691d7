"""Resource types and operations (KA-TYPES), read from catalogue.yaml beside this file."""

import functools
from collections.abc import Iterator, Mapping
from typing import Any

from policy.core.model import Unanswerable
from policy.core.suggest import nearest
from policy.systems.kit.system import load_catalogue

ALL = "All"  # every operation (KA-ALL)


@functools.cache
def catalogue() -> dict[str, Any]:
    """``operations`` (resource type → its operations), ``implied``, ``cluster`` and ``privileged_permissions``."""
    return load_catalogue(__package__, dict[str, Any])


@functools.cache
def operations() -> tuple[str, ...]:
    """Every operation of Kafka, whatever the type of the resource (KA-TYPES)."""
    return tuple(dict.fromkeys(name for names in catalogue()["operations"].values() for name in names))


@functools.cache
def _spellings() -> Mapping[str, str]:
    """Every operation by its name in small letters; Kafka writes DescribeConfigs in ACLs, and DESCRIBE_CONFIGS too."""
    names = {*operations(), ALL}
    parts = {name: "".join(f"_{mark}" if mark.isupper() else mark for mark in name).removeprefix("_") for name in names}
    return {spelling.lower(): name for name, snake in parts.items() for spelling in (name, snake)}


def operation_of(text: str) -> str | None:
    """An operation, written in any letter case, as the catalogue writes it; None: there is none of that name."""
    return _spellings().get(text.lower()) if text.isascii() else None


def resource_type_of(operation: str) -> str | None:
    """The resource type that alone has an operation; None: several have it, or none has."""
    types = [name for name, names in catalogue()["operations"].items() if operation_of(operation) in names]
    return types[0] if len(types) == 1 else None


def is_asked_for(resource_type: str, operation: str) -> bool:
    """Whether an API of Kafka asks for the operation on a resource of the type; kafka-acls.sh adds no other one."""
    return operation == ALL or operation in catalogue()["operations"][resource_type]


def requested_operation(resource_type: str, operation: str) -> str:
    """The operation that a request asks for; raises Unanswerable for an unknown one (KA-Q1), also for All."""
    types: dict[str, list[str]] = catalogue()["operations"]
    if resource_type not in types:
        message = f"resource.type {resource_type!r} is not one of {', '.join(types)}"
        raise Unanswerable("unknown-resource-type", f"{message}{nearest(resource_type, types, most=1)}", "KA-Q1")
    name = operation_of(operation)
    if name is None or name == ALL:
        message = f"action {operation!r} is not an operation that can be asked for: {', '.join(operations())}"
        raise Unanswerable("unknown-action", f"{message}{nearest(operation, operations(), most=1)}", "KA-Q1")
    return name


def documented_actions() -> Iterator[tuple[str, str]]:
    """Every action, each after what it is about: for the documentation."""
    yield from ((about, name) for about, names in catalogue()["operations"].items() for name in names)
