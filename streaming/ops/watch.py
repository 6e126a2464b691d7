"""What the job reports while it runs, and where: metrics, health, traces and the log."""

import contextlib
import time
from collections.abc import Iterable, Iterator

import structlog

from streaming.ops.health import Health, serving
from streaming.ops.metrics import Metrics, Step
from streaming.ops.queries import AnyRecord, MonitorWatch, QueryWatch
from streaming.ops.tally import Tally
from streaming.ops.telemetry import LINKS, Batch, Tracing, open_tracing
from streaming.ops.watchdog import SLOW_SECONDS, Watchdog
from streaming.settings import Settings

log = structlog.get_logger()

NO_BATCH = -1


class Watch(QueryWatch):
    """The job reports each event to it; one job at a time. What is counted is committed."""

    metrics: Metrics

    def __init__(self, settings: Settings, tracing: Tracing | None = None) -> None:
        health = Health(settings.policy_stale_seconds, progress_deadline=settings.progress_deadline_seconds)
        metrics = Metrics(settings, health)
        super().__init__(settings, health, Watchdog(health), metrics, settings.monitor.mode == "job")
        self._tracing, self._batch = tracing, Batch(NO_BATCH)

    @contextlib.contextmanager
    def batch(self, number: int) -> Iterator[None]:
        """A micro-batch; it is over when it is committed, or fails before."""
        batch = self._batch = Batch(number)
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
        batch.decided, batch.policy_version = True, version
        for tally in tallies:
            self.metrics.decided(tally, now, committed)
            for _, outcome, count in tally.outcomes:
                batch.counts[outcome] += count
            batch.counts["dead_letters"] += tally.dead_letters
            batch.traces += tally.traces[: LINKS - len(batch.traces)]

    def _finish(self, batch: Batch) -> None:
        steps = list(batch.lasted())
        seconds, records = sum(took for _, took in steps), batch.counts.total()
        self.metrics.batch(seconds, steps, records)
        self._trace(batch)
        counts = {name: count for name, count in sorted(batch.counts.items()) if count}
        slow = {"steps": {step: round(took, 1) for step, took in steps}} if seconds >= SLOW_SECONDS else {}
        log.info(
            "batch decided",
            batch=batch.number,
            policy_version=batch.policy_version,
            records=records,
            seconds=round(seconds, 4),
            **counts,
            **slow,
        )

    def _trace(self, batch: Batch, failure: Exception | None = None) -> None:
        if self._tracing is not None:
            self._tracing.batch(batch, failure)

    def partition_committed(self, executor: str, seconds: float) -> None:
        """The transaction of an input partition is committed, on this executor, which took so long."""
        self.metrics.partition_committed(executor, seconds)
        self.metrics.committed()

    def committed(self, records: Iterable[AnyRecord]) -> None:
        """A transaction of the driver is committed; `records`: its records, alerts among them."""
        self.metrics.committed()
        self.alerted(records)

    def policies_read(self, facts: int) -> None:
        """The policies were read up to their end, and so many documents of facts are known."""
        self.health.policies_read()
        self.metrics.policies_read(facts)


@contextlib.contextmanager
def observing(settings: Settings) -> Iterator[Watch]:
    """Yield what `streaming.enforcer.job.run` reports its progress to; its endpoint is open as long as the context.

    Raises SettingsError when the endpoint's address is taken, or tracing is on and not installed.
    """
    tracing = open_tracing(settings.tracing, settings.job_name)
    with contextlib.closing(tracing) if tracing else contextlib.nullcontext():
        watch = Watch(settings, tracing)
        with serving(settings.metrics, watch.metrics.registry, watch.health), _logging_the_end("the job ended"):
            yield watch


@contextlib.contextmanager
def observing_monitor(settings: Settings) -> Iterator[MonitorWatch]:
    """The same for `streaming.application.run_monitor`."""
    watch = MonitorWatch(settings)
    with serving(settings.metrics, watch.metrics.registry, watch.health), _logging_the_end("the monitor ended"):
        yield watch


@contextlib.contextmanager
def _logging_the_end(event: str) -> Iterator[None]:
    """The log alone must say why it ended, such as `Fenced`."""
    try:
        yield
    except Exception as failure:
        log.error(event, reason=type(failure).__name__, why=str(failure))
        raise
    log.info(event, reason="asked to stop")
