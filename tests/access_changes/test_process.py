"""`lockkeeper access-changes` beside a broker: it writes what the reference evaluator computes from the logs."""

import contextlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from streaming.access_changes.metrics import AccessChangesMetrics
from streaming.access_changes.running import _Process
from streaming.commit.offsets import read_committed
from streaming.kafka.clients import group_observer, last_stable_offsets, partitions_of
from streaming.kafka.reader import document_topics
from streaming.settings import Settings, access_changes_settings
from streaming.topics import TopicNames
from tests.access_changes.traffic import Arrivals, Traffic, key_of
from tests.brokers import TestBroker, free_port
from tests.waiting import wait_until

pytestmark = [pytest.mark.stream, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
KINDS = ("grant", "revoke", "grant", "revoke", "fact", "expire")


class Process:
    """The command in a process of its own, which is killed and started again. `port`: of its metrics."""

    def __init__(self, settings: Settings, folder: Path, **variables: str) -> None:
        self.port, self._log = free_port(), folder / "access-changes.log"
        config = folder / "lockkeeper.yaml"
        topics = settings.topics
        policies = "".join(f"    {system}: {topic}\n" for system, topic in topics.policy_topics().items())
        single = ("facts", "history", "decisions", "verdicts", "alerts", "changes", "access_changes")
        config.write_text(
            f"job_name: {settings.job_name}\nbootstrap_servers: {settings.bootstrap_servers}\n"
            f"topics:\n  requests: [{topics.requests[0]}]\n  audit: [{topics.audit[0]}]\n  policies:\n{policies}"
            + "".join(f"  {name}: {getattr(topics, name)}\n" for name in single)
        )
        self._command = [sys.executable, "-m", "streaming.cli", "access-changes", "--config", str(config)]
        self._environment = {**os.environ, "LOCKKEEPER_METRICS_PORT": str(self.port), **variables}
        self._before = 0
        self.start()

    def start(self) -> None:
        self._before = len(self.log)
        with self._log.open("a") as log:
            self.process = subprocess.Popen(self._command, env=self._environment, stderr=log, stdout=log)

    @property
    def log(self) -> str:
        """What it has said so far, in all of its runs."""
        return self._log.read_text() if self._log.exists() else ""

    def await_ready(self, seconds: float = 60.0) -> None:
        wait_until(lambda: "ready: " in self.log[self._before :] or self.process.poll() is not None, "ready", seconds)
        assert self.process.poll() is None, self.log

    def metrics(self) -> dict[str, float]:
        """What it serves, by name and labels."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=10) as found:
            lines = [line for line in found.read().decode().splitlines() if not line.startswith("#")]
        return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}

    def metric(self, name: str) -> float:
        """One of them, 0 if it is not there yet."""
        return self.metrics().get(name, 0.0)

    def decisions(self) -> float:
        """How many decisions it has read in this run."""
        found = self.metrics().items()
        return sum(value for name, value in found if name.startswith("lockkeeper_access_changes_decisions_total"))

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(30)

    def stop(self) -> int:
        self.process.terminate()
        return self.process.wait(30)


@contextlib.contextmanager
def running(settings: Settings, folder: Path, **variables: str) -> Iterator[Process]:
    """The command, ready; it ends with the context."""
    process = Process(settings, folder, **variables)
    try:
        process.await_ready()
        yield process
    finally:
        if process.process.poll() is None:
            process.process.kill()
            process.process.wait(30)


def play(traffic: Traffic, changes: int, questions: int, between: Callable[[int], None] = lambda _number: None) -> None:
    """Questions and changes by turns; decisions come late, too. `between`: called after each change."""
    traffic.ask(questions // 2)
    for number in range(changes):
        if number % 4 == 0:
            traffic.write_late()
        traffic.change(KINDS[number % len(KINDS)])
        if number % 2 == 0:
            traffic.ask(questions // changes)
        between(number)
    traffic.write_late()


class Kills:
    """Kills a process now and then, as it starts or while it follows, and starts it again. `count`: how often."""

    def __init__(self, process: Process, seed: int, every: int) -> None:
        self._process, self._chance, self._every, self.count = process, random.Random(seed), every, 0

    def __call__(self, number: int) -> None:
        if number % self._every == self._every - 1:
            if self._chance.random() < 0.7:
                self._process.await_ready()
            self._process.kill()
            self._process.start()
            self.count += 1


def await_followed(traffic: Traffic, seconds: float = 300.0) -> None:
    """Wait until all that was published is followed, by what the process has committed.

    Records and positions are committed together, so no record comes later. Time is followed up to the last change.
    """
    wait_until(lambda: time.time() > traffic.ends(), "what is bound in time has ended")
    traffic.publish_last()
    own, names = access_changes_settings(traffic.settings), traffic.settings.topics
    ends = last_stable_offsets(traffic.world.admin, partitions_of(traffic.world.admin, followed_topics(names)))

    with contextlib.closing(group_observer(own)) as observer:

        def is_followed() -> bool:
            committed = read_committed(observer, ends, 30)
            return all(one in committed and committed[one].offset >= end for one, end in ends.items())

        wait_until(is_followed, "all is followed", seconds)


def followed_topics(names: TopicNames) -> list[str]:
    return [*document_topics(names), names.decisions]


def check(traffic: Traffic, arrivals: Arrivals, part: float = 1.0) -> Counter[tuple[str, str, str, str]]:
    """What was written is what is expected: nothing is missing, invented or doubled. `part`: see there."""
    expected = traffic.expected(part)
    assert sum(expected.values()) > 0

    await_followed(traffic)
    arrivals.await_end()
    found = Counter(key_of(record) for _, record in arrivals.records)
    missing, beside = expected - found, found - expected
    assert (list(missing.elements())[:3], list(beside.elements())[:3]) == ([], [])
    ids = Counter(record["id"] for _, record in arrivals.records)
    assert max(ids.values()) == 1
    return expected


@pytest.fixture
def arrivals_of() -> Iterator[Callable[[Traffic], Arrivals]]:
    """Reads what is written, until the test ends."""
    opened: list[Arrivals] = []

    def open_(traffic: Traffic) -> Arrivals:
        opened.append(Arrivals(traffic.world))
        return opened[-1]

    yield open_
    for one in opened:
        one.close()


def test_a_revocation_a_grant_and_an_end_are_each_written_once(
    broker: TestBroker, fresh_name: Callable[[str], str], tmp_path: Path, arrivals_of: Any
) -> None:
    traffic = Traffic(broker, fresh_name("turns"), seed=1, users=8, resources=8)
    with running(traffic.settings, tmp_path) as process:
        arrivals = arrivals_of(traffic)
        traffic.ask(300)
        for kind in ("revoke", "grant", "fact", "expire"):
            traffic.change(kind)
            traffic.ask(10)
        traffic.write_late()
        expected = check(traffic, arrivals)
        losers = {json.loads(question)[1]["id"] for question, was, now, _ in expected if was == "allow" != now}
        assert subscriptions_ended(tmp_path, fresh_name("group"), losers) == losers
        _, record = next(one for one in arrivals.records if "change" in one[1])
        assert record["change"]["author"] == "test"
        assert process.stop() == 0


def test_two_thousand_questions_and_fifty_changes_with_kills(
    broker: TestBroker, fresh_name: Callable[[str], str], tmp_path: Path, arrivals_of: Any
) -> None:
    traffic = Traffic(broker, fresh_name("kills"), seed=2, users=200, resources=40)
    with running(traffic.settings, tmp_path) as process:
        arrivals = arrivals_of(traffic)
        kills = Kills(process, 2, every=6)
        play(traffic, 50, 4000, kills)
        process.await_ready()
        expected = check(traffic, arrivals)
        print(f"{sum(expected.values())} records, {kills.count} kills")
        assert kills.count > 5


def test_a_start_that_is_killed_at_once_loses_no_change_of_before(
    broker: TestBroker, fresh_name: Callable[[str], str], tmp_path: Path, arrivals_of: Any
) -> None:
    traffic = Traffic(broker, fresh_name("starts"), seed=6, users=20, resources=8)
    with running(traffic.settings, tmp_path) as process:
        arrivals = arrivals_of(traffic)
        traffic.ask(600)
        traffic.write_late()
        await_followed(traffic)
        process.kill()
        for _ in range(8):
            traffic.change("revoke")
        metrics = AccessChangesMetrics(traffic.settings.policy_stale_seconds)
        with contextlib.closing(_Process(traffic.settings, threading.Event(), metrics)) as started:
            started.start()
        process.start()
        process.await_ready()
        check(traffic, arrivals)


def test_a_second_instance_fences_the_first(
    broker: TestBroker, fresh_name: Callable[[str], str], tmp_path: Path, arrivals_of: Any
) -> None:
    traffic = Traffic(broker, fresh_name("fences"), seed=3, users=8, resources=8)
    (tmp_path / "second").mkdir()
    with running(traffic.settings, tmp_path) as first, running(traffic.settings, tmp_path / "second"):
        arrivals = arrivals_of(traffic)
        traffic.ask(300)
        traffic.write_late()
        for _ in range(8):
            traffic.change("revoke")
        assert first.process.wait(60) == 3
        assert "another instance" in first.log
        check(traffic, arrivals)


def subscriptions_ended(folder: Path, group: str, losers: set[str]) -> set[str]:
    """Whose subscriptions the example ends, of those who lose some access and of one who does not."""
    out = folder / "ended"
    environment = {**os.environ, "LOCKKEEPER_CONFIG": str(folder / "lockkeeper.yaml")}
    with out.open("wb") as printed:
        command = [sys.executable, "deploy/examples/end_subscriptions.py", group, *losers, "somebody"]
        example = subprocess.Popen(command, env=environment, stdout=printed, cwd=ROOT)
        try:
            wait_until(lambda: len(out.read_text().splitlines()) >= len(losers), "the subscriptions are ended", 60)
            example.terminate()
            assert example.wait(30) == 0
        finally:
            example.kill()
            example.wait()
    return {line.split(" ")[1].removesuffix(":") for line in out.read_text().splitlines()}


QUESTIONS = 100_000


@pytest.mark.long
@pytest.mark.timeout(900)
def test_twenty_thousand_questions_by_two_thousand_subjects_and_two_hundred_changes_with_kills(
    broker: TestBroker, fresh_name: Callable[[str], str], tmp_path: Path, arrivals_of: Any
) -> None:
    traffic = Traffic(broker, fresh_name("many"), seed=4, users=2000, resources=150)
    with running(traffic.settings, tmp_path) as process:
        arrivals = arrivals_of(traffic)
        kills = Kills(process, 4, every=20)
        play(traffic, 200, 26_000, kills)
        process.await_ready()
        expected = check(traffic, arrivals, part=0.05)
        print(f"{len({key_of_question for key_of_question, *_ in expected})} questions turned")
        print(f"{len(traffic.asked)} decisions, {sum(expected.values())} records, {kills.count} kills")


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_change_is_reported_within_a_second_while_a_hundred_thousand_questions_are_remembered(
    broker: TestBroker, fresh_name: Callable[[str], str], tmp_path: Path, arrivals_of: Any
) -> None:
    traffic = Traffic(broker, fresh_name("latency"), seed=5, users=2000, resources=60)
    with running(traffic.settings, tmp_path) as process:
        arrivals = arrivals_of(traffic)
        while process.metric("lockkeeper_access_changes_questions") < QUESTIONS:
            traffic.ask(20_000)
            traffic.write_late()
            wait_until(lambda: process.decisions() >= len(traffic.asked), "all decisions are read", 120)
        took: list[float] = []
        for number in range(40):
            traffic.change(("grant", "revoke")[number % 2])
            took += arrivals.seconds_of(traffic.events[-1].change, traffic.acknowledged)
        print(f"questions {process.metric('lockkeeper_access_changes_questions'):.0f}, records {len(took)}")
        print(
            f"median {statistics.median(took) * 1000:.0f} ms, p99 {statistics.quantiles(took, n=100)[98] * 1000:.0f} ms"
        )
        assert statistics.median(took) <= 1.0
