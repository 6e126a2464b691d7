"""Runs the workers over the records of a batch, and what they return of it.

See `Evaluation.java` for why not by `DataFrame.mapInArrow`.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.core.rdd import _prepare_for_python_RDD
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import BinaryType, StructField, StructType
from pyspark.util import PythonEvalType

from streaming.ops.tally import Compared, Tally
from streaming.runtime.spark import new_instance

SOURCE = Path(__file__).with_name("Evaluation.java")

Evaluate = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""What workers run: from Arrow batches of records to ones of `SCHEMA`."""


class Evaluation:
    """Plans and runs the workers' part of a batch in one Spark session."""

    def __init__(self, spark: SparkSession) -> None:
        self._context = spark.sparkContext
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
            context.environment,
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
        return self._java.collect(plan)


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
    offsets that answered records name, and of which no snapshot is held.
    """

    tally: Tally
    needed: list[int]
    compared: Compared
    decisions: list[bytes]
    moments: list[int]
    decided: Decided = Decided(0, 0, 0, False, 0.0)
    offsets: list[bytes] = []
