"""Importers: what a platform keeps today, as policy documents, and exporters: policy documents as what it takes.

The package of a system may have a module ``importer`` (or a package of that name) with ``SOURCES``: its sources by the
name that `lockkeeper import` knows them by; and with ``TARGETS``, if it has any, those of `lockkeeper export`. What
all of them share is here. Neither `policy` nor a system imports an importer: they load when `sources` or `targets` is
called.
"""

import functools
import importlib
import importlib.util
from collections.abc import Mapping
from typing import TypeVar

from policy.importers.frame import Export, Finding, ImportInput, Source, Target, Translation, export, translate
from policy.importers.written import state_of, to_text
from policy.systems import packages

__all__ = [
    "Export",
    "Finding",
    "ImportInput",
    "Source",
    "Target",
    "Translation",
    "export",
    "sources",
    "state_of",
    "targets",
    "to_text",
    "translate",
]

Named = TypeVar("Named", Source, Target)


@functools.cache
def sources() -> Mapping[str, Source]:
    """The sources of all systems, by name. Raises ValueError for two of one name: one would hide the other."""
    return _collected("SOURCES", Source)


@functools.cache
def targets() -> Mapping[str, Target]:
    """The targets of all systems, by name. Raises ValueError for two of one name."""
    return _collected("TARGETS", Target)


def _collected(attribute: str, _: type[Named]) -> dict[str, Named]:
    collected: dict[str, Named] = {}
    for package in packages().values():
        module = f"{package}.importer"
        if importlib.util.find_spec(module) is None:
            continue
        for name, item in getattr(importlib.import_module(module), attribute, {}).items():
            if name in collected:
                kind = attribute.lower().removesuffix("s")
                raise ValueError(f"{module}: the {kind} {name!r} is also one of {collected[name].system}; rename one")
            collected[name] = item
    return dict(sorted(collected.items()))
