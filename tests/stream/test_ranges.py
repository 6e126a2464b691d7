"""A Spark batch is decided at once, or range after range where a task's budget is used up."""

import json

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from streaming.commit.evaluation import Decided, SideOutput
from streaming.enforcer.ranges import (
    FEW_OFFSETS,
    GROWTH,
    LEAST,
    LEAST_SHARE,
    MOST_PARTITIONS,
    Budget,
    OffsetRange,
    ReadLimits,
    budgets_of,
)
from streaming.kafka.clients import Partition
from streaming.ops.tally import Tally
from tests.stream.arrow import records_batch
from tests.stream.packed import read_packed
from tests.stream.test_budget import task_of, worker_of
from tests.stream.world import request

A: Partition = ("a", 0)
B: Partition = ("b", 1)
MOST = 1000


def _side_output(partition: Partition, first: int, end: int, stopped: bool = False, share: float = 0.1) -> SideOutput:
    topic, number = partition
    decided = Decided(number, first, end, stopped, share)
    return SideOutput(Tally(topic, [], 0, [], [], []), [], [], decided)


def test_a_batch_of_which_nothing_is_known_is_read_as_spark_has_it() -> None:
    range_ = ReadLimits(MOST).first({A: 500, B: 7}, {A: 100, B: 9}, replayed=False)
    assert range_.whole
    assert range_.undecided == {A: 400}
    assert range_.ends == {A: 500, B: 7}, "what Spark's log says, also where more is decided"


def test_what_follows_is_read_from_where_a_task_stopped_about_as_much_at_a_time() -> None:
    limits = ReadLimits(MOST)
    ends = {A: 500, B: 7}
    range_ = limits.first(ends, {A: 0, B: 0}, replayed=False)
    side_outputs = [_side_output(A, 0, 40), _side_output(A, 40, 100, stopped=True, share=1.0), _side_output(B, 0, 7)]
    assert range_.decided(side_outputs) == {A: 100, B: 7}
    limits.note(range_, side_outputs)
    following = limits.next(ends, {A: 900, B: 9}, {A: 100, B: 7})
    assert not following.whole
    assert following.starts == {A: 100, B: 7}
    assert following.ends == {A: 225, B: 9}, "a quarter more than the last time, and what came meanwhile"


def test_a_partition_that_is_done_is_read_no_further_than_its_share_of_a_batch() -> None:
    range_ = ReadLimits(MOST).next({A: 500, B: 7}, {B: 10**9}, {A: 100, B: 7})
    assert range_.undecided == {A: 400, B: MOST - 400}
    range_ = ReadLimits(MOST).next({A: 900, B: 7}, {B: 10**9}, {A: 100, B: 7})
    assert range_.undecided == {A: MOST // 2, B: MOST // 2}
    assert ReadLimits(MOST).next({A: 500, B: 7}, {}, {A: 100, B: 7}).undecided == {A: 400}, "no newest end is known"


def test_the_next_batch_of_a_partition_with_large_records_is_read_in_parts_from_its_beginning() -> None:
    limits = ReadLimits(MOST)
    limits.note(OffsetRange({A: 0, B: 0}, {A: 500, B: 7}), [_side_output(A, 0, 100, stopped=True, share=1.0)])
    assert limits.first({A: 1500, B: 8}, {A: 500, B: 7}, replayed=False).ends == {A: 625, B: 8}
    assert limits.first({A: 520, B: 8}, {A: 500, B: 7}, replayed=False).whole, "there are few"


def test_more_is_read_again_when_records_are_small_again() -> None:
    limits, committed, reads = ReadLimits(MOST), 100, list[int]()
    limits.note(OffsetRange({A: 0}, {A: 10**6}), [_side_output(A, 0, 2, stopped=True, share=1.0)])
    while not (range_ := limits.first({A: 10**6}, {A: committed}, replayed=False)).whole:
        reads.append(range_.undecided[A])
        limits.note(range_, [_side_output(A, committed, range_.ends[A], share=0.01)])
        committed = range_.ends[A]
    assert reads == [LEAST, LEAST * GROWTH]


def test_a_few_small_batches_let_go_of_a_limit() -> None:
    limits = ReadLimits(MOST)
    limits.note(OffsetRange({A: 0}, {A: 10**6}), [_side_output(A, 0, 20, stopped=True, share=1.0)])
    for start in range(3):
        limits.note(OffsetRange({A: start}, {A: start + 1}), [_side_output(A, start, start + 1, share=0.001)])
    assert limits.first({A: 10**6}, {A: 20}, replayed=False).whole


def test_more_is_read_of_a_partition_in_which_offsets_have_no_records() -> None:
    """They are of aborted transactions: of hundreds of thousands, a few at a time would take hours."""
    limits = ReadLimits(MOST)
    limits.note(OffsetRange({A: 0}, {A: 10**6}), [_side_output(A, 0, 2, stopped=True, share=1.0)])
    limits.note(OffsetRange({A: 2}, {A: 2 + LEAST}), [])
    assert limits.next({A: 10**6}, {}, {A: 2 + LEAST}).undecided == {A: LEAST * GROWTH}


def test_no_more_is_read_than_the_budget_was_enough_for() -> None:
    """Half of it was used, so twice as much may follow."""
    limits = ReadLimits(MOST)
    limits.note(OffsetRange({A: 0}, {A: 10**6}), [_side_output(A, 0, 80, stopped=True, share=1.0)])
    limits.note(OffsetRange({A: 80}, {A: 180}), [_side_output(A, 80, 180, share=0.5)])
    assert limits.next({A: 10**6}, {}, {A: 180}).undecided == {A: 200}


def test_a_batch_that_is_partly_committed_is_read_from_there_and_one_that_is_all_committed_not_at_all() -> None:
    limits = ReadLimits(MOST)
    partly = limits.first({A: 500, B: 7}, {A: 400, B: 7}, replayed=True)
    assert (partly.whole, partly.undecided) == (False, {A: 100})
    wholly = limits.first({A: 500, B: 7}, {A: 500, B: 9}, replayed=True)
    assert (wholly.whole, wholly.undecided) == (False, {})
    assert wholly.decided([]) == {A: 500, B: 7}


def test_a_batch_with_which_a_job_has_ended_is_read_bit_by_bit_at_first() -> None:
    """It may have been killed by records that are far larger than what is fetched of them."""
    limits, ends, committed = ReadLimits(MOST), {A: 10**6, B: 7}, {A: 0, B: 0}
    limits.limit_first_read(ends, committed)
    range_ = limits.first(ends, committed, replayed=False)
    assert range_.undecided == {A: FEW_OFFSETS, B: 7}
    limits.note(range_, [_side_output(A, 0, FEW_OFFSETS, share=0.01), _side_output(B, 0, 7, share=0.01)])
    assert limits.next(ends, {}, range_.decided([])).undecided == {A: FEW_OFFSETS * GROWTH}
    few = ReadLimits(MOST)
    few.limit_first_read({A: FEW_OFFSETS, B: 7}, committed)
    assert few.first({A: FEW_OFFSETS, B: 7}, committed, replayed=False).whole


def test_many_partitions_are_read_in_turn_and_those_first_that_have_waited_longest() -> None:
    """Each is a task; and their records come again and again."""
    partitions, limits = [("a", number) for number in range(2 * MOST_PARTITIONS + 50)], ReadLimits(10**6)
    committed, ends = dict.fromkeys(partitions, 0), dict.fromkeys(partitions, 1)
    reads: list[Partition] = []
    range_ = limits.first(ends, committed, replayed=False)
    while any(committed[partition] < end for partition, end in ends.items()):
        assert not range_.whole
        assert len(range_.undecided) == MOST_PARTITIONS
        limits.note(range_, [_side_output(partition, 0, 1) for partition in range_.undecided])
        reads += range_.undecided
        committed |= range_.decided([])
        range_ = limits.next(ends, {partition: end + 1 for partition, end in committed.items()}, committed)
    assert set(reads) == set(partitions)
    assert len(reads) == 3 * MOST_PARTITIONS
    few = dict.fromkeys(partitions[:MOST_PARTITIONS], 9)
    assert limits.first(few, dict.fromkeys(few, 8), replayed=False).whole


def test_partitions_of_which_nothing_was_decided_are_known() -> None:
    limits = ReadLimits(MOST)
    limits.note(
        OffsetRange({A: 5, B: 0}, {A: 9, B: 9}),
        [_side_output(A, 5, 5, stopped=True), _side_output(B, 0, 3, stopped=True)],
    )
    assert limits.stalled == {A}


def test_a_task_that_decided_nothing_of_its_last_arrow_batch_still_says_where_it_stopped() -> None:
    """Its budget was used up just where an Arrow batch ended; without it all of the range would be committed."""
    range_, side_outputs = (
        OffsetRange({A: 0}, {A: 500}),
        [_side_output(A, 0, 100), _side_output(A, 100, 100, stopped=True)],
    )
    assert range_.decided(side_outputs) == {A: 100}


RECORDS = st.lists(st.sampled_from([1, 1, 1, 5, 60, 400]), min_size=1, max_size=120)


@given(st.fixed_dictionaries({A: RECORDS, B: RECORDS}), st.integers(50, 1000), st.integers(1, 400))
def test_range_after_range_every_record_is_decided_once_and_in_order(
    records: dict[Partition, list[int]], budget: int, most: int
) -> None:
    """Tasks that decide as much as a budget is enough for, on partitions whose records are of many sizes."""
    limits, ends = ReadLimits(most), {partition: len(sizes) for partition, sizes in records.items()}
    committed, decided = dict.fromkeys(records, 0), {A: list[int](), B: list[int]()}
    range_, ranges = limits.first(ends, committed, replayed=False), 0
    while True:
        side_outputs = []
        for partition in range_.undecided:
            used, offset = 0, range_.starts[partition]
            while offset < range_.ends[partition] and (not used or used + records[partition][offset] <= budget):
                used += records[partition][offset]
                decided[partition].append(offset)
                offset += 1
            stopped = offset < range_.ends[partition]
            middle = (range_.starts[partition] + offset) // 2  # Arrow batches end anywhere, also where the task stops
            side_outputs += [
                _side_output(partition, range_.starts[partition], middle),
                _side_output(partition, middle, offset),
            ]
            side_outputs += [_side_output(partition, offset, offset, stopped, used / budget)] if stopped else []
        limits.note(range_, side_outputs)
        committed = {**committed, **range_.decided(side_outputs)}
        if all(committed[partition] >= end for partition, end in ends.items()):
            break
        range_, ranges = limits.next(ends, {}, committed), ranges + 1
        assert ranges <= sum(ends.values())
    assert decided == {partition: list(range(end)) for partition, end in ends.items()}


EVALUATIONS = st.lists(st.sampled_from([0, 0, 1, 5, 30]), min_size=1, max_size=25)


@settings(max_examples=15)
@given(EVALUATIONS, st.integers(500, 30_000), st.integers(1, 7), st.data())
def test_workers_and_ranges_decide_every_record_once_in_order_whatever_the_budget_and_over_kills(
    evaluations: list[int], budget: int, rows: int, data: st.DataObject
) -> None:
    """Real workers, with Arrow batches of some rows; after a kill the job knows what is committed, and no more."""
    values = [json.dumps(request(f"{n}", "dana", "o", evaluations=[{}] * count)) for n, count in enumerate(evaluations)]
    batch, ends = records_batch([(b"k", value.encode(), None) for value in values]), {("requests", 0): len(values)}
    [partition], committed, written, limits = ends, 0, list[int](), ReadLimits(100)
    range_ = limits.first(ends, {partition: 0}, replayed=False)
    while committed < len(values):
        budgets = budgets_of(range_.undecided, Budget(budget, 60.0), 4, limits.stalled, 1)
        worker, made = worker_of(task_of(budgets[partition], committed)), list[tuple[SideOutput, list[int]]]()
        start, end = (0 if range_.whole else range_.starts[partition]), range_.ends[partition]
        parts = (batch.slice(at, min(rows, end - at)) for at in range(start, end, rows))
        for row in (output.to_pydict() for output in worker(parts)):
            packed = [record for cell in row["packed"] if cell is not None for record in read_packed(cell)[2]]
            offsets = [json.loads(value)["context"]["source"]["offset"] for _, value, _ in packed]
            made.append((msgspec.msgpack.decode(row["side"][-1], type=SideOutput), sorted(offsets)))
        limits.note(range_, [side_output for side_output, _ in made])
        if data.draw(st.booleans(), "killed before the commit"):
            limits = ReadLimits(100)
        else:
            written += [offset for _, offsets in made for offset in offsets]
            committed = range_.decided([side_output for side_output, _ in made])[partition]
            assert written == list(range(committed))
        if data.draw(st.booleans(), "started again"):
            limits = ReadLimits(100)
            range_ = limits.first(ends, {partition: committed}, replayed=committed > 0)
        else:
            range_ = limits.next(ends, {}, {partition: committed})
    assert written == list(range(len(values)))


def test_a_transaction_that_kafka_did_not_take_is_followed_by_smaller_ones_until_some_are_taken() -> None:
    limits = ReadLimits(MOST)
    shares = []
    for _ in range(20):
        limits.failed()
        shares.append(limits.share)
    assert shares[:3] == [1 / 2, 1 / 4, 1 / 8]
    assert shares[-1] == LEAST_SHARE
    for _ in range(20):
        limits.committed()
    assert limits.share == 1
