"""Whether the job is fit to decide, by its last report: what `/readyz` and the gauges of readiness say."""

import time
from collections.abc import Callable, Iterator


class Health:
    """Written by the job's threads, read by the server's: each field is replaced as a whole.

    `bound`: seconds for which the policies may stay unread. `clock`: Unix time, s.
    """

    def __init__(self, bound: float, clock: Callable[[], float] = time.time) -> None:
        self._bound, self._clock = bound, clock
        self.running = False
        self.stuck = 0
        self.waits_since: float | None = None
        self._read = False
        self._unread_since: float | None = None

    def policies_read(self) -> None:
        """They were read up to their end."""
        self._read, self._unread_since = True, None

    def policies_unread(self, since: float) -> None:
        """They cannot be read since then (Unix time, s)."""
        self._unread_since = since

    def stale(self) -> bool:
        """Whether policies may have been published that the job could not read for longer than the bound.

        A long batch is not staleness: it is decided under the policies read for it.
        """
        waits = [since for since in (self._unread_since, self.waits_since) if since is not None]
        return bool(self.stuck) or any(self._clock() - since >= self._bound for since in waits)

    def waited(self) -> float:
        """For how long it has waited for Kafka, s; 0: it does not wait."""
        since = self.waits_since
        return 0.0 if since is None else max(self._clock() - since, 0.0)

    def problems(self) -> list[str]:
        """Why it is not ready, each as a sentence; none: it is."""
        return list(self._problems())

    def _problems(self) -> Iterator[str]:
        if not self._read:
            yield "the policies have not been read up to their end yet"
        if not self.running:
            yield "the query does not run"
        if self.waits_since is not None:
            yield f"Kafka is unavailable; waiting for it since {self.waited():.0f} s, and nothing is decided meanwhile"
        if self.stuck:
            yield (
                f"{self.stuck} partitions of policies or facts cannot be read on: a transaction on them is not ended. "
                "The alert policy-stale names them"
            )
        elif self.stale():
            yield f"the policies could not be read for more than {self._bound:g} s: does Kafka answer?"
