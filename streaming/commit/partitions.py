"""Decides input partitions on the executors, each set of them in a transaction: see `PartitionProducer.java`.

In two steps, so that what only the whole batch shows can be checked in between: tasks evaluate and send, and leave
their transactions open; then those of each executor are committed side by side. Consumers lose nothing by that: what
one transaction has committed they see once every transaction before it in the same partition has ended.
"""

import contextlib
import math
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import msgspec
from confluent_kafka import TopicPartition
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.sql import DataFrame, SparkSession

from streaming.commit.evaluation import Evaluate, Evaluation, SideOutput
from streaming.commit.java_classes import java_classes
from streaming.commit.java_clients import admin_settings, producer_settings, properties
from streaming.commit.partition_sets import PartitionSets
from streaming.commit.protocol import request_timeout_ms
from streaming.commit.transaction import denied_transactional_id, message_of
from streaming.errors import CannotWrite
from streaming.kafka.clients import Partition
from streaming.kafka.manifests import partition_ids
from streaming.runtime.spark_errors import task_failure
from streaming.settings import Settings

OK, MOVED, FENCED, UNAVAILABLE, REFUSED, ABSENT = range(6)
"""Statuses of a `PartitionResult`, as in `PartitionResult.java`."""

NOTHING_COMMITTED = -1
FOR_EVER_MS = 2**63 - 1
PARTITION_BUFFER_BYTES = 16 << 20  # of a partition's producer, which keeps its buffers as long as it lives

# Py4J sends an answer of Java's in writes of 8 KiB, in BASE64. What does not fit in one waits 40 ms, until TCP has
# acknowledged what was sent before; so many more calls take less. To iterate over a list of Java's takes 10 ms.
PIECE_BYTES = 6_000
MOST_PIECES = 40

During = Callable[[str], contextlib.AbstractContextManager[None]]


class PartitionResult(msgspec.Struct, array_like=True, frozen=True):
    """What became of an input partition.

    `offset`: that is committed, as far as the executor knows. `attempt`: the number of its transaction, which is open
    after an evaluation whose status is OK. `millis`: of an evaluation, until its producer was there and until all was
    sent; of a commit, how long it took. `counted`: the side output, in JSON, of what was decided by known answers.
    """

    topic: str
    number: int
    status: int
    offset: int
    attempt: int
    executor: str
    error: str
    millis: list[int]
    side_outputs: list[SideOutput]
    counted: str = ""

    @property
    def partition(self) -> Partition:
        """Topic and number."""
        return self.topic, self.number


class Evaluated(NamedTuple):
    """What tasks made of a batch, by input partition."""

    results: list[PartitionResult]

    @property
    def side_outputs(self) -> list[SideOutput]:
        """Of all partitions, in the order of each one's Arrow batches."""
        return [
            side
            for result in self.results
            for side in (*result.side_outputs, *([_decode_counted(result.counted)] if result.counted else ()))
        ]

    def of(self, status: int) -> list[PartitionResult]:
        """The results with this status."""
        return [result for result in self.results if result.status == status]


_decode_counted = msgspec.json.Decoder(SideOutput).decode
_decode_results = msgspec.msgpack.Decoder(list[PartitionResult]).decode


class PartitionTransactions:
    """The transactions of one run of the job on its executors. `is_unavailable`: see `Output.is_unavailable`.

    `sets`: which partitions share one; None: each has its own. `idle_commit_seconds`: the driver may call
    `commit_offsets` for partitions that were idle for so long. On a cluster it takes their transactional ids by that: a
    producer that an executor has kept for longer may be fenced, and a new one costs less than a batch decided twice.
    """

    def __init__(
        self,
        settings: Settings,
        spark: SparkSession,
        is_unavailable: Callable[[BaseException], bool],
        during: During = lambda _step: contextlib.nullcontext(),
        sets: PartitionSets | None = None,
        idle_commit_seconds: float = math.inf,
    ) -> None:
        self._all_settings, self._job, self._spark = settings, settings.job_name, spark
        self.sets = sets or PartitionSets(settings.job_name)
        self._is_unavailable, self._during = is_unavailable, during
        self._evaluation = Evaluation(spark)
        self._java = java_classes(spark)
        # Py4J asks for a class and then for its method at each use of its name: 0.4 ms together.
        self._commit_partitions, self._piece = self._java.PartitionCommits.commit, self._java.PartitionResult.piece
        self._context = cast(Any, spark.sparkContext)._jsc.sc()
        self._admin = admin_settings(spark._jvm, settings)
        self._instance = secrets.token_hex(8)
        self._settings = self._java.WriterSettings(
            properties(cast(Any, spark._jvm), _partition_settings(spark, settings)),
            self._admin,
            settings.job_name,
            self._instance,
            int(request_timeout_ms(settings)),
            int(min(idle_commit_seconds * 1000, FOR_EVER_MS)),
        )

    def abort_left_open(self) -> int:
        """Abort what a run before this one left open; how many transactions that were.

        Raises CannotWrite when Kafka does not answer, or does not let the job.
        """
        try:
            return int(self._java.LeftOpen.abort(self._admin, self._job))
        except Py4JJavaError as error:
            denied = denied_transactional_id(self._all_settings, error, partition_ids(self._job), prefix=True)
            raise CannotWrite(denied or f"open transactions of job {self._job!r}: {message_of(error)}") from error

    def warm_up(self) -> None:
        """Begin to start the workers; see `Evaluation.warm_up`."""
        self._evaluation.warm_up()

    def check_workers(self) -> None:
        """Raise WorkersFailed where workers could not be started: no batch may come that would show it."""
        self._evaluation.check_workers()

    def evaluate(
        self,
        records: DataFrame,
        worker: Evaluate,
        committed: Mapping[Partition, int | None],
        ends: Mapping[Partition, int],
        known: bytes | None = None,
    ) -> Evaluated:
        """Run the records of these partitions through the workers, and send what they make of them.

        `committed`: the offset from which each is to be decided, None where nothing is committed. Of a partition of
        which something else is committed, nothing is evaluated. `ends`: up to where the records go. `known`: how
        records are decided by answers that are known, without a worker; None: none is.

        Raises JobStopped where a task fails, but not for a fault of Kafka's that may pass.
        """
        if not committed:
            return Evaluated([])
        if self.sets.count and None in committed.values():  # then the transactional id would not own it
            raise ValueError("of a partition in a set the driver commits the first offset")
        lines = "\n".join(
            f"{self.sets.transactional_id((topic, number))}\t{topic}\t{number}\t{_number(offset)}"
            f"\t{ends[topic, number]}"
            for (topic, number), offset in committed.items()
        )
        try:
            with self._during("evaluate the records in the workers, and send the decisions to Kafka"):
                results = self._evaluation.decide(records, worker, self._settings, lines, known)
        except Exception as error:
            if self._is_unavailable(error):
                raise
            by_task: dict[str, list[tuple[Partition, int | None]]] = {}
            for partition, offset in committed.items():  # as PartitionSet.java numbers them
                by_task.setdefault(self.sets.transactional_id(partition), []).append((partition, offset))
            raise task_failure(error, list(by_task.values())) or error from None
        with self._during("read what the workers report"):
            return Evaluated(self._read(results))

    def commit(
        self,
        evaluated: Iterable[PartitionResult],
        offsets: Sequence[TopicPartition],
        committed: Mapping[Partition, int | None],
    ) -> list[PartitionResult]:
        """Commit the open transactions of these partitions, each with its offset; what became of each.

        `offsets`: also of other partitions of their sets, of which nothing was decided.
        """
        sent = {self.sets.transactional_id(result.partition): (result.attempt, result.executor) for result in evaluated}
        lines = [self._line(tp, committed, sent) for tp in offsets]
        with self._during("commit the transactions of the partitions"):
            return self._commit(self._commit_partitions, lines)

    def commit_offsets(
        self, offsets: Sequence[TopicPartition], committed: Mapping[Partition, int | None]
    ) -> list[PartitionResult]:
        """Commit offsets alone, of sets with nothing to decide; what became of each."""
        lines = [self._line(tp, committed, {}) for tp in offsets]
        with self._during("commit the offsets of idle partitions"):
            return self._commit(self._java.PartitionCommits.commitOffsets, lines)

    def _line(
        self,
        tp: TopicPartition,
        committed: Mapping[Partition, int | None],
        sent: Mapping[str, tuple[int, str]],
    ) -> str:
        """As `SetCommit` reads it; neither names of topics nor JSON hold a tab or the end of a line."""
        partition = tp.topic, tp.partition
        id_ = self.sets.transactional_id(partition)
        attempt, executor = sent.get(id_, (NOTHING_COMMITTED, ""))
        fields = (id_, attempt, executor, tp.offset, tp.metadata, *partition, _number(committed[partition]))
        return "\t".join(map(str, fields))

    def _commit(self, call: Any, lines: Sequence[str]) -> list[PartitionResult]:
        if not lines:
            return []
        try:
            return self._read(call(self._context, self._settings, "\n".join(lines)))
        except Py4JJavaError as error:  # an executor was lost: its partitions show what is committed
            raise CannotWrite(f"the transactions of a batch: {message_of(error)}") from error

    def _read(self, results: Any) -> list[PartitionResult]:
        """The results in Java, in pieces."""
        whole, is_complete = b"", False
        while not is_complete:
            most = PIECE_BYTES if len(whole) < MOST_PIECES * PIECE_BYTES else 2**31 - 1
            piece = self._piece(results, len(whole), most)
            whole, is_complete = whole + piece, len(piece) < most
        return _decode_results(whole)

    def close(self) -> None:
        """Abort what is open in this JVM, and wait for the workers' start."""
        with contextlib.suppress(Py4JError):  # a Java that has ended took its producers with it
            self._java.PartitionProducers.close(self._instance)
        self._evaluation.close()


def _partition_settings(spark: SparkSession, settings: Settings) -> Mapping[str, str]:
    """Those of the driver's producer, which has the job's transactional id, with smaller buffers."""
    shared = dict(producer_settings(spark._jvm, settings))
    del shared["transactional.id"]
    least = 2 * int(shared["max.request.size"])
    return {**shared, "buffer.memory": str(max(PARTITION_BUFFER_BYTES, least))}


def _number(committed: int | None) -> int:
    return NOTHING_COMMITTED if committed is None else committed
