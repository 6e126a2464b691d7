"""What the job reports while it runs, and where: metrics, health, traces and the log."""

import contextlib
import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, TypeVar

import msgspec
import structlog
from prometheus_client import CollectorRegistry, Gauge
from pyspark.sql.streaming.listener import StreamingQueryListener

from streaming.ops.health import Health, serving
from streaming.ops.metrics import Lags, Metrics, Step
from streaming.ops.tally import OTHER, Compared, Compiled, Tally
from streaming.ops.telemetry import LINKS, BatchTrace, Tracing, open_tracing
from streaming.ops.watchdog import SLOW_SECONDS, Watchdog
from streaming.records.avro import Undecodable, own_json
from streaming.settings import Settings

Progress = Mapping[str, Any]


class QueryState(msgspec.Struct, frozen=True):
    """A stateful query's state after a trigger. `watermark`: Unix time, s; None: it has none yet."""

    rows: int
    bytes: int
    watermark: float | None


def observe_progress(progress: Progress) -> QueryState:
    """What a StreamingQueryProgress says of state, over all stateful operators of the query."""
    operators = progress.get("stateOperators") or ()
    watermark = (progress.get("eventTime") or {}).get("watermark")
    return QueryState(
        rows=sum(int(operator.get("numRowsTotal", 0)) for operator in operators),
        bytes=sum(map(_bytes, operators)),
        watermark=datetime.fromisoformat(watermark).timestamp() if watermark else None,
    )


def _bytes(operator: Mapping[str, Any]) -> int:
    files = (operator.get("customMetrics") or {}).get("rocksdbSstFileSize", 0)
    return int(operator.get("memoryUsedBytes", 0)) + int(files)


def summary(progress: Progress) -> dict[str, Any]:
    """The part of a progress report that shows where time goes; offsets are in Kafka."""
    fields = {
        "query": progress.get("name"),
        "batch": progress.get("batchId"),
        "rows": progress.get("numInputRows"),
        "rows_per_second": progress.get("processedRowsPerSecond"),
        "milliseconds": progress.get("durationMs"),
        "state": progress.get("stateOperators") or None,
    }
    return {name: value for name, value in fields.items() if value is not None}


class MonitorMetrics:
    """The metrics of the monitor's query, on the registry given."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._running = Gauge(
            "lockkeeper_monitor_running", "1: the monitor's query runs, 0: it failed and waits.", registry=registry
        )
        self._rows = Gauge("lockkeeper_monitor_state_rows", "Rows of the monitor's state.", registry=registry)
        self._bytes = Gauge(
            "lockkeeper_monitor_state_bytes",
            "The monitor's state, in memory and in RocksDB's files.",
            registry=registry,
        )
        self._watermark = Gauge(
            "lockkeeper_monitor_watermark_seconds",
            "The monitor's watermark, Unix time: up to then all events are taken to be seen. 0: none yet.",
            registry=registry,
        )

    def runs(self, running: bool) -> None:
        """Note that the query runs, or not."""
        self._running.set(running)

    def observe(self, progress: Progress) -> None:
        """Note the state in a progress report."""
        state = observe_progress(progress)
        self._rows.set(state.rows)
        self._bytes.set(state.bytes)
        self._watermark.set(state.watermark or 0)


class ProgressListener(StreamingQueryListener):
    """Passes on each progress of every query of a session."""

    def __init__(self, report: Callable[[Progress], None]) -> None:
        self._report = report

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802  the names are Spark's
        """Nothing to report: the job does."""

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        """Pass it on."""
        self._report(json.loads(event.progress.json))

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        """Nothing to report: the job does."""


log = structlog.get_logger()

NO_BATCH = -1
DIFFERENCES_LOGGED = 5  # of a micro-batch


AnyRecord = TypeVar("AnyRecord", bound=tuple[str, bytes | None, bytes | None, Any])
"""Topic, key, value and headers of a record that the job writes."""


def _difference(live: bytes, candidate: bytes) -> dict[str, Any]:
    """Of two decisions on one request: who asked for what, and both answers with their first reasons."""
    now, then = (msgspec.json.decode(record)["context"] for record in (live, candidate))
    why = {name: context["reasons"][0]["message"] for name, context in (("because", now), ("candidate_because", then))}
    return {"request": now.get("request"), "live": now["outcome"], "candidate": then["outcome"], **why}


class _Batch:
    """A micro-batch under way. Times in ns since the epoch."""

    def __init__(self, number: int) -> None:
        self.number, self.began = number, time.time_ns()
        self.steps: list[tuple[Step, int]] = []
        self.decided = False
        self.counts: Counter[str] = Counter()
        self.version = ""
        self.traces: list[str] = []
        self.decisions: list[bytes] = []

    def lasted(self) -> Iterator[tuple[Step, float]]:
        """Each step and how long it took, s."""
        before = self.began
        for step, at in self.steps:
            yield step, (at - before) / 1e9
            before = at


class Watch:
    """The job reports each event to it; one job at a time. What is counted is committed."""

    def __init__(self, settings: Settings, tracing: Tracing | None = None) -> None:
        self.health = Health(settings.policy_stale_seconds, progress_deadline=settings.progress_deadline_seconds)
        self.watchdog = Watchdog(self.health)
        self.metrics = Metrics(settings, self.health)
        self._monitor = MonitorMetrics(self.metrics.registry) if settings.monitor.enabled else None
        self._tracing = tracing
        self._topics, self._name = settings.topics, settings.job_name
        self.logs_decisions = settings.log.decisions and settings.log.level == "debug"
        self._batch = _Batch(NO_BATCH)

    @contextlib.contextmanager
    def batch(self, number: int) -> Iterator[None]:
        """A micro-batch; it is over when it is committed, or fails before."""
        batch = self._batch = _Batch(number)
        try:
            yield
        except Exception as failure:
            if not batch.decided:
                self._trace(batch, failure)
            raise

    def step(self, step: Step, batch: int) -> None:
        """A step of a batch is done; what is written between batches has none."""
        if batch == self._batch.number and batch != NO_BATCH:
            self._batch.steps.append((step, time.time_ns()))
            if self._batch.decided:
                self._finish(self._batch)

    def decided(self, tallies: Iterable[Tally], now: int, version: str) -> None:
        """The batch's decisions are committed; its last step follows. `now`: the clock of its tallies, ms."""
        batch, committed = self._batch, time.time_ns() // 1_000_000
        self.watchdog.decided()
        batch.decided, batch.version = True, version
        for tally in tallies:
            self.metrics.decided(tally, now, committed)
            for _, outcome, count in tally.outcomes:
                batch.counts[outcome] += count
            batch.counts["dead_letters"] += tally.dead_letters
            batch.traces += tally.traces[: LINKS - len(batch.traces)]

    def decisions(self, records: Iterable[bytes]) -> None:
        """Decision records of the batch that is committed, each of which is to be logged."""
        self._batch.decisions += records

    def compared(self, found: Iterable[Compared]) -> None:
        """What a candidate would have answered in the batch that is committed; a few differences are logged."""
        shown = 0
        for compared in found:
            self.metrics.compared(compared.counts)
            for live, candidate in compared.samples[: DIFFERENCES_LOGGED - shown]:
                shown += 1
                log.info("the candidate differs", **_difference(live, candidate))

    def _finish(self, batch: _Batch) -> None:
        steps = list(batch.lasted())
        seconds, records = sum(took for _, took in steps), batch.counts.total()
        self.metrics.batch(seconds, steps, records)
        self._trace(batch)
        counts = {name: count for name, count in sorted(batch.counts.items()) if count}
        fields = {"batch": batch.number, "policy_version": batch.version}
        slow = {"steps": {step: round(took, 1) for step, took in steps}} if seconds >= SLOW_SECONDS else {}
        log.info("batch decided", **fields, records=records, seconds=round(seconds, 4), **counts, **slow)
        for decision in filter(None, map(read_decision, batch.decisions)):
            log.debug("decision", **fields, decision=decision.id, outcome=decision.context.outcome)

    def _trace(self, batch: _Batch, failure: Exception | None = None) -> None:
        if self._tracing is not None:
            trace = BatchTrace(self._name, batch.number, batch.began, batch.steps, batch.version, batch.counts)
            self._tracing.batch(trace, batch.traces, failure)

    def committed(self, records: Iterable[AnyRecord]) -> None:
        """A transaction of the enforcer is committed; `records`: its records, alerts among them."""
        self.metrics.committed(time.time())
        self.alerted(records)

    def alerted(self, records: Iterable[AnyRecord]) -> None:
        """Records are committed, among which may be alerts."""
        for topic, _, value, _ in records:
            if topic == self._topics.alerts and value is not None:
                self.metrics.alerted(kind_of(value))

    def dropped(self, topic: str) -> None:
        """A record for a topic was too large for Kafka and was left out."""
        self.metrics.dropped(topic)

    def policies_read(self, facts: int) -> None:
        """The policies were read up to their end, and so many documents of facts are known."""
        self.health.policies_read()
        self.metrics.policies_read(time.time(), facts)

    def policies_unread(self, since: float) -> None:
        """They could not be read since then (Unix time, s)."""
        self.health.policies_unread(since)

    def waits_for_kafka(self, since: float | None) -> None:
        """Kafka is unavailable since then (Unix time, s); None: it is available."""
        self.health.waits_since = since

    def policies_stuck(self, partitions: int) -> None:
        """So many partitions of theirs are hidden by a transaction for too long."""
        self.health.stuck = partitions

    def compiled(self, compilation: Compiled) -> None:
        """There is a new snapshot."""
        self.metrics.compiled(compilation)

    def broadcast(self) -> None:
        """A snapshot was sent to the workers."""
        self.metrics.broadcast()

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """The query runs while the context is open."""
        log.info("the query runs")
        self.health.running = True
        try:
            yield
        finally:
            self.health.running = False

    def add_consumer_group(self, group: str, lags: Lags) -> None:
        """From now on, `lags` returns the lag of the consumer groups."""
        self.metrics.lag.groups[group] = lags

    def remove_consumer_group(self, group: str) -> None:
        """The lag is no longer known."""
        self.metrics.lag.groups.pop(group, None)

    def progress(self, progress: Progress) -> None:
        """Spark reports the progress of a trigger."""
        log.debug("progress", **summary(progress))

    def monitored(self, progress: Progress) -> None:
        """Spark reports the progress of a trigger of the monitor's query."""
        self.progress(progress)
        if self._monitor is not None:
            self._monitor.observe(progress)

    def monitor_runs(self, running: bool) -> None:
        """The monitor's query runs, or does not: it has no part in readiness, as decisions do not wait for it."""
        if self._monitor is not None:
            self._monitor.runs(running)


@contextlib.contextmanager
def observing(settings: Settings) -> Iterator[Watch]:
    """Yield what `streaming.enforcer.job.run` reports its progress to; its endpoint is open as long as the context.

    Raises SettingsError when the endpoint's address is taken, or tracing is on and not installed.
    """
    tracing = open_tracing(settings.tracing, settings.job_name)
    with contextlib.closing(tracing) if tracing else contextlib.nullcontext():
        watch = Watch(settings, tracing)
        with serving(settings.metrics, watch.metrics.registry, watch.health), _logging_the_end():
            yield watch


@contextlib.contextmanager
def _logging_the_end() -> Iterator[None]:
    """The log alone must say why the job ended, such as `Fenced`."""
    try:
        yield
    except Exception as failure:
        log.error("the job ended", reason=type(failure).__name__, why=str(failure))
        raise
    log.info("the job ended", reason="asked to stop")


class _Alert(msgspec.Struct):
    kind: str


class _Context(msgspec.Struct):
    outcome: str


class LoggedDecision(msgspec.Struct):
    """The part of a decision record that no client wrote."""

    id: str
    context: _Context


_alert = msgspec.json.Decoder(_Alert).decode
_decision = msgspec.json.Decoder(LoggedDecision).decode


def kind_of(alert: bytes) -> str:
    """An alert's kind; `other` when it cannot be read."""
    try:
        return _alert(alert).kind
    except msgspec.DecodeError:
        return OTHER


def read_decision(record: bytes) -> LoggedDecision | None:
    """A decision's id and outcome; None when they cannot be read."""
    try:
        return _decision(own_json("decision", record))
    except (msgspec.DecodeError, Undecodable):
        return None
