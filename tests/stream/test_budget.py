"""A task decides the beginning of its range, as far as its share of the batch's bytes and seconds goes."""

import itertools
import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policy.store.overlay import FactOverlay
from streaming.commit.evaluation import SideOutput
from streaming.enforcer import worker as worker_module
from streaming.enforcer.evaluator import EvaluationContext, Evaluator, PartitionEvaluator, Source
from streaming.enforcer.ranges import LEAST_SECONDS, UNLIMITED, Budget, Usage, budgets_of
from streaming.enforcer.source import Records
from streaming.enforcer.worker import Outputs, Task, Worker
from streaming.ops.tally import no_counts
from streaming.records.formats import JSON_ALONE
from streaming.records.packing import Outgoing
from streaming.records.size_gate import record_size
from streaming.settings import DEFAULT_TRUST, Limits
from streaming.snapshots.broadcasts import Facts
from tests.stream.arrow import AT, records_batch
from tests.stream.packed import read_packed
from tests.stream.test_prepared_answers import SNAPSHOT, _in_order
from tests.stream.world import request

PARTITION = ("requests", 3)


class Clock:
    """A clock that counts its readings; each look takes `step` seconds."""

    def __init__(self, step: float = 0.0) -> None:
        self.now, self._step = 0.0, step

    def __call__(self) -> float:
        self.now += self._step
        return self.now


def _for_partition(evaluator: Evaluator) -> PartitionEvaluator:
    return evaluator.for_partition(
        Source(*PARTITION, "topic-id", DEFAULT_TRUST, 1), EvaluationContext(SNAPSHOT.version, {}, 7, {}, AT)
    )


def _request(number: int, length: int = 1, evaluations: int = 0) -> bytes:
    more = {"evaluations": [{}] * evaluations} if evaluations else {}
    return json.dumps(request(f"r-{number}", "dana", f"{number}" + "x" * length, **more)).encode()


def _records(values: list[bytes]) -> Records:
    return Records(records_batch([(b"k", value, None) for value in values]))


def _bytes(made: list[Outgoing]) -> int:
    return sum(record_size(key, value, headers) for _, key, value, headers in made)


VALUES = st.lists(
    st.builds(_request, st.integers(0, 99), st.sampled_from([1, 10, 500]), st.sampled_from([0, 0, 0, 3, 40]))
    | st.sampled_from([b"{", b"\0" * 3000]),
    min_size=1,
    max_size=15,
)


@settings(max_examples=30)
@given(VALUES, st.integers(0, 40_000), st.booleans(), st.booleans())
def test_what_is_decided_is_the_beginning_and_fits_the_budget_but_for_a_first_record(
    values: list[bytes], size: int, exceeds: bool, is_taught: bool
) -> None:
    """With and without prepared queries; records and counts are those of an unlimited budget."""
    evaluator, records = Evaluator(SNAPSHOT, Limits()), _records(values)
    if is_taught:
        _for_partition(evaluator).decide_all(records)
    usage = Usage(Budget(size, 1.0, exceeds), Clock())
    fitting = usage.fitting(records.sizes)
    assert fitting >= int(exceeds)
    if not fitting:
        return
    partition_evaluator, whole = _for_partition(evaluator), _for_partition(Evaluator(SNAPSHOT, Limits()))
    packed = partition_evaluator.decide_all(records.head(fitting), usage)
    decided = packed.decided
    assert decided is not None
    assert decided >= int(exceeds)
    made = _in_order(packed)
    assert made == _in_order(whole.decide_all(records))[:decided]
    counted = _for_partition(Evaluator(SNAPSHOT, Limits()))
    if decided:
        counted.decide_all(records.head(decided))
    assert +Counter(partition_evaluator.counts) == +Counter(counted.counts)
    if decided > 1 and not packed.columnar:
        assert int(records.sizes[:decided].sum()) + _bytes(made) <= size


def test_an_unlimited_budget_is_enough_for_everything() -> None:
    records = _records([_request(number, 500, 40) for number in range(20)])
    usage = Usage(UNLIMITED)
    assert usage.fitting(records.sizes) == 20
    assert _for_partition(Evaluator(SNAPSHOT, Limits())).decide_all(records, usage).decided == 20
    assert usage.share < 0.001


def test_a_task_stops_when_its_seconds_are_over_but_not_before_its_first_record() -> None:
    """Each look at the clock takes a second here."""
    evaluator, records = (
        Evaluator(SNAPSHOT, Limits()),
        _records([_request(number, evaluations=3) for number in range(10)]),
    )
    assert _for_partition(evaluator).decide_all(records, Usage(Budget(2**40, 4.5), Clock(1.0))).decided == 5
    late = Usage(Budget(2**40, 0.5), Clock(1.0))
    assert late.fitting(records.sizes) == 10, "nothing is decided yet"
    assert _for_partition(evaluator).decide_all(records, late).decided == 1
    late.records = 1
    assert late.fitting(records.sizes) == 0
    assert Usage(Budget(2**40, 0.5, exceeds=False), Clock(1.0)).fitting(records.sizes) == 0


def test_the_clock_stands_still_while_a_task_waits_for_records() -> None:
    clock = Clock()
    usage = Usage(Budget(2**40, 4.0), clock)
    clock.now = 1.0
    usage.resume()
    assert usage.seconds == 1.0, "it was not paused"
    usage.pause()
    clock.now = 9.0
    assert (usage.seconds, usage.share) == (1.0, 0.25)
    usage.resume()
    clock.now = 11.0
    assert usage.seconds == 3.0
    clock.now = 12.0
    assert usage.is_over(first=False)


def test_bytes_of_requests_that_are_answered_in_columns_count() -> None:
    evaluator, records = Evaluator(SNAPSHOT, Limits()), _records([_request(number) for number in range(2000)])
    _for_partition(evaluator).decide_all(records)
    usage = Usage(Budget(2**40, 1.0), Clock())
    packed = _for_partition(evaluator).decide_all(records, usage)
    assert packed.decided == 2000
    assert len(packed.columnar[0].keys) == 2000
    assert usage.bytes == int(records.sizes.sum())


def test_a_record_that_goes_beyond_the_budget_is_neither_written_nor_counted() -> None:
    made: Outgoing = (0, b"k", b"x" * 100, None)
    counts = no_counts()

    def decide(*_row: object) -> Outgoing:
        counts["lenses6 allow"] += 1
        return made

    rows = [(b"k", b"", None, number, AT) for number in range(5)]
    usage = Usage(Budget(350, 1.0), Clock())
    decided = [usage.decide(decide, row, 20, counts, first=not number) for number, row in enumerate(rows)]
    assert decided == [made, made, None, None, None]
    assert counts == {"lenses6 allow": 2}
    assert usage.bytes == 2 * (20 + 101)


@settings(max_examples=40)
@given(
    st.dictionaries(st.tuples(st.just("t"), st.integers(0, 99)), st.integers(1, 10**6), min_size=1, max_size=40),
    st.integers(1, 8),
    st.integers(1, 40),
)
def test_the_budgets_of_all_tasks_are_no_more_than_the_whole(
    undecided: dict[tuple[str, int], int], slots: int, exceeding: int
) -> None:
    whole = Budget(10**8, 5.0)
    stalled = sorted(undecided)[-1:]
    budgets = budgets_of(undecided, whole, slots, stalled, exceeding)
    assert set(budgets) == set(undecided)
    assert sum(budget.bytes for budget in budgets.values()) <= whole.bytes
    assert max(budget.seconds for budget in budgets.values()) <= whole.seconds
    beyond = len(undecided) * LEAST_SECONDS
    assert sum(budget.seconds for budget in budgets.values()) <= slots * whole.seconds + beyond
    assert sum(budget.exceeds for budget in budgets.values()) == min(exceeding, len(undecided))
    assert budgets[stalled[0]].exceeds, "who was left out the last time comes first"
    assert min(budget.bytes for budget in budgets.values()) >= whole.bytes // (2 * len(undecided)) - 1


def test_sizes_are_those_of_values_keys_and_headers() -> None:
    records = Records(records_batch([(b"k" * 100, b"x" * 1000, None), (None, None, [("h", b"x" * 50)])]))
    large, small = records.sizes.tolist()
    assert 1100 <= large < 1200
    assert 50 <= small < 200
    assert np.array_equal(records.head(1).sizes, records.sizes[:1])


class Arrived:
    """What a worker process has of a broadcast."""

    def __init__(self, value: Any) -> None:
        self.value = value


def task_of(budget: Budget, committed: int) -> Task:
    """What a worker needs to decide the records of partition 0 of the topic `requests`."""
    return Task(
        topics=("decisions", "verdicts", "letters"),
        committed={("requests", 0): committed},
        topic_ids={"requests": "topic-id"},
        trust={"requests": DEFAULT_TRUST},
        outputs={"requests": Outputs(2)},
        read={},
        policy_offsets={},
        facts_offset=-1,
        snapshots=((0, None, 0),),
        facts=Facts(-1, (), 0, ()),
        now=AT,
        limits=Limits(),
        formats=JSON_ALONE,
        enforced=True,
        budgets={("requests", 0): budget},
    )


def worker_of(task: Task) -> Worker:
    """A worker for the task."""
    arrived: Any = Arrived
    return Worker(task, [arrived(SNAPSHOT)], [arrived(FactOverlay())])


@settings(max_examples=40)
@given(st.integers(0, 25_000), st.integers(0, 20), st.sets(st.integers(1, 29)), st.booleans())
def test_a_task_says_up_to_which_offset_it_has_decided_and_reads_what_is_left(
    size: int, committed: int, ends: set[int], exceeds: bool
) -> None:
    """Wherever Arrow batches end; what it hands over are the decisions of exactly these records."""
    values = [_request(number, evaluations=number % 4) for number in range(30)]
    batch, bounds, read = records_batch([(b"k", value, None) for value in values]), [0, *sorted(ends), 30], list[int]()

    def batches() -> Iterator[pa.RecordBatch]:
        for start, end in itertools.pairwise(bounds):
            read.append(end)
            yield batch.slice(start, end - start)

    worker = worker_of(task_of(Budget(size, 60.0, exceeds), committed))
    rows = [row.to_pydict() for row in worker(batches())]
    assert read == bounds[1:]
    side_outputs = [msgspec.msgpack.decode(row["side"][-1], type=SideOutput) for row in rows]
    spans = [(one.decided.first, one.decided.end) for one in side_outputs]
    assert [first for first, _ in spans] == [committed, *(end for _, end in spans[:-1])]
    assert [one.decided.stopped for one in side_outputs[:-1]] == [False] * (len(side_outputs) - 1)
    end = spans[-1][1]
    assert side_outputs[-1].decided.stopped == (end < 30)
    assert end > committed or not exceeds
    packed = [read_packed(cell)[2] for row in rows for cell in row["packed"] if cell is not None]
    decided = [json.loads(value or b"")["request_id"] for records in packed for _, value, _ in records]
    assert sorted(decided) == sorted(f"r-{number}" for number in range(committed, end))


def test_a_task_that_leaves_far_more_than_it_decides_does_not_read_it_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that left something is not used again, which costs less than to read gigabytes."""
    monkeypatch.setattr(worker_module, "DRAINED_BYTES", 1000)
    batch, read = records_batch([(b"k", _request(0, evaluations=3), None)]), list[int]()

    def batches() -> Iterator[pa.RecordBatch]:
        for number in range(1000):
            read.append(number)
            yield batch

    assert list(worker_of(task_of(Budget(2000, 60.0), 0))(batches()))
    assert len(read) < 20


def test_a_task_that_waits_for_its_records_longer_than_it_may_decide_decides_them_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock()
    monkeypatch.setattr(worker_module, "Usage", lambda budget: Usage(budget, clock))
    batch = records_batch([(b"k", _request(number), None) for number in range(9)])

    def batches() -> Iterator[pa.RecordBatch]:
        for number in range(9):
            clock.now += 10.0
            yield batch.slice(number, 1)

    rows = [row.to_pydict() for row in worker_of(task_of(Budget(2**40, 1.0), 0))(batches())]
    last = msgspec.msgpack.decode(rows[-1]["side"][-1], type=SideOutput).decided
    assert (last.end, last.stopped, last.share < 0.01) == (9, False, True)
