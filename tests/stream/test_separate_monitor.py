"""The monitor as an application of its own, and what it does when Kafka fails over, also within the job."""

import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from streaming.records.audit import Heartbeat, encode_verdict
from streaming.settings import MetricsSettings, Settings, SettingsError, check_separate_monitor
from streaming.settings.monitor import MonitorSettings, Rules
from tests.brokers import TestBroker, free_port
from tests.chaos.processes import Broker, Job
from tests.endpoint import get
from tests.java_archive import embedded_broker
from tests.monitor.pure import decision, verdict
from tests.stream.running import running
from tests.stream.world import World, group, request, role
from tests.waiting import wait_until

pytestmark = pytest.mark.stream

SECONDS = 180.0  # of a job to start and to alert, on a machine that does other things, too
FENCED = 3
RULES = Rules(grace_seconds=1.0, episode_seconds=3.0)
WITHIN = MonitorSettings(rules=RULES)
SEPARATE = msgspec.structs.replace(WITHIN, mode="separate")
HASTY = {"kafka.default.api.timeout.ms": "2000", "kafka.request.timeout.ms": "1000", "fetchOffset.numRetries": "1"}
"""With these Spark's reader gives up, and its query ends, within seconds of Kafka's going."""


def accessed(id_: str, user: str) -> dict[str, Any]:
    """The user read the details of a topic."""
    return {**request(id_, user, "orders"), "outcome": "success"}


def unauthorized(world: World) -> Counter[str]:
    """How often each subject's unauthorized access was alerted."""
    alerts = world.everything(world.names.alerts)
    return Counter(alert["subject"] for alert in alerts if alert["kind"] == "unauthorized-access")


class Application:
    """`lockkeeper run` or `lockkeeper monitor` with settings and a folder of its own, and a metrics port."""

    def __init__(self, settings: Settings, folder: Path, command: str) -> None:
        folder.mkdir()
        self.settings = msgspec.structs.replace(settings, metrics=MetricsSettings(port=free_port()))
        config = folder / "lockkeeper.yaml"
        config.write_text(yaml.safe_dump(msgspec.to_builtins(self.settings)))
        self.job = Job(config, folder / "log", command)

    @property
    def log(self) -> str:
        """All that it printed."""
        return self.job.log.read_text()

    def await_ready(self) -> None:
        """Return when /readyz succeeds."""
        wait_until(lambda: get(self.settings.metrics.port, "/readyz")[0] == 200, f"it is ready:\n{self.log}", SECONDS)


@pytest.fixture
def start() -> Iterator[Callable[[Settings, Path, str], Application]]:
    """Starts applications, which end with the test."""
    started: list[Application] = []

    def begin(settings: Settings, folder: Path, command: str) -> Application:
        started.append(Application(settings, folder, command))
        return started[-1]

    yield begin
    for application in started:
        application.job.stop()


def readers(world: World) -> World:
    """A world where readers, dana among them, may read about orders."""
    world.publish(role("readers", "kafka:topic:prod/main/orders"))
    world.publish(group("readers", "user:dana"))
    return world


@pytest.mark.parametrize("monitor", [MonitorSettings(), MonitorSettings(mode="none")])
def test_it_is_refused_where_run_would_run_it_too_or_takes_it_for_switched_off(monitor: MonitorSettings) -> None:
    with pytest.raises(SettingsError, match=r"^monitor\.mode: must be `separate` for `lockkeeper monitor`"):
        check_separate_monitor(Settings(monitor=monitor))
    check_separate_monitor(Settings(monitor=SEPARATE))


@pytest.mark.long
def test_run_leaves_it_out_and_monitor_raises_each_alert_once_also_when_killed_and_ends_when_fenced(
    broker: TestBroker,
    fresh_name: Callable[[str], str],
    tmp_path: Path,
    start: Callable[[Settings, Path, str], Application],
) -> None:
    world = readers(World(broker, fresh_name("separate"), str(tmp_path / "checkpoint"), monitor=SEPARATE))
    [audit] = world.names.audit
    with running(world.settings) as run:
        monitor = start(world.settings, tmp_path / "monitor", "monitor")
        monitor.await_ready()
        world.send([accessed("a", "eve")], audit)
        wait_until(lambda: unauthorized(world) == {"user:eve": 1}, "the first alert", SECONDS)
        assert "monitor-committed" not in {one.get("step") for one in run.reported}, "run leaves it out"
        _check_metrics(get(monitor.settings.metrics.port, "/metrics")[1], world)
        monitor.job.kill()
        world.send([accessed("b", "mallory")], audit)
        expected = {"user:eve": 1, "user:mallory": 1}
        wait_until(lambda: unauthorized(world) == expected, f"the second alert:\n{monitor.log}", SECONDS)
        monitor.job.restarts = False
        other = msgspec.structs.replace(world.settings, checkpoint=str(tmp_path / "other"))
        start(other, tmp_path / "second", "monitor")
        wait_until(lambda: FENCED in monitor.job.exits, f"the first one is fenced:\n{monitor.log}", SECONDS)
    assert "took over" in monitor.log.splitlines()[-1]
    assert "Traceback" not in monitor.log
    assert unauthorized(world) == expected


@pytest.mark.long
def test_without_its_checkpoint_it_accuses_nobody_for_answered_records_that_are_left(
    broker: TestBroker,
    fresh_name: Callable[[str], str],
    tmp_path: Path,
    start: Callable[[Settings, Path, str], Application],
) -> None:
    """The report of them was read by the monitor of before. Here the test writes what the job would."""
    world = World(broker, fresh_name("forgets"), str(tmp_path / "checkpoint"), monitor=SEPARATE)
    world.with_answered()
    verdicts = world.names.verdicts

    def report(*, lag: bool | None = None) -> None:
        world.send([encode_verdict(Heartbeat(time=_now(), answered_lag=lag))], verdicts)

    def access(id_: str, user: str, outcome: str) -> None:
        world.send([verdict(id_, user, "orders", _now(), outcome)[-1]], verdicts)

    def accused() -> set[str]:
        return {alert["subject"] for alert in world.everything(world.names.alerts)}

    def await_accused(user: str) -> None:
        def is_accused() -> bool:
            report()  # by which the monitor's time advances
            return user in accused()

        wait_until(is_accused, f"the alert about {user}:\n{monitor.log}", SECONDS)

    monitor = start(world.settings, tmp_path / "before", "monitor")
    report(lag=True)
    access("a", "eve", "deny")
    await_accused("eve")
    monitor.job.stop()
    shutil.rmtree(f"{world.settings.checkpoint}-monitor")
    answered_at = _now()
    access("b", "dana", "allow")
    for folder, user in (("after", "frank"), ("restarted", "gina")):
        monitor = start(world.settings, tmp_path / folder, "monitor")
        monitor.await_ready()
        access(folder, user, "allow")
        for _ in range(10):
            report()
            time.sleep(1)
        assert accused() == {"eve"}
        monitor.job.stop()
    monitor = start(world.settings, tmp_path / "last", "monitor")
    for user in ("dana", "frank", "gina"):
        world.send([decision(user, user, "orders", "allow", answered_at)[-1]], world.names.decisions)
    report(lag=False)
    for user in ("mallory", "trent"):  # the second when nothing is left of the assumption
        access(user, user, "allow")
        await_accused(user)
    assert accused() == {"eve", "mallory", "trent"}


def _now() -> int:
    return time.time_ns() // 1_000_000


def _check_metrics(text: str, world: World) -> None:
    cluster, name = world.admin.list_topics(timeout=30).cluster_id, world.settings.job_name
    assert f'lockkeeper_job_info{{cluster_id="{cluster}",job_name="{name}-monitor"' in text
    assert "lockkeeper_monitor_running 1.0" in text
    assert 'lockkeeper_alerts_total{kind="unauthorized-access"} 1.0' in text
    assert "lockkeeper_decisions_total" not in text, "it decides nothing"


@pytest.mark.long
@pytest.mark.parametrize(("command", "monitor"), [("run", WITHIN), ("monitor", SEPARATE)])
def test_a_broker_that_restarts_is_no_failure_of_the_monitor(
    fresh_name: Callable[[str], str],
    tmp_path: Path,
    start: Callable[[Settings, Path, str], Application],
    command: str,
    monitor: MonitorSettings,
) -> None:
    """It ends the monitor's query, which is started again with the same process, and its state."""
    broker = Broker(embedded_broker(data_dir=tmp_path / "data"))
    broker.start()
    try:
        test_broker = TestBroker(broker.bootstrap_servers)
        settings: dict[str, Any] = {"monitor": monitor, "source": HASTY, "transaction_timeout_seconds": 5.0}
        world = readers(World(test_broker, fresh_name("restarts"), str(tmp_path / "checkpoint"), **settings))
        watching = [start(world.settings, tmp_path / name, name) for name in dict.fromkeys(("run", command))]
        _restart_while_it_watches(world, watching[-1], broker)
        assert [application.job.exits for application in watching] == [[] for _ in watching]
        errors = [line for line in watching[-1].log.splitlines() if '"level": "error"' in line or "Traceback" in line]
        assert errors == []
    finally:
        broker.stop()


def _restart_while_it_watches(world: World, application: Application, broker: Broker) -> None:
    [audit] = world.names.audit
    application.await_ready()
    world.send([accessed("before", "eve")], audit)
    wait_until(lambda: unauthorized(world) == {"user:eve": 1}, "the first alert", SECONDS)
    broker.kill()
    waits = "the monitor waits for Kafka"
    wait_until(lambda: waits in application.log, f"its query has ended:\n{application.log}", SECONDS)
    assert "lockkeeper_monitor_running 1.0" in get(application.settings.metrics.port, "/metrics")[1]
    broker.start()
    world.send([accessed("after", "mallory")], audit)
    wait_until(lambda: unauthorized(world)["user:mallory"] == 1, f"the next alert:\n{application.log}", SECONDS)
    assert unauthorized(world) == {"user:eve": 1, "user:mallory": 1}
