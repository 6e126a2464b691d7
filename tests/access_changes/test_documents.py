"""Policies and facts, change by change: what is in force before the first one, and where a start goes on."""

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Message

from policy import decide
from streaming.access_changes import documents
from streaming.access_changes.documents import Documents, Followed, steps_of
from streaming.kafka.clients import Partition
from streaming.kafka.reader import document_topics, find_logs
from streaming.snapshots.policies import Policies
from tests.brokers import TestBroker
from tests.stream.world import World, group, request, role


def message(offset: int, at: int, change: str = "", topic: str = "t", author: str = "") -> Message:
    """A record of a policy topic."""
    headers = [(f"lockkeeper-{name}", text.encode()) for name, text in (("change", change), ("author", author)) if text]
    return Message(topic=topic, partition=0, offset=offset, key=b"Role/r", headers=headers, timestamp=(2, at))  # type: ignore[no-untyped-call, unused-ignore]


def offsets(*messages: Message, committed: dict[Partition, int] | None = None) -> list[list[int | None]]:
    """Of each step."""
    return [[one.offset() for one in step.messages] for step in steps_of(messages, committed or {})]


def test_a_step_is_what_lies_side_by_side_with_one_change_id() -> None:
    assert offsets(message(0, 1), message(1, 1), message(3, 1)) == [[0, 1], [3]]  # 2 is the end of a transaction
    assert offsets(message(0, 1, "a"), message(1, 1, "a"), message(2, 1, "b")) == [[0, 1], [2]]
    assert offsets(message(0, 1), message(5, 1, topic="u"), message(1, 1)) == [[0, 1], [5]]
    assert offsets(message(0, 1, "a", author="anna"), message(1, 1, "a", author="ben")) == [[0], [1]]


def test_transactions_whose_records_alternate_are_one_step() -> None:
    """Half of either was in force for no request: it reported accesses that were lost and came back."""
    alternating = [message(number, 1, change) for number, change in enumerate("abab")]
    assert offsets(*alternating, message(6, 1, "c"), message(7, 1, "c")) == [[0, 1, 2, 3], [6, 7]]
    assert steps_of(alternating)[0].authorship.change == "b"
    assert offsets(message(1, 1, "a"), message(3, 1, "a")) == [[1, 3]]  # 2 is of one that was aborted, or its end


def test_of_a_transaction_that_a_run_before_has_read_in_part_the_rest_is_a_step() -> None:
    assert offsets(message(1, 1, "a"), message(4, 1, "a"), committed={("t", 0): 2}) == [[1], [4]]


def test_steps_come_by_their_times_and_those_of_a_topic_in_the_order_of_its_log() -> None:
    assert offsets(message(0, 5), message(2, 3), message(9, 4, topic="u")) == [[9], [0], [2]]


def test_a_step_ends_where_a_run_before_has_committed() -> None:
    """Else what was followed then would be compared once more, with what it said before."""
    assert offsets(message(0, 1), message(1, 1), message(2, 1), committed={("t", 0): 2}) == [[0, 1], [2]]


@pytest.fixture
def world(broker: TestBroker, fresh_name: Callable[[str], str], tmp_path: Path) -> World:
    """Topics of a job."""
    return World(broker, fresh_name("documents"), str(tmp_path / "checkpoint"))


def opened(world: World, committed: dict[Partition, int]) -> "contextlib.closing[Documents]":
    """Documents, followed up to there."""
    return contextlib.closing(Documents(world.settings, committed, threading.Event()))


def keep_history(world: World) -> None:
    """Write what a job writes that has read all of the policies."""
    logs = find_logs(world.admin, document_topics(world.names), (world.names.history,))
    with contextlib.closing(Policies(world.settings, {}, logs=logs)) as policies:
        policies.catch_up(30)
        for topic, key, value, headers in policies.pending():
            world.producer.produce(topic, value, key, headers=headers)
        assert world.producer.flush(30) == 0


def outcomes(followed: list[Followed]) -> list[str]:
    """Of one question, after each change."""
    return [decide(in_force.snapshot, request("r", "dana", "orders")).outcome for _, _, in_force in followed]


@pytest.fixture
def published(world: World) -> World:
    """A role and its member; another version of the role; and one that is refused: a transaction each."""
    world.publish_together(role("readers", "kafka:topic:prod/main/other"), group("readers", "user:dana"))
    world.publish_together(role("readers", "kafka:topic:prod/main/orders"))
    world.publish_together({**role("readers", "*"), "spec": {"statments": []}})
    return world


OUTCOMES = {1: "deny", 3: "allow", 5: "allow"}  # of the question, by the last offset of each step
END = 7


@pytest.mark.stream
def test_positions_lie_behind_what_was_followed_alone(published: World) -> None:
    partition = (published.policies, 0)
    with opened(published, {partition: 3}) as found:
        assert [change.offset for change, _, _ in found.recent()] == [1]
        assert found.positions[partition] == 3
        following = found.read()
        for offset, position in ((3, 5), (5, END)):
            assert next(following)[0].offset == offset
            assert found.positions[partition] == position


@pytest.mark.stream
@pytest.mark.parametrize("committed", [0, 3, 5, END])
@pytest.mark.parametrize("recent", [True, False])
def test_a_version_that_the_history_topic_keeps_counts_from_its_place_in_its_log_on(
    published: World, committed: int, recent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job keeps the last good version of a document whose newest is refused. For a start that is behind, that
    version is still to come, or what supersedes it.
    """
    keep_history(published)
    if not recent:
        monkeypatch.setattr(documents, "RECENT_MS", 0)
    with opened(published, {(published.policies, 0): committed}) as found:
        first = decide(found.in_force.snapshot, request("r", "dana", "orders")).outcome
        steps = [*found.recent(), *found.read()]
    came = {offset: outcome for offset, outcome in OUTCOMES.items() if recent or offset >= committed}
    assert dict(zip((change.offset for change, _, _ in steps), outcomes(steps), strict=True)) == came
    assert first == ("allow" if len(came) < 2 else "deny")
