"""The process that Spark's Python workers are forked from, with the modules loaded that each would load itself.

Spark starts a worker for each of its runners, and again when one was idle for long; loading takes a worker half a
second of a core, which a small micro-batch would wait for.
"""

import importlib

from pyspark.daemon import manager

MODULES = (
    "pandas",
    "pyarrow.compute",
    "pyspark.sql.streaming.stateful_processor_util",
    "streaming.enforcer.worker",
    "streaming.monitor.intake",
    "streaming.monitor.processor",
)

if __name__ == "__main__":
    for module in MODULES:
        importlib.import_module(module)
    manager()
