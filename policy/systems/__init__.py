"""The systems lockkeeper speaks: one package each, with a ``SYSTEM``. Adding one touches nothing else."""

import functools
import importlib
import pkgutil
from collections.abc import Mapping

from policy.systems.kit.system import System

KIT = "kit"  # what systems are made with


@functools.cache
def packages() -> Mapping[str, str]:
    """The package of every system, by the system's name."""
    names = sorted(module.name for module in pkgutil.iter_modules(__path__) if module.name != KIT)
    return {name: f"{__name__}.{name}" for name in names}


@functools.cache
def all_systems() -> Mapping[str, System]:
    """Every system by its name."""
    return {name: importlib.import_module(package).SYSTEM for name, package in packages().items()}
