"""The enforcer: this file reads like the path of a request.

    Kafka ─ Spark source ─ Arrow batch ─ decode ─ decide ─ encode ─ packed batch ─ driver ─ one Kafka transaction

Exactly once rests on three rules, found under their numbers: rule 1 in `transaction.Output` and in `_start`,
rule 2 in `worker.Worker`, rule 3 in `Enforcer._decide_batch`.
"""

import threading
import time
from collections.abc import Callable, Iterator
from typing import Literal

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from streaming.enforcer.broadcasts import Broadcasts, Published
from streaming.enforcer.checkpoint import LOCAL_MANAGER, Checkpoint, format_offsets, is_local
from streaming.enforcer.errors import CannotStart, JobStopped
from streaming.enforcer.kafka import Partition, admin_client, first_offsets, partitions_of, topic_ids
from streaming.enforcer.ledger import Ledger, check_marks, read_committed
from streaming.enforcer.policies import PolicyReader
from streaming.enforcer.transaction import Output, Result
from streaming.enforcer.wire import JSON_ALONE, unpack
from streaming.enforcer.worker import COLUMNS, SCHEMA, Task, Worker
from streaming.runtime.spark import start_session
from streaming.settings import Settings
from streaming.topics import check_topics, dead_letters_of

Step = Literal["range-fixed", "policies-read", "evaluated", "written", "committed"]
"""The steps of a batch, in order. `written`: inside the transaction; `committed`: not yet in Spark's commit log."""

COMMIT_LOG_SECONDS = 2.0
POLL_SECONDS = 0.02

StepObserver = Callable[[Step, int], None]


def run(settings: Settings, stop: threading.Event, on_step: StepObserver = lambda _step, _batch: None) -> None:
    """Decide requests until `stop` is set. `on_step` is told each step and its batch: for metrics and logs.

    Raises:
        CannotStart: topics, offsets and checkpoint do not fit together.
        Fenced: another instance with this job name took over.
        JobStopped: what else ended it. Nothing half-done is visible; starting it again goes on where it ended.
    """
    _check_topics(settings)
    output = Output(settings)  # rule 1: first fence, then read what is committed, then start the query
    spark = start_session(settings.job_name, _spark_settings(settings), settings.master)
    enforcer = Enforcer(settings, spark, output, stop, on_step)
    enforcer.run()


def _check_topics(settings: Settings) -> None:
    problems = check_topics(admin_client(settings), settings.topics)
    if problems:
        raise CannotStart("\n".join(map(str, problems)))


def _spark_settings(settings: Settings) -> dict[str, str]:
    manager = {"spark.sql.streaming.checkpointFileManagerClass": LOCAL_MANAGER} if is_local(settings.checkpoint) else {}
    return {
        "spark.sql.execution.arrow.maxRecordsPerBatch": "20000",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.streaming.noDataMicroBatches.enabled": "false",
        **manager,
        **settings.spark,
    }


class Enforcer:
    """One run of the job."""

    def __init__(
        self, settings: Settings, spark: SparkSession, output: Output, stop: threading.Event, on_step: StepObserver
    ) -> None:
        self._settings, self._spark, self._output, self._stop, self._on_step = settings, spark, output, stop, on_step
        self._admin = admin_client(settings)
        self._checkpoint = Checkpoint(spark, settings.checkpoint)
        self._policies = PolicyReader(settings)
        self._broadcasts = Broadcasts(spark)
        self._snapshot: Published | None = None
        self._failure: Exception | None = None
        self._busy = threading.Lock()  # batches and what is done between them write with the same producer
        requests = settings.topics.requests
        self._topic_ids = topic_ids(self._admin, requests)
        self._outputs = (settings.topics.decisions, *map(dead_letters_of, requests))
        self._ledger: Ledger
        self._batch = -1  # the newest committed by this run

    def run(self) -> None:
        """Start the query, look after it, and end in order."""
        query = self._start()
        try:
            while not self._stop.wait(self._settings.idle_seconds) and query.isActive:
                pass
            self._end(query)
        finally:
            self._policies.close()

    def _start(self) -> StreamingQuery:
        """Rule 1, after the fencing: what is committed, and where Spark must therefore start; then the query."""
        partitions = partitions_of(self._admin, self._settings.topics.requests)
        committed = read_committed(self._output.group, partitions)
        known = self._checkpoint.query_id()
        check_marks(committed, self._topic_ids, known, self._checkpoint.completed() if known else -1)
        self._ledger = Ledger(committed, self._topic_ids)
        starts = {**first_offsets(self._admin, partitions), **self._ledger.committed}
        # Committed before the query starts: from now on a checkpoint without committed offsets is a sign of loss.
        self._commit([], starts)
        return self._query(starts)

    def _query(self, starts: dict[Partition, int]) -> StreamingQuery:
        source = self._spark.readStream.format("kafka").options(
            **{
                "kafka.fetch.max.wait.ms": "5",
                "kafka.max.poll.records": "5000",
                "kafka.max.partition.fetch.bytes": str(8 << 20),
                "kafka.receive.buffer.bytes": str(1 << 20),
                **self._settings.source,
                "kafka.bootstrap.servers": self._settings.bootstrap_servers,
                "kafka.isolation.level": "read_committed",
                "subscribe": ",".join(self._settings.topics.requests),
                "startingOffsets": format_offsets(starts),
                "maxOffsetsPerTrigger": str(self._settings.max_records),
                "failOnDataLoss": "true",
                "includeHeaders": "true",
            }
        )
        writer = source.load().writeStream.foreachBatch(self._on_batch)
        return writer.option("checkpointLocation", self._settings.checkpoint).queryName(self._settings.job_name).start()

    def _on_batch(self, records: DataFrame, batch: int) -> None:
        with self._busy:
            try:
                self._decide_batch(records, batch)
            except Exception as failure:
                self._failure = failure
                raise

    def _decide_batch(self, records: DataFrame, batch: int) -> None:
        """The path of a micro-batch."""
        # Rule 3: the ends come from Spark's own offset log, and every partition is committed, also a row-less one.
        starts, ends = self._checkpoint.range_of(batch)
        self._ledger.check_range(batch, starts)
        self._on_step("range-fixed", batch)
        snapshot = self._read_policies()
        self._on_step("policies-read", batch)
        worker = Worker(self._task(snapshot), snapshot.broadcast)
        packed = records.select(*COLUMNS).mapInArrow(worker, SCHEMA).toArrow().column("packed")
        self._on_step("evaluated", batch)
        results = (result for cell in packed for result in self._results(cell.as_py()))
        self._commit(results, ends, batch)
        self._batch = batch
        self._on_step("committed", batch)
        self._broadcasts.tidy()

    def _read_policies(self) -> Published:
        """The snapshot of everything that was acknowledged before the batch's range was fixed, or later."""
        if self._policies.catch_up(self._stop.is_set) is None:
            raise JobStopped("asked to stop while reading the policies")
        snapshot = self._policies.snapshot()
        if self._snapshot is None or self._snapshot.version != snapshot.version:
            self._snapshot = self._broadcasts.publish(snapshot)
        return self._snapshot

    def _task(self, snapshot: Published) -> Task:
        requests = self._settings.topics.requests
        return Task(
            committed=self._ledger.committed,
            topic_ids=self._topic_ids,
            trust={topic: self._settings.trust_of(topic) for topic in requests},
            outputs=self._outputs,
            dead_letters={topic: 1 + number for number, topic in enumerate(requests)},
            policy_offsets=self._policies.policy_offsets(),
            facts_offset=self._policies.facts_offset(),
            snapshot_number=snapshot.number,
            now=time.time_ns() // 1_000_000,
            limits=self._settings.limits,
        )

    def _results(self, packed: bytes) -> Iterator[Result]:
        for number, key, value, headers in unpack(packed):
            yield self._outputs[number], key, value, JSON_ALONE if headers is None else headers

    def _commit(
        self, results: Iterator[Result] | list[Result], ends: dict[Partition, int], batch: int | None = None
    ) -> None:
        checkpoint = None if batch is None else self._checkpoint.query_id()
        offsets = self._ledger.to_commit(ends, checkpoint, batch)
        self._output.publish(results, offsets, lambda: self._on_step("written", -1 if batch is None else batch))
        self._ledger.advance(offsets)

    def _await_commit_log(self, query: StreamingQuery) -> None:
        """Stopping interrupts Spark where it stands: harmless to decisions, but not while it writes its log."""
        deadline = time.monotonic() + COMMIT_LOG_SECONDS
        while query.isActive and self._batch > self._checkpoint.completed() and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)

    def _end(self, query: StreamingQuery) -> None:
        """Let the batch under way commit, then stop; or tell why the query ended by itself."""
        with self._busy:
            self._await_commit_log(query)
            query.stop()
        if self._failure is not None and not self._stop.is_set():
            raise self._failure
        if (error := query.exception()) is not None and not self._stop.is_set():
            raise JobStopped(f"the query ended: {error}")
