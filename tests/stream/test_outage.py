"""Kafka away, Kafka back: the job waits and goes on, with nothing lost or doubled, and ends when it is asked to."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import structlog
import yaml

from streaming.commit.evaluation import POOL
from streaming.commit.transaction import Outage
from streaming.errors import CannotWrite, Stopping
from streaming.ops.watch import Watch
from streaming.settings import MetricsSettings, Settings
from streaming.verify.cluster import verify
from tests.brokers import TestBroker, free_port
from tests.endpoint import get
from tests.java_archive import embedded_broker
from tests.processes import descendants, processes_naming
from tests.stream.running import ROOT, START_SECONDS
from tests.stream.world import World, group, request, role
from tests.waiting import wait_until

pytestmark = pytest.mark.stream

END_SECONDS = 10.0
OUTAGE_SECONDS = 12.0
BACK_SECONDS = 60.0
NOTICED_SECONDS = 30.0
"""Each call of Kafka's producer waits for `ANSWER_SECONDS` at most, and the first one that fails is logged."""
FENCED = 3
WAITS, BACK, AGAIN = "waiting for Kafka", "Kafka is available again", "the query, which Spark ended"
LINES = 8
"""An outage is reported in at most so many lines."""

HASTY = {"kafka.default.api.timeout.ms": "2000", "kafka.request.timeout.ms": "1000", "fetchOffset.numRetries": "1"}
"""With these Spark's reader gives up, and its query ends, within seconds of Kafka's going."""


def test_a_wait_is_logged_when_it_begins_and_when_it_ends_and_each_pause_is_longer() -> None:
    stop, watch = threading.Event(), Watch(Settings())
    outage, failures = Outage(stop, watch), 3

    def attempt() -> str:
        nonlocal failures
        if failures == 0:
            return "done"
        failures -= 1
        raise TimeoutError(f"{failures} to come")

    with structlog.testing.capture_logs() as logged:
        assert outage.retry("an answer", attempt) == "done"
        assert watch.health.waits_since is not None
        outage.end()
        outage.end()
    assert [entry["event"] for entry in logged if entry["log_level"] != "debug"] == [WAITS, BACK]
    assert (logged[0]["awaited"], logged[0]["error"]) == ("an answer", "2 to come")
    assert watch.health.waits_since is None


def test_a_wait_ends_at_once_when_asked_to_stop_and_what_kafka_refuses_is_not_waited_for() -> None:
    stop = threading.Event()
    outage = Outage(stop, Watch(Settings()))
    with pytest.raises(ZeroDivisionError):
        outage.retry("an answer", lambda: 1 // 0)
    threading.Timer(0.3, stop.set).start()

    def attempt() -> None:
        raise CannotWrite("no answer")

    with pytest.raises(Stopping):
        outage.retry("an answer", attempt)


class Broker:
    """A broker that is killed and started again, on its port and with its data."""

    def __init__(self, folder: Path) -> None:
        self._embedded = embedded_broker(data_dir=folder / "data")
        self.address = self._embedded.bootstrap_servers

    def start(self) -> None:
        """Return when it answers."""
        self._embedded.start()

    def kill(self) -> None:
        """By kill -9, as a machine that fails."""
        for line in processes_naming(f"{self._embedded.folder}/server.properties"):
            os.kill(int(line.split()[0]), signal.SIGKILL)
        self._embedded.stop()

    def stop(self) -> None:
        """In order; without effect when it does not run."""
        self._embedded.stop()


class Run:
    """`lockkeeper run` in a process of its own."""

    def __init__(self, settings: Settings, folder: Path) -> None:
        self.folder, self._log, self.port = folder, folder / "job.log", settings.metrics.port
        file = folder / "lockkeeper.yaml"
        file.write_text(yaml.safe_dump(msgspec.to_builtins(settings)))
        command = [sys.executable, "-m", "tests.stream.outage_process", str(file), str(folder)]
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log, start_new_session=True)

    def log(self) -> str:
        """All that it printed."""
        return self._log.read_text()

    def count(self, event: str) -> int:
        """How often it has logged an event that begins so."""
        events = (json.loads(line)["event"] for line in self.log().splitlines() if line.startswith("{"))
        return sum(logged.startswith(event) for logged in events)

    def await_event(self, event: str, count: int = 1) -> None:
        """Return when it has logged an event so often."""
        seconds = NOTICED_SECONDS if event == WAITS else BACK_SECONDS
        wait_until(lambda: self.count(event) >= count, f"{count} times {event!r}:\n{self.log()}", seconds)

    def await_ready(self) -> None:
        """Return when /readyz says that it decides."""
        wait_until(lambda: self.ready()[0] == 200 or self.process.poll() is not None, "it is ready", START_SECONDS)
        assert self.process.poll() is None, self.log()

    def ready(self) -> tuple[int, str]:
        """What /readyz answers; 0 while the port is closed."""
        return get(self.port, "/readyz")

    def pause_at(self, step: str, send: Callable[[], None]) -> None:
        """Return when a batch, of what is sent, stands at a step."""
        (self.folder / step).touch()
        send()
        wait_until((self.folder / "paused").exists, f"the batch is at {step}:\n{self.log()}", BACK_SECONDS)

    def go_on(self) -> None:
        """Let the batch that stands go on."""
        (self.folder / "paused").unlink()

    def signal_all(self, number: signal.Signals) -> None:
        """To this process and all that it has started."""
        for pid in (*descendants(self.process.pid), self.process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Ask it to stop; its exit code."""
        began = time.monotonic()
        self.process.send_signal(number)
        code = self.process.wait(60)
        assert time.monotonic() - began < END_SECONDS, self.log()[-3000:]
        return code

    def kill(self) -> None:
        """End it with all that it has started, if it has not ended."""
        self.signal_all(signal.SIGKILL)
        self.process.wait()


@pytest.fixture
def kafka(tmp_path: Path) -> Iterator[Broker]:
    """A broker of this test's own, started."""
    made = Broker(tmp_path)
    made.start()
    yield made
    made.stop()


@pytest.fixture
def world(kafka: Broker, fresh_name: Callable[[str], str], tmp_path: Path) -> World:
    """A world where dana may read about orders; policies are stale after two seconds."""
    settings: dict[str, Any] = {
        "source": HASTY,
        "metrics": MetricsSettings(port=free_port()),
        "policy_stale_seconds": 2.0,
        "transaction_timeout_seconds": 5.0,
        "master": "local[2]",
    }
    made = World(TestBroker(kafka.address), fresh_name("away"), str(tmp_path / "checkpoint"), **settings)
    made.publish(role("readers", "kafka:topic:prod/main/orders"))
    made.publish(group("readers", "user:dana"))
    return made


@pytest.fixture
def job(world: World, tmp_path: Path) -> Iterator[Run]:
    """The job, ready."""
    made = Run(world.settings, tmp_path)
    made.await_ready()
    yield made
    made.kill()


class Asked:
    """Requests that were sent."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.ids: list[str] = []

    def send(self, prefix: str, count: int = 20) -> None:
        """More of them, of which every second is allowed."""
        ids = [f"{prefix}-{number}" for number in range(count)]
        self._world.send(request(id_, "dana", ("orders", "payments")[number % 2]) for number, id_ in enumerate(ids))
        self.ids += ids

    def await_each_once(self) -> None:
        """A decision for each, one alone, and the right one by the checker's own account."""
        world, ids = self._world, self.ids
        world.reader(world.names.decisions).until(lambda found: len(found) >= len(ids), "a decision for each", 60)
        decided = world.everything(world.names.decisions)
        assert Counter(decision["request_id"] for decision in decided) == Counter(ids)
        found = verify(world.settings)
        assert found.ok, found.violations
        assert found.verified == len(ids)


def _stale(world: World) -> Counter[str]:
    """How often each topic was reported as stale; each alert has an id of its own."""
    alerts = [alert for alert in world.everything(world.names.alerts) if alert["kind"] == "policy-stale"]
    assert len({alert["id"] for alert in alerts}) == len(alerts)
    return Counter(alert["subject"] for alert in alerts)


@pytest.mark.long
def test_it_waits_while_kafka_is_away_and_goes_on_without_a_restart(world: World, job: Run, kafka: Broker) -> None:
    """Four outages of one job: idle, until Spark's query ends, and once more; after a batch was evaluated; within its
    transaction, for longer than the coordinator waits for it. Then an answer is lost, of a batch that was committed. In
    a fifth outage it is asked to end.
    """
    asked = Asked(world)
    asked.send("before")
    asked.await_each_once()
    lines = job.log().count("\n")

    kafka.kill()
    job.await_event(WAITS)
    wait_until(lambda: job.ready()[0] == 503 and "Kafka is unavailable" in job.ready()[1], "it is not ready")
    time.sleep(OUTAGE_SECONDS)  # it is the length that is tested
    kafka.start()
    job.await_event(BACK)
    job.await_event(AGAIN)
    said = job.log().splitlines()[lines:]
    asked.send("idle")
    asked.await_each_once()
    job.await_ready()
    assert (job.count(WAITS), job.count(BACK)) == (1, 1)
    assert len([line for line in said if "batch decided" not in line]) <= LINES, "\n".join(said)
    stale = _stale(world)
    assert stale, "the policies were stale, which is written once Kafka is back"
    assert set(stale.values()) == {1}

    kafka.kill()
    job.await_event(WAITS, 2)
    time.sleep(OUTAGE_SECONDS)
    kafka.start()
    job.await_event(BACK, 2)
    asked.send("idle-again")
    asked.await_each_once()
    assert _stale(world) == dict.fromkeys(stale, 2), "once for each outage, also at the same offsets"

    for number, step in enumerate(("evaluated", "written"), 3):
        job.pause_at(step, lambda step=step: asked.send(step))  # type: ignore[misc]
        kafka.kill()
        job.go_on()
        job.await_event(WAITS, number)
        kafka.start()
        job.await_event(BACK, number)
        asked.await_each_once()

    (job.folder / "lost-answer").touch()
    asked.send("lost-answer")
    job.await_event(BACK, 5)
    asked.await_each_once()

    kafka.kill()
    job.await_event(WAITS, 6)
    assert job.end() == 0
    assert "Traceback" not in job.log()
    assert job.log().splitlines()[-1].startswith("stopped")
    kafka.start()
    asked.await_each_once()


@pytest.mark.long
def test_one_that_comes_back_after_another_took_over_ends_as_fenced_and_leaves_that_one_alone(
    world: World, job: Run, kafka: Broker, tmp_path: Path
) -> None:
    """It lost Kafka within a transaction, and stood still while the other one started on another machine."""
    asked = Asked(world)
    job.pause_at("written", lambda: asked.send("first"))
    kafka.kill()
    job.go_on()
    job.await_event(WAITS)
    job.signal_all(signal.SIGSTOP)
    kafka.start()
    (tmp_path / "other").mkdir()
    port = MetricsSettings(port=free_port())
    settings = msgspec.structs.replace(world.settings, checkpoint=str(tmp_path / "other/checkpoint"), metrics=port)
    other = Run(settings, tmp_path / "other")
    try:
        other.await_ready()
        job.signal_all(signal.SIGCONT)
        assert job.process.wait(BACK_SECONDS) == FENCED, job.log()[-3000:]
        assert "took over" in job.log().splitlines()[-1]
        assert "Traceback" not in job.log()
        asked.send("second")
        asked.await_each_once()
        assert other.end() == 0
    finally:
        other.kill()


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.long)], ids=lambda number: number.name
)
def test_a_signal_during_the_start_ends_it_in_order(
    broker: TestBroker, fresh_name: Callable[[str], str], tmp_path: Path, number: signal.Signals
) -> None:
    """While Java starts, or while Spark does."""
    world = World(broker, fresh_name("early"), str(tmp_path / "checkpoint"))
    world.publish(role("readers", "*"))
    job = Run(world.settings, tmp_path)
    try:
        started = "starting Spark" if number == signal.SIGTERM else "policies in force"
        wait_until(lambda: started in job.log(), f"it has logged {started!r}", START_SECONDS)
        assert job.end(number) == 0, job.log()
        assert not [line for line in job.log().splitlines() if "Traceback" in line or "rror" in line], job.log()
        assert "stopped" in job.log().splitlines()[-1]
    finally:
        job.kill()


@pytest.mark.long
def test_a_signal_while_workers_take_long_to_start_ends_it_in_order(
    broker: TestBroker, fresh_name: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each with the description of itself, for which it asks its host's name."""
    code, began = tmp_path / "code", tmp_path / "began"
    code.mkdir()
    (code / "sitecustomize.py").write_text(
        "import os, pathlib, socket, time\n"
        f"if {POOL!r} in os.environ:\n"
        f"    socket.gethostname = lambda: (pathlib.Path({str(began)!r}).touch(), time.sleep({START_SECONDS}))\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(code))
    world = World(broker, fresh_name("slow"), str(tmp_path / "checkpoint"))
    world.publish(role("readers", "*"))
    job = Run(world.settings, tmp_path)
    try:
        wait_until(began.exists, "the workers begin to start", START_SECONDS)
        assert job.end() == 0, job.log()
        assert not [line for line in job.log().splitlines() if "Traceback" in line or "rror" in line.lower()], job.log()
        assert "stopped" in job.log().splitlines()[-1]
    finally:
        job.kill()
