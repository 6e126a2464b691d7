"""The enforcer: this file reads like the path of a request.

    Kafka ─ Spark source ─ Arrow batch ─ decode ─ decide ─ encode ─ packed batch ─ driver ─ one Kafka transaction

Exactly once rests on three rules, found under their numbers: rule 1 in `transaction.Output` and in
`streaming.application`, rule 2 in `worker.Worker`, rule 3 in `Enforcer._decide_range` and `Enforcer._between_batches`.
"""

import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import structlog
from confluent_kafka import KafkaException
from pyspark.core.broadcast import Broadcast
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from policy.snapshot import Snapshot
from streaming.enforcer.broadcasts import Broadcasts, FactBroadcasts, Facts, Published
from streaming.enforcer.budget import Budget, budgets_of
from streaming.enforcer.candidate import Candidate
from streaming.enforcer.checkpoint import Checkpoint, Offsets
from streaming.enforcer.encodings import open_encodings
from streaming.enforcer.errors import JobStopped, Stopping, TopicChanged
from streaming.enforcer.kafka import (
    Partition,
    admin_client,
    cluster_id,
    first_offsets,
    lags,
    partitions_of,
    stable_ends,
    topic_ids,
)
from streaming.enforcer.ledger import Ledger, open_ledger
from streaming.enforcer.past import Past
from streaming.enforcer.policies import Policies
from streaming.enforcer.ranges import Range, ReadLimits, counted
from streaming.enforcer.source import read_range, start_query
from streaming.enforcer.spark_errors import why_ended
from streaming.enforcer.staleness import StaleWatch
from streaming.enforcer.ticks import Ticks
from streaming.enforcer.topic_logs import TopicLog, check_logs, document_topics, find_logs
from streaming.enforcer.transaction import Evaluated, Output
from streaming.enforcer.wire import VERDICTS, Result
from streaming.enforcer.worker import SCHEMA, Outputs, Task, Worker
from streaming.observability.steps import Step
from streaming.observability.watch import Watch
from streaming.settings import Settings
from streaming.snapshots.reading import read_retention
from streaming.topic_specs import dead_letters_of

log = structlog.get_logger()

ATTEMPT_SECONDS = 2.0  # to read the policies, before it is looked at whether they are stale
COMMIT_LOG_SECONDS = 2.0
POLL_SECONDS = 0.02
IDLE = -1  # the batch number of what is written between batches


StepObserver = Callable[[Step, int], None]


class Enforcer:
    """One run of the job."""

    def __init__(
        self,
        settings: Settings,
        spark: SparkSession,
        output: Output,
        stop: threading.Event,
        on_step: StepObserver,
        watch: Watch,
    ) -> None:
        self._settings, self._spark, self._output, self._stop, self._on_step = settings, spark, output, stop, on_step
        self._watch = watch
        self._encodings = open_encodings(settings)
        self._inputs = (*settings.topics.requests, *settings.topics.audit)
        self._admin = admin_client(settings)
        self._checkpoint = Checkpoint(spark, settings.checkpoint)
        documents = document_topics(settings.topics)
        self._logs = find_logs(self._admin, documents, (*self._inputs, settings.topics.history))
        self._topic_ids = {topic: log.id for topic, log in self._logs.items()}
        self._output_topics = (
            settings.topics.decisions,
            settings.topics.verdicts,
            *map(dead_letters_of, self._inputs),
        )
        self._ledger = self._open_ledger()
        retention = read_retention(settings)
        self._policies = Policies(
            settings, self._ledger.committed, watch.compiled, self._logs, retention, self._ledger.replaced
        )
        self._broadcasts, self._facts = (
            Broadcasts(spark, settings.snapshots_kept, watch.broadcast),
            FactBroadcasts(spark.sparkContext.broadcast),
        )
        self._past = Past(self._policies.documents, spark.sparkContext.broadcast, settings.snapshots_kept)
        self._candidate = self._open_candidate()
        self._stale = StaleWatch(self._admin, settings)
        self._ticks = Ticks(settings)
        self._busy = threading.Lock()  # batches and what is done between them write with the same producer
        self._failure: Exception | None = None
        self._ending = False
        self._last_batch = -1  # the newest that this run has committed
        self._limits, self._slots = ReadLimits(settings.max_records), spark.sparkContext.defaultParallelism
        self._last_commit = time.monotonic()
        watch.follow(settings.job_name, lambda: lags(self._admin, self._ledger.committed))

    def _open_candidate(self) -> Candidate | None:
        if not self._settings.candidate:
            return None
        send = self._spark.sparkContext.broadcast
        return Candidate(Path(self._settings.candidate), self._settings.limits.document, send)

    def _open_ledger(self) -> Ledger:
        topics = (*self._inputs, *document_topics(self._settings.topics))
        partitions = partitions_of(self._admin, topics)
        accepted = self._settings.accepted_topic_ids
        cluster = cluster_id(self._admin)
        return open_ledger(
            self._output.group, partitions, self._inputs, self._topic_ids, self._checkpoint, cluster, accepted
        )

    def run(self) -> None:
        """Start the query, look after it, and end in order."""
        with contextlib.suppress(Stopping):
            query = self._start()
            with contextlib.suppress(Stopping), self._watch.running():
                while not self._stop.wait(self._settings.idle_seconds) and query.isActive:
                    self._between_batches()
            self._end(query)

    def _start(self) -> StreamingQuery:
        starts = self._starts()
        self._read_policies()
        # Committed before the query starts: from now on a checkpoint without committed offsets is a sign of loss.
        self._commit([], starts)
        return start_query(self._spark, self._settings, starts, self._on_batch)

    def _starts(self) -> dict[Partition, int]:
        """Where a query without a checkpoint begins: at the committed offsets, new partitions at their first."""
        partitions = partitions_of(self._admin, self._inputs)
        first = first_offsets(self._admin, partitions)
        return {partition: self._ledger.committed.get(partition, first[partition]) for partition in partitions}

    def _on_batch(self, records: DataFrame, batch: int) -> None:
        """Decide a Spark batch, at once as a rule; where that is too much, range after range."""
        is_first = True
        while self._on_range(records, batch, is_first):
            is_first = False
            if self._stop.is_set():  # Spark proposes the batch again at the next start
                raise Stopping("asked to stop within a batch")

    def _on_range(self, records: DataFrame, batch: int, is_first: bool) -> bool:
        with self._watch.batch(batch), self._busy:
            if self._ending:
                raise Stopping("asked to stop")
            with self._noting_failure():
                return self._decide_range(records, batch, is_first)

    def _decide_range(self, records: DataFrame, batch: int, is_first: bool) -> bool:
        """The path of a micro-batch, or of a part of one; whether something of it is left to decide."""
        # Rule 3: the ends come from Spark's own offset log, and every partition is committed, also a row-less one.
        starts, ends = self._checkpoint.range_of(batch)
        self._ledger.check_range(batch, starts)
        range_ = self._first_range(ends, batch) if is_first else self._next_range(ends)
        self._on_step("range-fixed", batch)
        evaluated, task, version = self._evaluate(self._read(records, range_), range_, batch)
        self._await_same_inputs()
        self._ledger.check_range(batch, range_.starts)  # between these and where it is read from, all must be decided
        self._on_step("evaluated", batch)
        self._limits.note(range_, evaluated.told)
        self._commit([], range_.decided(evaluated.told), evaluated, batch)
        is_left = self._ledger.lacks(ends)
        self._last_batch = self._last_batch if is_left else batch
        self._ticks.wind()
        self._watch.decided((told.tally for told in evaluated.told), task.now, version)
        self._watch.compared(told.compared for told in evaluated.told)
        self._watch.decisions(itertools.chain.from_iterable(told.decisions for told in evaluated.told))
        self._on_step("committed", batch)
        return is_left

    def _first_range(self, ends: Offsets, batch: int) -> Range:
        return self._limits.first(ends, self._ledger.committed, self._ledger.is_of(self._checkpoint.query_id(), batch))

    def _next_range(self, ends: Offsets) -> Range:
        newest: Offsets = {}
        with contextlib.suppress(KafkaException, TimeoutError):  # what is newer then waits for the next range
            newest = stable_ends(self._admin, ends)
        return self._limits.next(ends, newest, self._ledger.committed)

    def _read(self, records: DataFrame, range_: Range) -> DataFrame:
        """The records of a range; `records`: of the Spark batch."""
        if range_.whole:
            return records
        ends = {partition: range_.ends[partition] for partition in range_.undecided}
        return read_range(self._spark, self._settings, range_.starts, ends) if ends else records.limit(0)

    def _evaluate(self, records: DataFrame, range_: Range, batch: int) -> tuple[Evaluated, Task, str]:
        """What the workers make of the records, and by which policies.

        All over again when they met Avro schemas that had to be asked for, or accesses of a time whose policies had to
        be rebuilt.
        """
        while True:
            self._read_policies()
            snapshots = self._broadcasts.current(self._policies.snapshot, self._policies.changed_at)
            if self._candidate is not None:
                self._candidate.follow(self._policies.library, self._policies.snapshot)
            self._on_step("policies-read", batch)
            eras = (*self._past.held(), *snapshots)
            facts = self._facts.current(self._policies.layer, self._policies.take_fact_changes())
            task = self._task(eras, facts, self._budgets(range_))
            broadcasts = [era.broadcast for era in eras]
            worker = Worker(task, broadcasts, self._facts.broadcasts, self._tried())
            evaluated = self._output.collect(records.mapInArrow(worker, SCHEMA))
            if not all(which := counted(evaluated.told)):
                evaluated = self._output.kept(evaluated, which)
            needed = itertools.chain.from_iterable(told.needed for told in evaluated.told)
            moments = itertools.chain.from_iterable(told.moments for told in evaluated.told)
            learned, rebuilt = self._encodings.learn(needed, self._stop), self._past.rebuild(moments)
            if not learned and not rebuilt:
                return evaluated, task, snapshots[-1].version

    def _read_policies(self) -> None:
        """Know everything that was acknowledged before now: without that there is no decision, however long it takes.

        Within a batch: before now is before or after its range was fixed, so no request in it is older than this.
        """
        since = time.time()
        while True:
            try:
                self._policies.catch_up(ATTEMPT_SECONDS)
                return self._watch.policies_read(len(self._policies.layer))
            except (KafkaException, TimeoutError) as error:
                log.warning("policies not read to their end; waiting", error=str(error))
                self._watch.policies_unread(since)
                if self._stop.wait(self._settings.idle_seconds):
                    raise Stopping("asked to stop while reading the policies") from error
                self._tell(self._stale.unread(self._policies.positions, since, str(error)))

    def _await_same_inputs(self) -> None:
        """Raise TopicChanged when what was evaluated may be of a re-created topic: offsets mean other records there.

        Once the records are read: a topic whose id is still the same was the same throughout.
        """
        while True:
            try:
                return self._check_inputs()
            except (KafkaException, TimeoutError) as error:
                log.warning("the topic ids of the input topics are not known; waiting", error=str(error))
                if self._stop.wait(self._settings.idle_seconds):
                    raise Stopping("asked to stop while asking for topic ids") from error

    def _check_inputs(self) -> None:
        found = {topic: TopicLog(id_) for topic, id_ in topic_ids(self._admin, self._inputs).items()}
        check_logs(self._settings, self._logs, found, TopicChanged)

    def _tried(self) -> "Broadcast[Snapshot] | None":
        return self._candidate.broadcast if self._candidate else None

    def _budgets(self, range_: Range) -> dict[Partition, Budget]:
        settings, limits = self._settings, self._settings.limits
        # A candidate's answers, and once more the live ones to hold them against, come after those that are written.
        seconds = settings.max_batch_seconds / (3 if self._candidate is not None else 1)
        exceeding = max(settings.max_batch_bytes // (limits.record_in + limits.record_out), 1)
        whole = Budget(settings.max_batch_bytes, seconds)
        return budgets_of(range_.undecided, whole, self._slots, self._limits.stalled, exceeding)

    def _task(self, snapshots: Sequence[Published], facts: Facts, budgets: Mapping[Partition, Budget]) -> Task:
        return Task(
            topics=self._output_topics,
            committed=self._ledger.committed,
            topic_ids=self._topic_ids,
            trust={topic: self._settings.trust_of(topic) for topic in self._inputs},
            outputs={topic: self._outputs_of(topic) for topic in self._inputs},
            read=self._policies.all_offsets(),
            policy_offsets=self._policies.policy_offsets(),
            facts_offset=self._policies.facts_offset(),
            snapshots=tuple((snapshot.since, snapshot.until, snapshot.number) for snapshot in snapshots),
            facts=facts,
            now=time.time_ns() // 1_000_000,
            limits=self._settings.limits,
            formats=self._encodings.formats(),
            enforced=self._settings.mode == "enforce",
            candidate=self._candidate.number if self._candidate else 0,
            logged=self._watch.logs_decisions,
            budgets=budgets,
        )

    def _outputs_of(self, topic: str) -> Outputs:
        dead_letters = self._output_topics.index(dead_letters_of(topic))
        return Outputs(dead_letters, VERDICTS if topic in self._settings.topics.audit else None)

    def _commit(
        self,
        results: Iterable[Result],
        ends: Mapping[Partition, int],
        evaluated: Evaluated | None = None,
        batch: int = IDLE,
    ) -> None:
        """One transaction: what was evaluated, these results, what there is to tell of the policies, all offsets."""
        checkpoint = None if batch == IDLE else self._checkpoint.query_id()
        offsets = self._ledger.to_commit({**ends, **self._policies.positions}, checkpoint, batch)
        said = self._policies.untold()
        told = self._encodings.encoded(itertools.chain(said, results))
        self._output.publish(told, offsets, evaluated, lambda: self._on_step("written", batch))
        self._ledger.advance(offsets)
        self._policies.told()
        self._watch.committed(said)
        self._broadcasts.tidy()
        self._facts.tidy()
        self._past.tidy()
        if self._candidate is not None:
            self._candidate.tidy()
        self._last_commit = time.monotonic()

    def _between_batches(self) -> None:
        """Also while there are no requests: policies are read and told of, and offsets committed (rule 3)."""
        if not self._busy.acquire(timeout=self._settings.idle_seconds):
            return
        try:
            with self._noting_failure():
                self._read_policies()
                self._broadcasts.current(self._policies.snapshot, self._policies.changed_at)
                self._tell([*self._stale.stuck(), *self._ticks.due()])
                self._watch.policies_stuck(self._stale.late)
                overdue = time.monotonic() - self._last_commit > self._settings.idle_commit_seconds
                if overdue or self._ledger.lacks(self._policies.positions):
                    self._commit([], {})
        finally:
            self._busy.release()

    def _tell(self, alerts: list[Result]) -> None:
        if alerts:
            self._commit(alerts, {})
            self._watch.committed(alerts)

    @contextlib.contextmanager
    def _noting_failure(self) -> Iterator[None]:
        try:
            yield
        except Exception as failure:
            self._failure = failure
            raise

    def _end(self, query: StreamingQuery) -> None:
        """Let the batch under way commit, then stop; or tell why the query ended by itself."""
        with self._busy:
            self._ending = True
            self._await_commit_log(query)
        query.stop()  # without the lock, for which a batch that begins just now would wait, and Spark for that batch
        if self._stop.is_set():
            return
        if self._failure is None:
            with contextlib.suppress(KafkaException, TimeoutError):
                self._check_inputs()  # offsets that are gone end a query, with a message of Spark's that names no cause
        raise self._failure or JobStopped(why_ended(query, self._settings))

    def _await_commit_log(self, query: StreamingQuery) -> None:
        """Stopping interrupts Spark where it stands: harmless to decisions, but not while it writes its log."""
        deadline = time.monotonic() + COMMIT_LOG_SECONDS
        while query.isActive and self._last_batch > self._checkpoint.completed() and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)

    def close(self) -> None:
        """Leave Kafka and the schema registry."""
        self._watch.unfollow(self._settings.job_name)
        self._policies.close()
        self._encodings.close()
