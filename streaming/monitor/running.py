"""The monitor beside the enforcer: started, started again when it failed, and stopped with the job."""

import time
from types import TracebackType
from typing import Self

import structlog
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from streaming.enforcer.errors import JobStopped
from streaming.monitor.query import MonitorObserver, MonitorQuery
from streaming.observability.watch import Watch
from streaming.settings import Settings

log = structlog.get_logger()

FIRST_PAUSE, LONGEST_PAUSE = 2.0, 60.0


class RunningMonitor:
    """The monitor while a job runs. Its failures do not stop decisions; being fenced does, for both are then."""

    def __init__(self, settings: Settings, spark: SparkSession, on_step: MonitorObserver, watch: Watch) -> None:
        self._settings, self._spark, self._on_step, self._watch = settings, spark, on_step, watch
        self._monitor: MonitorQuery | None = None
        self._query: StreamingQuery | None = None
        self._pause, self._again_at = FIRST_PAUSE, 0.0

    def __enter__(self) -> Self:
        """Start it; raises CannotStart when offsets and checkpoint do not fit together."""
        if self._settings.monitor.enabled:
            self._start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._stop()

    def _start(self) -> None:
        self._monitor = MonitorQuery(self._settings, self._spark, self._on_step, self._watch)
        self._query = self._monitor.start()
        self._watch.monitor_runs(True)

    def check(self) -> None:
        """Start it again when it has failed, after a pause that grows; raises JobStopped when it must not run."""
        if not self._settings.monitor.enabled or (self._query is not None and self._query.isActive):
            return
        if self._query is not None:
            self._note_failure()
        elif time.monotonic() >= self._again_at:
            self._try_again()

    def _note_failure(self) -> None:
        failure = self._monitor.failure if self._monitor is not None else None
        error = failure or (self._query.exception() if self._query is not None else None)
        self._stop()
        if isinstance(failure, JobStopped):
            raise failure
        log.error("the monitor failed; decisions go on, and it is started again", error=str(error), after=self._pause)
        self._again_at = time.monotonic() + self._pause
        self._pause = min(2 * self._pause, LONGEST_PAUSE)

    def _try_again(self) -> None:
        try:
            self._start()
        except JobStopped:
            raise
        except Exception as error:  # Kafka may not answer: then again later
            log.error("the monitor could not be started", error=str(error), after=self._pause)
            self._stop()
            self._again_at = time.monotonic() + self._pause

    def _stop(self) -> None:
        query, monitor, self._query, self._monitor = self._query, self._monitor, None, None
        self._watch.monitor_runs(False)
        if monitor is not None:
            if query is not None:
                monitor.stop(query)
            monitor.close()
