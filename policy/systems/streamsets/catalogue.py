"""Object types, levels and operations (catalogue.yaml beside this file), as typed data."""

import functools
from collections.abc import Iterator
from typing import Any

import msgspec

from policy.core.model import Unanswerable
from policy.core.names import fault
from policy.core.suggest import nearest
from policy.systems.kit.system import load_catalogue

ANY_OBJECT = "object"  # an operation's resource: objects of every type, one or several
ORGANIZATION = "organization"  # an operation's resource: the organization itself


class Operation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What ``actions`` need on a ``resource`` of a type. ``via``: by context.via; ``instead``: by object type."""

    actions: tuple[str, ...]
    resource: str
    rules: tuple[str, ...]
    needs: dict[str, Any]
    via: dict[str, dict[str, Any]] = {}
    instead: dict[str, dict[str, Any]] = {}


class ObjectType(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Levels that can be given (``unused``: and enable nothing in general), and fields of the documents."""

    levels: tuple[str, ...]
    unused: tuple[str, ...] = ()
    one: dict[str, str] = {}
    many: dict[str, str] = {}
    lists: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()


class General(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a level means where a type's own operations do not name the verb."""

    level: str
    verbs: tuple[str, ...]
    rule: str


class Catalogue(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole file."""

    documentation: dict[str, str]
    types: dict[str, ObjectType]
    general: tuple[General, ...]
    operations: tuple[Operation, ...]
    privileged_permissions: list[Any]


@functools.cache
def catalogue() -> Catalogue:
    """The catalogue as written."""
    return load_catalogue(__package__, Catalogue)


@functools.cache
def operations() -> dict[str, Operation]:
    """Every operation by its action, those of the general levels included."""
    listed = {action: operation for operation in catalogue().operations for action in operation.actions}
    return {**dict(_general_operations()), **listed}


def _general_operations() -> Iterator[tuple[str, Operation]]:
    """SS-LEVEL-READ, SS-LEVEL-WRITE and SS-LEVEL-EXECUTE for every type that has the level."""
    for name, type_ in catalogue().types.items():
        for general in catalogue().general:
            if general.level in type_.levels and general.level not in type_.unused:
                for verb in general.verbs:
                    action = f"{name}.{verb}"
                    yield action, Operation((action,), name, (general.rule,), {"permission": general.level})


def operation(action: str) -> Operation:
    """The operation of ``action``; raises Unanswerable with the nearest names."""
    entry = operations().get(action)
    if entry is None:
        raise Unanswerable(
            "unknown-action", f"there is no action {action!r}{nearest(action, operations(), separator=', ')}"
        )
    return entry


def type_of(name: str) -> str:
    """The type in an object's ``TYPE:NAME``; raises ValueError."""
    type_, colon, rest = name.partition(":")
    if not (type_ and colon and rest):
        raise ValueError(f"{name!r} is not TYPE:NAME, such as pipeline:orders")
    if type_ not in catalogue().types:
        raise ValueError(f"{name!r} is of no known type{nearest(type_, catalogue().types, separator=', ')}")
    if wrong := fault(name):
        raise ValueError(f"{name!r} {wrong}")
    return type_


def reference(text: object, type_: str) -> str:
    """``TYPE:NAME`` of an object of ``type_``, which may be left out of a name without a colon; raises ValueError."""
    if not isinstance(text, str) or not text:
        raise ValueError(f"must be the name of a {type_}, not {text!r}")
    if ":" not in text:
        return f"{type_}:{text}"
    if type_of(text) != type_:
        raise ValueError(f"{text!r} is not a {type_}")
    return text


def documented_actions() -> Iterator[tuple[str, str]]:
    """Every action, each after what it is about: for the documentation."""
    yield from ((entry.resource, name) for name, entry in operations().items())
