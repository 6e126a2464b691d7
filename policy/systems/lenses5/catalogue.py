"""Permissions, things and actions of Lenses 5, read from catalogue.yaml beside this file."""

import functools
from collections.abc import Iterator, Mapping
from typing import Any, Literal, TypeAlias

import msgspec

from policy.core.model import Unanswerable
from policy.core.suggest import nearest
from policy.systems.kit.system import load_catalogue

Clause: TypeAlias = Mapping[str, Any]  # a requirement as catalogue.yaml writes it
FieldType: TypeAlias = Literal["text", "texts", "flag"] | list[str]  # a list: one of these texts


class Thing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What actions can be about; the fields are explained in catalogue.yaml."""

    type: str | None = None
    property: str | None = None
    document: str | None = None
    unknown: str | None = None
    fields: dict[str, FieldType] = {}


class Action(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An action: the rule that says what it needs and the thing it is about."""

    rule: str
    about: str
    proposes: bool = False
    implies: dict[str, str] = {}
    operations: list[str] = []


class Catalogue(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All of catalogue.yaml. ``code_names``: family → name used by Lenses's clients → permission."""

    documentation: dict[str, str]
    namespace: dict[str, list[str]]
    application: list[str]
    administration: list[str]
    code_names: dict[str, dict[str, str]]
    legacy: list[str]
    words: dict[str, str]
    things: dict[str, Thing]
    nodes: dict[str, str]
    rules: dict[str, Clause]
    conditions: dict[str, Clause]
    actions: dict[str, Action]
    privileged_permissions: list[Any]


@functools.cache
def catalogue() -> Catalogue:
    """The catalogue, read once."""
    return load_catalogue(__package__, Catalogue)


def find_action(name: str) -> Action:
    """The action; raises Unanswerable naming the nearest ones."""
    actions = catalogue().actions
    if (action := actions.get(name)) is None:
        raise Unanswerable("unknown-action", f"Lenses 5 has no action {name!r}{nearest(name, actions)}")
    return action


def documented_actions() -> Iterator[tuple[str, str]]:
    """Every action, each after what it is about: for the documentation."""
    yield from ((action.about, name) for name, action in catalogue().actions.items())
