"""The monitor's query: decisions, verdicts and dead letters in, alerts and facts out, in one transaction a batch.

Exactly once here means: a batch that Spark runs again, though its output is committed, runs for its state alone.
The rules of `streaming.enforcer.job` hold, with a transactional id and a group of its own; but no record can be left
out by its offset, since its part of the state would be missing. So a lost or older checkpoint goes on from the
committed offsets without the state of before: alerts may then repeat, under the same ids, or be missed.
"""

import contextlib
import math
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Literal

import structlog
from confluent_kafka import KafkaException
from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

from streaming.commit.checkpoint import Checkpoint, format_offsets
from streaming.commit.offsets import IDLE_COMMIT_SECONDS, OffsetTracker, check_group, open_offset_tracker
from streaming.commit.transaction import Output
from streaming.enforcer.source import connection_options, polling
from streaming.errors import CannotStart, JobStopped, Stopping, TopicChanged
from streaming.kafka.clients import (
    RETRIED_SECONDS,
    Partition,
    admin_client,
    cluster_id,
    error_name,
    first_offsets,
    lags,
    last_stable_offsets,
    offsets_since,
    partitions_of,
    topic_ids,
)
from streaming.monitor.intake import SCHEMA, Alignment, Intake, Times, send_times
from streaming.monitor.processor import ALERT, OUTPUT, SKEW_MS, Processor
from streaming.ops.queries import MonitorWatch, QueryWatch
from streaming.records.audit import LAG_REPEATED_SECONDS
from streaming.records.encodings import Encodings
from streaming.records.formats import JSON_HEADERS, Result
from streaming.runtime.checkpoints import ARCHIVE
from streaming.runtime.executors import tasks_beside, use_pool
from streaming.runtime.spark_errors import causes, machine_error, why_ended
from streaming.settings import Settings, monitor_settings
from streaming.snapshots.documents import SINCE
from streaming.topics import dead_letters_of

log = structlog.get_logger()

COLUMNS = ("topic", "partition", "offset", "unix_millis(timestamp) AS at", "value")
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"

# Of a batch: two and a half of the job's, whose records are one each here, as each batch writes the state. Who lowers
# `max_records` lacks memory for such batches, too.
MOST_RECORDS = 500_000
# With one slot, where decisions wait for each task: a batch each `trigger_seconds` keeps up with 10,000 a second.
ONE_SLOT_RECORDS = 50_000
# Kafka answers so until a setting or an ACL is corrected. Brokers that start know no topics: a deleted one is
# TopicChanged.
LASTING = ("AUTHORIZATION", "AUTHENTICATION")

STOP_SECONDS = 4.0  # for the batch at hand, and as long for Spark: signals allow ten for the whole job

MonitorStep = Literal["monitor-evaluated", "monitor-written", "monitor-committed"]
MonitorObserver = Callable[[MonitorStep, int], None]


def watched_topics(settings: Settings) -> tuple[str, ...]:
    """What the monitor reads."""
    topics = settings.topics
    return topics.decisions, topics.verdicts, *map(dead_letters_of, topics.inputs)


def is_permanent(error: BaseException) -> bool:
    """Whether Kafka answers so until something is corrected."""
    return isinstance(error, KafkaException) and any(part in error_name(error) for part in LASTING)


class MonitorQuery:
    """One run of the monitor, on a session of `monitor_session`. Making it fences every other one of this name.

    Raises CannotStart, CannotWrite and RegistryError, and errors of Kafka. `failure`: what a batch failed by.
    """

    def __init__(
        self,
        settings: Settings,
        session: SparkSession,
        on_step: MonitorObserver = lambda _step, _batch: None,
        watch: QueryWatch | None = None,
    ) -> None:
        self._settings, self._on_step = monitor_settings(settings), on_step
        self.failure: Exception | None = None
        self._busy, self._stopping = threading.Lock(), False
        self._last_commit = time.monotonic()
        self._watch = watch or MonitorWatch(settings)
        self._spark, self._topics = session, watched_topics(settings)
        self._admin = admin_client(self._settings)
        self._topic_ids = topic_ids(self._admin, self._topics)
        self._partitions = partitions_of(self._admin, self._topics)
        self._first = first_offsets(self._admin, self._partitions)
        check_group(self._settings, self._admin, self._partitions)
        with contextlib.ExitStack() as opened:
            self._encodings = opened.enter_context(contextlib.closing(Encodings(settings)))
            self._alignment = opened.enter_context(contextlib.closing(Alignment(self._settings, self._admin)))
            output = Output(self._settings, self._spark, self._watch.metrics.dropped, self._watch.watchdog.during)
            self._output = opened.enter_context(contextlib.closing(output))
            self._checkpoint = Checkpoint(self._spark, self._settings.checkpoint, plainly=False)
            self._tracker = self._open_tracker()
            self._opened = opened.pop_all()
        self._watch.add_consumer_group(self._settings.job_name, lambda: lags(self._admin, self._tracker.committed))

    def _open_tracker(self) -> OffsetTracker:
        """Raises CannotStart. Without a checkpoint nothing is known of re-created topics: they are simply read."""
        ids = self._topic_ids
        moved_away = self._checkpoint.query_id() is None
        accepted = tuple(ids.values()) if moved_away else self._settings.accepted_topic_ids
        group, cluster = self._output.group, cluster_id(self._admin)
        tracker = open_offset_tracker(group, self._partitions, self._topics, ids, self._checkpoint, cluster, accepted)
        self._check_committed(tracker)
        return tracker

    def _check_committed(self, tracker: OffsetTracker) -> None:
        """Kafka forgets the offsets of a deleted topic; Spark would read the new one where the old one ended.

        Where retention has deleted records that were not read, Spark would fail with each start, naming no remedy.
        """
        completed = self._checkpoint.completed()
        _, ends = self._checkpoint.range_of(completed) if completed >= 0 else ({}, {})
        for (topic, number), end in ends.items():
            if end < self._first.get((topic, number), 0):
                raise CannotStart(
                    f"the records of {topic}-{number} from offset {end}, where the monitor stopped, up to "
                    f"{self._first[topic, number]} were deleted. {self._move_away()}"
                )
            if end and (topic, number) in self._partitions and (topic, number) not in tracker.committed:
                raise CannotStart(
                    f"the checkpoint has read {topic}-{number} up to offset {end}, and the group has no committed "
                    f"offset there: was the topic deleted and re-created? {self._move_away()}"
                )

    def _move_away(self) -> str:
        return (
            f"Move the monitor's checkpoint away with `{ARCHIVE} {self._settings.checkpoint}`: it then starts at the "
            "committed offsets, and at the first record of topics without any, or where those were deleted. Alerts may "
            "repeat, under the same ids, or be missed"
        )

    def start(self) -> StreamingQuery:
        """Start the query at its checkpoint; without one at the committed offsets, or the first ones that are there."""
        first, committed = self._first, self._tracker.committed
        # Below the first one if it was away for longer than the retention of a topic.
        starts = {partition: max(committed.get(partition, 0), first[partition]) for partition in self._partitions}
        self._publish([], starts)
        if self._checkpoint.query_id() is None and any(starts.values()):
            since = int(min(self._alignment.times(starts).until, time.time_ns() // 1_000_000))
            if self._settings.topics.answered:  # twice: each waits for a batch
                self._checkpoint.write_lag_assumed_until(since + int(2000 * LAG_REPEATED_SECONDS))
            if any(starts[partition] > first[partition] for partition in first):
                log.warning("the monitor's checkpoint is gone: alerts may repeat, under the same ids, or be missed")
                starts = {**starts, **self._remembered(starts, since)}
        monitor = self._settings.monitor
        use_pool(self._spark, "monitor")
        results = self._alerts_and_facts(starts)
        writer = results.writeStream.foreachBatch(self._on_batch).outputMode("update")
        writer = writer.queryName(self._settings.job_name).option("checkpointLocation", self._settings.checkpoint)
        return writer.trigger(processingTime=f"{monitor.trigger_seconds} seconds").start()

    def _remembered(self, starts: Mapping[Partition, int], since: int) -> dict[Partition, int]:
        """Where to read decisions from, so that accesses since then (ms) find what had been decided before."""
        decided = {partition: at for partition, at in starts.items() if partition[0] == self._settings.topics.decisions}
        return offsets_since(self._admin, decided, since - self._settings.monitor.longest_kept_ms)

    def _alerts_and_facts(self, starts: Mapping[Partition, int]) -> DataFrame:
        settings, monitor = self._settings, self._settings.monitor
        options = {
            **connection_options(settings),
            **polling(settings, monitor.partitions, settings.limits.record_out),
            "subscribe": ",".join(self._topics),
            "maxOffsetsPerTrigger": str(self._max_records()),
            "startingOffsets": format_offsets(starts),
        }
        records = self._spark.readStream.format("kafka").options(**options).load()
        topics, window = settings.topics, monitor.narrowest_window_ms
        formats = self._encodings.of_decisions(topics.decisions)
        intake = Intake(topics.decisions, topics.verdicts, window, formats)
        inputs = self._beside_decisions(records).selectExpr(*COLUMNS).mapInArrow(intake, SCHEMA)
        keyed = inputs.withWatermark("at", f"{SKEW_MS} milliseconds").groupBy(f.col("bucket"))
        processor = Processor(monitor, self._checkpoint.lag_assumed_until())
        return self._beside_decisions(keyed.transformWithState(processor, OUTPUT, "update", "eventTime"))

    def _beside_decisions(self, rows: DataFrame) -> DataFrame:
        """In so few tasks that decisions have a slot: a task may have several partitions, one after the other.

        A task of a backlog holds its slot for long: 16 s were measured, in which decisions waited for both of two.
        """
        tasks = tasks_beside(self._spark, self._settings.monitor.partitions)
        return rows.coalesce(tasks) if self._settings.monitor.mode == "job" and tasks is not None else rows

    def _max_records(self) -> int:
        """Of a batch. With one slot, decisions wait for each task."""
        monitor = self._settings.monitor
        shares_its_slot = monitor.mode == "job" and tasks_beside(self._spark, monitor.partitions) is None
        most = ONE_SLOT_RECORDS if shares_its_slot else MOST_RECORDS
        return min(most, 5 * self._settings.max_records // 2)

    def _on_batch(self, results: DataFrame, batch: int) -> None:
        with self._busy:
            if self._stopping:
                raise Stopping("asked to stop")
            try:
                self._watch_batch(results, batch)
            except Exception as failure:
                self.failure = failure
                if self._stopping:
                    # A query that is stopped matches the error with a regular expression, which overflows Java's stack
                    # with the long text of an error of Java's own.
                    raise Stopping("asked to stop within a batch") from None
                raise

    def _watch_batch(self, results: DataFrame, batch: int) -> None:
        starts, ends = self._checkpoint.range_of(batch)
        self._tracker.check_range(batch, starts)
        times = self._times(batch, ends)
        send_times(self._spark, times)
        with self._watch.watchdog.during("evaluate the monitor's batch, with its state store", batch=batch):
            rows = results.toArrow().to_pylist()  # in any case: the state moves on with it
        self._check_topics()
        self._on_step("monitor-evaluated", batch)
        # Spark notes a batch as done after this function: one that was killed between the transaction and that note
        # runs again, from the state of the batch before it.
        if self._is_committed(ends, batch):
            log.info("a batch ran again for its state alone; its output is committed", batch=batch)
        elif rows or self._tracker.lacks(ends):
            read_until = None if math.isinf(times.until) else int(times.until)
            self._publish(list(map(self._result, rows)), ends, self._checkpoint.query_id(), batch, read_until)
        self._watch.monitor_committed()
        self._on_step("monitor-committed", batch)

    def _times(self, batch: int, ends: Mapping[Partition, int]) -> Times:
        """A batch that runs again for its state alone must hold back what it held back before."""
        aligned, last = self._alignment.times(ends), self._tracker.last
        times = aligned._replace(least=max(aligned.least, self._checkpoint.watermark_of(batch) + SKEW_MS))
        if batch == last.batch and self._is_committed(ends, batch):
            return times._replace(until=math.inf if last.read_until is None else last.read_until)
        return times

    def _check_topics(self) -> None:
        """Raise TopicChanged when what was read may be of a re-created topic: offsets mean other records there."""
        for topic, id_ in topic_ids(self._admin, self._topics).items():
            if id_ != self._topic_ids[topic]:
                raise TopicChanged(
                    f"topic {topic} was deleted and re-created: its topic id was {self._topic_ids[topic]} and is "
                    f"{id_}. {self._move_away()}"
                )

    def _is_committed(self, ends: Mapping[Partition, int], batch: int) -> bool:
        """Whether the output of a batch was committed by a run before this one.

        Neither is sufficient alone: batches without data have the ends of the one before, and under an older copy of
        the checkpoint batch numbers come again with other ends.
        """
        last = self._tracker.last
        same = last.checkpoint == self._checkpoint.query_id()
        return same and batch <= last.batch and not self._tracker.lacks(ends)

    def _publish(
        self,
        results: list[Result],
        ends: Mapping[Partition, int],
        checkpoint: str | None = None,
        batch: int = -1,
        read_until: int | None = None,
    ) -> None:
        ends = {**self._tracker.committed, **ends}  # every partition, see rule 3
        offsets = self._tracker.to_commit(ends, checkpoint, batch, read_until)
        written = self._encodings.encoded(results)
        self._output.publish(written, offsets, before_commit=lambda: self._on_step("monitor-written", batch))
        self._tracker.advance(offsets)
        self._last_commit = time.monotonic()
        self._watch.alerted(results)

    def _result(self, row: Mapping[str, Any]) -> Result:
        topics = self._settings.topics
        topic = topics.alerts if row["output"] == ALERT else topics.facts
        since = [] if row["since"] is None else [(SINCE, b"%d" % row["since"])]
        return topic, row["key"].encode(), row["value"], [*JSON_HEADERS, *since]

    def close(self) -> None:
        """Leave Kafka and the schema registry."""
        self._watch.remove_consumer_group(self._settings.job_name)
        self._opened.close()

    def commit_when_idle(self) -> None:
        """Commit the offsets again, from time to time: Kafka forgets those of a group that commits none.

        By that a monitor without records also notices that it was fenced.
        """
        overdue = time.monotonic() - self._last_commit > IDLE_COMMIT_SECONDS
        if overdue and self._busy.acquire(blocking=False):
            try:
                if self.failure is None:
                    self._publish([], {})
            finally:
                self._busy.release()

    def waiting(self) -> int | None:
        """Records that can be read and were not; None: Kafka does not answer."""
        try:
            ends = last_stable_offsets(self._admin, self._partitions, RETRIED_SECONDS)
        except (KafkaException, TimeoutError):
            return None
        committed = self._tracker.committed
        return sum(max(end - committed.get(partition, end), 0) for partition, end in ends.items())

    def failed_by_kafka(self, query: StreamingQuery) -> bool:
        """Whether it ended by a fault of Kafka's that may pass, such as a broker that restarts."""
        if self.failure is None:
            return self._output.failed_by_kafka(query)
        return not is_permanent(self.failure) and self._output.is_unavailable(self.failure)

    def cause(self, query: StreamingQuery, by_kafka: bool) -> Exception:
        """What the query ended by. `by_kafka`: by a fault of Kafka's that may pass. Raises TopicChanged."""
        if self.failure is None and not by_kafka:
            with contextlib.suppress(KafkaException, TimeoutError):
                self._check_topics()  # offsets that are gone end a query, with a message of Spark's that names no cause
        if isinstance(self.failure, Py4JJavaError):
            explained = machine_error(causes(self.failure.java_exception), self._settings)
            return JobStopped(explained) if explained else self.failure
        return self.failure or JobStopped(why_ended(query, self._settings))

    def stop(self, query: StreamingQuery) -> None:
        """Stop the query after the batch at hand: interrupted, it would be run again, which takes longer."""
        self._stopping = True
        # Released before Spark is called: it waits for a batch that begins just now, and that for this lock.
        if self._busy.acquire(timeout=STOP_SECONDS):
            self._busy.release()
        with contextlib.suppress(Exception):  # one that failed says so once more
            query.stop()


def monitor_session(spark: SparkSession, settings: Settings) -> SparkSession:
    """A session beside the enforcer's, whose settings need not fit the monitor."""
    session = spark.newSession()
    own = {
        "spark.sql.adaptive.enabled": "false",  # stateful queries cannot have it, and warn
        "spark.sql.streaming.noDataMicroBatches.enabled": "true",  # time alone must end episodes
        "spark.sql.streaming.stateStore.providerClass": ROCKSDB,
        # Small batches write what changed, not the files of the whole store.
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
        "spark.sql.shuffle.partitions": str(settings.monitor.partitions),
        "spark.sql.streaming.stopTimeout": f"{int(STOP_SECONDS)}s",
    }
    for name, value in own.items():
        session.conf.set(name, value)
    return session
