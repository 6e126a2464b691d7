"""Spark's side: the session's settings, the Kafka source, and the query."""

import functools
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from streaming.commit.checkpoint import LOCAL_MANAGER, format_offsets, is_local
from streaming.commit.java_classes import java_classes
from streaming.kafka.clients import Partition
from streaming.kafka.manifests import SPARK_GROUPS
from streaming.runtime.executors import POOLS, use_pool
from streaming.runtime.spark import JAVA_OPTIONS, MEMORY
from streaming.settings import Settings, SettingsError

PROTOCOL = "security.protocol"
TOKENS = "spark.kafka.clusters."  # with its delegation tokens Spark takes the protocol that is set beside them
READ_FAST = {
    # Half of the median latency of a small batch was waiting for more to fetch.
    "kafka.fetch.max.wait.ms": "5",
    "kafka.max.partition.fetch.bytes": str(8 << 20),
    "kafka.receive.buffer.bytes": str(1 << 20),
}

# Python decides one Arrow batch while Java reads the next one, and holds 2 KB for each of its records: with 50,000 a
# worker takes 80 MiB more and is no faster; below 5,000 the millisecond that each batch takes counts.
ARROW_RECORDS = 10_000
ARROW_BYTES = 16 << 20  # records may have 1 MiB each: Spark's bound by count alone let 2,400 of 900 kB end the JVM
GROUP = "kafka.group.id"
FETCHED = "kafka.max.partition.fetch.bytes"
FETCHED_BYTES = 64 << 20  # of all partitions: Spark's consumers hold what they have fetched, also between batches
FETCHED_LEAST, FETCHED_MOST = 256 << 10, 8 << 20  # of one
# A fetch of some MB may hold thousands of compressed records of 1 MB. Kafka's consumer unpacks them as it hands them
# out, all of a poll at once. With each poll Spark asks for two offsets: for 600,000 records of 250 bytes, 0.7 to 1.1 s
# of CPU with polls of 5,000 or 500, 1.0 with 250, 1.4 with 100, 2.5 with 30.
POLLED = "kafka.max.poll.records"
POLLED_BYTES = 512 << 20  # of all polls at the same time; twice that while Spark still holds the ones before
POLLED_LEAST, POLLED_MOST, POLLED_OF_RANGES = 16, 500, 100


# Options of Spark's source that are not passed on, in lower case. By the first two several tasks read one partition: it
# has one transaction, which one task writes. The others have precedence over the offsets at which a range begins and
# ends: what lies beside the times that they name would count as decided.
NOT_PASSED_ON = frozenset(
    {
        "minpartitions",
        "maxrecordsperpartition",
        "startingtimestamp",
        "startingoffsetsbytimestamp",
        "endingtimestamp",
        "endingoffsetsbytimestamp",
    }
)


def session_settings(settings: Settings) -> dict[str, str]:
    """What the session needs; `settings.spark` takes precedence."""
    stacks = " -Dlockkeeper.stacks=whole" if settings.log.level == "debug" else ""
    local = {"spark.sql.streaming.checkpointFileManagerClass": LOCAL_MANAGER}
    return {
        "spark.driver.memory": MEMORY,
        "spark.driver.extraJavaOptions": f"{JAVA_OPTIONS}{stacks}",
        "spark.python.daemon.module": "streaming.runtime.daemon",
        # By TCP the first records of a small batch waited 40 ms for an acknowledgement.
        "spark.python.unix.domain.socket.enabled": "true",
        # A new consumer takes 15 ms of two cores, and by default 64 are kept: a job with 200 partitions would open
        # each with every batch. Those beyond what is in use are closed after five minutes. Each has some sockets, of
        # which a process may have 20,000 files here.
        "spark.kafka.consumer.cache.capacity": "1000",
        # What a task leaves of its last poll would be kept for five minutes, and each range may leave some.
        "spark.kafka.consumer.fetchedData.cache.timeout": "2s",
        "spark.kafka.consumer.fetchedData.cache.evictorThreadRunInterval": "1s",
        "spark.sql.execution.arrow.maxRecordsPerBatch": str(ARROW_RECORDS),
        "spark.sql.execution.arrow.maxBytesPerBatch": str(ARROW_BYTES),
        # Decisions go before the monitor's work, see `streaming.runtime.executors`.
        "spark.scheduler.mode": "FAIR",
        "spark.scheduler.allocation.file": POOLS.as_uri(),
        # Not Kafka, which in its first version makes objects of rows that are then taken apart again.
        "spark.sql.sources.useV1SourceList": "avro,csv,json,orc,parquet,text",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.streaming.noDataMicroBatches.enabled": "false",
        # While there are no requests, Kafka is polled for new ones less than half as often; under load it counts
        # for nothing, and after a pause a request waits 10 ms longer in the mean.
        "spark.sql.streaming.pollingDelay": "30ms",
        # A batch that waits for Kafka must not keep the job from stopping.
        "spark.sql.streaming.stopTimeout": "5s",
        **(local if is_local(settings.checkpoint) else {}),
        **settings.spark,
        # A second attempt beside the first would fence its producer, with every batch in which a task is slow.
        "spark.speculation": "false",
    }


def check_security_protocols(settings: Settings, spark: SparkSession) -> None:
    """Raise SettingsError where Spark's clients speak another protocol than librdkafka, to the same brokers.

    Java's client gets no error: it waits for an answer for minutes, and so did `lockkeeper replay`.
    """
    options = {name.lower(): value for name, value in settings.source.items()}
    protocols = settings.kafka.get(PROTOCOL), options.get(f"kafka.{PROTOCOL}")
    of_librdkafka, of_spark = (str(protocol or "PLAINTEXT").upper() for protocol in protocols)
    has_tokens = any(name.startswith(TOKENS) for name, _ in spark.sparkContext.getConf().getAll())
    if of_librdkafka != of_spark and not has_tokens:
        raise SettingsError(
            f"source: Spark's clients connect by {of_spark}, and those of the setting kafka by {of_librdkafka}, to the "
            f"same brokers. Set kafka.{PROTOCOL}, and the login, in source"
        )


def connection_options(settings: Settings) -> dict[str, str]:
    """Options of any Kafka source of the job."""
    own = {name: value for name, value in settings.source.items() if name.lower() not in NOT_PASSED_ON}
    return {
        **READ_FAST,
        **own,
        "kafka.bootstrap.servers": settings.bootstrap_servers,
        # By default Spark would read records of aborted transactions too.
        "kafka.isolation.level": "read_committed",
        "failOnDataLoss": "true",
    }


def source_options(settings: Settings) -> dict[str, str]:
    """Options of the enforcer's source, batch or stream, but for the range."""
    return {
        **connection_options(settings),
        "subscribe": ",".join(settings.topics.inputs),
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


def range_options(settings: Settings, partitions: int) -> dict[str, str]:
    """Options of the reader of ranges, in a job with so many input partitions.

    They must not depend on which ranges are left. Spark keeps consumers by group and partition, and for each such key,
    as long as Java runs, the parameters that it had first: it refuses others with "Kafka parameters for same cache key
    should be equal" (InternalKafkaConsumerPool). Those of partitions that are done stay for minutes and count, too. A
    topic may get more partitions while the job runs: so the group is also named after what depends on their number.
    """
    connection = connection_options(settings)
    # Each consumer may leave some of its last poll.
    sizes = {
        **fetching(settings, partitions),
        **polling(settings, partitions, settings.limits.record_in, POLLED_OF_RANGES),
    }
    # A name of its own: Spark would choose another each time. None joins it. The ACLs of the job allow its prefix.
    prefix = connection.get(GROUP) or connection.get("groupIdPrefix") or SPARK_GROUPS
    group = "-".join((prefix, settings.job_name, "ranges", *sizes.values()))
    return {**connection, **sizes, GROUP: group, "includeHeaders": "true"}


def read_range(
    spark: SparkSession,
    settings: Settings,
    starts: Mapping[Partition, int],
    ends: Mapping[Partition, int],
    tasks: int | None = None,
) -> DataFrame:
    """The records of some partitions between these offsets, in the columns of Spark's source.

    `starts`: of every input partition; `ends`: of those to read. `tasks`: so many or more, each of one partition; None:
    one for each partition.
    """
    assigned: dict[str, list[int]] = {}
    for topic, number in ends:
        assigned.setdefault(topic, []).append(number)
    options = {
        **range_options(settings, len(starts)),
        "assign": json.dumps(assigned),
        "startingOffsets": format_offsets({partition: starts[partition] for partition in ends}),
        "endingOffsets": format_offsets(ends),
        **({} if tasks is None else {"minPartitions": str(tasks)}),
    }
    return spark.read.format("kafka").options(**options).load()


def rows_for_workers(spark: SparkSession, records: DataFrame) -> DataFrame:
    """Records of Spark's Kafka source as workers take them apart, by `Records`."""
    return DataFrame(java_classes(spark).UndecidedRows.of(records._jdf), spark)


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
    use_pool(spark, "enforcer")
    records = spark.readStream.format("kafka").options(**options).load()
    writer = records.writeStream.queryName(settings.job_name)
    jvm: Any = spark._jvm
    jvm.org.apache.spark.sql.execution.streaming.sources.PythonForeachBatchHelper.callForeachBatch(
        writer._jwrite, ForeachBatch(spark, on_batch)
    )
    return writer.option("checkpointLocation", settings.checkpoint).start()


Int64Array = npt.NDArray[np.int64]

LENGTH_BYTES = 4  # of a header's name, and of its value

_HEAD = np.dtype(
    [("offset", ">i8"), ("time", ">i8"), ("partition", ">i4"), ("key", ">i4"), ("headers", ">i4"), ("missing", ">i4")]
)

# Of a record beside its value, as `InputRecord.java` writes it; key, headers and topic follow. Two numbers are how long
# these texts are; -1: there are none. The last one is what Java does not know of a request, see `KnownAnswers.java`.
# Headers are one text: as the nested Arrow column they cost five times the rest together.
_PIECES = 4
_KEY, _HEADERS_TEXT, _TOPIC = 1, 2, 3

Row = tuple[bytes | None, bytes | None, list[dict[str, Any]] | None, int, int]
"""Key, value, headers (None: there are none), offset and timestamp (ms) of a record."""


def single_header_prefix(name: str) -> bytes:
    """What a record's headers begin with where the first one has this name; its value's length and value follow."""
    return len(name.encode()).to_bytes(LENGTH_BYTES) + name.encode()


def decode_headers(text: bytes) -> list[dict[str, Any]]:
    """Headers as the source has them, which wrote these texts itself: no length is beyond the end."""
    headers, at = list[dict[str, Any]](), 0
    while at < len(text):
        name, at = _text_at(text, at)
        value, at = _text_at(text, at)
        headers.append({"key": (name or b"").decode(), "value": value})
    return headers


def _text_at(text: bytes, at: int) -> tuple[bytes | None, int]:
    """What stands there behind its length, None where that is -1; and what follows it."""
    start, length = at + LENGTH_BYTES, int.from_bytes(text[at : at + LENGTH_BYTES], signed=True)
    end = start + max(length, 0)
    return (None if length < 0 else text[start:end]), end


class Records:
    """Records of one `partition` of one `topic`, in order; at least one.

    Columns: `keys`, `values`, `offsets`, `times` in ms, and what Java does not know, `missing`. Raises RuntimeError
    where they are of several partitions.
    """

    def __init__(self, batch: pa.RecordBatch) -> None:
        self._batch = batch
        # Spark has a setting by which the columns are of another type.
        self.values, beside = (batch.column(name).cast(pa.binary()) for name in ("value", "beside"))
        head, self._beside = _split(beside)
        self.offsets: Int64Array = head["offset"].astype(np.int64)
        self.times: Int64Array = head["time"].astype(np.int64)
        self.missing: npt.NDArray[np.int32] = head["missing"].astype(np.int32)
        self.longest_key = max(int(head["key"].max()), 0)
        self._key_is_null, self._has_headers = head["key"] < 0, head["headers"] >= 0
        self.topic, self.partition = _partition_of(self._piece(_TOPIC), head["partition"])

    def __len__(self) -> int:
        return len(self.values)

    @functools.cached_property
    def keys(self) -> pa.BinaryArray:
        """The keys, null where there is none."""
        keys = self._piece(_KEY)
        return pc.if_else(pa.array(self._key_is_null), None, keys) if self._key_is_null.any() else keys

    @functools.cached_property
    def sizes(self) -> Int64Array:
        """The bytes of each record: of its value and of all that is beside it."""
        lengths = (pc.fill_null(pc.binary_length(self._batch.column(name)), 0) for name in ("value", "beside"))
        value, beside = (column.to_numpy().astype(np.int64) for column in lengths)
        sizes: Int64Array = value + beside
        return sizes

    def head(self, count: int) -> "Records":
        """The first of them, at least one."""
        return self if count >= len(self) else Records(self._batch.filter(pa.array(np.arange(len(self)) < count)))

    def rows(self, which: Int64Array | None = None) -> Iterator[Row]:
        """The records one by one: all of them, or those with these numbers."""
        numbers = np.arange(len(self)) if which is None else which
        keys, values = (column.take(pa.array(numbers)).to_pylist() for column in (self.keys, self.values))
        offsets, times = self.offsets[numbers].tolist(), self.times[numbers].tolist()
        return zip(keys, values, map(self.headers, numbers.tolist()), offsets, times, strict=True)

    def row(self, number: int) -> Row:
        """One record."""
        key = self.keys[number].as_py()
        return key, self.texts[number], self.headers(number), int(self.offsets[number]), int(self.times[number])

    @functools.cached_property
    def texts(self) -> list[bytes | None]:
        """The values as Python has them, which are copies."""
        values: list[bytes | None] = self.values.to_pylist()
        return values

    def headers(self, number: int) -> list[dict[str, Any]] | None:
        """The headers of a record; None: it has none."""
        if not self._has_headers[number]:
            return None
        return decode_headers(self._beside[_PIECES * number + _HEADERS_TEXT].as_py())

    def header_texts(self) -> list[bytes | None]:
        """The headers of each record as the source has them, for `decode_headers`; None: it has none."""
        if not self._has_headers.any():
            return [None] * len(self)
        texts: list[bytes | None] = self._piece(_HEADERS_TEXT).to_pylist()
        return [text or None for text in texts]

    def some_headers(self) -> Iterator[list[dict[str, Any]] | None]:
        """The headers of the records, one after the other, decoded when needed."""
        return map(self.headers, range(len(self)))

    def _piece(self, piece: int) -> pa.BinaryArray:
        return self._beside.take(pa.array(np.arange(piece, len(self._beside), _PIECES)))


def _split(beside: pa.BinaryArray) -> tuple[npt.NDArray[np.void], pa.BinaryArray]:
    """The numbers that stand beside values, and all their pieces, one value's after the other's."""
    _, offsets, content = beside.buffers()
    ends = np.frombuffer(offsets, np.int32)[beside.offset : beside.offset + len(beside) + 1]
    starts = np.lib.stride_tricks.sliding_window_view(np.frombuffer(content, np.uint8), _HEAD.itemsize)
    head = starts[ends[:-1]].view(_HEAD)[:, 0]
    bounds = np.empty((len(beside), _PIECES), np.int32)
    bounds[:, 0] = ends[:-1]
    bounds[:, _KEY] = bounds[:, 0] + _HEAD.itemsize
    bounds[:, _HEADERS_TEXT] = bounds[:, _KEY] + np.maximum(head["key"], 0)
    bounds[:, _TOPIC] = bounds[:, _HEADERS_TEXT] + np.maximum(head["headers"], 0)
    return head, _pieces_of(bounds, ends[-1], content)


def _partition_of(topics: pa.BinaryArray, partitions: npt.NDArray[np.int32]) -> tuple[str, int]:
    """The topic and partition that all records share: a Kafka task reads exactly one."""
    names, numbers = pc.unique(topics).to_pylist(), np.unique(partitions).tolist()
    if len(names) != 1 or len(numbers) != 1:
        raise RuntimeError(f"one Spark task holds records of {names} {numbers}; unset `minPartitions`")
    return names[0].decode(), numbers[0]


def _pieces_of(bounds: npt.NDArray[np.int32], end: np.int32, content: pa.Buffer) -> pa.BinaryArray:
    """What stands in a buffer between these offsets, one row of them after the other, and before `end`.

    They rise, and so cover all that is between the first and the last: nothing is copied.
    """
    offsets = np.append(bounds, end).astype(np.int32)
    return pa.BinaryArray.from_buffers(pa.binary(), bounds.size, [None, pa.py_buffer(offsets), content])
