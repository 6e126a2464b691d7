"""What a running job survives, and what it says when it ends: killed Python workers, and a disk that is full."""

import contextlib
import itertools
import os
import resource
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from tests.brokers import TestBroker
from tests.processes import below
from tests.stream.running import Job, ServedJob, running, stopping
from tests.stream.world import World, group, request, role
from tests.waiting import wait_until

pytestmark = [pytest.mark.stream, pytest.mark.long]


@pytest.fixture
def world(broker: TestBroker, fresh_name: Callable[[str], str], tmp_path: Path) -> World:
    """A world where dana may read about orders."""
    made = World(broker, fresh_name("faults"), str(tmp_path / "checkpoint"))
    made.publish(role("readers", "kafka:topic:prod/main/orders"))
    made.publish(group("readers", "user:dana"))
    return made


def _ask(world: World, *ids: str) -> None:
    """For Python: a time as text is nothing that Java's table of known answers takes."""
    world.send(request(id_, "dana", "orders", time="2026-11-26T00:00:00Z") for id_ in ids)


def _await_decisions(world: World, *ids: str) -> None:
    """Exactly one decision for each id, and an allow."""
    world.reader(world.names.decisions).until(lambda found: len(found) >= len(ids), "a decision for each", 120)
    decisions = world.everything(world.names.decisions)
    assert Counter(decision["request_id"] for decision in decisions) == Counter(ids)
    assert all(decision["decision"] for decision in decisions)


def _workers(job: Job | ServedJob) -> list[int]:
    """The Python workers of a job: they are forked from a process of the same command, which Java starts."""
    forked = [(pid, parent) for pid, parent, command in below(job.pid) if "-m streaming.runtime.daemon" in command]
    return [pid for pid, parent in forked if parent in dict(forked)]


def _kill_workers(job: Job | ServedJob) -> bool:
    """Whether there was one."""
    workers = _workers(job)
    for pid in workers:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return bool(workers)


def test_a_killed_worker_is_replaced_and_what_kills_each_one_ends_the_job_naming_its_records(world: World) -> None:
    """By default a task is tried eight times: more often than there are workers, all of which are killed here.

    Tried twice, it meets two that are killed.
    """
    with running(world.settings) as job:
        _ask(world, "1")
        _await_decisions(world, "1")
        assert _kill_workers(job)
        _ask(world, "2")
        _await_decisions(world, "1", "2")
    why = f"a task failed 2 times, over the records of {world.names.requests[0]}-"
    with stopping(msgspec.structs.replace(world.settings, master="local[4,2]"), "JobStopped", why) as job:
        ids = ["1", "2"]

        def is_ended() -> bool:
            """A worker may be quicker than its killer: so there is always another request."""
            if _kill_workers(job) or not job.ended:
                ids.append(str(len(ids) + 1))
                _ask(world, ids[-1])
                return False
            return True

        wait_until(is_ended, "each worker is killed, and the job ends", 120)
    assert "from offset" in job.why
    assert len(job.why) < 1000
    with running(world.settings):
        _await_decisions(world, *ids)


@contextlib.contextmanager
def _full_disk(job: Job | ServedJob) -> Iterator[None]:
    """Java can write to no file: each is too large."""
    [java] = [pid for pid, _, command in below(job.pid) if "SparkSubmit" in command]
    soft, hard = resource.prlimit(java, resource.RLIMIT_FSIZE)
    resource.prlimit(java, resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.prlimit(java, resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_ends_the_job_with_the_folder_and_the_fix_and_nothing_is_lost(world: World) -> None:
    _ask(world, "1")
    with stopping(world.settings, "JobStopped", f"the disk of {world.settings.checkpoint} is full") as job:
        _await_decisions(world, "1")
        with _full_disk(job):
            _ask(world, "2")
            wait_until(lambda: job.ended, "the job ends", 120)
    assert "Free space there" in job.why
    assert len(job.why) < 1000
    with running(world.settings):
        _await_decisions(world, "1", "2")


@pytest.mark.parametrize("written_by", ["executors", "driver"])
def test_a_broker_that_refuses_the_times_of_records_ends_the_job_with_the_fix(world: World, written_by: str) -> None:
    """Here it takes only records of this very millisecond; one whose clock is an hour behind takes none at all."""
    topic = world.names.decisions if written_by == "executors" else world.names.alerts
    numbers = itertools.count()
    with stopping(world.settings, "JobStopped", "do the brokers' clocks and this machine's agree?") as job:
        world.configure(topic, {"message.timestamp.after.max.ms": "0", "message.timestamp.before.max.ms": "0"})

        def has_ended_after_next_record() -> bool:
            if written_by == "executors":
                _ask(world, str(next(numbers)))
            else:
                world.publish({"system": "lenses6", "kind": "Role", "name": str(next(numbers)), "spec": 1})
            return job.ended

        wait_until(has_ended_after_next_record, "the job ends", 120)
