"""What every application reports while its queries run: health, metrics and the log."""

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, TypeVar

import msgspec
import structlog
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener

from streaming.errors import JobStopped
from streaming.ops.health import Health, MonitorHealth
from streaming.ops.metrics import JobMetrics, Lags
from streaming.ops.tally import OTHER
from streaming.ops.watchdog import NOTHING_READ, Describe, Waiting, Watchdog
from streaming.records.alert import read_alert
from streaming.runtime.executors import count_executors
from streaming.settings import Settings, monitor_settings

log = structlog.get_logger()

Progress = Mapping[str, Any]


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
    """The metrics of the monitor's query, beside those of its application."""

    def __init__(self, metrics: JobMetrics) -> None:
        self._running = metrics.gauge(
            "lockkeeper_monitor_running",
            "1: the monitor's query runs, 0: it failed, or has waited for Kafka for a minute.",
        )
        self._rows = metrics.gauge("lockkeeper_monitor_state_rows", "Rows of the monitor's state.")
        self._bytes = metrics.gauge(
            "lockkeeper_monitor_state_bytes", "The monitor's state, in memory and in RocksDB's files."
        )
        self._watermark = metrics.gauge(
            "lockkeeper_monitor_watermark_seconds",
            "The monitor's watermark, Unix time: up to then all events are taken to be seen. 0: none yet.",
        )

    def runs(self, running: bool) -> None:
        """Note that the query runs, or not."""
        self._running.set(running)

    def observe(self, progress: Progress) -> None:
        """Note what a StreamingQueryProgress says of state, over all stateful operators of the query."""
        operators = progress.get("stateOperators") or ()
        watermark = (progress.get("eventTime") or {}).get("watermark")
        self._rows.set(sum(int(operator.get("numRowsTotal", 0)) for operator in operators))
        self._bytes.set(sum(map(_bytes, operators)))
        self._watermark.set(datetime.fromisoformat(watermark).timestamp() if watermark else 0)


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


AnyRecord = TypeVar("AnyRecord", bound=tuple[str, bytes | None, bytes | None, Any])
"""Topic, key, value and headers of a record that the job writes."""


class QueryWatch:
    """What queries report each event to. `monitor`: whether that of the monitor is among them."""

    def __init__(self, settings: Settings, health: Health, watchdog: Watchdog, metrics: JobMetrics, monitor: bool):
        self.health, self.watchdog, self.metrics = health, watchdog, metrics
        self._monitor = MonitorMetrics(metrics) if monitor else None
        self._alerts = settings.topics.alerts

    def alerted(self, records: Iterable[AnyRecord]) -> None:
        """Records are committed, among which may be alerts."""
        for topic, _, value, _ in records:
            if topic == self._alerts and value is not None:
                self.metrics.alerted(kind_of(value))

    def waits_for_kafka(self, since: float | None) -> None:
        """Kafka is unavailable since then (monotonic, s); None: it is available."""
        self.health.waits_since = since

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

    def monitor_waits(self, since: float | None) -> None:
        """The monitor waits for Kafka since then (monotonic, s); None: it does not."""

    def monitor_committed(self) -> None:
        """The monitor has committed a batch."""

    def follow_monitor(self, waiting: Waiting, describe: Describe) -> None:
        """How many records the monitor has yet to read, and what else to log of where it stands."""


class MonitorWatch(QueryWatch):
    """The monitor as an application of its own reports to it: it is ready while its query runs."""

    def __init__(self, settings: Settings) -> None:
        health = MonitorHealth(progress_deadline=settings.progress_deadline_seconds)
        metrics = JobMetrics(monitor_settings(settings).job_name)
        super().__init__(settings, health, Watchdog(health, stalled=NOTHING_READ), metrics, monitor=True)

    def monitor_runs(self, running: bool) -> None:
        """It is ready while it does."""
        if running and not self.health.running:
            log.info("the monitor runs")
        super().monitor_runs(running)
        self.health.running = running

    def monitor_waits(self, since: float | None) -> None:
        """It is not ready meanwhile."""
        self.waits_for_kafka(since)

    def follow_monitor(self, waiting: Waiting, describe: Describe) -> None:
        """The watchdog looks at it."""
        self.watchdog.follow(waiting, describe)

    def monitor_committed(self) -> None:
        """It makes progress."""
        self.watchdog.decided()


def check_executors(spark: SparkSession, settings: Settings, health: Health) -> None:
    """Raise JobStopped when Spark has had no executors for too long.

    A standalone master that was restarted without `spark.deploy.recoveryMode` does not know the application: its
    workers end the executors, none is started again, and the driver waits for them without end.
    """
    health.executors(count_executors(spark))
    if (seconds := health.without_executors()) >= settings.progress_deadline_seconds:
        raise JobStopped(
            f"Spark has had no executors for {seconds:.0f} s. If the master {settings.master} was restarted "
            "without spark.deploy.recoveryMode, it forgot the application, and the next start of the job registers "
            "it. If this was the first start, check that the workers have enough free cores and memory, and can "
            "reach the driver"
        )


def kind_of(alert: bytes) -> str:
    """An alert's kind; `other` when it cannot be read."""
    try:
        return read_alert(alert).kind
    except msgspec.DecodeError:
        return OTHER
