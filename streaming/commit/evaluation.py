"""Runs the workers over the records of a batch, and what they return of it.

See `Evaluation.java` for why not by `DataFrame.mapInArrow`.
"""

import contextlib
import os
import struct
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.core.rdd import _prepare_for_python_RDD
from pyspark.serializers import CloudPickleSerializer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import BinaryType, StructField, StructType
from pyspark.util import PythonEvalType

from streaming.commit.java_classes import java_classes
from streaming.kafka.clients import Partition
from streaming.ops.tally import Tally
from streaming.runtime.executors import is_local
from streaming.runtime.workers import HAS_JARS, WorkersStart, described_by_workers

POOL = "WORKER_POOL"  # of the environment of workers, for each of which Spark has a pool
CLOSE_SECONDS = 3.0
_SERIALIZER: Any = CloudPickleSerializer()

Evaluate = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""What workers run: from Arrow batches of records to ones of `SCHEMA`, whose last row has all but the records."""


class Evaluation:
    """Plans and runs the workers' part of a batch in one Spark session.

    It has a pool of workers of its own. Spark hands a task to any idle worker of a pool, so that each of them unpacks
    the policies, prepares the queries and keeps them.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._spark, self._context = spark, spark.sparkContext
        self._workers_start: WorkersStart | None = None
        jvm: Any = spark._jvm
        # Of a function; PySpark asks Java for it with every one, by three calls (`_prepare_for_python_RDD`).
        self._broadcast_bytes = int(jvm.PythonUtils.getBroadcastThreshold(self._context._jsc))
        session: Any = spark._jsparkSession
        self._java = java_classes(spark).Evaluation(
            self._python_function(),
            session.parseDataType(SCHEMA.json()),
            PythonEvalType.SQL_MAP_ARROW_ITER_UDF,
        )

    def _python_function(self) -> Any:
        """How workers are started, the same for every batch; without anything for them to run."""
        context: Any = self._context
        return context._jvm.SimplePythonFunction(
            bytearray(),
            {**context.environment, POOL: "enforcer"},
            context._python_includes,
            context.pythonExec,
            context.pythonVer,
            [],
            context._javaAccumulator,
        )

    def plan(self, records: DataFrame, evaluate: Evaluate) -> Any:
        """The physical plan, in Java, that runs this over the records."""
        function, broadcasts = self._pickle(evaluate)
        return self._java.plan(records._jdf, bytearray(function), broadcasts)

    def decide(self, records: DataFrame, evaluate: Evaluate, settings: Any, lines: str, known: bytes | None) -> Any:
        """Decide records: by what is known, else by the workers; see `Evaluation.java`. Raises as `collect`."""
        function, broadcasts = self._pickle(evaluate)
        self._await_workers()
        task = None if known is None else bytearray(known)
        return self._java.decide(records._jdf, bytearray(function), broadcasts, settings, lines, task)

    def _pickle(self, evaluate: Evaluate) -> tuple[bytes, list[Any]]:
        """The function as workers read it, and the broadcasts in it, in Java."""
        function: bytes = _SERIALIZER.dumps((evaluate, SCHEMA))
        if len(function) > self._broadcast_bytes:
            function, broadcasts, _, _ = _prepare_for_python_RDD(self._context, (evaluate, SCHEMA))
            return function, broadcasts
        broadcasts = [broadcast._jbroadcast for broadcast in self._context._pickled_broadcast_vars]
        self._context._pickled_broadcast_vars.clear()
        return function, broadcasts

    def collect(self, plan: Any) -> Any:
        """The rows of such a plan, in Java. Raises what Spark does, and WorkersFailed."""
        self._await_workers()
        return self._java.collect(plan)

    def _await_workers(self) -> None:
        if self._workers_start is not None:
            self._workers_start.join()  # while these are busy, Spark would start more, and keep them
        self.check_workers()

    def check_workers(self) -> None:
        """Raise WorkersFailed where workers could not be started; without waiting for it."""
        if self._workers_start is not None:
            self._workers_start.check()

    def warm_up(self) -> None:
        """Begin to start the workers and to load Java's classes, for which the first batch would wait."""
        self._workers_start = WorkersStart(self._spark, self._describe_workers)

    def _describe_workers(self) -> Iterator[bytes]:
        """What each worker says of its code; a task for each slot, so that every executor has some."""
        slots = self._context.defaultParallelism
        tasks = min(slots, os.cpu_count() or 1) if is_local(self._spark) else slots
        rows = self._spark.range(0, tasks, 1, tasks).selectExpr(HAS_JARS)
        for row in self._java.collect(self.plan(rows, described_by_workers())):
            yield bytes(row[SIDE])

    def close(self) -> None:
        """End the workers' start: tasks that are under way when Spark stops log errors that mean nothing."""
        if self._workers_start is not None:
            self._workers_start.stop(CLOSE_SECONDS)


@contextlib.contextmanager
def worker_output_filtered(session: SparkSession) -> Iterator[None]:
    """Keep the progress that Python workers print off standard error, and all that they print once the block ends.

    In this JVM it stays so: for a process that ends with the session.
    """
    output = java_classes(session).WorkerOutput()
    try:
        yield
    finally:
        with contextlib.suppress(Py4JError, ConnectionError):  # where Java has ended
            output.mute()


# As a text it would be parsed, in Java, with every batch.
SCHEMA = StructType([StructField(name, BinaryType()) for name in ("packed", "side", "known")])
PACKED, SIDE, KNOWN = range(3)
"""Packed records; a side output; up to where it is decided, and what Java is to know: see `known_cell`."""

_ENDED = struct.Struct("<q?")


def known_cell(decided: "Decided", lessons: bytes = b"") -> bytes:
    """What Java is to know of an Arrow batch, as `KnownRecords.java` reads it."""
    return _ENDED.pack(decided.end, decided.stopped) + lessons


class Decided(msgspec.Struct, array_like=True, frozen=True):
    """Which records of an Arrow batch are decided: of a partition those from offset `first` up to, without it, `end`.

    `stopped`: the task's budget is used up, and from `end` on it decides nothing. `share`: what it has used of it.
    """

    partition: int
    first: int
    end: int
    stopped: bool
    share: float


class SideOutput(msgspec.Struct, array_like=True, frozen=True):
    """What a worker reports of an Arrow batch beside the records to write.

    `needed`: ids of Avro schemas that are not known yet; while there are any, nothing of the evaluation may be used.
    `moments`: some (ms) under whose policies audit events had to be evaluated, and no snapshot holds these. `offsets`:
    JSON of some policy offsets that answered records name, and of which no snapshot is held. `passed_on`, `fact_reads`:
    facts by system, kind and name, each with a moment (ms); see `streaming.enforcer.pending_facts`.
    """

    tally: Tally
    needed: list[int]
    moments: list[int]
    decided: Decided = Decided(0, 0, 0, False, 0.0)
    offsets: list[bytes] = []
    passed_on: list[tuple[tuple[str, str, str], int]] = []
    fact_reads: list[tuple[tuple[str, str, str], int]] = []

    @property
    def partition(self) -> Partition:
        """From which the records come."""
        return self.tally.topic, self.decided.partition
