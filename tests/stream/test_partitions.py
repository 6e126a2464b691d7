"""Each input partition, or set of them, has a transaction: what tasks send is visible with the offsets, or not."""

import contextlib
import json
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.errors import PythonException
from pyspark.sql import DataFrame, SparkSession

from streaming.commit.evaluation import SCHEMA, Decided, Evaluate, known_cell
from streaming.commit.offsets import CommitMetadata
from streaming.commit.partition_sets import PartitionSets
from streaming.commit.partitions import (
    ABSENT,
    FENCED,
    MOST_PIECES,
    MOVED,
    OK,
    PIECE_BYTES,
    REFUSED,
    UNAVAILABLE,
    Evaluated,
    PartitionResult,
    PartitionTransactions,
)
from streaming.enforcer.source import read_range
from streaming.kafka.clients import Partition
from streaming.records.formats import JSON_HEADERS
from streaming.records.packing import ColumnarBatch, pack
from streaming.runtime.spark import start_session
from streaming.settings import Limits, Settings
from streaming.topics import TopicNames
from tests.brokers import TestBroker
from tests.stream.world import SHORT_LIVED, Reader
from tests.waiting import wait_until

pytestmark = pytest.mark.stream

RECORDS = 3  # of each input partition
RIVAL_RECORDS, RIVAL_STEPS = 40, 80
ATTEMPTS = 5  # pairs of them: either may be the first
SIDE = (("requests", [], 1, [], [], []), [], [])
DECIDED = Decided(0, 0, 2**60, False, 0.0)


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    session = start_session("partitions", SHORT_LIVED, "local[2]")
    yield session
    session.stop()


def _cell(topic: str, values: Iterable[bytes], positions: Iterable[int] | None = None) -> bytes:
    texts = pa.array(values, pa.binary())
    keys, headers = pa.array([b"k"] * len(texts), pa.binary()), pa.array([None] * len(texts), pa.binary())
    numbered = None if positions is None else np.array(list(positions), np.int32)
    return pack(topic, JSON_HEADERS, ColumnarBatch(keys, headers, texts, numbered))


def _batch(cells: list[bytes | None], side_output: Any = SIDE) -> pa.RecordBatch:
    """What a worker makes of an Arrow batch."""
    nothing, known = [None] * (len(cells) - 1), known_cell(DECIDED)
    beside = [*nothing, msgspec.msgpack.encode(side_output)], [*nothing, known]
    columns = [pa.array(column, pa.binary()) for column in (cells, *beside)]
    return pa.RecordBatch.from_arrays(columns, SCHEMA.fieldNames())


def _copy(topic: str) -> Evaluate:
    """A worker that writes each value to a topic."""

    def copy(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield _batch([_cell(topic, batch.column("value").to_pylist())])

    return copy


class Place:
    """An input topic of two partitions with some records, an output topic, and who writes to it."""

    def __init__(self, broker: TestBroker, spark: SparkSession, name: str) -> None:
        self.spark, self.input, self.output = spark, f"{name}-in", f"{name}-out"
        self.client = {"bootstrap.servers": broker.bootstrap_servers}
        self.admin = AdminClient(dict(self.client))
        for created in self.admin.create_topics([NewTopic(self.input, 2, 1), NewTopic(self.output, 1, 1)]).values():
            created.result(30)
        self.settings = Settings(
            job_name=name,
            bootstrap_servers=broker.bootstrap_servers,
            topics=TopicNames(requests=(self.input,)),
            limits=Limits(record_out=100_000, document=50_000),
            transaction_timeout_seconds=300,  # on a busy machine a test takes longer than the default
        )
        producer = Producer(dict(self.client))
        for number in range(RECORDS):
            for partition in (0, 1):
                producer.produce(self.input, b"%d-%d" % (partition, number), partition=partition)
        assert producer.flush(30) == 0
        self.transactions = self.another()

    def another(self, sets: int = 0, idle_commit_seconds: float = 3600.0, **settings: Any) -> PartitionTransactions:
        """``sets``: of input partitions; 0: each has a transaction of its own."""
        changed = msgspec.structs.replace(self.settings, **settings)
        shared = PartitionSets(changed.job_name, sets)
        return PartitionTransactions(
            changed, self.spark, lambda _: False, sets=shared, idle_commit_seconds=idle_commit_seconds
        )

    def produce(self, count: int) -> int:
        """So many more records of each input partition; how many that are."""
        producer = Producer(dict(self.client))
        for number in range(RECORDS, RECORDS + count):
            for partition in (0, 1):
                producer.produce(self.input, b"%d-%d" % (partition, number), partition=partition)
        assert producer.flush(30) == 0
        return 2 * count

    @property
    def partitions(self) -> list[Partition]:
        return [(self.input, 0), (self.input, 1)]

    def records(self, start: int = 0) -> DataFrame:
        ends = dict.fromkeys(self.partitions, RECORDS)
        return read_range(self.spark, self.settings, dict.fromkeys(ends, start), ends)

    def evaluate(
        self,
        worker: Evaluate | None = None,
        transactions: PartitionTransactions | None = None,
        committed: int | None = None,
        partitions: Iterable[Partition] | None = None,
    ) -> Evaluated:
        starts = dict.fromkeys(partitions or self.partitions, committed)
        transactions, ends = transactions or self.transactions, dict.fromkeys(starts, RECORDS)
        return transactions.evaluate(self.records(), worker or _copy(self.output), starts, ends)

    def commit(
        self,
        evaluated: Evaluated,
        transactions: PartitionTransactions | None = None,
        offset: int = RECORDS,
        committed: int | None = None,
    ) -> list[PartitionResult]:
        transactions = transactions or self.transactions
        offsets = [self.marked(transactions, result.partition, offset) for result in evaluated.results]
        before = {result.partition: committed for result in evaluated.results}
        return transactions.commit(evaluated.results, offsets, before)

    def marked(self, transactions: PartitionTransactions, partition: Partition, offset: int) -> TopicPartition:
        """An offset to commit, with the owner beside it."""
        owner = transactions.sets.owner(partition)
        metadata = json.dumps({"owner": owner, "batch": offset}) if owner else f"batch {offset}"
        return TopicPartition(*partition, offset, metadata)

    def begin(self) -> None:
        """Commit offsets without which a set has nothing to begin with."""
        first = [TopicPartition(*partition, 0, "first") for partition in self.partitions]
        assert _statuses(self.transactions.commit_offsets(first, dict.fromkeys(self.partitions))) == {OK}

    def written(self, least: int = 0) -> list[bytes]:
        """The committed records, once there are so many: markers are written after a commit is confirmed."""
        reader = Reader(self.client, self.output, self.admin)
        reader.until(lambda messages: len(messages) >= least, f"{least} committed records")
        return [message.value() or b"" for message in reader.to_the_end()]

    def offsets(self) -> list[tuple[int, str | None]]:
        consumer = Consumer({**self.client, "group.id": self.settings.job_name})
        committed = consumer.committed([TopicPartition(*one) for one in self.partitions], timeout=30)
        consumer.close()
        return [(tp.offset, tp.metadata) for tp in committed]


@pytest.fixture
def place(broker: TestBroker, spark: SparkSession, fresh_name: Callable[[str], str]) -> Iterator[Place]:
    created = Place(broker, spark, fresh_name("partitions"))
    yield created
    created.transactions.close()


def _statuses(results: Iterable[PartitionResult]) -> set[int]:
    return {result.status for result in results}


def test_a_partition_is_committed_with_what_its_task_has_sent_and_another_one_without_it(place: Place) -> None:
    """Consumers of a topic that both write to see neither before the older transaction of both has ended."""
    evaluated = place.evaluate()
    assert _statuses(evaluated.results) == {OK}
    assert len(evaluated.side_outputs) == 2
    assert (place.written(), place.offsets()) == ([], [(-1001, None)] * 2)
    first, second = (Evaluated([result]) for result in sorted(evaluated.results, key=lambda one: one.partition))
    assert [(one.status, one.offset) for one in place.commit(first)] == [(OK, RECORDS)]
    assert place.offsets() == [(RECORDS, f"batch {RECORDS}"), (-1001, None)]
    place.transactions.close()  # which aborts the other
    assert place.written(RECORDS) == [b"0-0", b"0-1", b"0-2"]
    assert _statuses(place.commit(second)) == {ABSENT}


def test_the_same_producers_write_the_next_batch(place: Place) -> None:
    for batch in (1, 2, 3):
        committed = None if batch == 1 else batch - 1
        evaluated = place.evaluate(committed=committed)
        assert _statuses(place.commit(evaluated, offset=batch, committed=committed)) == {OK}
    assert [offset for offset, _ in place.offsets()] == [3, 3]
    assert len(place.written(6 * RECORDS)) == 6 * RECORDS


def test_where_something_else_is_committed_than_was_planned_with_nothing_is_evaluated(place: Place) -> None:
    """As where the answer to a commit was lost: `offset` says what is committed."""
    place.commit(place.evaluate())
    for other in (None, 1, RECORDS + 1):
        evaluated = place.evaluate(committed=other, transactions=place.transactions)
        assert [(one.status, one.offset, one.side_outputs) for one in evaluated.results] == [(MOVED, RECORDS, [])] * 2
    assert _statuses(place.evaluate(committed=RECORDS).results) == {OK}
    assert len(place.written(2 * RECORDS)) == 2 * RECORDS


@pytest.mark.parametrize("end", [RECORDS - 1, RECORDS + 1])
def test_where_the_checkpoint_ends_elsewhere_than_what_spark_reads_nothing_is_evaluated(place: Place, end: int) -> None:
    """Another job with the same checkpoint may have written it: what lies between would be lost, or decided twice."""
    starts = dict.fromkeys(place.partitions)
    ends = {place.partitions[0]: RECORDS, place.partitions[1]: end}
    with pytest.raises(Exception, match=f"up to offset {RECORDS}, and its checkpoint says {end}: does another job"):
        place.transactions.evaluate(place.records(), _copy(place.output), starts, ends)
    read = read_range(place.spark, place.settings, {place.partitions[0]: 0}, {place.partitions[0]: RECORDS})
    with pytest.raises(Exception, match=f"up to offset 0, and its checkpoint says {end}: does another job"):
        place.transactions.evaluate(read, _copy(place.output), starts, ends)
    assert (place.written(), place.offsets()) == ([], [(-1001, None)] * 2)


def test_an_attempt_that_is_made_again_leaves_nothing_of_the_first(place: Place) -> None:
    """As where a worker lacked a schema, or Spark ran a task again."""
    first = place.evaluate()
    second = place.evaluate()
    assert _statuses(place.commit(first)) == {ABSENT}
    assert _statuses(place.commit(second)) == {OK}
    assert len(place.written(2 * RECORDS)) == 2 * RECORDS


def test_of_two_attempts_that_begin_at_once_one_writes(place: Place) -> None:
    """As where a task of a stage that has failed begins late, beside the one of the next stage."""
    with ThreadPoolExecutor(2) as threads:
        for offset in range(1, ATTEMPTS + 1):
            committed = None if offset == 1 else offset - 1
            with contextlib.closing(place.another()) as job:  # whose producers are not open yet
                evaluate = partial(place.evaluate, None, job, committed, place.partitions[:1])
                both = [attempt.result(60) for attempt in [threads.submit(evaluate) for _ in range(2)]]
                assert _statuses(both[0].results + both[1].results) <= {OK, FENCED}
                sent = [evaluated for evaluated in both if _statuses(evaluated.results) == {OK}]
                statuses = [_statuses(place.commit(evaluated, job, offset, committed)) for evaluated in sent]
                assert statuses.count({OK}) == 1, statuses
    assert len(place.written(ATTEMPTS * RECORDS)) == ATTEMPTS * RECORDS


def test_who_takes_a_partition_over_fences_the_one_before_at_any_step(place: Place) -> None:
    with contextlib.closing(place.another()) as successor:
        evaluated = place.evaluate()
        taken = place.evaluate(transactions=successor)
        assert _statuses(taken.results) == {OK}
        assert _statuses(place.commit(evaluated)) == {FENCED}
        assert (place.written(), place.offsets()) == ([], [(-1001, None)] * 2)
        assert _statuses(place.commit(taken, successor)) == {OK}
        assert _statuses(place.evaluate().results) == {MOVED}
    assert len(place.written(2 * RECORDS)) == 2 * RECORDS


def test_one_that_lost_a_partition_while_it_was_idle_writes_nothing_more(place: Place) -> None:
    """Its producer takes itself for the owner still: the committed offset it knows is the one that was planned with."""
    place.commit(place.evaluate())
    with contextlib.closing(place.another()) as successor:
        taken = place.evaluate(transactions=successor, committed=RECORDS)
        assert _statuses(place.commit(taken, successor, RECORDS + 1, RECORDS)) == {OK}
        evaluated = place.evaluate(committed=RECORDS)
        results = place.commit(evaluated, offset=RECORDS + 2, committed=RECORDS) or evaluated.results
        assert OK not in _statuses(results)
    assert [offset for offset, _ in place.offsets()] == [RECORDS + 1] * 2
    assert len(place.written(4 * RECORDS)) == 4 * RECORDS


@pytest.mark.parametrize(("idle_commit_seconds", "status"), [(0.001, OK), (3600.0, FENCED)])
def test_a_producer_whose_id_the_driver_may_have_taken_meanwhile_is_not_used_again(
    place: Place, idle_commit_seconds: float, status: int
) -> None:
    """The driver of a cluster takes the ids of idle partitions. Else their next records would be decided twice."""
    with contextlib.closing(place.another(idle_commit_seconds=idle_commit_seconds)) as job:
        assert _statuses(place.commit(place.evaluate(transactions=job), job)) == {OK}
        for topic, number in place.partitions:
            driver = Producer(
                {
                    "bootstrap.servers": place.settings.bootstrap_servers,
                    "transactional.id": job.sets.transactional_id((topic, number)),
                }
            )
            driver.init_transactions(30)
        evaluated = place.evaluate(transactions=job, committed=RECORDS)
        results = evaluated.results
        if _statuses(results) == {OK}:  # it may learn it when it commits
            results = place.commit(evaluated, job, RECORDS + 1, RECORDS)
        assert _statuses(results) == {status}


@pytest.mark.parametrize("sets", [0, 1])
def test_a_partition_whose_offset_is_about_to_be_committed_is_waited_for(place: Place, sets: int) -> None:
    """As by the driver's transaction with the first offset of a partition: Kafka answers to its commit before the
    coordinator of the group has it, for long where that broker is slow.
    """
    driver = Producer({**place.client, "transactional.id": place.settings.job_name})
    group = Consumer({**place.client, "group.id": place.settings.job_name})
    driver.init_transactions(30)
    driver.begin_transaction()
    first = [TopicPartition(*partition, 0, "first") for partition in place.partitions]
    driver.send_offsets_to_transaction(first, group.consumer_group_metadata(), 30)
    group.close()
    with contextlib.closing(place.another(sets)) as job:
        assert _statuses(place.evaluate(transactions=job, committed=0).results) == {UNAVAILABLE}
        driver.commit_transaction(30)
        assert place.offsets() == [(0, "first")] * 2
        assert _statuses(place.evaluate(transactions=job, committed=0).results) == {OK}


def test_partitions_of_a_set_are_committed_together_by_one_producer(place: Place) -> None:
    place.begin()
    with contextlib.closing(place.another(sets=1)) as together:
        evaluated = place.evaluate(transactions=together, committed=0)
        assert _statuses(evaluated.results) == {OK}
        assert len({result.attempt for result in evaluated.results}) == 1
        assert _statuses(place.commit(evaluated, together, committed=0)) == {OK}
        owner = json.dumps({"owner": f"{place.settings.job_name}/0-of-1", "batch": RECORDS})
        assert place.offsets() == [(RECORDS, owner)] * 2
    assert sorted(place.written(2 * RECORDS)) == [b"%d-%d" % (p, n) for p in (0, 1) for n in range(RECORDS)]


def test_a_set_is_not_committed_without_the_offset_of_one_of_which_records_were_sent(place: Place) -> None:
    place.begin()
    with contextlib.closing(place.another(sets=1)) as together:
        first, *_ = place.evaluate(transactions=together, committed=0).results
        assert _statuses(place.commit(Evaluated([first]), together, committed=0)) == {ABSENT}
        assert (place.written(), [offset for offset, _ in place.offsets()]) == ([], [0, 0])


def test_with_what_is_decided_of_a_set_an_idle_partition_of_it_is_committed_as_well(place: Place) -> None:
    place.begin()
    with contextlib.closing(place.another(sets=1)) as together:
        evaluated = place.evaluate(transactions=together, committed=0, partitions=place.partitions[:1])
        offsets = [place.marked(together, place.partitions[0], 2), place.marked(together, place.partitions[1], 0)]
        results = together.commit(evaluated.results, offsets, dict.fromkeys(place.partitions, 0))
        assert [(result.status, result.offset) for result in results] == [(OK, 2), (OK, 0)]
        assert [json.loads(metadata or "")["batch"] for _, metadata in place.offsets()] == [2, 0]
        moved = together.commit_offsets(offsets, dict.fromkeys(place.partitions, 1))
        assert {result.partition[1]: (result.status, result.offset) for result in moved} == {
            0: (MOVED, 2),
            1: (MOVED, 0),
        }


@pytest.mark.parametrize(("before", "after"), [(0, 1), (0, 3), (1, 0), (3, 1), (1, 2)])
def test_who_takes_partitions_into_other_sets_fences_their_owners_at_any_step(
    place: Place, before: int, after: int
) -> None:
    """And ends what these had open: what they have sent is not visible, nor what they send later."""
    place.begin()
    with contextlib.closing(place.another(before)) as former, contextlib.closing(place.another(after)) as successor:
        assert _statuses(place.commit(place.evaluate(transactions=former, committed=0), former, 1, 0)) == {OK}
        sent = place.evaluate(transactions=former, committed=1)
        assert _statuses(sent.results) == {OK}
        taken = place.evaluate(transactions=successor, committed=1)
        assert _statuses(taken.results) == {OK}
        assert _statuses(place.commit(sent, former, 2, 1)) == {FENCED}
        assert _statuses(place.evaluate(transactions=former, committed=1).results) <= {OK, MOVED}, "takes them back"
        assert _statuses(place.commit(taken, successor, 3, 1)) == {FENCED}
        assert [offset for offset, _ in place.offsets()] == [1, 1]
    assert len(place.written(2 * RECORDS)) == 2 * RECORDS


def test_metadata_of_another_program_is_taken_over_as_what_can_be_read(place: Place) -> None:
    place.begin()
    with contextlib.closing(place.another(sets=1)) as together:
        place.evaluate(transactions=together, committed=0)
        read = [msgspec.json.decode(metadata or "", type=CommitMetadata) for _, metadata in place.offsets()]
    assert read == [CommitMetadata("", -1, "", 2, owner=f"{place.settings.job_name}/0-of-1")] * 2


@pytest.mark.long
def test_rivals_of_other_sets_that_end_at_any_step_decide_each_record_once_and_in_order(place: Place) -> None:
    """Steps of four jobs, one of which knows no sets, in a random order; some end, and others take their places."""
    place.begin()
    dice, produced = random.Random("rivals"), place.produce(RIVAL_RECORDS)
    with contextlib.ExitStack() as stack:
        rivals = [Rival(place, stack.enter_context(contextlib.closing(place.another(sets)))) for sets in (0, 1, 2, 3)]
        for _ in range(RIVAL_STEPS):
            rival = dice.choice(rivals)
            rival.step(dice)
            if dice.random() < 0.1:
                sets = rival.transactions.sets.count
                rivals[rivals.index(rival)] = Rival(place, stack.enter_context(contextlib.closing(place.another(sets))))
        last = Rival(place, stack.enter_context(contextlib.closing(place.another(2))))
        wait_until(lambda: last.decide_all() == [RECORDS + RIVAL_RECORDS] * 2, "all is decided", 120)
    written = place.written(produced + 2 * RECORDS)
    for partition in (0, 1):
        numbers = [int(value.split(b"-")[1]) for value in written if value.startswith(b"%d-" % partition)]
        assert numbers == list(range(RECORDS + RIVAL_RECORDS))


class Rival:
    """One that takes itself for the job: evaluates from what it takes for committed, and may commit that later."""

    def __init__(self, place: Place, transactions: PartitionTransactions) -> None:
        self._place, self.transactions = place, transactions
        self._committed = dict.fromkeys(place.partitions, 0)
        self._open: tuple[Evaluated, dict[Partition, int]] | None = None

    def step(self, dice: random.Random) -> None:
        """The next one: to evaluate some, or to commit what is evaluated, or to forget it, as after an error."""
        if self._open is None:
            self._evaluate({at: dice.randint(1, 4) for at in dice.sample(self._place.partitions, dice.randint(1, 2))})
        elif dice.random() < 0.8:
            self._commit()
        else:
            self._open = None

    def _evaluate(self, counts: Mapping[Partition, int]) -> None:
        starts = {at: self._committed[at] for at in counts}
        ends = {at: min(start + counts[at], RECORDS + RIVAL_RECORDS) for at, start in starts.items()}
        records = read_range(self._place.spark, self._place.settings, dict.fromkeys(self._place.partitions, 0), ends)
        worker = _copy_from(self._place.output, starts)
        evaluated = self.transactions.evaluate(records, worker, starts, ends)
        self._note(evaluated.of(MOVED))
        if _statuses(evaluated.results) == {OK}:
            self._open = evaluated, ends

    def _commit(self) -> None:
        assert self._open is not None
        (evaluated, ends), self._open = self._open, None
        offsets = [self._place.marked(self.transactions, at, end) for at, end in ends.items()]
        self._note(self.transactions.commit(evaluated.results, offsets, self._committed))

    def _note(self, results: Iterable[PartitionResult]) -> None:
        for result in results:
            assert result.status in (OK, MOVED, FENCED, ABSENT), result
            if result.status in (OK, MOVED):
                self._committed[result.partition] = result.offset

    def decide_all(self) -> list[int]:
        """The offsets that are committed then, as far as is known."""
        self._evaluate(dict.fromkeys(self._place.partitions, RIVAL_RECORDS))
        if self._open is not None:
            self._commit()
        return list(self._committed.values())


def _copy_from(topic: str, starts: Mapping[Partition, int]) -> Evaluate:
    """A worker that writes each value from an offset of its partition on to a topic: values are numbered by offset."""
    first = {partition: start for (_, partition), start in starts.items()}

    def copy(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            values = [(value, *map(int, value.split(b"-"))) for value in batch.column("value").to_pylist()]
            yield _batch([_cell(topic, [value for value, partition, number in values if number >= first[partition]])])

    return copy


def test_the_columnar_batches_of_an_arrow_batch_are_sent_in_the_order_of_their_positions(place: Place) -> None:
    """And one Arrow batch after the other."""
    output = place.output

    def numbered(*numbers: int) -> bytes:
        return _cell(output, [b"%02d" % number for number in numbers], [number % 10 for number in numbers])

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            yield _batch([numbered(1, 4), numbered(0, 2, 5), numbered(3)])
            yield _batch([None])
            yield _batch([numbered(12, 13), numbered(10, 11, 14)])

    place.commit(place.evaluate(work, partitions=[(place.input, 0)]))
    assert place.written(11) == [b"%02d" % number for number in (0, 1, 2, 3, 4, 5, 10, 11, 12, 13, 14)]


def test_a_record_that_kafka_refuses_leaves_nothing_and_says_why(place: Place) -> None:
    output, beyond = place.output, b"x" * (place.settings.limits.record_out + 100_000)

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            yield _batch([_cell(output, [b"fine", beyond])])

    results = place.evaluate(work).results
    results = place.commit(Evaluated(results)) if _statuses(results) == {OK} else results
    assert _statuses(results) == {REFUSED}
    assert all("max.request.size" in result.error for result in results)
    assert (place.written(), place.offsets()) == ([], [(-1001, None)] * 2)


def test_a_task_that_fails_says_so_and_leaves_nothing(place: Place) -> None:
    output = place.output

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            yield _batch([_cell(output, [b"before"])])
            raise ValueError("in a worker")

    with pytest.raises(PythonException, match="in a worker"):
        place.evaluate(work)
    assert _statuses(place.commit(place.evaluate())) == {OK}
    assert sorted(place.written(2 * RECORDS)) == [b"%d-%d" % (p, n) for p in (0, 1) for n in range(RECORDS)]


def test_a_worker_that_ends_before_its_records_do_fails_its_task(place: Place) -> None:
    """Else they would be committed as decided, and nothing written of them."""

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from (_batch([None]) for _ in batches if False)

    with pytest.raises(Exception, match=f"a worker has not decided offset {RECORDS - 1} of {place.input}"):
        place.evaluate(work)
    assert _statuses(place.commit(place.evaluate())) == {OK}
    assert _statuses(place.evaluate(work, committed=RECORDS).results) == {OK}, "of these it has none to decide"


@pytest.mark.parametrize("committed", [None, 1])
def test_records_between_what_is_decided_and_where_spark_begins_to_read_are_not_left_out(
    place: Place, committed: int | None
) -> None:
    """As where an option of the source names another beginning: they would count as decided."""
    if committed:
        assert _statuses(place.commit(place.evaluate(), offset=committed)) == {OK}
    starts, ends = (dict.fromkeys(place.partitions, offset) for offset in (committed, RECORDS))
    with pytest.raises(Exception, match=f"reads {place.input}-[01] from offset 2 on"):
        place.transactions.evaluate(place.records(2), _copy(place.output), starts, ends)
    results = place.transactions.evaluate(place.records(committed or 0), _copy(place.output), starts, ends).results
    assert _statuses(results) == {OK}


def test_offsets_alone_are_committed_unless_something_else_is(place: Place) -> None:
    """As librdkafka commits them, which reads metadata up to a NUL: without one it would read on into its memory."""
    first = [TopicPartition(place.input, number, 1, f"first {number}") for number in (0, 1)]
    nothing = dict.fromkeys(place.partitions)
    assert _statuses(place.transactions.commit_offsets(first, nothing)) == {OK}
    assert place.offsets() == [(1, "first 0"), (1, "first 1")]
    with contextlib.closing(place.another()) as other:
        moved = other.commit_offsets(first, nothing)
        assert [(one.status, one.offset) for one in moved] == [(MOVED, 1)] * 2
        assert _statuses(other.commit_offsets(first, dict.fromkeys(place.partitions, 1))) == {OK}


def test_what_a_run_before_has_left_open_is_aborted_at_the_start(place: Place) -> None:
    """Else its offsets could not be read until its transactions time out."""
    place.evaluate()
    with contextlib.closing(place.another()) as successor:
        aborted: list[int] = []
        wait_until(lambda: aborted.append(successor.abort_left_open()) or sum(aborted) == 2, "both are aborted")
        assert successor.abort_left_open() == 0
    with contextlib.closing(place.another(job_name=f"{place.settings.job_name}-2")) as other:
        place.evaluate()
        assert other.abort_left_open() == 0, "another job's, whose name begins alike"
    assert place.written() == []


@pytest.mark.parametrize("sets", [0, 2])
def test_what_a_job_has_open_whose_name_goes_on_behind_a_slash_is_not_aborted(place: Place, sets: int) -> None:
    """Neither a partition's transaction, nor the driver's: the other job would take itself for fenced, and end."""
    name = f"{place.settings.job_name}/eu"
    driver = Producer({"bootstrap.servers": place.settings.bootstrap_servers, "transactional.id": name})
    driver.init_transactions(30)
    driver.begin_transaction()
    driver.produce(place.output, b"of the driver")
    assert driver.flush(30) == 0
    with contextlib.closing(place.another(sets, job_name=name)) as other:
        first = [place.marked(other, partition, 0) for partition in place.partitions]
        other.commit_offsets(first, dict.fromkeys(place.partitions))
        evaluated = place.evaluate(transactions=other, committed=0)
        assert _statuses(evaluated.results) == {OK}
        assert place.transactions.abort_left_open() == 0
        assert _statuses(place.commit(evaluated, other, committed=0)) == {OK}
    driver.commit_transaction(30)
    assert len(place.written(2 * RECORDS + 1)) == 2 * RECORDS + 1


@pytest.mark.parametrize("more", [0, PIECE_BYTES, 2 * MOST_PIECES * PIECE_BYTES])
def test_side_outputs_of_any_size_come_over_whole(place: Place, more: int) -> None:
    """In several pieces, where they are longer than Java sends at once."""
    offsets = [b"{}", bytes(range(256)) * (more // 256)]
    tally = ("requests", [("lenses6", "allow", 2)], 1, [5], [3], ["00-1"])
    side_output = (tally, [7], [], (0, 0, 1, False, 0.5), offsets)

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            yield _batch([None], side_output)

    sides = place.evaluate(work).side_outputs
    assert [(side.offsets, side.needed, side.tally.outcomes) for side in sides] == [
        (offsets, [7], [("lenses6", "allow", 2)])
    ] * 2
