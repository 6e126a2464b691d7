"""Spark's executors: who gets their slots, whether there are any, and what they do now."""

from pathlib import Path
from typing import Any, Literal

from pyspark.sql import SparkSession

MIB = 1 << 20
POOLS = Path(__file__).with_name("pools.xml")


def use_pool(spark: SparkSession, pool: Literal["enforcer", "monitor"]) -> None:
    """Let the jobs of this thread, and of queries that it starts, run in a pool of Spark's fair scheduler."""
    spark.sparkContext.setLocalProperty("spark.scheduler.pool", pool)


def tasks_beside(spark: SparkSession, most: int) -> int | None:
    """How many tasks, at most so many, may run at once so that a slot is left for others; None: there is one slot.

    Spark never ends a task for another one, whatever their pools. Then tasks must be short.
    """
    return min(most, spark.sparkContext.defaultParallelism - 1) or None


def count_executors(spark: SparkSession) -> int:
    """How many executors there are; with the master `local`, where the driver runs the tasks, 1."""
    context = spark.sparkContext
    if str(context.master).startswith("local"):
        return 1
    java: Any = context._jsc
    return len(java.sc().statusTracker().getExecutorInfos()) - 1  # the driver is among them


def describe_spark(spark: SparkSession) -> dict[str, Any]:
    """What the queries of this session and all tasks do, and the memory that Java uses, as fields for the log."""
    tracker, jvm = spark.sparkContext.statusTracker(), spark._jvm
    runtime: Any = jvm.java.lang.Runtime.getRuntime()  # type: ignore[union-attr]
    used = runtime.totalMemory() - runtime.freeMemory()
    stages = [stage for stage in map(tracker.getStageInfo, tracker.getActiveStageIds()) if stage is not None]
    tasks = [
        f"stage {stage.stageId}: {stage.numActiveTasks} running, {stage.numCompletedTasks} of {stage.numTasks} done, "
        f"{stage.numFailedTasks} failed"
        for stage in stages
    ]
    return {
        "spark": {query.name: query.status["message"] for query in spark.streams.active},
        "tasks": tasks,
        "executors": count_executors(spark),
        "java_memory": f"{used // MIB} of {runtime.maxMemory() // MIB} MiB",
    }
