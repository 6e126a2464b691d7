"""`lockkeeper access-changes` beside a broker: it writes what the reference evaluator computes from the logs."""

import contextlib
import json
import os
import random
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from streaming.access_changes.metrics import AccessChangesMetrics
from streaming.access_changes.running import _Process
from streaming.kafka.clients import topic_ids
from tests.access_changes.expected import Expected, Record
from tests.access_changes.process import Process, await_followed, running
from tests.access_changes.traffic import Arrivals, Traffic, key_of, shown
from tests.bench.access_changes import measure
from tests.brokers import TestBroker
from tests.waiting import wait_until

pytestmark = [pytest.mark.stream, pytest.mark.long, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
KINDS = ("grant", "revoke", "grant", "revoke", "fact", "expire")


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


def check(traffic: Traffic, arrivals: Arrivals) -> Counter[Record]:
    """What was written is what is expected: nothing is missing, invented or doubled."""
    await_followed(traffic)
    arrivals.await_end()
    expected, found = Expected(traffic), Counter(key_of(record) for _, record in arrivals.records)
    missing, beside = expected.records - found, found - expected.records
    assert (list(missing.elements())[:3], list(beside.elements())[:3]) == ([], [])
    ids = Counter(record["id"] for _, record in arrivals.records)
    assert max(ids.values()) == 1
    assert expected.compared > 0
    print(
        f"{len(traffic.asked)} decisions of {len(expected.questions)} questions, {found.total()} records; "
        f"{expected.compared} answers computed with all documents"
    )
    return found


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
        found = check(traffic, arrivals)
        losers = {json.loads(question)[1]["id"] for question, was, now, _ in found if was == "allow" != now}
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
        check(traffic, arrivals)
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


def test_a_topic_of_decisions_that_is_re_created_ends_it_and_is_read_once_that_is_accepted(
    broker: TestBroker, fresh_name: Callable[[str], str], tmp_path: Path
) -> None:
    traffic = Traffic(broker, fresh_name("again"), seed=7, users=8, resources=8)
    world = traffic.world
    with running(traffic.settings, tmp_path) as process:
        traffic.ask(100)
        traffic.write_late()
        await_followed(traffic)
        world.recreate(world.names.decisions)
        wait_until(lambda: process.process.poll() is not None, "it has ended")
        assert f"topic {world.names.decisions} was deleted" in process.log
    accepted = json.dumps(list(topic_ids(world.admin, [world.names.decisions]).values()))
    with running(traffic.settings, tmp_path, LOCKKEEPER_ACCEPTED_TOPIC_IDS=accepted) as process:
        traffic.ask(100)
        traffic.write_late()
        await_followed(traffic)
        assert process.stop() == 0


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


@pytest.mark.timeout(900)
def test_ten_thousand_questions_by_a_thousand_subjects_and_a_hundred_changes_with_kills(
    broker: TestBroker, fresh_name: Callable[[str], str], tmp_path: Path, arrivals_of: Any
) -> None:
    traffic = Traffic(broker, fresh_name("many"), seed=4, users=1000, resources=80)
    with running(traffic.settings, tmp_path) as process:
        arrivals = arrivals_of(traffic)
        kills = Kills(process, 4, every=10)
        play(traffic, 100, 13_000, kills)
        process.await_ready()
        found = check(traffic, arrivals)
        subjects = {asked.request["subject"]["id"].removeprefix("user:") for asked in traffic.asked}
        assert (len({shown(asked.request) for asked in traffic.asked}) > 10_000, len(subjects)) == (True, 1000)
        outcomes = Counter((was, now) for _, was, now, _ in found.elements())
        print(f"{kills.count} kills, {len({question for question, *_ in found})} questions turned: {dict(outcomes)}")


@pytest.mark.timeout(900)
def test_how_soon_a_change_is_reported_is_measured_while_many_questions_are_remembered(
    broker: TestBroker, tmp_path: Path
) -> None:
    found = measure(broker, tmp_path, questions=10_000, changes=20)
    print(found)
    assert found.questions >= 10_000
    assert found.records > 30
    assert found.median_ms > 0
