"""Policies of moments before all snapshots that are held: rebuilt when audit events need them.

After a restart, or when there were more changes than snapshots are held, events of before would have no verdict. Their
moments come back from the workers, the snapshots are rebuilt from the documents' topics (`streaming.snapshots`), and
the batch is evaluated again.

Events are written by others, so the work that they can cause is bounded: by seconds, of which there are some to begin
with and then a share of the time, and by the number of snapshots held. Beyond it, and where compaction has removed what
was in force, the verdict is `unknown`.
"""

import time
from collections.abc import Callable, Iterable

import structlog
from pyspark.core.broadcast import Broadcast

from policy import Snapshot
from streaming.snapshots.at_offsets import DocumentLog, NoLongerKnown
from streaming.snapshots.broadcasts import Published

log = structlog.get_logger()

AT_ONCE_SECONDS = 10.0  # of work, before there is none left
SHARE = 0.1  # of the time may be spent on it from then on
HELD_SECONDS = 600.0
TIMES_HELD = 4  # so many times as many are held as there are snapshots of the present


class Past:
    """Holds rebuilt snapshots. `documents`: what they are rebuilt from; `send`: Spark's function to broadcast one.

    `kept`: how many snapshots of the present are held. `clock`: seconds.
    """

    def __init__(
        self,
        documents: DocumentLog,
        send: "Callable[[Snapshot], Broadcast[Snapshot]]",
        kept: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._documents, self._send, self._clock = documents, send, clock
        self._most = TIMES_HELD * kept
        self._held: dict[int, tuple[float, Published]] = {}  # by since; with when it was rebuilt
        self._lost: set[int] = set()  # since when those were in force that cannot be rebuilt
        self._gone: list[Broadcast[Snapshot]] = []
        self._left, self._looked_at = AT_ONCE_SECONDS, clock()

    def held(self) -> tuple[Published, ...]:
        """What is held, oldest first."""
        return tuple(published for _, (_, published) in sorted(self._held.items()))

    def rebuild(self, moments: Iterable[int]) -> bool:
        """Rebuild the snapshots in force at these moments (ms), as far as they can be; whether there is any new one."""
        before = len(self._held)
        for moment in sorted(set(moments), reverse=True):
            if len(self._held) >= self._most or not self._has_time():
                break
            self._rebuild(moment)
        return len(self._held) > before

    def _rebuild(self, moment: int) -> None:
        try:
            span = self._documents.policies_at(moment)
            if span.since in self._held or span.since in self._lost:
                return
            began = self._clock()
            self._lost.add(span.since)  # until it is there
            snapshot = self._documents.snapshot_at(span.offsets, None, moment)
        except NoLongerKnown as error:
            log.debug("policies of an audit event's time are no longer known", error=str(error))
            return
        self._lost.discard(span.since)
        # Never the newest: its number is that of no snapshot of the present.
        published = Published(-1, span.since, snapshot.version, self._send(snapshot), span.until)
        self._held[span.since] = (self._clock(), published)
        self._left -= self._clock() - began
        log.info("policies of audit events' time rebuilt", version=snapshot.version, since=span.since)

    def _has_time(self) -> bool:
        now = self._clock()
        self._left = min(self._left + SHARE * (now - self._looked_at), AT_ONCE_SECONDS)
        self._looked_at = now
        return self._left > 0

    def tidy(self) -> None:
        """After a commit: let go of what was rebuilt a while ago."""
        while self._gone:
            self._gone.pop().destroy()
        for since, (rebuilt_at, published) in list(self._held.items()):
            if self._clock() - rebuilt_at > HELD_SECONDS:
                del self._held[since]
                self._gone.append(published.broadcast)
        if len(self._lost) > self._most:
            self._lost.clear()
