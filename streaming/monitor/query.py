"""The monitor's query: decisions, verdicts and dead letters in, alerts and facts out, in one transaction a batch.

Exactly once here means: a batch that Spark runs again, though its output is committed, runs for its state alone.
The rules of `streaming.enforcer.job` hold, with a transactional id and a group of its own; but no record can be left
out by its offset, since its part of the state would be missing. So a lost or older checkpoint goes on from the
committed offsets without the state of before: alerts may then repeat, under the same ids, or be missed.
"""

import contextlib
import threading
from collections.abc import Callable, Mapping
from typing import Any, Literal

import structlog
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

from streaming.enforcer.checkpoint import Checkpoint, format_offsets
from streaming.enforcer.encodings import Encodings
from streaming.enforcer.errors import Stopping
from streaming.enforcer.headers import JSON_ALONE
from streaming.enforcer.kafka import Partition, admin_client, first_offsets, lags, partitions_of, topic_ids
from streaming.enforcer.ledger import Ledger, open_ledger
from streaming.enforcer.source import connection_options
from streaming.enforcer.transaction import Output
from streaming.enforcer.wire import Result
from streaming.monitor.intake import SCHEMA, Intake
from streaming.monitor.processor import ALERT, OUTPUT, SKEW_MS, Processor
from streaming.observability.progress import ProgressListener
from streaming.observability.watch import Watch
from streaming.settings import Settings, monitor_settings
from streaming.topic_specs import dead_letters_of

log = structlog.get_logger()

COLUMNS = ("topic", "partition", "offset", "unix_millis(timestamp) AS at", "value")
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"

STOP_SECONDS = 20.0

MonitorStep = Literal["monitor-evaluated", "monitor-written", "monitor-committed"]
MonitorObserver = Callable[[MonitorStep, int], None]


def watched_topics(settings: Settings) -> tuple[str, ...]:
    """What the monitor reads."""
    topics = settings.topics
    return topics.decisions, topics.verdicts, *map(dead_letters_of, (*topics.requests, *topics.audit))


class MonitorQuery:
    """One run of the monitor. Making it fences every other one of this name. Raises CannotStart and RegistryError.

    `failure`: what a batch failed by.
    """

    def __init__(
        self,
        settings: Settings,
        spark: SparkSession,
        on_step: MonitorObserver = lambda _step, _batch: None,
        watch: Watch | None = None,
    ) -> None:
        self._settings, self._on_step = monitor_settings(settings), on_step
        self.failure: Exception | None = None
        self._busy, self._stopping = threading.Lock(), False
        self._watch = watch or Watch(settings)
        self._spark = _session(spark, settings)
        self._spark.streams.addListener(ProgressListener(self._watch.monitored))
        self._encodings = Encodings(settings)
        self._output = Output(self._settings, self._spark, self._watch.dropped)
        try:
            self._checkpoint = Checkpoint(self._spark, self._settings.checkpoint)
            self._admin = admin_client(self._settings)
            self._partitions = partitions_of(self._admin, watched_topics(settings))
            self._ledger = self._open_ledger()
        except BaseException:
            self.close()
            raise
        self._watch.follow(self._settings.job_name, lambda: lags(self._admin, self._ledger.committed))

    def _open_ledger(self) -> Ledger:
        topics = watched_topics(self._settings)
        ids = topic_ids(self._admin, topics)
        accepted = self._settings.accepted_topic_ids
        return open_ledger(self._output.group, self._partitions, topics, ids, self._checkpoint, accepted)

    def start(self) -> StreamingQuery:
        """Start the query at its checkpoint; without one at the committed offsets, new partitions at their first."""
        first = first_offsets(self._admin, self._partitions)
        starts = {partition: self._ledger.committed.get(partition, first[partition]) for partition in self._partitions}
        if self._ledger.committed and self._checkpoint.query_id() is None:
            log.warning("the monitor's checkpoint is gone: alerts may repeat, under the same ids, or be missed")
        self._publish([], starts, None, -1)
        monitor = self._settings.monitor
        writer = self._alerts_and_facts(starts).writeStream.foreachBatch(self._on_batch).outputMode("update")
        writer = writer.queryName(self._settings.job_name).option("checkpointLocation", self._settings.checkpoint)
        return writer.trigger(processingTime=f"{monitor.trigger_seconds} seconds").start()

    def _alerts_and_facts(self, starts: Mapping[Partition, int]) -> DataFrame:
        settings, monitor = self._settings, self._settings.monitor
        # No bound on a batch: one partition would be read ahead of another, and what was asked for be unknown.
        options = {
            **connection_options(settings),
            "subscribe": ",".join(watched_topics(settings)),
            "startingOffsets": format_offsets(starts),
        }
        records = self._spark.readStream.format("kafka").options(**options).load()
        topics, window = settings.topics, monitor.narrowest_window_ms
        formats = self._encodings.of_decisions(topics.decisions)
        intake = Intake(topics.decisions, topics.verdicts, window, formats)
        # No more tasks at once than the state has: the enforcer's must find a place beside them.
        told = records.coalesce(monitor.partitions).selectExpr(*COLUMNS).mapInArrow(intake, SCHEMA)
        keyed = told.withWatermark("at", f"{SKEW_MS} milliseconds").groupBy(f.col("bucket"))
        return keyed.transformWithState(Processor(monitor), OUTPUT, "update", "eventTime")

    def _on_batch(self, results: DataFrame, batch: int) -> None:
        with self._busy:
            if self._stopping:
                raise Stopping("asked to stop")
            try:
                self._watch_batch(results, batch)
            except Exception as failure:
                self.failure = failure
                raise

    def _watch_batch(self, results: DataFrame, batch: int) -> None:
        starts, ends = self._checkpoint.range_of(batch)
        self._ledger.check_range(batch, starts)
        found = results.toArrow().to_pylist()  # in any case: the state moves on with it
        self._on_step("monitor-evaluated", batch)
        if self._is_committed(ends, batch):
            log.info("a batch ran again for its state alone; its output is committed", batch=batch)
        elif found or self._ledger.lacks(ends):
            self._publish(list(map(self._result, found)), ends, self._checkpoint.query_id(), batch)
        self._on_step("monitor-committed", batch)

    def _is_committed(self, ends: Mapping[Partition, int], batch: int) -> bool:
        """Whether the output of a batch was committed by a run before this one.

        Neither tells it alone: batches without data have the ends of the one before, and under an older copy of the
        checkpoint batch numbers come again with other ends.
        """
        last = self._ledger.last
        same = last.checkpoint == self._checkpoint.query_id()
        return same and batch <= last.batch and not self._ledger.lacks(ends)

    def _publish(
        self, results: list[Result], ends: Mapping[Partition, int], checkpoint: str | None, batch: int
    ) -> None:
        offsets = self._ledger.to_commit(ends, checkpoint, batch)
        written = self._encodings.encoded(results)
        self._output.publish(written, offsets, before_commit=lambda: self._on_step("monitor-written", batch))
        self._ledger.advance(offsets)
        self._watch.alerted(results)

    def _result(self, row: Mapping[str, Any]) -> Result:
        topics = self._settings.topics
        topic = topics.alerts if row["output"] == ALERT else topics.facts
        return topic, row["key"].encode(), row["value"], JSON_ALONE

    def close(self) -> None:
        """Leave Kafka and the schema registry."""
        self._watch.unfollow(self._settings.job_name)
        self._output.close()
        self._encodings.close()

    def stop(self, query: StreamingQuery) -> None:
        """Stop the query after the batch at hand: interrupted, it would be run again, which takes longer."""
        self._stopping = True
        # Let go of again before Spark is told: it waits for a batch that begins just now, and that for this lock.
        if self._busy.acquire(timeout=STOP_SECONDS):
            self._busy.release()
        with contextlib.suppress(Exception):  # one that failed says so once more
            query.stop()


def _session(spark: SparkSession, settings: Settings) -> SparkSession:
    """A session beside the enforcer's, whose settings need not fit the monitor."""
    session = spark.newSession()
    own = {
        "spark.sql.adaptive.enabled": "false",  # stateful queries cannot have it, and warn
        "spark.sql.streaming.noDataMicroBatches.enabled": "true",  # time alone must end episodes
        "spark.sql.streaming.stateStore.providerClass": ROCKSDB,
        # Small batches write what changed, not the files of the whole store.
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
        "spark.sql.shuffle.partitions": str(settings.monitor.partitions),
    }
    for name, value in own.items():
        session.conf.set(name, value)
    return session
