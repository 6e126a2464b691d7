"""The monitor's query run again and again: within a job, and as an application of its own."""

import contextlib
import functools
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

import structlog
from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from streaming.commit.offsets import IDLE_COMMIT_SECONDS
from streaming.commit.transaction import is_unavailable
from streaming.errors import Fenced, JobStopped
from streaming.kafka.manifests import monitor_permissions
from streaming.kafka.permissions import explain_refused
from streaming.monitor.query import MonitorObserver, MonitorQuery, is_permanent, monitor_session
from streaming.ops.queries import ProgressListener, QueryWatch, check_executors
from streaming.records.formats import shorten
from streaming.runtime.executors import describe_spark
from streaming.settings import Settings, monitor_settings, unrecorded_systems

log = structlog.get_logger()

FIRST_PAUSE, LONGEST_PAUSE = 2.0, 60.0
LATEST_START = 10.0  # s
STEADY_SECONDS = 10.0  # after a failure: what ran for so long runs again
POLL_SECONDS = 0.2
END_SECONDS = 5.0  # of waiting for its end when the enforcer has ended
REASON_CHARACTERS = 1000  # of what Spark says, which may be whole plans
# A leader is elected within `broker.session.timeout.ms`, 9 s, and a broker restarts within a minute.
LONGEST_KAFKA_PAUSE = 5.0
QUIET_SECONDS = 60.0


class MonitorRuns:
    """Runs of the query, one after another. A fault of Kafka's that may pass ends a run and is no failure.

    Such a run is started again soon. The log has a line when that begins, another one when it has lasted for
    `QUIET_SECONDS`, and then the monitor counts as not running. `is_ending`: whether it is to end, which ends any wait.
    """

    def __init__(
        self,
        settings: Settings,
        spark: SparkSession,
        is_ending: Callable[[], bool],
        on_step: MonitorObserver,
        watch: QueryWatch,
    ) -> None:
        self._settings, self._spark, self._is_ending = settings, spark, is_ending
        self._on_step, self._watch = on_step, watch
        self._waits_since: float | None = None
        self._pause = FIRST_PAUSE
        self.reported = False  # that it does not run, and since then it has not run for long

    def note_failure(self) -> None:
        """Another kind of failure is reported: the next run has to be steady before it counts as running."""
        self.reported = True
        self._watch.monitor_runs(False)

    def until_failure(self, each_look: Callable[[], None] = lambda: None) -> Exception | None:
        """Run it until it fails, and return by what; None: it is to end. `each_look`: called all the time."""
        while True:
            failure, may_pass = self._run_once(each_look)
            if failure is None or self._is_ending():
                return None
            if not may_pass:
                return failure
            self._wait_for_kafka(failure)

    @functools.cached_property
    def _session(self) -> SparkSession:
        """One for all runs: Spark keeps the listeners of each."""
        session = monitor_session(self._spark, self._settings)
        session.streams.addListener(ProgressListener(self._watch.monitored))
        return session

    def _run_once(self, each_look: Callable[[], None]) -> tuple[Exception | None, bool]:
        """What ended a run, and whether that is a fault of Kafka's that may pass; None: it is to end."""
        try:
            with contextlib.closing(MonitorQuery(self._settings, self._session, self._on_step, self._watch)) as monitor:
                query = monitor.start()
                self._watch.follow_monitor(monitor.waiting, lambda: describe_spark(self._spark))
                try:
                    self._await_end(monitor, query, each_look)
                finally:
                    monitor.stop(query)
                if self._is_ending():
                    return None, False
                may_pass = monitor.failed_by_kafka(query)
                return monitor.cause(query, may_pass), may_pass
        except Exception as failure:  # whatever it is: decisions go on
            return failure, is_unavailable(failure) and not is_permanent(failure)

    def _await_end(self, monitor: MonitorQuery, query: StreamingQuery, each_look: Callable[[], None]) -> None:
        """Return when the query has ended, or is to end."""
        steady_at = time.monotonic() + STEADY_SECONDS
        if not self.reported:
            self._watch.monitor_runs(True)
        while query.isActive and not self._is_ending():
            if time.monotonic() >= steady_at:
                self._note_steady()
            monitor.commit_when_idle()
            each_look()
            time.sleep(POLL_SECONDS)

    def _note_steady(self) -> None:
        if self.reported or self._waits_since is not None:
            log.info("the monitor runs again")
        self.reported, self._waits_since, self._pause = False, None, FIRST_PAUSE
        self._watch.monitor_runs(True)
        self._watch.monitor_waits(None)

    def _wait_for_kafka(self, failure: Exception) -> None:
        error = reason_of(failure)
        self._waits_since, is_first = self._waits_since or time.monotonic(), self._waits_since is None
        waited = time.monotonic() - self._waits_since
        self._watch.monitor_waits(self._waits_since)
        if waited >= QUIET_SECONDS and not self.reported:
            self.note_failure()
            log.warning("the monitor has waited long for Kafka", seconds=round(waited, 1), error=error)
        else:
            note = log.info if is_first else log.debug
            note("the monitor waits for Kafka", error=error)
        sleep_until(self._pause, self._is_ending)
        self._pause = min(2 * self._pause, LONGEST_KAFKA_PAUSE)


def reason_of(failure: Exception) -> str:
    """What a run failed by, in a line."""
    name = "" if isinstance(failure, JobStopped) else f"{type(failure).__name__}: "
    return shorten(f"{name}{failure}".partition("=== Streaming Query ===")[0].strip(), REASON_CHARACTERS)


def sleep_until(seconds: float, is_ending: Callable[[], bool]) -> None:
    """Sleep, unless it is to end."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and not is_ending():
        time.sleep(POLL_SECONDS)


def warn_of_unrecorded(settings: Settings) -> None:
    """Log the systems of which accesses cannot be compared with requests."""
    for system in unrecorded_systems(settings):
        log.warning("unrequested-access is off: not all answers over HTTP are recorded (serve.record)", system=system)


def run_alone(settings: Settings, spark: SparkSession, stop: threading.Event, watch: QueryWatch) -> None:
    """Run the monitor until `stop` is set. Raises what it failed by, as the job does: its supervisor starts it again.

    While Kafka is unavailable it waits.
    """
    warn_of_unrecorded(settings)
    ensure_callback_server_started(spark.sparkContext._gateway)  # type: ignore[no-untyped-call]
    runs = MonitorRuns(settings, spark, stop.is_set, lambda _step, _batch: None, watch)
    failure = runs.until_failure(lambda: check_executors(spark, settings, watch.health))
    watch.monitor_runs(False)
    if failure is not None:
        raise failure


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
        watch: QueryWatch,
        idle_commit_seconds: float = IDLE_COMMIT_SECONDS,
    ) -> None:
        self._settings, self._spark, self._idle_commit_seconds = settings, spark, idle_commit_seconds
        self._stop, self._decided, self._job_ended = stop, decided, threading.Event()
        self._runs = MonitorRuns(settings, spark, self._is_ending, on_step, watch)
        self._thread = threading.Thread(target=self._run, name="monitor", daemon=True)
        self._reason = ""  # of the failure that was logged last

    def __enter__(self) -> Self:
        """Begin to start it."""
        if self._settings.monitor.mode == "job":
            warn_of_unrecorded(self._settings)
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
        sleep_until(LATEST_START, lambda: self._decided.is_set() or self._is_ending())
        while not self._is_ending():
            began = time.monotonic()
            failure = self._runs.until_failure()
            if failure is None or self._is_ending():
                return
            pause = FIRST_PAUSE if time.monotonic() - began > LONGEST_PAUSE else pause
            self._note(failure)
            # By then an enforcer that was fenced too has ended; else the monitors of two instances fence each other.
            fenced_pause = 2 * self._idle_commit_seconds if isinstance(failure, Fenced) else 0.0
            sleep_until(max(pause, fenced_pause), self._is_ending)
            pause = min(2 * pause, LONGEST_PAUSE)

    def _note(self, failure: Exception) -> None:
        """One line for a failure; the same one again is no news."""
        reason = reason_of(failure)
        is_known = reason == self._reason and self._runs.reported
        note = log.debug if is_known else log.error
        needed = monitor_permissions(self._settings)
        note(
            "the monitor failed; decisions go on, and it is started again",
            error=reason if is_known else explain_refused(self._settings, reason, needed),
            checkpoint=monitor_settings(self._settings).checkpoint,
        )
        self._reason = reason
        self._runs.note_failure()

    def _is_ending(self) -> bool:
        return self._stop.is_set() or self._job_ended.is_set()
