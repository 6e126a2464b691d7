"""The operation catalogue (L6-SERVICES, L6-CATALOGUE), read from catalogue.yaml beside this file."""

import difflib
import functools
from collections.abc import Iterable, Iterator
from importlib import resources
from typing import Any

import yaml

from policy.patterns import match_text


@functools.cache
def catalogue() -> dict[str, Any]:
    """``aliases``, ``resources`` (service → type → segment counts) and ``operations`` (service → name → type)."""
    loaded: dict[str, Any] = yaml.safe_load(resources.files(__package__).joinpath("catalogue.yaml").read_text())
    return loaded


def service_of_resource(written: str) -> str:
    """The one spelling of a service in resources (L6-Q3)."""
    aliases: dict[str, str] = catalogue()["aliases"]
    return aliases.get(written, written)


def knows_type(service: str, type_: str) -> bool:
    """Whether the catalogue has the resource type."""
    return type_ in catalogue()["resources"].get(service, {})


def segment_counts(service: str, type_: str) -> list[int] | None:
    """How many segments a path of the type may have; None: any number (L6-Q4)."""
    counts: list[int] | None = catalogue()["resources"].get(service, {}).get(type_)
    return counts


def action_warnings(pattern: str) -> Iterator[str]:
    """What is odd about an action pattern that is valid (L6-Q2)."""
    service, _, operation = pattern.partition(":")
    known: dict[str, str] | None = catalogue()["operations"].get(service)
    if pattern == "*":
        return
    if known is None:
        yield f"action {pattern}: the catalogue has no service {service}{_nearest(service, catalogue()['operations'])}"
    elif not any(match_text(operation, name) for name in known):
        yield f"action {pattern}: the catalogue has no such operation{_nearest(operation, known)}"


def resource_warnings(pattern: str, service: str, type_: str) -> Iterator[str]:
    """What is odd about a resource pattern that is valid."""
    if type_ and not knows_type(service, type_):
        yield f"resource {pattern}: the catalogue has no type {service}:{type_}, so its segments are not checked"


def mismatch_warnings(actions: Iterable[str], kinds: set[tuple[str, str]]) -> Iterator[str]:
    """Operations that are on no resource type of their statement (L6-Q16); ``kinds``: (service, type) or ("", "")."""
    if any(not service or not type_ for service, type_ in kinds):
        return
    written = {f"{service}:{type_}" for service, type_ in kinds}
    for action in actions:
        service, _, operation = action.partition(":")
        wanted = catalogue()["operations"].get(service, {}).get(operation)
        if wanted is not None and wanted not in written:
            yield f"action {action}: is on {wanted}, and no resource of the statement is one"


def _nearest(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""
