"""Records that show the monitor that time goes on while there is nothing to decide."""

import time

from streaming.records.audit import Heartbeat, encode_verdict
from streaming.records.formats import JSON_HEADERS, Result
from streaming.settings import Settings


class Heartbeats:
    """Started by each batch; it writes heartbeats until the monitor has nothing left to wait for."""

    def __init__(self, settings: Settings) -> None:
        monitor = settings.monitor
        self._topic, self._every = settings.topics.verdicts, monitor.tick_seconds
        self._runs_for = monitor.longest_wait_seconds if monitor.mode != "none" else 0.0
        self._until = self._next = time.monotonic()
        self.start()  # a run before this one may have left something

    def start(self) -> None:
        """Note that a batch was written, which itself shows the time."""
        now = time.monotonic()
        self._until, self._next = now + self._runs_for, now + self._every

    def due(self) -> list[Result]:
        """The heartbeat to write now, if any."""
        now = time.monotonic()
        if not self._next <= now < self._until:
            return []
        self._next = now + self._every
        return [(self._topic, None, encode_verdict(Heartbeat(time=time.time_ns() // 1_000_000)), JSON_HEADERS)]
