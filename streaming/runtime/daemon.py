"""The process that Spark's Python workers are forked from, with what each would load itself: modules, and catalogues.

Spark starts a worker for each of its runners, and again when one was idle for long; loading takes a worker half a
second of a core, which a small micro-batch would wait for.
"""

from __future__ import annotations  # an older Python must get as far as to say that it is one

import contextlib
import gc
import importlib
import os
import platform
import sys
from collections.abc import Callable
from importlib.machinery import PathFinder
from socket import socket

MODULES = (
    "pandas",
    "pyarrow.compute",
    "pyspark.sql.streaming.stateful_processor_util",
    "streaming.enforcer.worker",
    "streaming.monitor.intake",
    "streaming.monitor.processor",
)


# A worker keeps thousands of answers of a first batch, and nearly nothing is garbage. With Python's 700, 10 and 10 the
# collector took a third of the time of answers that are worked out: 51 µs each, and 34 with these (1,000 statements of
# five systems). PySpark collects all generations after a task besides.
COLLECTED_AFTER = 50_000, 20, 20

CANNOT_IMPORT = "lockkeeper's workers cannot start"
"""What `streaming.runtime.workers` looks for in the errors of tasks."""


def import_modules() -> None:
    """Import what workers need. Exits with one line: which Python lacks what."""
    try:
        for module in MODULES:
            importlib.import_module(module)
    except Exception as error:
        sys.exit(
            f"{CANNOT_IMPORT}: Python {sys.version_info[0]}.{sys.version_info[1]} on {platform.machine()} "
            f"({sys.executable}): {root_cause(error)}"
        )


def root_cause(error: BaseException) -> str:
    """The first of a chain of errors, in a line: numpy wraps its own in a page of advice."""
    while (before := error.__cause__ or error.__context__) is not None:
        error = before
    return " ".join(f"{type(error).__name__}: {error}".split())


def without_archives(path: list[str]) -> list[str]:
    """A module search path without Spark's archives, where PySpark is there without them.

    Spark puts them in front, and Python keeps nothing of what it compiles from an archive: it did so with each start.
    """
    others = [entry for entry in path if not entry.endswith(".zip")]
    return others if PathFinder.find_spec("pyspark", others) and PathFinder.find_spec("py4j", others) else path


def forget_archives() -> None:
    """Drop what Python keeps of archives on the search path it had before.

    Each worker that starts calls `importlib.invalidate_caches`, by which Python before 3.12 reads all their directories
    again (gh-103200): 0.3 s of a core for PySpark's.
    """
    for location in [location for location in sys.path_importer_cache if location.endswith(".zip")]:
        if location not in sys.path:
            del sys.path_importer_cache[location]


def ending_quietly(worker: Callable[[socket, bool], int]) -> Callable[[socket, bool], int]:
    """A worker that ends without a trace once Spark has closed its socket: Spark does so when it stops.

    PySpark's own prints one for each worker, as it cannot write to Spark why it ends.
    """

    def run(sock: socket, authenticated: bool) -> int:
        try:
            return worker(sock, authenticated)
        except ConnectionError:
            os._exit(1)  # as PySpark's does after the trace

    return run


if __name__ == "__main__":
    sys.path = without_archives(sys.path)
    forget_archives()
    import_modules()
    with contextlib.suppress(Exception):  # what fails here fails where it is needed, with its message
        for system in importlib.import_module("policy").all_systems().values():
            system.privileged_permissions()  # which loads its catalogue
    gc.set_threshold(*COLLECTED_AFTER)
    gc.freeze()  # what is loaded by now is shared with each worker, until one writes into its headers
    daemon = importlib.import_module("pyspark.daemon")
    daemon.worker = ending_quietly(daemon.worker)  # type: ignore[attr-defined]
    daemon.manager()
