"""The start of the Python workers. A job whose executors run other code must not start: it would decide otherwise."""

import hashlib
import json
import platform
import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import PackageNotFoundError, entry_points, version
from pathlib import Path
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

import policy
import streaming
from streaming.errors import WorkersFailed
from streaming.runtime.daemon import CANNOT_IMPORT
from streaming.runtime.environment import SYSTEMS
from streaming.runtime.executors import is_local
from streaming.runtime.spark_errors import without_stack

JOB_GROUP = "start of the workers"
DECIDE = (streaming.DISTRIBUTION, "cedarpy", "pyspark")
"""The distributions by whose version decisions may differ, with those of systems; of others versions may differ."""

POLL_SECONDS = 0.05
KILLED_SECONDS = 10.0  # until killed tasks have ended: at a load of 15 on two cores 3 s were not enough (2026-11-29)
LISTENED_MS = 10_000  # until Spark has noted how its tasks ended
MOST_TASKS = 1000  # of a stage, of which failures are looked up

JAVA_CLASS = "org.apache.spark.sql.kafka010.KafkaBatchInputPartition"
HAS_JARS = f"reflect('org.apache.spark.util.Utils', 'classForName', '{JAVA_CLASS}', true, false) AS class"
"""Fails on an executor without the jars of Spark's Kafka connector."""

REQUIREMENT = f"{streaming.DISTRIBUTION}[job,cedar]"
INSTALL = (
    "Leave out the setting spark.archives, so that the job sends its own environment to a standalone cluster, or "
    f"install `{REQUIREMENT}` in the same version on each worker, and name its Python by the variable PYSPARK_PYTHON"
)
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"

Describe = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


class WorkersStart:
    """Starts the workers in a thread, by a job of Spark's that returns their descriptions.

    `spark`: of a cluster, whose executors are to run the code of this process.
    """

    def __init__(self, spark: SparkSession, run: Callable[[], Iterable[bytes]]) -> None:
        self._spark, self._run = spark, run
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._start, name="warm-up", daemon=True)
        self._thread.start()

    def _start(self) -> None:
        context = self._spark.sparkContext
        try:
            context.setJobGroup(JOB_GROUP, JOB_GROUP)
            described = [json.loads(text) for text in self._run()]
            if not is_local(self._spark):
                check_alike(described)
                self._check_failed_tasks()
        except Exception as error:
            self._failure = error

    def _check_failed_tasks(self) -> None:
        """A task that failed on one executor may have succeeded on another."""
        context: Any = self._spark.sparkContext
        context._jsc.sc().listenerBus().waitUntilEmpty(LISTENED_MS)
        for message in failed_tasks(self._spark):
            if cause := cause_of(message):
                raise cause

    def join(self, seconds: float | None = None) -> None:
        """Wait for it, so long at most."""
        self._thread.join(seconds)

    def stop(self, seconds: float) -> None:
        """Wait for it, so long at most; then have Spark kill its tasks, and wait for that, too."""
        self.join(seconds)
        if self._thread.is_alive():
            self._spark.sparkContext.cancelJobGroup(JOB_GROUP)
            self.join(seconds)
            self._await_tasks(time.monotonic() + KILLED_SECONDS)

    def _await_tasks(self, deadline: float) -> None:
        """A job ends before its tasks do. One that ends after Spark logs an error: the blocks that it read are gone."""
        context: Any = self._spark.sparkContext
        tracker = context._jsc.sc().statusTracker()
        while any(executor.numRunningTasks() for executor in tracker.getExecutorInfos()):
            if time.monotonic() > deadline:
                return
            time.sleep(POLL_SECONDS)

    def check(self) -> None:
        """Raises what it has failed by, WorkersFailed where that was a task.

        Where the driver runs the tasks, with its own code, a worker that was killed is no failure of the start: the
        next batch has another one, or fails and names its records.
        """
        if isinstance(self._failure, Py4JJavaError):
            if cause := cause_of(str(self._failure)):
                raise cause from self._failure
            if not is_local(self._spark):
                raise _unexplained(str(self._failure)) from self._failure
        elif self._failure is not None:
            raise self._failure


def _unexplained(text: str) -> WorkersFailed:
    task = text.partition("Lost task")[2].partition(": ")[2] or text
    return WorkersFailed(f"the Python workers cannot be started: {without_stack(task)}")


def described_by_workers() -> Describe:
    """A function for the workers, which Spark sends by value: an executor may lack this module, or have another one."""

    def describe(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow

        for _ in batches:
            pass
        from streaming.runtime.workers import description

        yield pyarrow.RecordBatch.from_pydict({"packed": [b""], "side": [description()], "known": [b""]})

    return describe


def description() -> bytes:
    """Of the code that this process decides by, as JSON."""
    return json.dumps(
        {
            "host": socket.gethostname(),
            "python": sys.executable,
            "machine": platform.machine(),
            "systems": sorted(policy.all_systems()),
            "versions": {name: _version(name) for name in (*DECIDE, *_systems_of_others())},
            "code": code_digest(),
        }
    ).encode()


def _systems_of_others() -> list[str]:
    """The distributions of systems that are not lockkeeper's."""
    return sorted({entry.dist.name for entry in entry_points(group=SYSTEMS) if entry.dist is not None})


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def code_digest() -> str:
    """Of the files of `policy` and `streaming`: two installations may have one version and different code."""
    digest = hashlib.sha256()
    for package in (policy, streaming):
        folder = Path(str(package.__file__)).parent
        for path in sorted(folder.rglob("*")):
            if path.is_file() and path.suffix not in {".pyc", ".pyi"}:
                digest.update(f"{package.__name__}/{path.relative_to(folder).as_posix()}\0".encode())
                digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def check_alike(described: Iterable[dict[str, Any]]) -> None:
    """Raise WorkersFailed where a worker's code is not this process's."""
    here = json.loads(description())
    for there in described:
        if differences := list(_differences(here, there)):
            raise WorkersFailed(
                f"the executor on {there['host']} ({there['python']}) would decide by other code than this job: "
                f"{'; '.join(differences)}. {INSTALL}"
            )


def _differences(here: dict[str, Any], there: dict[str, Any]) -> Iterator[str]:
    for name, wanted in here["versions"].items():
        if (version := there["versions"].get(name)) != wanted:
            yield f"{name} is {version or 'not installed'}, here {wanted or 'not installed'}"
    if lacking := sorted(set(here["systems"]) - set(there["systems"])):
        yield f"it lacks the systems {', '.join(lacking)}"
    if here["code"] != there["code"] and here["versions"] == there["versions"]:
        yield "its version is the same, but not the files of the packages policy and streaming"


def failed_tasks(spark: SparkSession) -> Iterator[str]:
    """The errors of the tasks that failed while the workers were started, also of those that succeeded later."""
    context: Any = spark.sparkContext
    tracker, store = context.statusTracker(), context._jsc.sc().statusStore()
    for job in tracker.getJobIdsForGroup(JOB_GROUP):
        for stage in tracker.getJobInfo(job).stageIds:
            tasks = store.taskList(stage, 0, MOST_TASKS)
            for number in range(tasks.size()):
                error = tasks.apply(number).errorMessage()
                if error.isDefined():
                    yield error.get()


NO_PYTHON = re.compile(r'Cannot run program "([^"]+)"')
NOT_IMPORTED = re.compile(rf"{CANNOT_IMPORT}: Python (\S+) on (\S+) \(([^)]*)\): ([^\n]*)")
OTHER_PYTHON = re.compile(r"PYTHON_VERSION_MISMATCH[^\d]*(\d+\.\d+)", re.DOTALL)
NO_MODULE = re.compile(r"No module named '?([\w.]+)")
NO_CODE = re.compile(r"No module named '?((?:policy|streaming)\b[\w.]*)")
OTHER_CODE = re.compile(r"(?:ImportError: cannot import name|AttributeError: Can't get attribute) '(\w+)'")
NO_JARS = re.compile(r"ClassNotFoundException: (org\.apache\.(?:spark\.sql\.)?kafka[\w.]+)")

INSTALL_PYTHON = (
    f"Install Python {PYTHON} on each worker. If its name there is not python{PYTHON}, name it by the variable "
    "PYSPARK_PYTHON or the setting spark.pyspark.python"
)


def cause_of(error: str) -> WorkersFailed | None:
    """Why a worker could not be started, by the error of a task, with the fix; None: it may have other causes."""
    if match := NO_PYTHON.search(error):
        return WorkersFailed(f"a worker has no Python named {match[1]}. {INSTALL_PYTHON}")
    if match := NOT_IMPORTED.search(error):
        return _not_imported(*match.groups())
    if match := OTHER_PYTHON.search(error):
        return _other_python(match[1])
    if match := NO_CODE.search(error):
        return WorkersFailed(f"a worker lacks lockkeeper's code: ModuleNotFoundError of {match[1]}. {INSTALL}")
    if match := NO_MODULE.search(error):
        return WorkersFailed(f"a worker lacks a required package: ModuleNotFoundError of {match[1]}. {INSTALL}")
    if match := OTHER_CODE.search(error):
        return WorkersFailed(f"a worker has another version of lockkeeper, without {match[1]}. {INSTALL}")
    if match := NO_JARS.search(error):
        return WorkersFailed(
            f"an executor lacks the jars of Spark's Kafka connector: ClassNotFoundException of {match[1]}. Give them "
            "to spark-submit: --jars $(python -m streaming.runtime.jars --print)"
        )
    return None


def _other_python(python: str) -> WorkersFailed:
    return WorkersFailed(
        f"a worker has Python {python}, and this job Python {PYTHON}: PySpark requires one minor version, and native "
        f"packages are made for one. {INSTALL_PYTHON}"
    )


def _not_imported(python: str, machine: str, executable: str, why: str) -> WorkersFailed:
    """Of a Python that has lockkeeper's code and cannot import what that needs."""
    if python != PYTHON:
        return _other_python(f"{python} ({executable})")
    if machine != platform.machine():
        return WorkersFailed(
            f"a worker is a {machine}, and this job runs on a {platform.machine()}, for which the packages of its "
            f"environment are made. Set spark.archives to '', install `{REQUIREMENT}` in the same version on each "
            "worker, and name its Python by the variable PYSPARK_PYTHON"
        )
    return WorkersFailed(f"the Python of a worker ({executable}) cannot import what it needs: {why}. {INSTALL}")
