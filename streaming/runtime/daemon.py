"""The process that Spark's Python workers are forked from, with the modules loaded that each would load itself.

Spark starts a worker for each of its runners, and again when one was idle for long; loading takes a worker half a
second of a core, which a small micro-batch would wait for.
"""

import importlib
import sys
from importlib.machinery import PathFinder

MODULES = (
    "pandas",
    "pyarrow.compute",
    "pyspark.sql.streaming.stateful_processor_util",
    "streaming.enforcer.worker",
    "streaming.monitor.intake",
    "streaming.monitor.processor",
)


def without_archives(path: list[str]) -> list[str]:
    """A module search path without Spark's archives, where PySpark is there without them.

    Spark puts them in front, and Python keeps nothing of what it compiles from an archive: it did so with each start.
    """
    others = [place for place in path if not place.endswith(".zip")]
    return others if PathFinder.find_spec("pyspark", others) and PathFinder.find_spec("py4j", others) else path


if __name__ == "__main__":
    sys.path = without_archives(sys.path)
    for module in MODULES:
        importlib.import_module(module)
    importlib.import_module("pyspark.daemon").manager()
