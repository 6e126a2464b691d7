"""The systems lockkeeper speaks: one package each, with a ``SYSTEM``. Adding one touches nothing else."""

import functools
import importlib
import pkgutil
from collections.abc import Mapping

from policy.systems.kit.system import System

KIT = "kit"  # what systems are made with


@functools.cache
def all_systems() -> Mapping[str, System]:
    """Every system by its name."""
    names = sorted(module.name for module in pkgutil.iter_modules(__path__) if module.name != KIT)
    return {name: importlib.import_module(f"{__name__}.{name}").SYSTEM for name in names}
