"""What a task says that could not run a worker, and what the start then says; and other code on an executor."""

import json
import platform
import subprocess
import sys
from typing import Any

import pytest

from streaming.errors import WorkersFailed
from streaming.runtime.daemon import CANNOT_IMPORT, root_cause
from streaming.runtime.workers import PYTHON, cause_of, check_alike, description

HERE = platform.machine()
ERRORS = {
    'java.io.IOException: Cannot run program "python3.11": error=2, No such file or directory': (
        "a worker has no Python named python3.11",
        f"Install Python {PYTHON} on each worker",
    ),
    f"Error from python worker:\n  {CANNOT_IMPORT}: Python 3.9 on {HERE} (/usr/bin/python3): ImportError: no _core": (
        f"a worker has Python 3.9 (/usr/bin/python3), and this job Python {PYTHON}",
        "PYSPARK_PYTHON",
    ),
    f"{CANNOT_IMPORT}: Python {PYTHON} on riscv64 (/usr/bin/python3): ImportError: no _core": (
        f"a worker is a riscv64, and this job runs on a {HERE}",
        "Set spark.archives to ''",
    ),
    f"{CANNOT_IMPORT}: Python {PYTHON} on {HERE} (/opt/python): ModuleNotFoundError: No module named 'msgspec'\n": (
        "the Python of a worker (/opt/python) cannot import what it needs: ModuleNotFoundError: No module named "
        "'msgspec'. Leave out the setting spark.archives",
    ),
    "Error from python worker:\n  /opt/python: Error while finding module specification for "
    "'streaming.runtime.daemon' (ModuleNotFoundError: No module named 'streaming')": (
        "a worker lacks lockkeeper's code: ModuleNotFoundError of streaming",
    ),
    "PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.9 than that in driver": (
        "a worker has Python 3.9, and this job",
    ),
    "ModuleNotFoundError: No module named 'cedarpy'": (
        "a worker lacks a required package: ModuleNotFoundError of cedarpy",
    ),
    "AttributeError: Can't get attribute 'description' on <module 'streaming.runtime.workers'": (
        "a worker has another version of lockkeeper, without description",
    ),
    "ImportError: cannot import name 'description' from 'streaming.runtime.workers' (/opt/x.py)": (
        "a worker has another version of lockkeeper, without description",
    ),
    "java.lang.ClassNotFoundException: org.apache.spark.sql.kafka010.KafkaBatchInputPartition": (
        "an executor lacks the jars of Spark's Kafka connector",
        "--jars",
    ),
}


@pytest.mark.parametrize("error", ERRORS)
def test_the_cause_is_named_with_its_fix(error: str) -> None:
    cause = str(cause_of(f"Job aborted: Task 0 in stage 0.0 failed 4 times: {error}"))
    for part in ERRORS[error]:
        assert part in cause


def test_what_may_have_any_cause_is_not_explained_away() -> None:
    assert cause_of("java.io.IOException: No space left on device") is None
    assert cause_of("ExecutorLostFailure (executor 1 exited unrelated to the running tasks)") is None


def test_the_first_of_a_chain_of_errors_is_shown_in_a_line() -> None:
    first = ModuleNotFoundError("No module named 'numpy._core'")
    advice = ImportError("IMPORTANT: PLEASE READ THIS\n\n a page")
    advice.__cause__ = first
    assert root_cause(advice) == "ModuleNotFoundError: No module named 'numpy._core'"


def test_a_daemon_that_lacks_a_module_says_which_and_of_what_python() -> None:
    program = "import sys; sys.modules['pandas'] = None; from streaming.runtime import daemon; daemon.import_modules()"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith(f"{CANNOT_IMPORT}: Python {PYTHON} on {HERE} ({sys.executable}): ModuleNotFoundError")


def _described(**changes: Any) -> dict[str, Any]:
    return {**json.loads(description()), "host": "node-1", **changes}


def test_executors_with_the_code_of_the_job_are_alike() -> None:
    check_alike([_described(), _described(python="/elsewhere/python", machine="riscv64")])


OTHERS = {
    "lockkeeper": (
        {"versions": {**_described()["versions"], "lockkeeper-authz": "0.0.1"}},
        "lockkeeper-authz is 0.0.1",
    ),
    "cedar": ({"versions": {**_described()["versions"], "cedarpy": None}}, "cedarpy is not installed, here"),
    "systems": ({"systems": ["cdap"]}, "it lacks the systems cedar, kafka-acls"),
    "code": ({"code": "0"}, "its version is the same, but not the files of the packages policy and streaming"),
}


@pytest.mark.parametrize("case", OTHERS)
def test_an_executor_with_other_code_is_refused(case: str) -> None:
    changes, message = OTHERS[case]
    with pytest.raises(WorkersFailed, match=r"the executor on node-1 .* would decide by other code") as refused:
        check_alike([_described(), _described(**changes)])
    assert message in str(refused.value)
