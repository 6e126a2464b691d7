"""Records that show the monitor that time goes on while there is nothing to decide."""

import time

from streaming.records.audit import LAG_REPEATED_SECONDS, Heartbeat, encode_verdict
from streaming.records.formats import JSON_HEADERS, Result
from streaming.settings import Settings

REPORT_KEY = b"answers"
# Each report changes all of the monitor's state, which takes about 5 s (two cores, 2026-11-29). Where batches are
# decided in parts, answered records are left and caught up with every few seconds.
STEADY_SECONDS = 15.0


class Heartbeats:
    """Started by each batch; it writes heartbeats until the monitor has nothing left to wait for."""

    def __init__(self, settings: Settings) -> None:
        monitor = settings.monitor
        self._topic, self._every = settings.topics.verdicts, monitor.tick_seconds
        self._runs_for = monitor.longest_wait_seconds if monitor.mode != "none" else 0.0
        self._has_answered = bool(settings.topics.answered) and monitor.mode != "none"
        # None: not known before the first batch, and a run before this one may have reported either.
        self._answered_lag: bool | None = None
        self._reported: bool | None = None
        self._lagged = self._reported_at = time.monotonic()
        self._until = self._next = time.monotonic()
        self.start()  # a run before this one may have left something

    def start(self) -> None:
        """Note that a batch was written, which itself shows the time."""
        now = time.monotonic()
        self._until, self._next = now + self._runs_for, now + self._every

    def due(self) -> list[Result]:
        """The heartbeat and the report on answered records to write now, if any."""
        now = time.monotonic()
        reports = self._lag_report(now)
        if self._next <= now < self._until:
            self._next = now + self._every
            reports.append(self._record())
        return reports

    def note_answered_lag(self, lag: bool) -> list[Result]:
        """Note whether answered records are left to decide; the report to write now, if any.

        Without it, accesses that rest on them would be accused: after a stop, those topics are caught up with first
        that have fewer records, such as those of audit events.
        """
        now = time.monotonic()
        self._answered_lag = lag
        if lag:
            self._lagged = now
        return self._lag_report(now)

    def _lag_report(self, now: float) -> list[Result]:
        is_certain = self._answered_lag or now >= self._lagged + STEADY_SECONDS
        is_news = self._answered_lag != self._reported and is_certain
        is_repeated = self._reported and now >= self._reported_at + LAG_REPEATED_SECONDS
        if not self._has_answered or not (is_news or is_repeated):
            return []
        if is_news:
            self._reported = self._answered_lag
        self._reported_at = now
        return [self._record(self._reported)]

    def _record(self, answered_lag: bool | None = None) -> Result:
        """Reports have one key, so that they come to one partition, in order."""
        heartbeat = Heartbeat(time=time.time_ns() // 1_000_000, answered_lag=answered_lag)
        return self._topic, None if answered_lag is None else REPORT_KEY, encode_verdict(heartbeat), JSON_HEADERS
