"""The systems lockkeeper speaks: one package each, with a ``SYSTEM``. Adding one touches nothing else.

The packages beside this file are found by themselves; a system's dashes are underscores in its package. A package of
another distribution is found by its entry point in the group ``lockkeeper.systems``: the name is the system's, the
value the package.
"""

import functools
import importlib
import pkgutil
import re
from collections.abc import Iterator, Mapping
from importlib.metadata import EntryPoint, entry_points

from policy.systems.kit.system import System

KIT = "kit"  # what systems are made with
GROUP = "lockkeeper.systems"
NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")  # it stands in names of topics and in keys of documents


class SystemUnusable(Exception):
    """An installed system cannot be used; the message names its distribution, its entry point, and what is wrong.

    Nothing starts with such a system, not even for requests of the others: without it, its policies would be missing
    and its documents refused as those of an unknown system, long after the start.
    """


@functools.cache
def packages() -> Mapping[str, str]:
    """The package of every system, by the system's name. Raises SystemUnusable for two systems of one name."""
    built_in = (module.name for module in pkgutil.iter_modules(__path__) if module.name != KIT)
    by_name = {name.replace("_", "-"): f"{__name__}.{name}" for name in built_in}
    for entry in _entries():
        if entry.name in by_name:
            raise _unusable(entry, f"there is already a system {entry.name}, the package {by_name[entry.name]}")
        if not NAME.fullmatch(entry.name):
            raise _unusable(entry, "a system's name has lower-case letters, digits and single dashes between them")
        by_name[entry.name] = entry.value
    return dict(sorted(by_name.items()))


@functools.cache
def all_systems() -> Mapping[str, System]:
    """Every system by its name. Raises SystemUnusable."""
    entries = {entry.name: entry for entry in _entries()}
    return {
        name: _load(entries[name]) if name in entries else importlib.import_module(package).SYSTEM
        for name, package in packages().items()
    }


def _entries() -> Iterator[EntryPoint]:
    yield from sorted(entry_points(group=GROUP), key=lambda entry: (entry.name, entry.value))


def _load(entry: EntryPoint) -> System:
    try:
        system: System = importlib.import_module(entry.value).SYSTEM
    except Exception as error:  # whatever a package of somebody else raises while it is imported
        raise _unusable(entry, f"{type(error).__name__}: {error}") from error
    members = (*System.__annotations__, *(name for name in vars(System) if not name.startswith("_")))
    if lacking := [name for name in members if not hasattr(system, name)]:
        raise _unusable(entry, f"its SYSTEM lacks {', '.join(lacking)} (see policy.systems.kit.system.System)")
    if system.name != entry.name:
        raise _unusable(entry, f"its SYSTEM is named {system.name!r}: give both the same name")
    return system


def _unusable(entry: EntryPoint, why: str) -> SystemUnusable:
    distribution = entry.dist.name if entry.dist else "an unknown distribution"
    entry_point = f"{distribution}: entry point {entry.name} = {entry.value} of {GROUP}"
    return SystemUnusable(f"{entry_point}: {why}. Correct {distribution}, or uninstall it")
