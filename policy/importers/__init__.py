"""Importers: what a platform keeps today, as policy documents.

The package of a system may have a module ``importer`` (or a package of that name) with ``SOURCES``: its sources by the
name that `lockkeeper import` knows them by. What all of them share is here. Neither `policy` nor a system imports an
importer: they load when `sources` is called.
"""

import functools
import importlib
import importlib.util
from collections.abc import Mapping

from policy.importers.frame import Finding, ImportInput, Source, Translation, translate
from policy.importers.written import state_of, to_text
from policy.systems import packages

__all__ = ["Finding", "ImportInput", "Source", "Translation", "sources", "state_of", "to_text", "translate"]


@functools.cache
def sources() -> Mapping[str, Source]:
    """The sources of all systems, by name. Raises ValueError for two of one name: one would hide the other."""
    found: dict[str, Source] = {}
    for package in packages().values():
        module = f"{package}.importer"
        if importlib.util.find_spec(module) is None:
            continue
        for name, source in importlib.import_module(module).SOURCES.items():
            if name in found:
                raise ValueError(f"{module}: the source {name!r} is also one of {found[name].system}; rename one")
            found[name] = source
    return dict(sorted(found.items()))
