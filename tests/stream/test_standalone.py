"""The job on a standalone cluster of Spark, on loopback, whose master and worker come from PySpark itself."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from msgspec import to_builtins

from streaming.commit.offsets import IDLE_COMMIT_SECONDS, read_committed
from streaming.kafka.clients import group_observer, partitions_of
from streaming.runtime.java import find_java, java_home, pyspark_folder
from streaming.runtime.spark import JAVA_OPTIONS
from streaming.settings import MetricsSettings
from streaming.settings.monitor import MonitorSettings
from streaming.verify.cluster import verify
from tests.brokers import TestBroker, free_port
from tests.chaos.processes import ROOT, Job
from tests.endpoint import get
from tests.standalone import DRIVER, LOOPBACK, Standalone, end
from tests.stream.world import SHORT_LIVED, World, group, request, role
from tests.waiting import wait_until

pytestmark = [pytest.mark.stream, pytest.mark.long]

START_SECONDS = 240.0
LOST_SECONDS = 180.0  # until Spark notices that executors are gone, and the job is started again
DEADLINE_SECONDS = 10.0
JARS = (sys.executable, "-m", "streaming.runtime.jars")
ENDED = "Spark has had no executors for"


@pytest.fixture(params=[False, True], ids=["forgets", "recovers"])
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Standalone]:
    """Its master forgets applications when it ends, as by default, or recovers them."""
    with Standalone(tmp_path, recovery=request.param) as made:
        yield made


SPARK = {**SHORT_LIVED, **DRIVER, "spark.executor.memory": "512m", "spark.cores.max": "2"}


def _world(broker: TestBroker, name: str, folder: Path, cluster: Standalone, **settings: Any) -> World:
    """A world where dana may read about orders."""
    made = World(
        broker,
        name,
        str(folder / "checkpoint"),
        master=cluster.url,
        metrics=MetricsSettings(free_port()),
        **{"spark": SPARK, "monitor": MonitorSettings(mode="none"), **settings},
    )
    made.publish(group("readers", "user:dana"))
    made.publish(role("readers", "kafka:topic:prod/main/orders"))
    return made


@pytest.fixture
def world(broker: TestBroker, fresh_name: Callable[[str], str], tmp_path: Path, cluster: Standalone) -> World:
    """On that cluster, whose workers have the packages of this Python."""
    settings = {"spark": {**SPARK, "spark.archives": ""}, "progress_deadline_seconds": DEADLINE_SECONDS}
    return _world(broker, fresh_name("standalone"), tmp_path, cluster, **settings)


@pytest.fixture
def job(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Job]:
    """`lockkeeper run`, started again whenever it ends."""
    for name, value in {**LOOPBACK, "PYSPARK_PYTHON": sys.executable}.items():
        monkeypatch.setenv(name, value)
    made = Job(_config_of(world, tmp_path), tmp_path / "job.log")
    yield made
    made.stop()


def _config_of(world: World, folder: Path) -> Path:
    config = folder / "lockkeeper.yaml"
    config.write_text(yaml.safe_dump(to_builtins(world.settings)))
    return config


def _ready(world: World) -> tuple[int, str]:
    return get(world.settings.metrics.port, "/readyz")


def test_after_a_restart_of_the_master_every_request_is_decided_once_whether_it_recovers_applications_or_not(
    world: World, cluster: Standalone, job: Job
) -> None:
    """One that forgets them has the executors ended: the job is not ready then, ends, and is started again."""
    ids = [f"r-{number}" for number in range(40)]
    decisions = world.reader(world.names.decisions)
    world.send(request(id_, "dana", "orders") for id_ in ids[:20])
    decisions.until(lambda found: len(found) >= 20, "decisions on the cluster", START_SECONDS)
    wait_until(lambda: _ready(world)[0] == 200, "it is ready, which its first batch may keep it from for a while", 60)
    end(cluster.master)
    cluster.start_master()
    recovers = cluster.recovers
    if not recovers:
        wait_until(lambda: bool(job.exits), "the job ends by itself", LOST_SECONDS)
        assert ENDED in job.log.read_text()
        assert job.exits == [1], job.exits
    world.send(request(id_, "dana", "orders") for id_ in ids[20:])
    decisions.until(lambda found: len(found) >= 40, "decisions after the restart", START_SECONDS)
    wait_until(lambda: _ready(world)[0] == 200, f"it is ready: {_ready(world)}")
    assert recovers == (job.exits == []), job.exits
    findings = verify(world.settings)
    assert not findings.violations
    assert findings.requests == findings.decisions == len(ids)


def test_while_executors_are_stopped_the_job_is_not_ready_and_says_why_and_then_goes_on(
    world: World, cluster: Standalone, job: Job
) -> None:
    """SIGSTOP: they are there, and decide nothing."""
    if cluster.recovers:
        pytest.skip("the master has no part in it")
    decisions = world.reader(world.names.decisions)
    world.send([request("before", "dana", "orders")])
    decisions.until(lambda found: len(found) >= 1, "a decision", START_SECONDS)
    executors = cluster.executors()
    assert executors
    for pid in executors:
        os.kill(pid, signal.SIGSTOP)
    try:
        world.send([request("meanwhile", "dana", "orders")])
        wait_until(lambda: _ready(world)[0] == 503, "it is not ready", 10 * DEADLINE_SECONDS)
        assert "records wait since" in _ready(world)[1]
        wait_until(lambda: "records wait, and none is decided" in job.log.read_text(), "the log says so", 60)
        steps = (
            "evaluate the records in the workers",
            "commit the transactions of the partitions",
        )  # whichever it is in
        assert any(step in job.log.read_text() for step in steps)
    finally:
        for pid in executors:
            os.kill(pid, signal.SIGCONT)
    decisions.until(lambda found: len(found) >= 2, "the decision, once they go on", START_SECONDS)
    wait_until(lambda: _ready(world)[0] == 200, "it is ready again", 60)


def test_what_comes_to_a_partition_that_was_idle_is_decided_once_though_the_driver_has_committed_its_offset(
    world: World, cluster: Standalone, job: Job
) -> None:
    """By that it takes the partition's transactional id from the executor, which could not commit what it sends."""
    if cluster.recovers:
        pytest.skip("the master has no part in it")
    decisions, inputs = world.reader(world.names.decisions), world.settings.topics.inputs
    world.send([request("r-1", "dana", "orders")], key="one partition")
    decisions.until(lambda found: len(found) >= 1, "a decision", START_SECONDS)
    said = job.log.read_text().count("waiting for Kafka")
    with contextlib.closing(group_observer(world.settings)) as group:
        before = read_committed(group, partitions_of(world.admin, inputs))
        wait_until(
            lambda: all(entry != before[at] for at, entry in read_committed(group, before).items()),
            "the offset of each partition is committed again",
            3 * IDLE_COMMIT_SECONDS,
        )
    world.send([request("r-2", "dana", "orders")], key="one partition")
    decisions.until(lambda found: len(found) >= 2, "another decision")
    assert job.log.read_text().count("waiting for Kafka") == said, "for another producer"


# Workers without any package


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    """Two workers that have Java, Spark and Python alone."""
    with Standalone(tmp_path_factory.mktemp("bare"), workers=2, cores=2, bare=True) as made:
        yield made


def test_workers_with_java_and_python_alone_decide_and_watch_with_the_java_options_of_local_mode(
    broker: TestBroker, fresh_name: Callable[[str], str], tmp_path: Path, bare: Standalone
) -> None:
    """Spark runs a part of the monitor's query beside the driver, with the executors' name of Python."""
    world = _world(broker, fresh_name("bare"), tmp_path, bare, monitor=MonitorSettings())
    decisions, alerts = world.reader(world.names.decisions), world.reader(world.names.alerts)
    began = time.monotonic()
    job = Job(_config_of(world, tmp_path), tmp_path / "job.log")
    try:
        world.send([request("r", "dana", "orders")])
        [decision] = decisions.until(lambda found: len(found) >= 1, "a decision", START_SECONDS)
        print(f"from the command to the first decision: {time.monotonic() - began:.1f} s")
        commands = [Path(f"/proc/{executor}/cmdline").read_text() for executor in bare.executors()]
        world.send([request("a", "eve", "orders", outcome="success")], topic=world.names.audit[0])
        alerts.until(lambda found: b"unauthorized-access" in b"".join(map(_value, found)), "an alert", START_SECONDS)
    finally:
        job.stop()
    assert json.loads(decision.value())["decision"] is True, decision.value()
    assert commands
    for command in commands:
        assert [option for option in JAVA_OPTIONS.split() if option not in command] == []
    findings = verify(world.settings)
    assert not findings.violations
    assert findings.requests == findings.decisions == 1


def _value(message: Any) -> bytes:
    return bytes(message.value())


NOT_STARTED = {
    "without lockkeeper": (
        {"spark.archives": ""},
        "a worker lacks lockkeeper's code: ModuleNotFoundError",
    ),
    "without Python": ({"spark.pyspark.python": "python3.99"}, "a worker has no Python named python3.99"),
    "dynamic allocation": ({"spark.dynamicAllocation.enabled": "true"}, "spark.dynamicAllocation.enabled is true"),
}


@pytest.mark.parametrize("case", NOT_STARTED)
def test_a_job_whose_executors_cannot_run_its_code_does_not_start_and_says_why(
    case: str, broker: TestBroker, fresh_name: Callable[[str], str], tmp_path: Path, bare: Standalone
) -> None:
    settings, message = NOT_STARTED[case]
    log = _failed_start(_world(broker, fresh_name("bare"), tmp_path, bare, spark={**SPARK, **settings}), tmp_path)
    assert message in log


def test_a_job_whose_executors_have_another_python_does_not_start_and_says_why(
    broker: TestBroker, fresh_name: Callable[[str], str], tmp_path: Path, bare: Standalone
) -> None:
    other = next(filter(None, map(_another_python, range(9, 15))), None)
    if other is None:
        pytest.skip("there is one version of Python alone")
    settings = {**SPARK, "spark.pyspark.python": other}
    log = _failed_start(_world(broker, fresh_name("bare"), tmp_path, bare, spark=settings), tmp_path)
    assert f"and this job Python {sys.version_info[0]}.{sys.version_info[1]}: PySpark requires one minor version" in log


def test_a_job_whose_executors_have_other_code_of_lockkeeper_does_not_start_and_says_so(
    broker: TestBroker, fresh_name: Callable[[str], str], tmp_path: Path, bare: Standalone
) -> None:
    """The packages are there, and `policy` is not quite the same."""
    installed = tmp_path / "installed"
    for package in ("policy", "streaming"):
        shutil.copytree(ROOT / package, installed / package, ignore=shutil.ignore_patterns("__pycache__"))
    with (installed / "policy/evaluation/evaluate.py").open("a") as code:
        code.write("ANOTHER = True\n")
    path = os.pathsep.join((str(installed), sysconfig.get_path("purelib")))
    settings = {**SPARK, "spark.archives": "", "spark.executorEnv.PYTHONPATH": path}
    log = _failed_start(_world(broker, fresh_name("bare"), tmp_path, bare, spark=settings), tmp_path)
    assert "would decide by other code than this job" in log
    assert "not the files of the packages policy and streaming" in log


INSTALLED = (".pyenv/versions/*/bin/python3.{}", ".local/share/uv/python/*/bin/python3.{}")  # in the home folder


def _another_python(minor: int) -> str | None:
    """The path of a Python 3 of another minor version that works: on PATH pyenv has scripts that do not."""
    if minor == sys.version_info[1]:
        return None
    managed = [str(path) for pattern in INSTALLED for path in Path.home().glob(pattern.format(minor))]
    for command in filter(None, (shutil.which(f"python3.{minor}"), *managed)):
        done = subprocess.run([command, "-c", "import sys; print(sys.executable)"], capture_output=True, text=True)
        if done.returncode == 0:
            return done.stdout.strip()
    return None


def _failed_start(world: World, folder: Path) -> str:
    """The log of a job that ends while it starts, and does not say that it is ready."""
    world.send([request("r", "dana", "orders")])
    job = Job(_config_of(world, folder), folder / "job.log")
    job.restarts = False
    try:
        wait_until(lambda: bool(job.exits), "the start fails", START_SECONDS)
    finally:
        job.stop()
    log = job.log.read_text()
    assert job.exits == [1], log
    assert "ready:" not in log
    assert not world.everything(world.names.decisions)
    return log


def test_slots_are_counted_when_executors_are_there(bare: Standalone) -> None:
    """Right after the start Spark counts two, however many cores the cluster has."""
    program = (
        "import sys, threading, json\n"
        "from streaming.runtime.executors import await_executors\n"
        "from streaming.runtime.spark import start_session\n"
        "spark = start_session('slots', json.loads(sys.argv[2]), sys.argv[1])\n"
        "await_executors(spark, threading.Event())\n"
        "print('slots', spark.sparkContext.defaultParallelism)\n"
        "spark.stop()\n"
    )
    settings = json.dumps({**DRIVER, "spark.executor.memory": "512m"})
    done = subprocess.run([sys.executable, "-c", program, bare.url, settings], capture_output=True, text=True, cwd=ROOT)
    assert "slots 4" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_spark_submit_starts_the_job_by_hand(
    broker: TestBroker, fresh_name: Callable[[str], str], tmp_path: Path, bare: Standalone, number: signal.Signals
) -> None:
    """As the guide has it: in client mode, with the main file of the manifests. A signal to all ends it in order."""
    world = _world(broker, fresh_name("submit"), tmp_path, bare)
    jars = subprocess.run([*JARS, "--print"], capture_output=True, text=True, check=True, cwd=ROOT).stdout.strip()
    options = [part for name, value in DRIVER.items() for part in ("--conf", f"{name}={value}")]
    main = [str(ROOT / "deploy/kubernetes/main.py"), "run", "--config", str(_config_of(world, tmp_path))]
    submit = [str(pyspark_folder() / "bin/spark-submit"), "--master", bare.url, "--driver-memory", "1g"]
    variables = {**os.environ, "PYSPARK_DRIVER_PYTHON": sys.executable, "JAVA_HOME": str(java_home(find_java()))}
    decisions = world.reader(world.names.decisions)
    world.send([request("r", "dana", "orders")])
    with (tmp_path / "submit.log").open("ab") as log:
        command = [*submit, *options, "--jars", jars, *main]
        process = subprocess.Popen(command, cwd=ROOT, env=variables, stdout=log, stderr=log, start_new_session=True)
    try:
        decisions.until(lambda found: len(found) >= 1, "a decision", START_SECONDS)
    finally:
        os.killpg(process.pid, number)  # as systemd does, and a terminal with Ctrl-C
        assert process.wait(60) == 0, (tmp_path / "submit.log").read_text(errors="replace")[-3000:]
    findings = verify(world.settings)
    assert not findings.violations
    assert findings.requests == findings.decisions == 1
