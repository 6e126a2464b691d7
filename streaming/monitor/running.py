"""The monitor beside the enforcer: started, started again when it failed, and stopped with the job."""

import contextlib
import functools
import threading
import time
from types import TracebackType
from typing import Self

import structlog
from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from streaming.errors import Fenced, JobStopped
from streaming.monitor.query import MonitorObserver, MonitorQuery, monitor_session
from streaming.ops.watch import ProgressListener, Watch
from streaming.records.formats import shorten
from streaming.settings import Settings, monitor_settings

log = structlog.get_logger()

FIRST_PAUSE, LONGEST_PAUSE = 2.0, 60.0
LATEST_START = 10.0  # s
STEADY_SECONDS = 10.0  # after a failure: what ran for so long runs again
POLL_SECONDS = 0.2
END_SECONDS = 5.0  # of waiting for its end when the enforcer has ended
REASON_CHARACTERS = 1000  # of what Spark says, which may be whole plans


class RunningMonitor:
    """The monitor while a job runs, on a thread of its own: nothing that happens to it keeps decisions waiting.

    It is started again, after a pause that grows, whatever it failed by. Where another instance of the job fenced it,
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
