"""An empty batch, run while the rest of the job starts. A module of its own, as Python workers import it."""

import contextlib
import threading
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import SparkSession


def warm_up(spark: SparkSession) -> None:
    """Begin to start Python workers and to load Java's classes, for which the first batch would wait."""
    threading.Thread(target=_run_empty_batch, args=(spark,), name="warm-up", daemon=True).start()


def _run_empty_batch(spark: SparkSession) -> None:
    with contextlib.suppress(Exception):  # a job that stops meanwhile ends it, and needs nothing of it
        spark.range(spark.sparkContext.defaultParallelism).mapInArrow(_nothing, "id long")._jdf.collectAsList()


def _nothing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Of each batch no row."""
    for batch in batches:
        yield batch.slice(0, 0)
