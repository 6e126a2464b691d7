"""The monitor's query: decisions, verdicts and dead letters in, alerts and facts out, in one transaction a batch.

Exactly once here means: a batch that Spark runs again, though its output is committed, runs for its state alone.
The rules of `streaming.enforcer.job` hold, with a transactional id and a group of its own; but no record can be left
out by its offset, since its part of the state would be missing. So a lost or older checkpoint goes on from the
committed offsets without the state of before: alerts may then repeat, under the same ids, or be missed.
"""

import contextlib
import functools
import math
import threading
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Literal, Self

import structlog
from confluent_kafka import KafkaException
from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

from streaming.commit.checkpoint import Checkpoint, format_offsets
from streaming.commit.offsets import OffsetTracker, check_group, open_offset_tracker
from streaming.commit.transaction import Output
from streaming.enforcer.source import connection_options, polling
from streaming.errors import CannotStart, Fenced, JobStopped, Stopping, TopicChanged
from streaming.kafka.clients import (
    Partition,
    admin_client,
    cluster_id,
    first_offsets,
    lags,
    offsets_since,
    partitions_of,
    topic_ids,
)
from streaming.monitor.intake import SCHEMA, Alignment, Intake, Times, send_times
from streaming.monitor.processor import ALERT, OUTPUT, SKEW_MS, Processor
from streaming.ops.watch import ProgressListener, Watch
from streaming.records.encodings import Encodings
from streaming.records.formats import JSON_HEADERS, Result, shorten
from streaming.runtime.checkpoints import ARCHIVE
from streaming.runtime.executors import tasks_beside, use_pool
from streaming.runtime.spark_errors import why_ended
from streaming.settings import Settings, monitor_settings, unrecorded_systems
from streaming.snapshots.documents import SINCE
from streaming.topics import dead_letters_of

log = structlog.get_logger()

COLUMNS = ("topic", "partition", "offset", "unix_millis(timestamp) AS at", "value")
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"

STOP_SECONDS = 4.0  # for the batch at hand, and as long for Spark: signals allow ten for the whole job

MonitorStep = Literal["monitor-evaluated", "monitor-written", "monitor-committed"]
MonitorObserver = Callable[[MonitorStep, int], None]


def watched_topics(settings: Settings) -> tuple[str, ...]:
    """What the monitor reads."""
    topics = settings.topics
    return topics.decisions, topics.verdicts, *map(dead_letters_of, topics.inputs)


class MonitorQuery:
    """One run of the monitor, on a session of `monitor_session`. Making it fences every other one of this name.

    Raises CannotStart, CannotWrite and RegistryError, and errors of Kafka. `failure`: what a batch failed by.
    """

    def __init__(
        self,
        settings: Settings,
        session: SparkSession,
        on_step: MonitorObserver = lambda _step, _batch: None,
        watch: Watch | None = None,
    ) -> None:
        self._settings, self._on_step = monitor_settings(settings), on_step
        self.failure: Exception | None = None
        self._busy, self._stopping = threading.Lock(), False
        self._watch = watch or Watch(settings)
        self._spark, self._topics = session, watched_topics(settings)
        self._admin = admin_client(self._settings)
        self._topic_ids = topic_ids(self._admin, self._topics)
        self._partitions = partitions_of(self._admin, self._topics)
        check_group(self._settings, self._admin, self._partitions)
        with contextlib.ExitStack() as opened:
            self._encodings = opened.enter_context(contextlib.closing(Encodings(settings)))
            self._alignment = opened.enter_context(contextlib.closing(Alignment(self._settings, self._admin)))
            output = Output(self._settings, self._spark, self._watch.dropped, self._watch.watchdog.during)
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
        """Kafka forgets the offsets of a deleted topic; Spark would read the new one where the old one ended."""
        completed = self._checkpoint.completed()
        _, ends = self._checkpoint.range_of(completed) if completed >= 0 else ({}, {})
        for (topic, number), end in ends.items():
            if end and (topic, number) in self._partitions and (topic, number) not in tracker.committed:
                raise CannotStart(
                    f"the checkpoint has read {topic}-{number} up to offset {end}, and the group has no committed "
                    f"offset there: was the topic deleted and re-created? {self._move_away()}"
                )

    def _move_away(self) -> str:
        return (
            f"Move the monitor's checkpoint away with `{ARCHIVE} {self._settings.checkpoint}`: it then starts at the "
            "committed offsets, and at the beginning of topics without any. Alerts may repeat, under the same ids, or "
            "be missed"
        )

    def start(self) -> StreamingQuery:
        """Start the query at its checkpoint; without one at the committed offsets, new partitions at their first."""
        first = first_offsets(self._admin, self._partitions)
        starts = {partition: self._tracker.committed.get(partition, first[partition]) for partition in self._partitions}
        self._publish([], starts)
        if self._checkpoint.query_id() is None and any(starts[partition] > first[partition] for partition in first):
            log.warning("the monitor's checkpoint is gone: alerts may repeat, under the same ids, or be missed")
            starts = {**starts, **self._remembered(starts)}
        monitor = self._settings.monitor
        use_pool(self._spark, "monitor")
        writer = self._alerts_and_facts(starts).writeStream.foreachBatch(self._on_batch).outputMode("update")
        writer = writer.queryName(self._settings.job_name).option("checkpointLocation", self._settings.checkpoint)
        return writer.trigger(processingTime=f"{monitor.trigger_seconds} seconds").start()

    def _remembered(self, starts: Mapping[Partition, int]) -> dict[Partition, int]:
        """Where to read decisions from, so that the accesses unread at `starts` find what had been decided before."""
        until = min(self._alignment.times(starts).until, time.time_ns() // 1_000_000)
        decided = {partition: at for partition, at in starts.items() if partition[0] == self._settings.topics.decisions}
        return offsets_since(self._admin, decided, int(until) - self._settings.monitor.longest_kept_ms)

    def _alerts_and_facts(self, starts: Mapping[Partition, int]) -> DataFrame:
        settings, monitor = self._settings, self._settings.monitor
        options = {
            **connection_options(settings),
            **polling(settings, monitor.partitions, settings.limits.record_out),
            "subscribe": ",".join(self._topics),
            "maxOffsetsPerTrigger": str(monitor.max_records),
            "startingOffsets": format_offsets(starts),
        }
        records = self._spark.readStream.format("kafka").options(**options).load()
        topics, window = settings.topics, monitor.narrowest_window_ms
        formats = self._encodings.of_decisions(topics.decisions)
        intake = Intake(topics.decisions, topics.verdicts, window, formats)
        # A task of a backlog holds its slot for long: 16 s were measured, in which decisions waited for both of two.
        tasks = tasks_beside(self._spark, monitor.partitions)
        inputs = records.coalesce(tasks).selectExpr(*COLUMNS).mapInArrow(intake, SCHEMA)
        keyed = inputs.withWatermark("at", f"{SKEW_MS} milliseconds").groupBy(f.col("bucket"))
        found = keyed.transformWithState(Processor(monitor), OUTPUT, "update", "eventTime")
        return found.coalesce(tasks)  # a task then has several partitions of the state, one after the other

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
            found = results.toArrow().to_pylist()  # in any case: the state moves on with it
        self._check_topics()
        self._on_step("monitor-evaluated", batch)
        if self._is_committed(ends, batch):
            log.info("a batch ran again for its state alone; its output is committed", batch=batch)
        elif found or self._tracker.lacks(ends):
            read_until = None if math.isinf(times.until) else int(times.until)
            self._publish(list(map(self._result, found)), ends, self._checkpoint.query_id(), batch, read_until)
        self._on_step("monitor-committed", batch)

    def _times(self, batch: int, ends: Mapping[Partition, int]) -> Times:
        """A batch that runs again for its state alone must hold back what it held back before."""
        found, last = self._alignment.times(ends), self._tracker.last
        times = found._replace(least=max(found.least, self._checkpoint.watermark_of(batch) + SKEW_MS))
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
        offsets = self._tracker.to_commit(ends, checkpoint, batch, read_until)
        written = self._encodings.encoded(results)
        self._output.publish(written, offsets, before_commit=lambda: self._on_step("monitor-written", batch))
        self._tracker.advance(offsets)
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

    def cause(self, query: StreamingQuery) -> Exception:
        """What the query ended by. Raises TopicChanged."""
        if self.failure is None:
            with contextlib.suppress(KafkaException, TimeoutError):
                self._check_topics()  # offsets that are gone end a query, with a message of Spark's that names no cause
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


FIRST_PAUSE, LONGEST_PAUSE = 2.0, 60.0
LATEST_START = 10.0  # s
STEADY_SECONDS = 10.0  # after a failure: what ran for so long runs again
POLL_SECONDS = 0.2
END_SECONDS = 5.0  # of waiting for its end when the enforcer has ended
REASON_CHARACTERS = 1000  # of what Spark says, which may be whole plans


class RunningMonitor:
    """The monitor while a job runs, on its own thread: no failure of it delays decisions.

    It is started again, after a pause that grows, after any failure. Where another instance of the job fenced it,
    that one fenced the enforcer too, which notices with its next commit and ends the job. `stop`: that of the job.
    It starts once `decided` is set, or after `LATEST_START`: after a restart decisions go first.
    """

    def __init__(
        self,
        settings: Settings,
        spark: SparkSession,
        stop: threading.Event,
        decided: threading.Event,
        on_step: MonitorObserver,
        watch: Watch,
    ) -> None:
        self._settings, self._spark, self._on_step, self._watch = settings, spark, on_step, watch
        self._stop, self._decided, self._job_ended = stop, decided, threading.Event()
        self._thread = threading.Thread(target=self._run, name="monitor", daemon=True)
        self._reason = ""  # of the failure that was logged last; none: it runs

    def __enter__(self) -> Self:
        """Begin to start it."""
        if self._settings.monitor.enabled:
            for system in unrecorded_systems(self._settings):
                log.warning(
                    "unrequested-access is off: not all answers over HTTP are recorded (serve.record)", system=system
                )
            # Both queries need it, and to start it from two threads at once is not safe.
            ensure_callback_server_started(self._spark.sparkContext._gateway)  # type: ignore[no-untyped-call]
            self._thread.start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        """Stop it; where it does not end soon, it ends with Spark."""
        self._job_ended.set()
        if self._thread.is_alive():
            self._thread.join(END_SECONDS)

    def _run(self) -> None:
        pause = FIRST_PAUSE
        self._await_first_batch()
        while not self._stopping():
            began = time.monotonic()
            failure = self._run_once()
            if failure is None or self._stopping():
                return
            pause = FIRST_PAUSE if time.monotonic() - began > LONGEST_PAUSE else pause
            self._note(failure)
            self._sleep(max(pause, self._until_enforcer_commits()) if isinstance(failure, Fenced) else pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    def _await_first_batch(self) -> None:
        latest = time.monotonic() + LATEST_START
        while time.monotonic() < latest and not self._decided.is_set() and not self._stopping():
            self._job_ended.wait(POLL_SECONDS)

    @functools.cached_property
    def _session(self) -> SparkSession:
        """One for all runs: Spark keeps the listeners of each."""
        session = monitor_session(self._spark, self._settings)
        session.streams.addListener(ProgressListener(self._watch.monitored))
        return session

    def _run_once(self) -> Exception | None:
        """Run it until it fails, and return by what; None: the job ends."""
        try:
            with contextlib.closing(MonitorQuery(self._settings, self._session, self._on_step, self._watch)) as monitor:
                query = monitor.start()
                try:
                    self._await_end(query)
                finally:
                    self._watch.monitor_runs(False)
                    monitor.stop(query)
                return None if self._stopping() else monitor.cause(query)
        except Exception as failure:  # whatever it is: decisions go on
            return failure

    def _await_end(self, query: StreamingQuery) -> None:
        """Return when the query has ended, or the job ends."""
        steady_at = time.monotonic() + STEADY_SECONDS
        self._watch.monitor_runs(not self._reason)
        while query.isActive and not self._stopping():
            if self._reason and time.monotonic() >= steady_at:
                self._reason = ""
                self._watch.monitor_runs(True)
                log.info("the monitor runs again")
            self._job_ended.wait(POLL_SECONDS)

    def _note(self, failure: Exception) -> None:
        """One line for a failure; the same one again is no news."""
        name = "" if isinstance(failure, JobStopped) else f"{type(failure).__name__}: "
        reason = shorten(f"{name}{failure}".partition("=== Streaming Query ===")[0].strip(), REASON_CHARACTERS)
        note = log.debug if reason == self._reason else log.error
        note(
            "the monitor failed; decisions go on, and it is started again",
            error=reason,
            checkpoint=monitor_settings(self._settings).checkpoint,
        )
        self._reason = reason

    def _until_enforcer_commits(self) -> float:
        """By then an enforcer that was fenced too has ended; else the monitors of two instances fence each other."""
        return 2 * self._settings.idle_commit_seconds

    def _sleep(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end and not self._stopping():
            self._job_ended.wait(POLL_SECONDS)

    def _stopping(self) -> bool:
        return self._stop.is_set() or self._job_ended.is_set()
