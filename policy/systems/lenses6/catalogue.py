"""The operation catalogue (L6-SERVICES, L6-CATALOGUE), read from catalogue.yaml beside this file."""

import functools
from collections.abc import Iterable, Iterator
from typing import Any

from policy.core.pattern import match_text
from policy.core.suggest import nearest
from policy.systems.kit.system import load_catalogue


@functools.cache
def catalogue() -> dict[str, Any]:
    """``aliases``, ``resources`` (service → type → segment counts) and ``operations`` (service → name → type)."""
    return load_catalogue(__package__, dict[str, Any])


def service_of_resource(written: str) -> str:
    """The one spelling of a service in resources (L6-Q3)."""
    aliases: dict[str, str] = catalogue()["aliases"]
    return aliases.get(written, written)


def other_case(service: str, operation: str) -> str:
    """Says so where an operation is one of the catalogue in another letter case alone: it is none, and must not pass
    by a deny of the right one. ``operation`` may be a pattern.
    """
    by_service: dict[str, dict[str, str]] = catalogue()["operations"]
    if meant := _other_case(service, by_service):
        return f"has the service {service}, which is written {meant}"
    operations = by_service.get(service, {})
    if operation in operations or not any(match_text(operation.casefold(), name.casefold()) for name in operations):
        return ""
    matching = any(match_text(operation, name) for name in operations)
    return "" if matching else f"has no operation in this letter case{nearest(operation, operations, most=1)}"


def other_case_of_resource(service: str, type_: str = "") -> str:
    """The same for the service and the type of a resource."""
    by_service: dict[str, dict[str, Any]] = catalogue()["resources"]
    if meant := _other_case(service, (*by_service, *catalogue()["operations"], *catalogue()["aliases"])):
        return f"has the service {service}, which is written {meant}"
    meant = _other_case(type_, by_service.get(service, {}))
    return f"has the type {type_}, which is written {meant}" if meant else ""


def _other_case(name: str, names: Iterable[str]) -> str:
    """The known name that differs from ``name`` in letter case alone; "" where there is none."""
    if name in names:
        return ""
    folded = name.casefold()
    return next((candidate for candidate in names if candidate.casefold() == folded), "")


def segment_counts(service: str, type_: str) -> list[int] | None:
    """How many segments a path of the type may have; None: any number (L6-Q4)."""
    counts: list[int] | None = catalogue()["resources"].get(service, {}).get(type_)
    return counts


def action_warnings(pattern: str) -> Iterator[str]:
    """Warnings about an action pattern that is valid (L6-Q2)."""
    if pattern == "*":
        return
    service, _, operation = pattern.partition(":")
    operations: dict[str, str] | None = catalogue()["operations"].get(service)
    if operations is None:
        yield f"action {pattern}: the catalogue has no service {service}{_service_meant(service)}"
    elif not _types_of(operations, operation):
        near = _elsewhere(operation) or nearest(operation, operations, most=1)
        yield f"action {pattern}: the catalogue has no such operation{near}"


def _service_meant(service: str) -> str:
    """Resources and actions name one service in two ways (L6-Q3); else the nearest name."""
    services, alias = catalogue()["operations"], service_of_resource(service)
    return f"; did you mean {alias}?" if alias in services else nearest(service, services, most=1)


def _types_of(operations: dict[str, str], pattern: str) -> set[str]:
    """The resource types of the operations that ``pattern`` matches."""
    return {type_ for name, type_ in operations.items() if match_text(pattern, name)}


def _elsewhere(operation: str) -> str:
    """Where another service has the operation (L6-Q3: registry and schemas)."""
    services = [service for service, operations in catalogue()["operations"].items() if operation in operations]
    return f"; the catalogue writes {services[0]}:{operation}" if len(services) == 1 else ""


def resource_warnings(pattern: str, service: str, type_: str) -> Iterator[str]:
    """Warnings about a resource pattern that is valid; ``service``, ``type_``: "" where it is a wildcard."""
    by_service: dict[str, dict[str, Any]] = catalogue()["resources"]
    if service and service not in by_service:
        near = _written(catalogue()["operations"].get(service, {})) or nearest(service, by_service, most=1)
        typed = f"; there is no type {service}:{type_}, so its segments are not checked" if type_ else ""
        yield f"resource {pattern}: the catalogue has no resources of service {service}{near}{typed}"
    elif type_ and type_ not in by_service[service]:
        near = nearest(type_, by_service[service], most=1)
        yield f"resource {pattern}: the catalogue has no type {service}:{type_}, so its segments are not checked{near}"


def _written(operations: dict[str, str]) -> str:
    """How the catalogue writes the resources of a service whose own name they do not carry (L6-Q3)."""
    return f"; the catalogue writes {', '.join(sorted(set(operations.values())))}" if operations else ""


def types_of(action: str) -> set[str]:
    """The resource types of an action pattern, none where it is of every service (L6-Q16)."""
    service, _, operation = action.partition(":")
    return _types_of(catalogue()["operations"].get(service, {}), operation)


def kinds_including(service: str, type_: str) -> tuple[tuple[str, str], ...]:
    """The (service, type) of the resource patterns that may be of a type, "" where one has a wildcard."""
    return ("", ""), (service, ""), (service, type_)


def documented_actions() -> Iterator[tuple[str, str]]:
    """Every action, each after what it is about: for the documentation."""
    for service, operations in catalogue()["operations"].items():
        yield from ((resource, f"{service}:{operation}") for operation, resource in operations.items())
