"""The enforcer: this file reads like the path of a request.

    Kafka ─ Spark source ─ Arrow batch ─ decode ─ decide ─ encode ─ packed batch ─ the partition's Kafka transaction

All of it happens on the executor that reads the partition. The driver plans, reads the policies, and writes what is a
batch's own: alerts about policies, changes and history, committed before the decisions that rest on them.

Exactly once rests on three rules, found under their numbers: rule 1 in `PartitionProducer.java` and
`transaction.Output`, rule 2 in `worker.Worker`, rule 3 in `Enforcer._decide_range` and `Enforcer._between_batches`.
"""

import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import structlog
from confluent_kafka import KafkaException, TopicPartition
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from streaming.commit.checkpoint import Checkpoint
from streaming.commit.java_clients import ANSWER_SECONDS
from streaming.commit.offsets import IDLE_COMMIT_SECONDS, OffsetTracker, open_offset_tracker, read_committed
from streaming.commit.partitions import FENCED, MOVED, OK, REFUSED, Evaluated, PartitionResult, PartitionTransactions
from streaming.commit.transaction import Outage, Output, is_unavailable, refused_transaction
from streaming.enforcer.heartbeats import Heartbeats
from streaming.enforcer.idle_offsets import IdleOffsets
from streaming.enforcer.pending_facts import FactLag, PendingFacts, overlooked
from streaming.enforcer.ranges import Budget, OffsetRange, ReadLimits, budgets_of
from streaming.enforcer.source import read_range, start_query
from streaming.enforcer.tasks import Tasks
from streaming.enforcer.undecided_events import UndecidedEvents
from streaming.enforcer.worker import Task
from streaming.errors import CannotStart, CannotWrite, JobStopped, Stopping, TopicChanged
from streaming.kafka.clients import (
    RETRIED_SECONDS,
    Partition,
    PartitionOffsets,
    admin_client,
    cluster_id,
    first_offsets,
    is_reachable,
    lags,
    last_stable_offsets,
    partitions_of,
    topic_ids,
)
from streaming.kafka.manifests import enforcer_permissions
from streaming.kafka.permissions import explain_refused
from streaming.kafka.reader import TopicLog, check_logs, document_topics, find_logs
from streaming.ops.metrics import Step
from streaming.ops.queries import check_executors
from streaming.ops.watch import Watch
from streaming.records.encodings import open_encodings
from streaming.records.formats import Result
from streaming.runtime.checkpoints import ARCHIVE
from streaming.runtime.executors import count_slots, describe_spark
from streaming.runtime.spark_errors import failure_messages, is_concurrent_log_update, why_ended
from streaming.settings import Settings
from streaming.snapshots.alerts import StaleWatch
from streaming.snapshots.at_offsets import read_retention
from streaming.snapshots.broadcasts import (
    RECENT,
)
from streaming.snapshots.policies import Policies

log = structlog.get_logger()

ATTEMPT_SECONDS = 2.0  # to read the policies, before it is looked at whether they are stale
COMMIT_LOG_SECONDS = 2.0
IDLE_SECONDS = 0.5  # between two looks at the policies while there are no requests
FINISH_SECONDS = 5.0  # for the batch under way, once asked to stop
POLL_SECONDS = 0.02
# Of workers that decide the records of one transaction: others wait for two transactions at most, and the transaction
# has nine tenths of its timeout left for what it writes.
BATCH_SECONDS = 3.0
IDLE = -1  # the batch number of what the driver writes

StepObserver = Callable[[Step, int], None]


class Sent(NamedTuple):
    """What tasks have sent of a batch, to be committed: up to where each partition is decided, and when by the driver's
    clock (ms), by which policies.
    """

    evaluated: Evaluated
    ends: Mapping[Partition, int]
    now: int
    version: str

    def without(self, committed: Collection[Partition]) -> "Sent":
        """Those partitions of which it is not known that they are committed."""
        left = [result for result in self.evaluated.results if result.partition not in committed]
        return self._replace(evaluated=Evaluated(left))


NOTHING_SENT = Sent(Evaluated([]), {}, 0, "")


class Enforcer:
    """One run of the job."""

    def __init__(
        self,
        settings: Settings,
        spark: SparkSession,
        output: Output,
        partitions: PartitionTransactions,
        stop: threading.Event,
        on_step: StepObserver,
        watch: Watch,
        idle_commit_seconds: float = IDLE_COMMIT_SECONDS,
    ) -> None:
        self._idle_commit_seconds = idle_commit_seconds
        self._settings, self._spark, self._output, self._stop, self._on_step = settings, spark, output, stop, on_step
        self._partitions, self._watch = partitions, watch
        self._encodings = open_encodings(settings)
        self._inputs = settings.topics.inputs
        self._admin = admin_client(settings)
        self._checkpoint = Checkpoint(spark, settings.checkpoint)
        documents = document_topics(settings.topics)
        self._logs = find_logs(self._admin, documents, (*self._inputs, settings.topics.history))
        self._topic_ids = {topic: log.id for topic, log in self._logs.items()}
        self._tracker = self._open_tracker()
        retention = read_retention(settings, self._logs)
        self._policies = Policies(
            settings,
            self._tracker.committed,
            watch.metrics.compiled,
            self._logs,
            retention,
            self._tracker.unanalysed,
            stop,
            self._tracker.replaced,
            RECENT if settings.topics.answered else 0,
        )
        self._during = watch.watchdog.during
        self._tasks = Tasks(
            settings,
            spark,
            self._policies,
            self._tracker,
            self._topic_ids,
            self._encodings,
            self._during,
            watch.metrics.broadcast,
        )
        has_monitor = settings.monitor.mode != "none"
        self._fact_lag = FactLag(settings, self._admin) if has_monitor else None
        self._undecided = UndecidedEvents(settings) if has_monitor else None
        self._stale = StaleWatch(self._admin, settings, self._policies.positions)
        self._outage = Outage(stop, watch, self._explain)
        self._heartbeats = Heartbeats(settings)
        self._busy = threading.Lock()  # batches and what is done between them write with the same producer
        self._failure: Exception | None = None
        self._ending = False
        self._last_batch = -1  # the newest that this run has committed
        self._proposed_before = self._checkpoint.proposed()  # the newest that a run before this one has begun
        self._limits = ReadLimits(settings.max_records, settings.weights)
        self._slots = spark.sparkContext.defaultParallelism
        self._last_commit = time.monotonic()
        self._idle = IdleOffsets(self._inputs, partitions.sets, idle_commit_seconds)
        self._sent = NOTHING_SENT
        watch.add_consumer_group(settings.job_name, lambda: lags(self._admin, self._tracker.committed))

    def _open_tracker(self) -> OffsetTracker:
        topics = (*self._inputs, *document_topics(self._settings.topics))
        partitions = partitions_of(self._admin, topics)
        accepted = self._settings.accepted_topic_ids
        cluster = cluster_id(self._admin)
        return open_offset_tracker(
            self._output.group,
            partitions,
            self._inputs,
            self._topic_ids,
            self._checkpoint,
            cluster,
            accepted,
            self._owner_of,
        )

    def _owner_of(self, partition: Partition) -> str:
        """What stands beside a committed offset: of policies and facts the driver's own are committed."""
        return self._partitions.sets.owner(partition) if partition[0] in self._inputs else ""

    def run(self) -> None:
        """Start the query, watch it, and end in order."""
        with contextlib.suppress(Stopping):
            query = self._start()
            with contextlib.suppress(Stopping), self._watch.running(), self._followed():
                while not self._stop.wait(IDLE_SECONDS):
                    if not query.isActive:
                        query = self._start_again(query)
                    self._partitions.check_workers()
                    check_executors(self._spark, self._settings, self._watch.health)
                    self._slots = count_slots(self._spark) or self._slots
                    if self._fact_lag is not None:
                        self._fact_lag.poll()
                    self._between_batches()
            self._end(query)

    @contextlib.contextmanager
    def _followed(self) -> Iterator[None]:
        """The watchdog knows what waits, and what Spark does, while the context is open."""
        watchdog = self._watch.watchdog
        watchdog.follow(self._count_waiting, lambda: describe_spark(self._spark))
        try:
            yield
        finally:
            watchdog.unfollow()

    def _count_waiting(self) -> int | None:
        """Input records that can be read and are not decided; None: Kafka does not answer."""
        committed = self._tracker.committed
        try:  # without what an open transaction hides
            ends = last_stable_offsets(
                self._admin, partitions_of(self._admin, self._inputs, RETRIED_SECONDS), RETRIED_SECONDS
            )
        except (KafkaException, TimeoutError):
            return None
        return sum(max(end - committed.get(partition, end), 0) for partition, end in ends.items())

    def _start(self) -> StreamingQuery:
        starts = self._outage.retry("the offsets of the input topics", self._starts)
        self._read_policies()  # which refuses topics that were re-created: their offsets are gone, too
        self._check_committed()
        self._pass_over_deleted(starts)
        # A job that was killed between the partitions of a batch has left answers to what it has written verdicts on:
        # reported before any record by which the monitor's time advances.
        lag = self._heartbeats.note_answered_lag(self._answered_lag(self._newest(starts), starts))
        # Committed before the query starts: from now on a checkpoint without committed offsets is a sign of loss.
        self._commit(lag, starts)
        self._outage.end()
        if self._stop.is_set():
            raise Stopping("asked to stop before the query was started")
        return start_query(self._spark, self._settings, starts, self._on_batch)

    def _starts(self) -> dict[Partition, int]:
        """Where a query without a checkpoint begins: at the committed offsets, or the first ones that are there."""
        partitions = partitions_of(self._admin, self._inputs, RETRIED_SECONDS)
        first = first_offsets(self._admin, partitions, RETRIED_SECONDS)
        return {partition: max(self._tracker.committed.get(partition, 0), first[partition]) for partition in partitions}

    def _check_committed(self) -> None:
        """Raise CannotStart where nothing is committed of a partition that the checkpoint has read.

        Its first offset would be committed, and who moves the checkpoint away then has all of it decided again.
        """
        completed = self._checkpoint.completed()
        _, ends = self._checkpoint.range_of(completed) if completed >= 0 else ({}, {})
        for (topic, number), end in ends.items():
            if end and topic in self._inputs and (topic, number) not in self._tracker.committed:
                raise CannotStart(
                    f"the checkpoint has read {topic}-{number} up to offset {end}, and the group has no committed "
                    "offset there: were its offsets deleted? Set it with kafka-consumer-groups.sh --reset-offsets to "
                    f"where the decisions end, and move the checkpoint away with `{ARCHIVE}`"
                )

    def _pass_over_deleted(self, starts: PartitionOffsets) -> None:
        """Go on behind records that were deleted before they were decided, as by retention while the job was away.

        Raises CannotStart where a checkpoint proposes them: each query that reads them fails.
        """
        committed = self._tracker.committed
        deleted = {at: start for at, start in starts.items() if start > committed.get(at, start)}
        if not deleted:
            return
        ranges = ", ".join(f"{t}-{n} from offset {committed[t, n]} up to {end}" for (t, n), end in deleted.items())
        if self._checkpoint.query_id() is not None:
            raise CannotStart(
                f"the records of {ranges} were deleted before they were decided. Move the checkpoint away with "
                f"`{ARCHIVE} {self._settings.checkpoint}`: the job then starts at the first record that is left"
            )
        log.warning("records were deleted before they were decided; they are passed over", records=ranges)
        self._commit_offsets(deleted)

    def _start_again(self, ended: StreamingQuery) -> StreamingQuery:
        """The query, started again at its checkpoint, after Spark gave up waiting for Kafka; else raise why it ended.

        Records that are gone, and topics that were re-created, end the job. So does another instance with the same
        checkpoint, unless this one has fenced it.
        """
        messages = failure_messages(ended)
        is_concurrent = is_concurrent_log_update(messages)
        if self._failure is not None or not (is_concurrent or self._output.failed_by_kafka(ended)):
            raise self._why_ended(ended)
        if is_concurrent:
            self._outage.retry("the owner of the job", self._output.check_owner)
            log.warning("another instance wrote to the checkpoint; the query is started again", error=messages[-1])
        else:
            log.info("the query, which Spark ended while Kafka was unavailable, is started again", error=messages[-1])
        self._outage.retry("the topic ids of the input topics", self._check_inputs)
        starts = self._outage.retry("the offsets of the input topics", self._starts)
        return start_query(self._spark, self._settings, starts, self._on_batch)

    def _on_batch(self, records: DataFrame, batch: int) -> None:
        """Decide a Spark batch, at once as a rule; where that is too much, range after range."""
        is_first = True
        while self._on_range(records, batch, is_first):
            is_first = False
            if self._stop.is_set():  # Spark proposes the batch again at the next start
                raise Stopping("asked to stop within a batch")

    def _on_range(self, records: DataFrame, batch: int, is_first: bool) -> bool:
        with self._watch.batch(batch), self._during("decide a batch", batch=batch), self._busy:
            if self._ending or self._stop.is_set():
                raise Stopping("asked to stop")
            with self._noting_failure():
                is_left = self._decide_range(records, batch, is_first)
                self._outage.end()
                return is_left

    def _decide_range(self, records: DataFrame, batch: int, is_first: bool) -> bool:
        """The path of a micro-batch, or of a part of one; whether something of it is left to decide."""
        # Rule 3: the ends come from Spark's own offset log, and every partition is committed, also a row-less one.
        starts, ends = self._checkpoint.range_of(batch)
        if partitions := self._tracker.beyond_committed(starts):
            self._take_over(partitions)
        self._tracker.check_range(batch, starts)
        if any(at not in self._tracker.committed for at in ends):  # partitions that were added, which Spark reads whole
            self._commit([], dict.fromkeys(ends, 0))
        newest = self._newest(ends) if not is_first or self._limits.is_full(ends, self._tracker.committed) else {}
        if is_first:
            range_ = self._first_range(ends, newest, batch)
        else:
            range_ = self._limits.next(ends, newest, self._tracker.committed)
        self._on_step("range-fixed", batch)
        if self._answered_lag(newest_ends := {**ends, **newest}, range_.ends):
            self._alert(self._heartbeats.note_answered_lag(lag=True))  # before the verdicts beside them
        self._until_committed(lambda: self._decide(records, range_, batch, newest_ends))
        self._alert(self._heartbeats.note_answered_lag(self._answered_lag(newest_ends, self._tracker.committed)))
        is_left = self._tracker.lacks(ends)
        self._last_batch = self._last_batch if is_left else batch
        self._heartbeats.start()
        self._on_step("committed", batch)
        return is_left

    def _until_committed(self, decide: Callable[[], None]) -> None:
        """Evaluate and commit a range: again, by the policies and committed offsets of then, when Kafka was away."""
        self._outage.retry("the end of a batch", decide, self._output.is_unavailable)

    def _decide(self, records: DataFrame, range_: OffsetRange, batch: int, newest: PartitionOffsets) -> None:
        """Evaluate what is not decided of a range, and commit each partition in its transaction.

        `newest`: the ends of the partitions as they were read last.
        """
        range_ = range_.left(self._tracker.committed)
        with self._during("plan how to read the records"):
            read = self._read(records, range_)
        evaluated, task, version = self._evaluate(read, range_, batch, newest)
        self._await_inputs()
        self._tracker.check_range(batch, range_.starts)  # between these and where it is read from, all must be decided
        self._on_step("evaluated", batch)
        self._limits.note(range_, evaluated.side_outputs)
        sent = Sent(evaluated, range_.decided(evaluated.side_outputs), task.now, version)
        try:
            self._commit_partitions(sent, batch)
        except CannotWrite:
            self._limits.failed()
            raise
        finally:
            if self._fact_lag is not None:  # also of what may be committed
                self._fact_lag.add(itertools.chain.from_iterable(side.passed_on for side in evaluated.side_outputs))
        self._limits.committed()

    def _commit_partitions(self, sent: "Sent", batch: int) -> None:
        """Commit what tasks have sent of a batch.

        Raises CannotWrite where that is not known of all: the next evaluation shows what is committed of the others.
        """
        ends = {result.partition: sent.ends[result.partition] for result in sent.evaluated.results}
        ends |= self._idle.overdue_beside(ends, self._tracker.committed)
        offsets = self._tracker.to_commit(ends, self._checkpoint.query_id(), batch)
        self._sent = sent
        self._on_step("written", batch)
        results = self._partitions.commit(sent.evaluated.results, offsets, self._committed(ends))
        committed = {result.partition for result in results if result.status == OK}
        self._tracker.advance(tp for tp in offsets if (tp.topic, tp.partition) in committed)
        self._idle.note_committed(committed)
        for result in {(result.executor, result.attempt): result for result in results}.values():
            if result.status == OK:
                self._watch.partition_committed(result.executor, sum(result.millis) / 1000)
            else:
                self._watch.metrics.partition_failed(result.executor)
        self._account_for(committed)
        self._tasks.tidy()
        self._check_results([result for result in results if result.status != OK])

    def _account_for(self, committed: Collection[Partition]) -> None:
        """Count the decisions of partitions that are committed."""
        sent, self._sent = self._sent, self._sent.without(committed)
        sides = [side for side in sent.evaluated.side_outputs if side.partition in committed]
        self._watch.decided((side.tally for side in sides), sent.now, sent.version)

    def _check_results(self, results: Sequence[PartitionResult]) -> None:
        """Raise for those partitions that could not be evaluated or committed, what has to be done about it."""
        for result in results:
            if result.status == REFUSED:
                self._pass_over_deleted(self._starts())  # Spark advises a setting that it may not have
                raise refused_transaction(result.error)
        if any(result.status == FENCED for result in results):
            self._output.check_owner()
        if results:
            failed = results[0]
            raise CannotWrite(f"the transaction of {failed.topic}-{failed.number} failed: {failed.error}")

    def _move(self, moved: Iterable[PartitionResult]) -> bool:
        """Take over what is committed of these partitions, by a commit whose answer was lost; whether there are any.

        Or another instance has the job, and has decided them: then this one stops.
        """
        moved = list(moved)
        if not moved:
            return False
        self._output.check_owner()
        for result in moved:
            self._tracker.move(result.partition, None if result.offset < 0 else result.offset)
        own = {result.partition for result in moved if result.offset == self._sent.ends.get(result.partition)}
        self._account_for(own)
        if len(own) < len(moved):
            self._note_other_instance()
        return True

    def _take_over(self, partitions: Iterable[Partition]) -> None:
        """Take over what is committed of partitions: an instance that this one has fenced may have decided on.

        Its driver notices that with its next transaction; its tasks do once these partitions have been taken from them.
        """
        self._outage.retry("the owner of the job", self._output.check_owner)
        committed = self._outage.retry(
            "the committed offsets", lambda: read_committed(self._output.group, partitions, RETRIED_SECONDS)
        )
        for partition, entry in committed.items():
            self._tracker.move(partition, entry.offset)
        self._note_other_instance()

    def _note_other_instance(self) -> None:
        """It has decided records that this one has not seen, perhaps logins, which are no facts yet."""
        if self._fact_lag is not None:
            self._fact_lag.add_any_fact()

    def _committed(self, partitions: Iterable[Partition]) -> dict[Partition, int | None]:
        """The committed offsets of partitions; None: there is none."""
        return {partition: self._tracker.committed.get(partition) for partition in partitions}

    def _answered_lag(self, ends: Mapping[Partition, int], decided: Mapping[Partition, int]) -> bool:
        """Whether answered records before these ends are not decided."""
        return any(decided.get(at, 0) < end for at, end in ends.items() if at[0] in self._settings.topics.answered)

    def _first_range(self, ends: PartitionOffsets, newest: PartitionOffsets, batch: int) -> OffsetRange:
        if batch <= self._proposed_before:
            self._limits.limit_first_read(ends, self._tracker.committed)
        committed, replayed = self._tracker.committed, self._tracker.is_of(self._checkpoint.query_id(), batch)
        return self._limits.first(ends, committed, replayed, newest)

    def _newest(self, ends: PartitionOffsets) -> PartitionOffsets:
        """The newest ends of the input partitions; none where Kafka does not answer: what is newer waits then."""
        with contextlib.suppress(KafkaException, TimeoutError), self._during("read the ends of the input topics"):
            return last_stable_offsets(self._admin, ends, RETRIED_SECONDS)
        return {}

    def _read(self, records: DataFrame, range_: OffsetRange) -> DataFrame:
        """The records of a range; `records`: of the Spark batch."""
        if range_.whole:
            return records
        ends = {partition: range_.ends[partition] for partition in range_.undecided}
        return read_range(self._spark, self._settings, range_.starts, ends) if ends else records.limit(0)

    def _evaluate(
        self, records: DataFrame, range_: OffsetRange, batch: int, newest: PartitionOffsets
    ) -> tuple[Evaluated, Task, str]:
        """What the workers make of the records, and by which policies; it is sent to Kafka, and not committed.

        All over again when they met Avro schemas that had to be asked for, accesses of a time whose policies had to be
        rebuilt, or ones that need a login of the same batch or of what is decided after it.
        """
        may_rebuild, is_again = True, False
        pending = (
            self._undecided.pending_if_behind(newest, range_.ends) if self._undecided is not None else PendingFacts()
        )
        while True:
            self._read_policies()
            if self._policies.has_news or self._lacks_positions():
                self._commit([])  # what decisions name is known before they are
            snapshots = self._tasks.current_snapshots()
            self._on_step("policies-read", batch)
            range_ = range_.left(self._tracker.committed)
            worker, task = self._tasks.task(snapshots, self._budgets(range_), self._pending_facts(pending))
            committed = self._committed(range_.undecided)
            known = self._tasks.by_known_answers(task, snapshots, committed)
            evaluated = self._partitions.evaluate(records, worker, committed, range_.ends, known)
            if self._move(evaluated.of(MOVED)):
                continue
            self._check_results([result for result in evaluated.results if result.status != OK])
            needed = itertools.chain.from_iterable(side.needed for side in evaluated.side_outputs)
            moments = itertools.chain.from_iterable(side.moments for side in evaluated.side_outputs)
            with self._during("look up Avro schemas"):
                learned = self._encodings.learn(needed, self._stop)
            with self._during("rebuild policies of the past"):
                rebuilt = self._tasks.rebuild(moments)
            resolved = may_rebuild and self._tasks.resolve(evaluated)
            may_rebuild = False  # once for a batch: any producer may name any offsets
            missed = self._overlooked(evaluated, range_, newest, is_again)
            is_again = is_again or bool(missed)
            pending.update(missed)
            if not learned and not rebuilt and not resolved and not missed:
                return evaluated, task, snapshots[-1].version

    def _overlooked(
        self, evaluated: Evaluated, range_: OffsetRange, newest: PartitionOffsets, again: bool
    ) -> PendingFacts:
        """See `overlooked`. Kafka is asked for what is not decided only where any derived fact was read."""
        side_outputs = evaluated.side_outputs
        if self._undecided is None or not any(side.fact_reads for side in side_outputs):
            return PendingFacts()
        return overlooked(side_outputs, self._undecided.pending(newest, range_.decided(side_outputs)), again)

    def _read_policies(self) -> None:
        """Know everything that was acknowledged before now: without that there is no decision, however long it takes.

        Within a batch: before now is before or after its range was fixed, so no request in it is older than this.
        """
        since, before = self._outage.since or time.monotonic(), dict(self._policies.positions)
        while True:
            try:
                with self._during("read the policies and facts up to their end"):
                    self._policies.catch_up(ATTEMPT_SECONDS)
                break
            except (KafkaException, TimeoutError) as error:
                self._watch.health.policies_unread(since)
                if is_reachable(self._admin):  # only these topics cannot be read
                    self._alert_unread(before, since, self._outage.cause or self._explain(error))
                self._outage.wait("the policies and facts up to their end", error)
        self._watch.policies_read(len(self._policies.overlay))
        if self._outage.since is not None:
            self._alert_unread(before, since, self._outage.cause)

    def _explain(self, error: BaseException) -> str:
        return explain_refused(self._settings, error, enforcer_permissions(self._settings))

    def _alert_unread(self, positions: Mapping[Partition, int], since: float, why: str) -> None:
        """Once in an outage. `since`: monotonic, s."""
        if not self._outage.reported:
            alerts = self._stale.unread(positions, since, why)
            self._outage.reported = bool(alerts)
            self._alert(alerts)

    def _check_inputs(self) -> None:
        """Raise TopicChanged when what was evaluated may be of a re-created topic: offsets mean other records there.

        Once the records are read: a topic whose id is still the same was the same throughout.
        """
        with self._during("read the ids of the input topics"):
            ids = topic_ids(self._admin, self._inputs, RETRIED_SECONDS)
        check_logs(self._settings, self._logs, {topic: TopicLog(id_) for topic, id_ in ids.items()}, TopicChanged)

    def _await_inputs(self) -> None:
        """Check them, of a Kafka that answers late for as long as what was evaluated may still be written.

        Else a batch that took long would be evaluated again for each answer that is late.
        """
        until = time.monotonic() + ANSWER_SECONDS
        self._outage.retry(
            "the ids of the input topics",
            self._check_inputs,
            lambda error: is_unavailable(error) and time.monotonic() < until,
        )

    def _budgets(self, range_: OffsetRange) -> dict[Partition, Budget]:
        settings, limits = self._settings, self._settings.limits
        exceeding = max(settings.max_batch_bytes // (limits.record_in + limits.record_out), 1)
        seconds = min(BATCH_SECONDS, settings.transaction_timeout_seconds / 10)
        whole = Budget(max(int(settings.max_batch_bytes * self._limits.share), 1), seconds)
        return budgets_of(range_.undecided, whole, self._slots, self._limits.stalled, exceeding)

    def _pending_facts(self, passed_on: PendingFacts) -> PendingFacts | None:
        """Derived facts that are not on the facts topic yet. `passed_on`: by the batch under way."""
        if self._fact_lag is None:
            return None
        pending = self._fact_lag.pending(self._policies.facts_offset() + 1)
        pending.update(passed_on)
        return pending

    def _commit(self, results: Iterable[Result], starts: PartitionOffsets | None = None) -> None:
        """One transaction of the driver: these results, the pending records of the policies, the offsets of documents.

        Until it is committed. `starts`: of input partitions, to be committed where nothing is. The first offset is the
        driver's to commit, which names the owner (rule 1): no executor has had such a partition.
        """
        results, committed = tuple(results), False
        while not committed:
            said = self._policies.pending()
            self._tracker.unanalysed = self._policies.unanalysed()
            documents = {at: end for at, end in self._tracker.committed.items() if at[0] not in self._inputs}
            first = {at: start for at, start in (starts or {}).items() if at not in self._tracker.committed}
            offsets = self._tracker.to_commit({**documents, **self._policies.positions, **first})
            encoded = self._encodings.encoded(itertools.chain(said, results))
            try:
                self._output.publish(encoded, offsets, lambda: self._on_step("written", IDLE))
                committed = True
            except CannotWrite as error:
                committed = self._resume(error, offsets)
        self._tracker.advance(offsets)
        self._policies.published()
        self._watch.committed(said)
        self._tasks.tidy()
        self._last_commit = time.monotonic()

    def _commit_offsets(self, offsets: Mapping[Partition, int]) -> None:
        """Commit offsets of input partitions of which nothing is decided, by their transactional ids (rule 1)."""
        self._outage.retry("the offsets of idle partitions", lambda: self._try_to_commit(offsets))

    def _try_to_commit(self, offsets: Mapping[Partition, int]) -> None:
        left = {at: end for at, end in offsets.items() if self._tracker.committed.get(at, -1) <= end}
        to_commit = self._tracker.to_commit(left)
        results = self._partitions.commit_offsets(to_commit, self._committed(left))
        committed = {result.partition for result in results if result.status == OK}
        self._tracker.advance(tp for tp in to_commit if (tp.topic, tp.partition) in committed)
        self._idle.note_committed(left)
        self._move(result for result in results if result.status == MOVED)
        self._check_results([result for result in results if result.status not in (OK, MOVED)])

    def _resume(self, error: CannotWrite, offsets: Iterable[TopicPartition]) -> bool:
        """Write on with a new producer (rule 1), by the committed offsets (rule 2).

        Whether these offsets, of the transaction that failed, are committed all the same: then its answer was lost.
        """
        awaited = "a new producer and the committed offsets"
        self._outage.wait(awaited, error)
        self._outage.retry(awaited, self._output.reopen)
        group, partitions = self._output.group, [(tp.topic, tp.partition) for tp in offsets]
        committed = self._outage.retry(awaited, lambda: read_committed(group, partitions, RETRIED_SECONDS))
        return self._tracker.resume(committed, partitions)

    def _between_batches(self) -> None:
        """Also while there are no requests: policies are read and published, and offsets committed (rule 3)."""
        if not self._busy.acquire(timeout=IDLE_SECONDS):
            return
        try:
            if self._failure is not None:
                return  # a batch has failed, and the query ends by it: what is written now would hide the cause
            with self._noting_failure():
                self._read_policies()
                self._tasks.current_snapshots()
                self._tasks.current_facts()
                self._alert([*self._stale.stuck(), *self._heartbeats.due()])
                self._watch.health.stuck = self._stale.late
                overdue = time.monotonic() - self._last_commit > self._idle_commit_seconds
                if overdue or self._policies.has_news or self._lacks_positions():
                    self._commit([])
                self._commit_offsets(self._idle.overdue_alone(self._tracker.committed))
                self._outage.end()
        finally:
            self._busy.release()

    def _lacks_positions(self) -> bool:
        return self._tracker.lacks(self._policies.positions)

    def _alert(self, alerts: list[Result]) -> None:
        if alerts:
            self._commit(alerts)
            self._watch.committed(alerts)

    @contextlib.contextmanager
    def _noting_failure(self) -> Iterator[None]:
        try:
            yield
        except Exception as failure:
            self._failure = failure
            if self._ending:  # as in the monitor: Spark overflows Java's stack with the text of Java's own error
                raise Stopping("asked to stop within a batch") from None
            raise

    def _end(self, query: StreamingQuery) -> None:
        """Let the batch under way commit, if it does so soon, and stop the query."""
        in_order = self._busy.acquire(timeout=FINISH_SECONDS)
        self._ending = True
        if in_order:
            self._await_commit_log(query)
            self._busy.release()
        else:
            log.warning("the batch under way is given up; the next start decides it", after_seconds=FINISH_SECONDS)
            self._spark.sparkContext.cancelAllJobs()
        # Without the lock, for which a batch that begins just now would wait, and Spark for that batch.
        with contextlib.suppress(Exception):  # it may have failed, or not end in time
            query.stop()

    def _why_ended(self, query: StreamingQuery) -> Exception:
        """What to raise for a query that ended by itself."""
        if self._failure is None:
            with contextlib.suppress(KafkaException, TimeoutError):
                self._check_inputs()  # offsets that are gone end a query, with a message of Spark's that names no cause
        return self._failure or JobStopped(why_ended(query, self._settings))

    def _await_commit_log(self, query: StreamingQuery) -> None:
        """Stopping interrupts Spark where it stands: harmless to decisions, but not while it writes its log."""
        deadline = time.monotonic() + COMMIT_LOG_SECONDS
        while query.isActive and self._last_batch > self._checkpoint.completed() and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)

    def close(self) -> None:
        """Leave Kafka and the schema registry."""
        self._watch.remove_consumer_group(self._settings.job_name)
        self._policies.close()
        self._encodings.close()
        if self._fact_lag is not None:
            self._fact_lag.close()
        if self._undecided is not None:
            self._undecided.close()
