"""What a job refuses to start with, before it fences anybody, and what it says then."""

import json
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from confluent_kafka import Consumer

from streaming.application import run
from streaming.enforcer.errors import CannotStart
from tests.brokers import TestBroker
from tests.stream.running import Job
from tests.stream.world import World
from tests.waiting import wait_until

pytestmark = pytest.mark.stream


@pytest.fixture
def world(broker: TestBroker, fresh_name: Callable[[str], str], tmp_path: Path) -> World:
    """Topics as they should be, and no job yet."""
    return World(broker, fresh_name("start"), str(tmp_path / "checkpoint"))


def test_topics_that_would_break_a_promise_are_refused_with_what_mends_them(world: World) -> None:
    names = msgspec.structs.replace(world.names, history="not-there")
    with pytest.raises(CannotStart, match=r"topic not-there: it does not exist.*lockkeeper topics create"):
        run(msgspec.structs.replace(world.settings, topics=names), threading.Event())


def test_a_group_with_members_is_refused_for_they_would_commit_other_offsets(world: World) -> None:
    settings = {"bootstrap.servers": world.broker.bootstrap_servers, "group.id": world.settings.job_name}
    member = Consumer({**settings, "client.id": "somebody"})
    member.subscribe([world.names.requests[0]])
    try:
        wait_until(lambda: member.poll(0.1) is None and bool(member.assignment()), "the member has joined")
        with pytest.raises(CannotStart, match=r"has members \(somebody\)"):
            run(world.settings, threading.Event())
    finally:
        member.close()


def test_a_checkpoint_without_committed_offsets_stops_the_start(world: World) -> None:
    """As after the group's offsets were forgotten: starting anywhere would lose or double decisions."""
    checkpoint = Path(world.settings.checkpoint)
    checkpoint.mkdir()
    (checkpoint / "metadata").write_text(json.dumps({"id": "6f1cbd6c-3c6e-4c8e-9d2e-0123456789ab"}))
    job = Job(world.settings)
    assert job.await_end() == 1
    assert job.told[-1]["stopped"] == "CannotStart"
    assert "has no committed offsets" in job.told[-1]["why"]
