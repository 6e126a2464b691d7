"""The tracker: which batches follow from what is committed, what a transaction commits, and when a job may start."""

import json
from typing import Any

import msgspec
import pytest
from confluent_kafka import TopicPartition

from streaming.commit.checkpoint import format_offsets, parse_offsets
from streaming.commit.offsets import (
    ANY,
    CommitMetadata,
    Committed,
    OffsetTracker,
    check_commit_metadata,
    without_replaced,
)
from streaming.errors import CannotStart, OffsetsDisagree

PLACE = ("requests", 0)
IDS = {"requests": "id-1"}


def _tracker(offset: int = 10) -> OffsetTracker:
    return OffsetTracker({PLACE: Committed(offset, CommitMetadata("query", 4, "id-1"))}, IDS)


def _mark(committed: TopicPartition) -> dict[str, Any]:
    """What stands beside an offset, without the id of its transaction."""
    metadata = json.loads(committed.metadata or "")
    assert metadata.pop("transaction")
    return dict(metadata)


def _found(committed: list[TopicPartition]) -> dict[tuple[str, int], Committed]:
    """As it is read back from Kafka."""
    decoded = [(tp, msgspec.json.decode(tp.metadata or "", type=CommitMetadata)) for tp in committed]
    return {(tp.topic, tp.partition): Committed(tp.offset, metadata) for tp, metadata in decoded}


def test_a_transaction_whose_answer_was_lost_is_found_by_its_id_also_where_no_offset_moved() -> None:
    tracker = _tracker()
    before = _found(tracker.to_commit({PLACE: 10}))
    committed = _found(tracker.to_commit({PLACE: 10}))
    assert tracker.resume(committed, [PLACE])
    tracker.to_commit({PLACE: 10})
    assert not tracker.resume(committed, [PLACE])
    assert not tracker.resume(before, [PLACE])


def test_what_is_committed_counts_after_trouble_and_decides_which_records_are_left() -> None:
    tracker = _tracker()
    assert tracker.resume(_found(tracker.to_commit({PLACE: 20})), [PLACE])
    assert tracker.committed == {PLACE: 20}


def test_committed_offsets_that_are_gone_or_moved_back_stop_the_job() -> None:
    """As of another cluster in its place, or one that lost data."""
    for found in ({}, {PLACE: Committed(9, None)}):
        with pytest.raises(OffsetsDisagree, match="offset 10 of requests-0 was committed"):
            _tracker().resume(found, [PLACE])


@pytest.mark.parametrize("start", [0, 9, 10])
def test_a_batch_that_starts_where_decisions_end_or_before_is_taken(start: int) -> None:
    _tracker().check_range(5, {PLACE: start})


def test_a_batch_that_starts_beyond_what_is_decided_stops_the_job_naming_the_gap() -> None:
    with pytest.raises(OffsetsDisagree, match=r"starts at offset 11 of requests-0, but only what is below 10"):
        _tracker().check_range(5, {PLACE: 11})


def test_a_partition_that_is_new_must_start_at_its_first_record() -> None:
    with pytest.raises(OffsetsDisagree, match="requests-1"):
        _tracker().check_range(5, {("requests", 1): 3})


def test_of_what_is_committed_nothing_moves_back() -> None:
    tracker = _tracker()
    committed = tracker.to_commit({PLACE: 7, ("requests", 1): 3, ("policies", 0): 2}, "query", 5)
    assert [(tp.topic, tp.partition, tp.offset) for tp in committed] == [
        ("policies", 0, 2),
        ("requests", 0, 10),
        ("requests", 1, 3),
    ]
    assert _mark(committed[1]) == {
        "checkpoint": "query",
        "batch": 5,
        "topic_id": "id-1",
        "format": 1,
        "read_until": None,
    }
    tracker.advance(committed)
    assert tracker.committed == {PLACE: 10, ("requests", 1): 3, ("policies", 0): 2}


def test_what_is_written_between_batches_keeps_the_mark_of_the_last_batch() -> None:
    [committed] = _tracker().to_commit({PLACE: 10})
    assert _mark(committed) == {"checkpoint": "query", "batch": 4, "topic_id": "id-1", "format": 1, "read_until": None}


def test_what_is_not_analysed_is_committed_beside_its_topic_and_known_at_the_next_start() -> None:
    tracker = _tracker()
    tracker.unanalysed = {"policies": (2, 5)}
    for tp in tracker.to_commit({("policies", 0): 7}):
        metadata = msgspec.json.decode(tp.metadata, type=CommitMetadata)
        again = OffsetTracker({(tp.topic, tp.partition): Committed(tp.offset, metadata)}, IDS)
        assert again.unanalysed == ({"policies": (2, 5)} if tp.topic == "policies" else {})


def test_positions_not_committed_yet_are_noticed() -> None:
    assert _tracker().lacks({("policies", 0): 0})
    assert _tracker().lacks({PLACE: 11})
    assert not _tracker().lacks({PLACE: 10})


def _check(
    metadata: CommitMetadata | None, topic_id: str = "id-1", checkpoint: str | None = "query", completed: int = 7
) -> None:
    check_commit_metadata({PLACE: Committed(10, metadata)}, {"requests": topic_id}, checkpoint, completed)


def test_marks_topics_and_checkpoint_that_belong_together_may_start() -> None:
    """Also: no checkpoint, one from which no batch was completed, a first commit, and another program's commit."""
    metadata = CommitMetadata("query", 9, "id-1")
    _check(metadata)
    _check(metadata, checkpoint=None, completed=-1)
    _check(metadata, checkpoint="new", completed=-1)
    _check(CommitMetadata(ANY, -1, "id-1"))
    _check(None)


def test_a_checkpoint_of_another_query_stops_the_start() -> None:
    with pytest.raises(CannotStart, match="checkpoint query, but the configured one is other"):
        _check(CommitMetadata("query", 9, "id-1"), checkpoint="other")


def test_a_topic_that_was_re_created_stops_the_start_until_it_is_accepted() -> None:
    with pytest.raises(CannotStart, match=r"requests-0 was deleted and re-created.*ACCEPTED_TOPIC_IDS='\[\"id-2\"\]'"):
        _check(CommitMetadata("query", 9, "id-1"), topic_id="id-2")
    committed = {
        PLACE: Committed(10, CommitMetadata("query", 9, "id-1")),
        ("other", 0): Committed(3, CommitMetadata("query", 9, "id-3")),
    }
    ids = {"requests": "id-2", "other": "id-3"}
    assert without_replaced(committed, ids, ["id-2", "id-3"]).keys() == {("other", 0)}
    assert without_replaced(committed, ids, []) == committed


def test_offsets_in_sparks_form_are_read_and_written() -> None:
    offsets = {("a", 0): 3, ("a", 1): 0, ("b", 0): 17}
    assert parse_offsets(format_offsets(offsets)) == offsets
    assert parse_offsets('{"a":{"0":3}}') == {("a", 0): 3}
