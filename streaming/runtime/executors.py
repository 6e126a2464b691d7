"""Spark's executors: who gets their slots, whether there are any, and what they do now."""

import threading
import time
from pathlib import Path
from typing import Any, Literal

import structlog
from pyspark.sql import SparkSession

from streaming.errors import CannotStart

log = structlog.get_logger()

REGISTERED_SECONDS = 30.0  # as Spark's spark.scheduler.maxRegisteredResourcesWaitingTime
SETTLED_SECONDS = 3.0  # the first executor has come: others start at the same time
POLL_SECONDS = 0.1
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


def is_local(spark: SparkSession) -> bool:
    """Whether the driver itself runs the tasks.

    On Kubernetes the master is k8s://… also for a driver without executors, which this setting of Spark's makes.
    """
    if str(spark.sparkContext.master).startswith("k8s"):
        return str(spark.conf.get("spark.kubernetes.driver.master", "")).startswith("local")
    return str(spark.sparkContext.master).startswith("local")


def await_executors(spark: SparkSession, stop: threading.Event) -> None:
    """Wait, for a while, until executors have registered: Spark counts the slots of those alone.

    Spark's own minRegisteredResourcesRatio waits on a standalone cluster only where spark.cores.max is set.
    """
    if is_local(spark):
        return
    deadline, count, changed = time.monotonic() + REGISTERED_SECONDS, 0, time.monotonic()
    while not stop.wait(POLL_SECONDS) and (now := time.monotonic()) < deadline:
        if (newer := count_executors(spark)) != count:
            count, changed = newer, now
        if count and (_has_all_cores(spark) or now - changed >= SETTLED_SECONDS):
            return
    if not count and not stop.is_set():
        log.warning(
            "Spark has no executors yet; nothing is decided without them",
            waited_seconds=REGISTERED_SECONDS,
            master=spark.sparkContext.master,
        )


def _has_all_cores(spark: SparkSession) -> bool:
    """Whether there are as many as spark.cores.max allows; Spark's defaultParallelism is 2 even without executors."""
    most = spark.sparkContext.getConf().get("spark.cores.max")
    java: Any = spark.sparkContext._jsc
    executors = java.sc().statusStore().executorList(True)
    cores = sum(int(executors.apply(number).totalCores()) for number in range(executors.size()))
    return most is not None and cores >= int(most)


def refuse_dynamic_allocation(spark: SparkSession) -> None:
    """Raise CannotStart where Spark would end executors that have nothing to do."""
    if is_local(spark) or spark.sparkContext.getConf().get("spark.dynamicAllocation.enabled") != "true":
        return
    raise CannotStart(
        "spark.dynamicAllocation.enabled is true: Spark would end executors that are idle for 60 s, and the next "
        "request would wait until others have started (SPARK-24815). Set it to false in the setting `spark`, in "
        "spark-defaults.conf or for spark-submit, and the number of cores by spark.cores.max or "
        "spark.executor.instances"
    )


def count_executors(spark: SparkSession) -> int:
    """How many executors there are; with the master `local`, where the driver runs the tasks, 1."""
    if is_local(spark):
        return 1
    java: Any = spark.sparkContext._jsc
    return len(java.sc().statusTracker().getExecutorInfos()) - 1  # the driver is among them


def count_slots(spark: SparkSession) -> int:
    """How many tasks the executors that are there run at once; 0: Spark has ended."""
    java: Any = spark.sparkContext._jsc
    return 0 if java.sc().isStopped() else spark.sparkContext.defaultParallelism


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
