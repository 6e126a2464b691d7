"""The job on a standalone cluster of Spark, on loopback, whose master and worker come from PySpark itself."""

import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from msgspec import to_builtins

from streaming.monitor_settings import MonitorSettings
from streaming.runtime.java import find_java, java_home, pyspark_folder
from streaming.settings import MetricsSettings
from streaming.verify.cluster import verify
from tests.brokers import TestBroker, free_port
from tests.chaos.processes import Job
from tests.stream.world import SHORT_LIVED, World, group, request, role
from tests.waiting import wait_until

pytestmark = [pytest.mark.stream, pytest.mark.long]

START_SECONDS = 240.0
LOST_SECONDS = 180.0  # until Spark notices that executors are gone, and the job is started again
DEADLINE_SECONDS = 10.0
HOST = "127.0.0.1"
RECOVERY = ("-Dspark.deploy.recoveryMode=FILESYSTEM", "-Dspark.deploy.recoveryDirectory={folder}/recovery")
ENDED = "Spark has had no executors for"


class Standalone:
    """A master and a worker with two cores, each a process of its own."""

    def __init__(self, folder: Path, recovery: bool) -> None:
        self.folder, self.port = folder, free_port()
        (folder / "recovery").mkdir()
        self._options = [option.format(folder=folder) for option in RECOVERY] if recovery else []
        self._processes: list[subprocess.Popen[bytes]] = []
        self.start_master()
        self._start("worker.Worker", "--cores", "2", "--memory", "1g", "--work-dir", str(folder / "work"), self.url)

    @property
    def url(self) -> str:
        """Of the master."""
        return f"spark://{HOST}:{self.port}"

    def start_master(self) -> None:
        """At the same address each time."""
        self._master = self._start("master.Master", "--port", str(self.port))

    def _start(self, name: str, *arguments: str) -> "subprocess.Popen[bytes]":
        jars = str(pyspark_folder() / "jars" / "*")
        common = ["--host", HOST, "--webui-port", "0"]
        command = [find_java(), "-Xmx256m", *self._options, "-cp", jars, f"org.apache.spark.deploy.{name}", *common]
        variables = {"SPARK_HOME": str(pyspark_folder()), "JAVA_HOME": str(java_home(find_java())), **LOOPBACK}
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [*command, *arguments], env={**os.environ, **variables}, stdout=log, stderr=log, start_new_session=True
            )
        self._processes.append(process)
        return process

    def kill_master(self) -> None:
        """By kill -9."""
        self._master.kill()
        self._master.wait()

    def stop(self) -> None:
        """End all processes; the worker ends its executors."""
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.wait(60)


LOOPBACK = {"SPARK_LOCAL_IP": HOST, "SPARK_SCALA_VERSION": "2.13"}


@pytest.fixture(params=[False, True], ids=["forgets", "recovers"])
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Standalone]:
    """Its master forgets applications when it ends, as by default, or recovers them."""
    made = Standalone(tmp_path, request.param)
    yield made
    made.stop()


@pytest.fixture
def world(broker: TestBroker, fresh_name: Callable[[str], str], tmp_path: Path, cluster: Standalone) -> World:
    """A world where dana may read about orders."""
    spark = {
        **SHORT_LIVED,
        "spark.driver.host": HOST,
        "spark.driver.bindAddress": HOST,
        "spark.executor.memory": "512m",
        "spark.cores.max": "2",
    }
    made = World(
        broker,
        fresh_name("standalone"),
        str(tmp_path / "checkpoint"),
        master=cluster.url,
        spark=spark,
        monitor=MonitorSettings(enabled=False),
        metrics=MetricsSettings(free_port()),
        progress_deadline_seconds=DEADLINE_SECONDS,
    )
    made.publish(group("readers", "user:dana"))
    made.publish(role("readers", "kafka:topic:prod/main/orders"))
    return made


@pytest.fixture
def job(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Job]:
    """`lockkeeper run`, started again whenever it ends."""
    for name, value in {**LOOPBACK, "PYSPARK_PYTHON": sys.executable}.items():
        monkeypatch.setenv(name, value)
    config = tmp_path / "lockkeeper.yaml"
    config.write_text(yaml.safe_dump(to_builtins(world.settings)))
    made = Job(config, tmp_path / "job.log")
    yield made
    made.stop()


def _ready(world: World) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{HOST}:{world.settings.metrics.port}/readyz", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError:
        return 0, ""


def test_after_a_restart_of_the_master_every_request_is_decided_once_whether_it_recovers_applications_or_not(
    world: World, cluster: Standalone, job: Job
) -> None:
    """One that forgets them has the executors ended: the job is not ready then, ends, and is started again."""
    ids = [f"r-{number}" for number in range(40)]
    decisions = world.reader(world.names.decisions)
    world.send(request(id_, "dana", "orders") for id_ in ids[:20])
    decisions.until(lambda found: len(found) >= 20, "decisions on the cluster", START_SECONDS)
    assert _ready(world)[0] == 200
    cluster.kill_master()
    cluster.start_master()
    recovers = bool(cluster._options)
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
    world: World, cluster: Standalone, job: Job, tmp_path: Path
) -> None:
    """SIGSTOP: they are there, and decide nothing."""
    if cluster._options:
        pytest.skip("the master has no part in it")
    decisions = world.reader(world.names.decisions)
    world.send([request("before", "dana", "orders")])
    decisions.until(lambda found: len(found) >= 1, "a decision", START_SECONDS)
    executors = _executors(tmp_path)
    assert executors
    for pid in executors:
        os.kill(pid, signal.SIGSTOP)
    try:
        world.send([request("meanwhile", "dana", "orders")])
        wait_until(lambda: _ready(world)[0] == 503, "it is not ready", 10 * DEADLINE_SECONDS)
        assert "records wait since" in _ready(world)[1]
        wait_until(lambda: "records wait, and none is decided" in job.log.read_text(), "the log says so", 60)
        assert "evaluate the records in the workers" in job.log.read_text()
    finally:
        for pid in executors:
            os.kill(pid, signal.SIGCONT)
    decisions.until(lambda found: len(found) >= 2, "the decision, once they go on", START_SECONDS)
    wait_until(lambda: _ready(world)[0] == 200, "it is ready again", 60)


def _executors(folder: Path) -> list[int]:
    """The executors' JVMs, which work in the worker's folder."""
    from tests.processes import processes_naming

    return [
        int(line.split()[0])
        for line in processes_naming("CoarseGrainedExecutorBackend")
        if str(folder) in os.readlink(f"/proc/{line.split()[0]}/cwd")
    ]
