"""Runs the workers over the records of a batch, and what they return of it.

See `Evaluation.java` for why not by `DataFrame.mapInArrow`.
"""

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.core.rdd import _prepare_for_python_RDD
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import BinaryType, StructField, StructType
from pyspark.util import PythonEvalType

from streaming.kafka.clients import Partition
from streaming.ops.tally import Compared, Tally
from streaming.runtime.spark import new_instance

SOURCE = Path(__file__).with_name("Evaluation.java")
POOL = "WORKER_POOL"  # of the environment of workers, for each of which Spark has a pool
WARM_UP_SECONDS = 30.0  # to wait for it at most
CLOSE_SECONDS = 5.0

Evaluate = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""What workers run: from Arrow batches of records to ones of `SCHEMA`."""


class Evaluation:
    """Plans and runs the workers' part of a batch in one Spark session.

    It has a pool of workers of its own. Spark hands a task to any idle worker of a pool, so that each of them unpacks
    the policies, prepares the queries and keeps them.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._spark, self._context = spark, spark.sparkContext
        self._warming_up: threading.Thread | None = None
        session: Any = spark._jsparkSession
        self._java = new_instance(
            self._context._gateway,
            SOURCE,
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
        function, broadcasts, _, _ = _prepare_for_python_RDD(self._context, (evaluate, SCHEMA))
        return self._java.plan(records._jdf, bytearray(function), broadcasts)

    def collect(self, plan: Any) -> Any:
        """Run a plan of the columns of `SCHEMA`; the rows stay in Java. Raises what Spark does."""
        self._await_workers(WARM_UP_SECONDS)  # while these are busy, Spark would start more, and keep them
        return self._java.collect(plan)

    def warm_up(self) -> None:
        """Begin to start the workers and to load Java's classes, for which the first batch would wait."""
        self._warming_up = threading.Thread(target=self._run_empty_batch, name="warm-up", daemon=True)
        self._warming_up.start()

    def _run_empty_batch(self) -> None:
        tasks = min(self._context.defaultParallelism, os.cpu_count() or 1)
        with contextlib.suppress(Exception):  # a job that stops meanwhile ends it, and needs nothing of it
            self._java.collect(self.plan(self._spark.range(0, tasks, 1, tasks), _nothing))

    def _await_workers(self, seconds: float) -> None:
        """Once: a start that takes longer must not delay every batch."""
        warming_up, self._warming_up = self._warming_up, None
        if warming_up is not None:
            warming_up.join(seconds)

    def close(self) -> None:
        """Wait for the workers' start: tasks that are under way when Spark stops log errors that mean nothing."""
        self._await_workers(CLOSE_SECONDS)


def _nothing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Nothing of any batch."""
    for _ in batches:
        yield from ()


# As a text it would be parsed, in Java, with every batch.
SCHEMA = StructType([StructField("packed", BinaryType()), StructField("side", BinaryType())])
PACKED, SIDE = range(2)


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
    `compared`: what a candidate says. `decisions`: the records of these, if each is to be logged. `moments`: some (ms)
    under whose policies audit events had to be evaluated, and no snapshot holds these. `offsets`: JSON of some policy
    offsets that answered records name, and of which no snapshot is held. `passed_on`, `fact_reads`: facts by system,
    kind and name, each with a moment (ms); see `streaming.enforcer.pending_facts`.
    """

    tally: Tally
    needed: list[int]
    compared: Compared
    decisions: list[bytes]
    moments: list[int]
    decided: Decided = Decided(0, 0, 0, False, 0.0)
    offsets: list[bytes] = []
    passed_on: list[tuple[tuple[str, str, str], int]] = []
    fact_reads: list[tuple[tuple[str, str, str], int]] = []

    @property
    def partition(self) -> Partition:
        """From which the records come."""
        return self.tally.topic, self.decided.partition
