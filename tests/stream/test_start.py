"""What a job refuses to start with, before it fences anybody, and what it says then."""

import json
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from confluent_kafka import Consumer, TopicPartition

from streaming.application import run
from streaming.errors import CannotStart
from tests.brokers import CONSUMER_GROUPS, TestBroker
from tests.stream.running import Job, running, stopping
from tests.stream.world import World, request
from tests.waiting import wait_until

pytestmark = pytest.mark.stream


@pytest.fixture
def world(broker: TestBroker, fresh_name: Callable[[str], str], tmp_path: Path) -> World:
    """Topics as they should be, and no job yet."""
    return World(broker, fresh_name("start"), str(tmp_path / "checkpoint"))


def test_topics_that_would_break_a_promise_are_refused_with_the_command_that_fixes_them(world: World) -> None:
    names = msgspec.structs.replace(world.names, history="not-there")
    with pytest.raises(CannotStart, match=r"topic not-there: missing.*lockkeeper topics create"):
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


def _commit(world: World, metadata: str) -> None:
    settings = {"bootstrap.servers": world.broker.bootstrap_servers, "group.id": world.settings.job_name}
    consumer = Consumer(settings)
    consumer.commit(offsets=[TopicPartition(world.names.requests[0], 0, 0, metadata)], asynchronous=False)
    consumer.close()


def test_offsets_committed_by_a_newer_version_are_refused_before_that_one_is_fenced(world: World) -> None:
    """Before Kafka's transactions are touched: this needs no Spark, and comes at once."""
    _commit(world, '{"format":99}')
    with pytest.raises(CannotStart, match=rf"{world.names.requests[0]}-0 in group .* is of form 99"):
        run(world.settings, threading.Event())


def _checkpoint(world: World) -> Path:
    checkpoint = Path(world.settings.checkpoint)
    checkpoint.mkdir()
    (checkpoint / "metadata").write_text(json.dumps({"id": "6f1cbd6c-3c6e-4c8e-9d2e-0123456789ab"}))
    return checkpoint


@pytest.mark.long
def test_a_checkpoint_of_a_newer_spark_stops_the_start_and_may_be_moved_away(world: World) -> None:
    _commit(world, "")
    (_checkpoint(world) / "offsets").mkdir()
    (Path(world.settings.checkpoint) / "offsets" / "0").write_text("v99\n{}\n{}")
    job = Job(world.settings)
    assert job.await_end() == 1
    assert job.reported[-1]["stopped"] == "CannotStart"
    assert "v99" in job.reported[-1]["why"]
    assert "move the checkpoint away" in job.reported[-1]["why"]


@pytest.mark.long
def test_a_checkpoint_without_committed_offsets_stops_the_start(world: World) -> None:
    """As after the group's offsets were forgotten: starting anywhere would lose or double decisions."""
    _checkpoint(world)
    job = Job(world.settings)
    assert job.await_end() == 1
    assert job.reported[-1]["stopped"] == "CannotStart"
    assert "has no committed offsets" in job.reported[-1]["why"]


def test_a_checkpoint_that_has_read_more_than_is_committed_of_a_partition_stops_the_start(world: World) -> None:
    """As after some of the group's offsets were deleted: none may be committed in their place."""
    topic, settings = world.names.requests[0], world.settings
    with running(settings):
        world.send([request("1", "dana", "orders")], partition=0)
        world.reader(world.names.decisions).until(lambda decisions: len(decisions) == 1, "it is decided", 120)
    deletion = ("--delete-offsets", "--group", settings.job_name, "--topic", f"{topic}:0")
    world.broker.kafka_tool(CONSUMER_GROUPS, *deletion)
    why = f"the checkpoint has read {topic}-0 up to offset 1, and the group has no committed offset there"
    for _ in range(2):
        with stopping(settings, "CannotStart", why):
            pass


def test_a_checkpoint_of_another_cluster_is_named_with_the_command_that_moves_both(world: World) -> None:
    """Before anything else is compared: its group has no committed offsets here either, for the same reason."""
    (_checkpoint(world) / "kafka-cluster").write_text('{"id": "of-yesterday"}')
    why = "another Kafka cluster: to the one with cluster id of-yesterday"
    with stopping(world.settings, "CannotStart", why) as job:
        pass
    assert world.settings.checkpoint in job.why
    assert str(world.admin.list_topics(timeout=30).cluster_id) in job.why
    assert "`lockkeeper checkpoint archive`" in job.why


def test_a_job_killed_while_it_wrote_its_first_range_starts_again(world: World) -> None:
    """Spark leaves such a file then, and refuses to start where it finds one."""
    offsets = Path(world.settings.checkpoint) / "offsets"
    offsets.mkdir(parents=True)
    for name in (".0.c19d620e-8838-4d47-9d20-e6cf713cc3a1.tmp", "..0.c19d620e-8838-4d47-9d20-e6cf713cc3a1.tmp.crc"):
        (offsets / name).touch()
    world.send([request("1", "dana", "orders")])
    with running(world.settings):
        world.reader(world.names.decisions).until(lambda decisions: len(decisions) == 1, "it is decided", 120)
    cluster = {"id": world.admin.list_topics(timeout=30).cluster_id}
    assert json.loads((offsets.parent / "kafka-cluster").read_text()) == cluster
    assert [path.name for path in offsets.iterdir()] == ["0"]  # nor is there another file beside it, as of a checksum
