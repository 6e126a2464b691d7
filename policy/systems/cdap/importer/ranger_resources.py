"""The resources of a policy of Ranger's CDAP service as entities of CDAP.

A policy names values by level: the instance, a namespace, and what lies in it; `*` and `?` match within a level, while
in our grants they match dots too (CD-Q12). So a level above the last may have a wildcard only where nothing is lost:
at its end, when all levels after it match everything. An excluded `*` stands for "nothing here": the policy is on the
level above, as the service's documentation has it. Values are compared with case, and nothing is recursive there.

Entities are distinguished here as CDAP names them: no namespace and no application without a name.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from policy.systems.cdap.entities import MAX_NAME
from policy.systems.cdap.importer.grants import EVERYWHERE
from policy.systems.kit.validator import Validator

INSTANCE, NAMESPACE, PRINCIPAL = "instance", "namespace", "principal"
LEAVES = {  # resource of the service definition → our kind; all but the program lie right in the namespace
    "application": "application",
    "artifact": "artifact",
    "dataset": "dataset",
    "dataset_module": "dataset-module",
    "dataset_type": "dataset-type",
    "secure_key": "secure-key",
    "securekey": "secure-key",
    "stream": "stream",
}
PATHS: dict[tuple[str, ...], str] = {  # resources from the namespace down → kind
    (NAMESPACE,): NAMESPACE,
    (PRINCIPAL,): "kerberos-principal",
    **{(NAMESPACE, leaf): kind for leaf, kind in LEAVES.items()},
    (NAMESPACE, "application", "program"): "program",
}
MAX_ENTITIES = 10_000  # that one policy may come to
EVERYTHING = ("*", "?*")


class NotExact(Exception):
    """Resources that our grants cannot express; the text says why."""


class Level(msgspec.Struct, frozen=True):
    """The values of one resource. ``nothing``: an excluded `*`."""

    values: tuple[str, ...]
    nothing: bool = False


def instances(resources: Any) -> list[str]:
    """The values of the instance, as far as they can be read."""
    level = resources.get(INSTANCE) if isinstance(resources, Mapping) else None
    values = level.get("values") if isinstance(level, Mapping) else None
    return [value for value in values if isinstance(value, str)] if isinstance(values, list) else []


def entities(resources: Any) -> list[str]:
    """``KIND:NAME`` of all that the resources match, with wildcards. Raises NotExact."""
    levels = _levels(resources)
    instance = levels.pop(INSTANCE, Level(("*",)))
    if instance.nothing:
        raise NotExact("excludes every instance")
    path = _path(levels)
    if not path:
        raise NotExact("is on the instance itself, which CDAP's documents do not have")
    values = [levels[name].values for name in path]
    if (count := len(list(itertools.islice(itertools.product(*values), MAX_ENTITIES + 1)))) > MAX_ENTITIES:
        raise NotExact(f"comes to {count} entities or more; at most {MAX_ENTITIES}")
    return [f"{PATHS[path]}:{_joined(parts)}" for parts in itertools.product(*values)]


def namespaces(resources: Any) -> tuple[str, ...]:
    """The namespaces that the resources may be in, never too few: EVERYWHERE where that is not known."""
    level = resources.get(NAMESPACE) if isinstance(resources, Mapping) else None
    try:
        values = _level(level, NAMESPACE) if level is not None else Level(())
    except NotExact:
        return (EVERYWHERE,)
    return values.values or (EVERYWHERE,)


def matches_absence(resources: Mapping[str, Any]) -> bool:
    """Whether the last level is a lone `*`, which some versions of Ranger let match the level above too."""
    lasts = (name for name in resources if name not in (INSTANCE, NAMESPACE, PRINCIPAL))
    return any(_is_any(value) for name in lasts for value in _level(resources[name], name).values)


def _levels(resources: Any) -> dict[str, Level]:
    if not isinstance(resources, Mapping) or not resources:
        raise NotExact("has no resources")
    if unknown := [str(name) for name in resources if name not in {INSTANCE, NAMESPACE, PRINCIPAL, "program", *LEAVES}]:
        raise NotExact(f"names resources that the CDAP service does not have: {', '.join(unknown)}")
    return {name: _level(value, name) for name, value in resources.items()}


def _level(value: Any, name: str) -> Level:
    validator = Validator(value, name)
    values, excludes = validator.texts("values"), validator.flag("isExcludes")
    validator.flag("isRecursive")  # the service's matcher does not look at it
    validator.reject_unknown()
    if validator.errors:
        raise NotExact("; ".join(validator.errors))
    if not values:
        raise NotExact(f"{name}: has no values")
    if dynamic := [text for text in values if "{" in text]:
        raise NotExact(f"{name}: {dynamic[0]!r} is filled in for each request")
    if excludes and not any(map(_is_any, values)):
        raise NotExact(f"{name}: excludes some names, which grants cannot say")
    return Level((), nothing=True) if excludes else Level(tuple(dict.fromkeys(values)))


def _is_any(value: str) -> bool:
    return value.strip("*") == ""


def _path(levels: Mapping[str, Level]) -> tuple[str, ...]:
    """The levels from the top down to the last that is not "nothing"."""
    present = {name for name, level in levels.items() if not level.nothing}
    fitting = [path for path in PATHS if set(path) == present]
    longer = [path for path in PATHS if set(path) >= set(levels)]
    if (present and not fitting) or (levels and not longer):
        raise NotExact(f"names levels that do not follow each other: {', '.join(sorted(levels))}")
    return fitting[0] if fitting else ()


def _joined(parts: Sequence[str]) -> str:
    """The parts with dots between. Raises NotExact where wildcards would then match more, or other, names."""
    for number, part in enumerate(parts[:-1]):
        head, after = part.removesuffix("*"), parts[number + 1 :]
        if "." in part:
            raise NotExact(f"{part!r}: a dot above the last level would be taken for the end of the level")
        if part not in EVERYTHING and ("*" in head or "?" in head):
            raise NotExact(f"{part!r}: a wildcard above the last level, and not at its end, would match dots too")
        if "*" in part and not all(text in EVERYTHING for text in after):
            raise NotExact(f"{part!r}: a wildcard above the last level, with names below it, would match dots too")
    name = ".".join(parts)
    if len(name) > MAX_NAME:
        raise NotExact(f"{name[:40]!r}…: is longer than {MAX_NAME} characters")
    return name
