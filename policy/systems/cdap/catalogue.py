"""Entity kinds, privileges and actions, read from catalogue.yaml beside this file."""

import functools
from collections.abc import Iterator, Mapping
from typing import Any

from policy.core.model import Unanswerable
from policy.core.suggest import nearest
from policy.systems.kit.query import Need
from policy.systems.kit.system import load_catalogue


@functools.cache
def catalogue() -> dict[str, Any]:
    """``privileges``, ``tree``, ``rootless``, ``context``, ``general`` and ``actions``, as the file explains them."""
    return load_catalogue(__package__, dict[str, Any])


@functools.cache
def lineage(kind: str) -> tuple[str, ...]:
    """The kinds above ``kind`` in the tree (CD-Q6), the root first."""
    above: str | None = catalogue()["tree"][kind]
    return () if above is None else (*lineage(above), above)


@functools.cache
def has_below(kind: str) -> bool:
    """Whether entities of other kinds lie below."""
    return kind in catalogue()["tree"].values()


@functools.cache
def actions() -> Mapping[str, Need]:
    """Action id → need: the general rules for every kind, and the actions with rules of their own (CD-Q10)."""
    tree: dict[str, Any] = catalogue()["tree"]
    general = {f"{kind}.{verb}": need for kind in tree for verb, need in catalogue()["general"].items()}
    return {**general, **catalogue()["actions"]}


def need_of(action: str) -> Need:
    """What an action needs; raises Unanswerable for an unknown one."""
    needs = actions()
    if action not in needs:
        message = f"action {action!r} is not known{nearest(action, needs, most=2)}"
        raise Unanswerable("unknown-action", message, "CD-Q10")
    return needs[action]


def resource_kinds(action: str, need: Need) -> tuple[str, ...]:
    """The kinds of entity that an action is on."""
    kinds = need.get("kinds", [action.partition(".")[0]])
    return tuple(catalogue()["tree"] if kinds == "any" else kinds)


def documented_actions() -> Iterator[tuple[str, str]]:
    """Every action, each after what it is about: for the documentation."""
    yield from ((name.partition(".")[0], name) for name in actions())
