"""Spark's side: the session's settings, the Kafka source, and the query."""

import json
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from streaming.commit.checkpoint import LOCAL_MANAGER, format_offsets, is_local
from streaming.enforcer.records import COLUMNS
from streaming.kafka.clients import Partition
from streaming.kafka.manifests import SPARK_GROUPS
from streaming.settings import Settings

READ_FAST = {
    # Half of the median latency of a small batch was waiting for more to fetch.
    "kafka.fetch.max.wait.ms": "5",
    "kafka.max.partition.fetch.bytes": str(8 << 20),
    "kafka.receive.buffer.bytes": str(1 << 20),
}

ARROW_BYTES = 16 << 20
FETCHED = "kafka.max.partition.fetch.bytes"
FETCHED_BYTES = 64 << 20  # of all partitions: Spark's consumers hold what they have fetched, also between batches
FETCHED_LEAST, FETCHED_MOST = 256 << 10, 8 << 20  # of one
# A fetch of some MB may hold thousands of compressed records of 1 MB. Kafka's consumer unpacks them as it hands them
# out, all of a poll at once. With each poll Spark asks for two offsets: for 600,000 records of 250 bytes, 0.7 to 1.1 s
# of CPU with polls of 5,000 or 500, 1.0 with 250, 1.4 with 100, 2.5 with 30.
POLLED = "kafka.max.poll.records"
POLLED_BYTES = 512 << 20  # of all polls at the same time; twice that while Spark still holds the ones before
POLLED_LEAST, POLLED_MOST, POLLED_OF_RANGES = 16, 500, 100

# Spark plans every batch anew, through code that a record never sees: to compile all of it as well as Java can took a
# third of its time for the first millions of records. What runs for each record gets there within a batch all the same.
COMPILE_LATE = (
    "-XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=20000 -XX:Tier4CompileThreshold=100000"
)


def session_settings(settings: Settings) -> dict[str, str]:
    """What the session needs; `settings.spark` goes before it."""
    stacks = " -Dlockkeeper.stacks=whole" if settings.log.level == "debug" else ""
    local = {"spark.sql.streaming.checkpointFileManagerClass": LOCAL_MANAGER}
    return {
        # Arrow's large buffers are humongous to G1, which then collects without end in Spark's default heap of 1 GiB.
        "spark.driver.memory": "2g",
        "spark.driver.extraJavaOptions": f"-XX:+UseParallelGC {COMPILE_LATE}{stacks}",
        "spark.python.daemon.module": "streaming.runtime.daemon",
        # By TCP the first records of a small batch waited 40 ms for an acknowledgement.
        "spark.python.unix.domain.socket.enabled": "true",
        # What a task leaves of its last poll would be kept for five minutes, and each range may leave some.
        "spark.kafka.consumer.fetchedData.cache.timeout": "2s",
        "spark.kafka.consumer.fetchedData.cache.evictorThreadRunInterval": "1s",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "50000",
        "spark.sql.execution.arrow.maxBytesPerBatch": str(ARROW_BYTES),
        # Not Kafka, which in its first version makes objects of rows that are then taken apart again.
        "spark.sql.sources.useV1SourceList": "avro,csv,json,orc,parquet,text",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.streaming.noDataMicroBatches.enabled": "false",
        # While there are no requests, Kafka is asked for new ones less than half as often; under load it counts
        # for nothing, and after a pause a request waits 10 ms longer in the mean.
        "spark.sql.streaming.pollingDelay": "30ms",
        # A batch that waits for Kafka must not keep the job from stopping.
        "spark.sql.streaming.stopTimeout": "5s",
        **(local if is_local(settings.checkpoint) else {}),
        **settings.spark,
    }


def connection_options(settings: Settings) -> dict[str, str]:
    """Options of any Kafka source of the job."""
    return {
        **READ_FAST,
        **settings.source,
        "kafka.bootstrap.servers": settings.bootstrap_servers,
        # By default Spark would read records of aborted transactions too.
        "kafka.isolation.level": "read_committed",
        "failOnDataLoss": "true",
    }


def source_options(settings: Settings) -> dict[str, str]:
    """Options of the enforcer's source, batch or stream, but for the range."""
    return {
        **connection_options(settings),
        "subscribe": ",".join((*settings.topics.requests, *settings.topics.audit)),
        "maxOffsetsPerTrigger": str(settings.max_records),
        "includeHeaders": "true",
    }


def fetching(settings: Settings, partitions: int) -> dict[str, str]:
    """How much to fetch of each partition at once, where there are so many; nothing if `source` says it."""
    fetched = min(max(FETCHED_BYTES // max(partitions, 1), FETCHED_LEAST), FETCHED_MOST)
    return {} if FETCHED in settings.source else {FETCHED: str(fetched)}


def polling(settings: Settings, polls: int, size: int, most: int = POLLED_MOST) -> dict[str, str]:
    """How many records, of at most ``size`` bytes, a poll may unpack where there are so many; nothing if `source` says
    it.
    """
    polled = min(max(POLLED_BYTES // (max(polls, 1) * size), POLLED_LEAST), most)
    return {} if POLLED in settings.source else {POLLED: str(polled)}


def read_range(
    spark: SparkSession, settings: Settings, starts: Mapping[Partition, int], ends: Mapping[Partition, int]
) -> DataFrame:
    """The records of some partitions between these offsets, as the query has those of a batch."""
    assigned: dict[str, list[int]] = {}
    for topic, number in ends:
        assigned.setdefault(topic, []).append(number)
    options = {
        # Spark keeps consumers by the name of their group, which would be another one each time. None joins it. The
        # ACLs of the job allow its prefix.
        "kafka.group.id": f"{SPARK_GROUPS}-{settings.job_name}-ranges",
        **connection_options(settings),
        **fetching(settings, len(ends)),
        **polling(
            settings, len(ends), settings.limits.record_in, POLLED_OF_RANGES
        ),  # each may leave some of its last one
        "assign": json.dumps(assigned),
        "startingOffsets": format_offsets({partition: starts[partition] for partition in ends}),
        "endingOffsets": format_offsets(ends),
        "includeHeaders": "true",
    }
    return spark.read.format("kafka").options(**options).load().selectExpr(*COLUMNS)


class ForeachBatch:
    """What Spark calls with each micro-batch. PySpark's own wraps a SparkSession each time, by several calls."""

    def __init__(self, spark: SparkSession, on_batch: Callable[[DataFrame, int], None]) -> None:
        self._spark, self._on_batch = spark, on_batch

    def call(self, records: Any, batch: int) -> None:
        """Spark's name."""
        self._on_batch(DataFrame(records, self._spark), batch)

    class Java:
        """What it is in Java."""

        implements: ClassVar = ["org.apache.spark.sql.execution.streaming.sources.PythonForeachBatchFunction"]


def start_query(
    spark: SparkSession,
    settings: Settings,
    starts: Mapping[Partition, int],
    on_batch: Callable[[DataFrame, int], None],
) -> StreamingQuery:
    """Start the query. Without a checkpoint it begins at `starts`, which name every partition."""
    options = {
        **source_options(settings),
        **fetching(settings, len(starts)),
        **polling(settings, min(len(starts), spark.sparkContext.defaultParallelism), settings.limits.record_in),
        "startingOffsets": format_offsets(starts),
    }
    ensure_callback_server_started(spark.sparkContext._gateway)  # type: ignore[no-untyped-call]
    spark.conf.set("spark.sql.ansi.enabled", "false")  # which forbids the cast of numbers to bytes
    # Here and not in each batch, where it would be planned anew and every row be written twice.
    records = spark.readStream.format("kafka").options(**options).load().selectExpr(*COLUMNS)
    writer = records.writeStream.queryName(settings.job_name)
    jvm: Any = spark._jvm
    jvm.org.apache.spark.sql.execution.streaming.sources.PythonForeachBatchHelper.callForeachBatch(
        writer._jwrite, ForeachBatch(spark, on_batch)
    )
    return writer.option("checkpointLocation", settings.checkpoint).start()
