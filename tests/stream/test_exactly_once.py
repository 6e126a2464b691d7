"""Exactly one decision for each request record: over kills, restarts, a second instance and lost checkpoints."""

import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from tests.brokers import TestBroker
from tests.stream.running import Job, running
from tests.stream.world import World, group, request, role
from tests.waiting import wait_until

pytestmark = [pytest.mark.stream, pytest.mark.long]

STEPS = ("policies-read", "evaluated", "written", "committed")


@pytest.fixture
def world(broker: TestBroker, fresh_name: Callable[[str], str], tmp_path: Path) -> World:
    """A world where readers, dana among them, may read about orders."""
    made = World(broker, fresh_name("once"), str(tmp_path / "checkpoint"), max_records=40)
    made.publish(role("readers", "kafka:topic:prod/main/orders"))
    made.publish(group("readers", "user:dana"))
    return made


def _ask(world: World, prefix: str, count: int = 50) -> list[str]:
    """Send requests, of which every second is allowed; returns their ids."""
    ids = [f"{prefix}-{number}" for number in range(count)]
    topics = ("orders", "payments")
    world.send(request(id_, "dana", topics[number % 2]) for number, id_ in enumerate(ids))
    return ids


def _assert_each_once(world: World, ids: list[str]) -> None:
    """Exactly one decision for each id, the right one, and nothing left to decide."""
    # Waited for here, as Kafka's tool is slow, and what it takes the job lacks.
    world.reader(world.names.decisions).until(lambda found: len(found) >= len(ids), "a decision for each", 120)
    world.await_no_lag()
    decisions = world.everything(world.names.decisions)
    assert Counter(decision["request_id"] for decision in decisions) == Counter(ids)
    for decision in decisions:
        assert decision["decision"] is (int(decision["request_id"].rpartition("-")[2]) % 2 == 0)


def test_killed_at_every_step_of_a_batch_it_decides_each_request_exactly_once(world: World) -> None:
    """Four jobs, each killed at another step of its first batch, then one that is left alone."""
    ids: list[str] = []
    for step in STEPS:
        ids += _ask(world, step)
        job = Job(world.settings, kill_at=step)
        assert job.await_end() == -9, job.reported
        assert job.reported[-1]["step"] == step
    with running(world.settings):
        _assert_each_once(world, ids)


def test_a_second_instance_fences_the_first_which_says_so(world: World, tmp_path: Path) -> None:
    """The second one has a checkpoint of its own, as on another machine; both see the same requests."""
    first = Job(world.settings)
    first.await_start()
    ids = _ask(world, "before")
    wait_until(lambda: any(one.get("step") == "committed" for one in first.reported), "a batch is decided", 120)
    other = msgspec.structs.replace(world.settings, checkpoint=str(tmp_path / "other"))
    with running(other):
        ids += _ask(world, "after")
        assert first.await_end() == 1
        assert first.reported[-1]["stopped"] == "Fenced"
        assert "another instance" in first.reported[-1]["why"]
        _assert_each_once(world, ids)


def test_an_older_checkpoint_and_none_at_all_lose_and_double_nothing(world: World, tmp_path: Path) -> None:
    """A copy made while the job ran comes back after more was decided; later there is none at all."""
    checkpoint, copy = Path(world.settings.checkpoint), tmp_path / "copy"
    ids = _ask(world, "one")
    with running(world.settings):
        _assert_each_once(world, ids)
        shutil.copytree(checkpoint, copy)
        ids += _ask(world, "two")
        _assert_each_once(world, ids)
    shutil.rmtree(checkpoint)
    copy.rename(checkpoint)
    ids += _ask(world, "three")
    with running(world.settings):
        _assert_each_once(world, ids)
    shutil.rmtree(checkpoint)
    ids += _ask(world, "four")
    with running(world.settings):
        _assert_each_once(world, ids)
