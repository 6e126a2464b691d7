"""Decisions go before the monitor's work: by Spark's own log of its events, in pools, and with a slot that is left."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from streaming.commit.checkpoint import parse_offsets
from streaming.monitor.query import ONE_SLOT_RECORDS
from streaming.records.audit import Heartbeat, encode_verdict
from streaming.settings import monitor_settings
from streaming.settings.monitor import MonitorSettings, Rules
from tests.brokers import TestBroker
from tests.stream.running import running
from tests.stream.world import SHORT_LIVED, World, group, request, role
from tests.waiting import wait_until

pytestmark = [pytest.mark.stream, pytest.mark.long]

SLOTS = 2
POOL, TASKS = "spark.scheduler.pool", "Number of Tasks"


@pytest.fixture
def world(broker: TestBroker, fresh_name: Callable[[str], str], tmp_path: Path) -> World:
    """A job with two slots and a monitor, whose events Spark logs."""
    logged = {"spark.eventLog.enabled": "true", "spark.eventLog.dir": tmp_path.as_uri()}
    made = World(
        broker,
        fresh_name("pools"),
        str(tmp_path / "checkpoint"),
        master=f"local[{SLOTS},4]",
        monitor=MonitorSettings(rules=Rules(grace_seconds=1.0)),
        spark={**SHORT_LIVED, **logged, "spark.eventLog.rolling.enabled": "false", "spark.eventLog.compress": "false"},
    )
    made.publish(group("readers", "user:dana"))
    made.publish(role("readers", "kafka:topic:prod/main/orders"))
    return made


def _jobs(folder: Path) -> list[dict[str, Any]]:
    """The jobs that have started, in Spark's log of events of its one application; the last line may not be whole."""
    lines = [line for file in folder.glob("local-*") for line in file.read_text().splitlines(keepends=True)]
    events = (json.loads(line) for line in lines if '"SparkListenerJobStart"' in line and line.endswith("\n"))
    return [event for event in events if event["Event"] == "SparkListenerJobStart"]


def _of(jobs: list[dict[str, Any]], query: str) -> list[dict[str, Any]]:
    """The jobs of a query's batches: Spark describes each by the name of its query."""
    lines = (job["Properties"].get("spark.job.description", "").split("\n") for job in jobs)
    return [job for job, described in zip(jobs, lines, strict=True) if described[0] == query]


def test_each_query_has_its_pool_and_the_monitor_leaves_a_slot_to_decisions(world: World, tmp_path: Path) -> None:
    monitor = monitor_settings(world.settings).job_name
    with running(world.settings):
        world.send(request(f"r-{number}", "dana", "orders") for number in range(20))
        for query in (world.settings.job_name, monitor):
            wait_until(lambda query=query: bool(_of(_jobs(tmp_path), query)), f"a job of {query}", 180)
        jobs = _jobs(tmp_path)
    decided, watched = _of(jobs, world.settings.job_name), _of(jobs, monitor)
    assert {job["Properties"].get(POOL) for job in decided} == {"enforcer"}
    assert {job["Properties"].get(POOL) for job in watched} == {"monitor"}
    stages = [stage for job in watched for stage in job["Stage Infos"]]
    assert max(stage[TASKS] for stage in stages) <= SLOTS - 1, stages


def test_with_one_slot_the_monitors_tasks_are_short(
    broker: TestBroker, fresh_name: Callable[[str], str], tmp_path: Path
) -> None:
    """It has none to leave to decisions, which wait for a task of the monitor that runs: so its batches are small."""
    monitor = MonitorSettings(rules=Rules(grace_seconds=1.0))
    made = World(broker, fresh_name("slot"), str(tmp_path / "checkpoint"), master="local[1,4]", monitor=monitor)
    verdicts, count = made.names.verdicts, 2 * ONE_SLOT_RECORDS + 1
    for number in range(count):
        made.producer.produce(verdicts, encode_verdict(Heartbeat(time=number)), partition=number % 2)
        if number % 10_000 == 0:  # the queue of the producer holds 100,000
            made.producer.flush(60)
    assert made.producer.flush(60) == 0
    log = Path(f"{made.settings.checkpoint}-monitor", "offsets")
    with running(made.settings):
        wait_until(lambda: _read(log, verdicts)[-1] >= count, "the monitor has read all", 240)
    read = _read(log, verdicts)
    assert max(after - before for before, after in zip([0, *read], read, strict=False)) <= ONE_SLOT_RECORDS + 2


def _read(log: Path, topic: str) -> list[int]:
    """How many records of a topic lie before the end of each batch in Spark's offset log."""
    files = sorted((int(path.name), path) for path in log.glob("*") if path.name.isdecimal())
    ends = (parse_offsets(path.read_text().splitlines()[-1]) for _, path in files)
    return [sum(end for (name, _), end in offsets.items() if name == topic) for offsets in ends] or [0]
