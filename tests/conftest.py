"""Fixtures for all tests."""

import gc
import logging
import os
import sys
import time
import uuid
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from hypothesis import settings
from xdist.scheduler import LoadFileScheduling

from tests.brokers import TestBroker, any_broker
from tests.crashes import pytest_handlecrashitem, pytest_sessionfinish  # noqa: F401 - hooks of pytest's and xdist's
from tests.java_archive import dump_cds_archives, spark_submit_options

# How long an example takes says more of the machine than of the code. Drawn are the same examples in every run, so that
# a failure comes from a change; `make explore` sets LOCKKEEPER_TEST_EXPLORE and draws others each time.
settings.register_profile("same-examples", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None)
settings.load_profile("explore" if os.environ.get("LOCKKEEPER_TEST_EXPLORE") else "same-examples")


# Jsonschema would compile 39 grammars as it is imported, for formats that no test checks: four seconds of each process
# that collects the tests.
sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]

LONG = ("test_properties.py",)
# Where the tests have only so many minutes: the moment (seconds since 1970) after which no other one begins, and the
# commit, by which the files have another order each time, so that it is not always the same ones that are left out.
DEADLINE = float(os.environ.get("LOCKKEEPER_TEST_DEADLINE", "inf"))
COMMIT = os.environ.get("LOCKKEEPER_TEST_COMMIT")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long tests first: at the end short ones are left, for whichever process has nothing to do."""
    items.sort(key=lambda item: item.get_closest_marker("stream") is None and item.path.name not in LONG)
    if COMMIT:
        items.sort(key=lambda item: zlib.crc32(f"{COMMIT} {item.path.name}".encode()))


@pytest.hookimpl(tryfirst=True)  # before fixtures are set up
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Leaves out what would begin too late, but for a test that has failed and is run again."""
    if time.time() > DEADLINE and not item.config.getoption("lf"):
        pytest.skip(f"there was no time left for {item.path.relative_to(item.config.rootpath)}")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Cases of schemathesis take two seconds of each process that collects them, and all are long."""
    return (collection_path.name == "test_openapi_fuzzer.py" and config.getoption("markexpr") == "not long") or None


@pytest.hookimpl(tryfirst=True)  # before xdist reports its ids
def pytest_collection_finish(session: pytest.Session) -> None:
    """All tests stay until the end: to search them for cycles again and again took a fifth of many tests' time."""
    # Schemathesis gives one id to the tests of all operations, of which xdist ran one.
    items: list[Any] = session.items
    for item in items:
        if not item.nodeid.endswith(item.name):
            item._id = type(item.id).parse(f"{item.parent.nodeid}::{item.name}")
    gc.collect()
    gc.freeze()


SPARK_IN_THE_PROCESS = ("known_answers", "known_mutants", "partitions", "read_range", "sender")
WITH_A_JOB = ("client/test_client", "stream/test_answered", "stream/test_decisions", "stream/test_recreated_topics")
# The files of each of these share what takes long to begin: what a job has decided, Spark's JVM, the process that runs
# one job after the other.
TOGETHER = (
    ("tests/console/",),
    tuple(f"tests/stream/test_{name}.py" for name in SPARK_IN_THE_PROCESS),
    tuple(f"tests/{name}.py" for name in WITH_A_JOB),
)


class ByFile(LoadFileScheduling):
    """Each process takes a file at a time, or all files that share what takes long to begin."""

    def _split_scope(self, nodeid: str) -> str:
        group = next(filter(nodeid.startswith, TOGETHER), None)
        return str(group) if group is not None else super()._split_scope(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByFile:
    """Called where xdist runs several processes; `--dist loadfile` is what it does otherwise."""
    return ByFile(config, log)


def pytest_configure(config: pytest.Config) -> None:
    """Before tests are collected: settings in their modules name the archives that there are."""
    if config.getoption("markexpr") == "long":  # archives take as long to make as they save `make test`
        dump_cds_archives()


@pytest.fixture(scope="session", autouse=True)
def _java_starts_soon() -> None:
    """The Java of jobs and brokers. Spark's launcher adds these options to those of jobs that commands start, too."""
    os.environ.setdefault("SPARK_SUBMIT_OPTS", spark_submit_options())


@pytest.fixture(scope="session")
def broker() -> Iterator[TestBroker]:
    """A Kafka broker, the same for the whole run: tests keep apart by `fresh_name`."""
    with any_broker() as kafka:
        yield kafka
        gc.collect()  # clients that tests have left behind would look for it, and say so, until the end


@pytest.fixture(autouse=True)
def _log_as_before() -> Iterator[None]:
    """Commands that a test calls configure the log, for a stream that ends with the test."""
    handlers = logging.getLogger().handlers[:]
    yield
    structlog.reset_defaults()
    logging.getLogger().handlers = handlers


@pytest.fixture
def fresh_name() -> Callable[[str], str]:
    """Return a function that makes a name nobody has used: for topics, groups and transactional ids."""
    return lambda prefix: f"{prefix}-{uuid.uuid4().hex[:12]}"
