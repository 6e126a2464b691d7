"""Snapshots of the past, rebuilt from the document log within a budget of time, and broadcast to the workers."""

import time
from collections.abc import Callable, Hashable, Iterable
from typing import Generic, TypeVar

import msgspec
import structlog
from pyspark.core.broadcast import Broadcast

from policy import Snapshot
from streaming.snapshots.at_offsets import DocumentLog, NoLongerKnown
from streaming.snapshots.broadcasts import PublishedSnapshot, grants_of
from streaming.topics import Offsets

log = structlog.get_logger()

# Producers choose the times and offsets that they name, so rebuilding must not take the job's time from decisions.
AT_ONCE_SECONDS = 10.0  # of work, before there is none left
SHARE = 0.1  # of the time may be spent on it from then on
HELD_SECONDS = 600.0
TIMES_HELD = 4  # so many times as many are held as there are snapshots of the present

Key = TypeVar("Key", bound=Hashable)


class RebuiltSnapshot(msgspec.Struct, frozen=True):
    """A snapshot that was rebuilt, and when (seconds by the clock)."""

    broadcast: "Broadcast[Snapshot]"
    version: str
    grants: int
    rebuilt_at: float


class RebuiltSnapshots(Generic[Key]):
    """Rebuilt snapshots by a key, oldest first: at most `most`, with at most `grants` together, for HELD_SECONDS.

    `documents`: what they are rebuilt from; `send`: Spark's function to broadcast one; `at_once`: seconds that may be
    spent on it at once, as after a restart, before it is a share of the time; `clock`: seconds.
    """

    def __init__(
        self,
        documents: DocumentLog,
        send: "Callable[[Snapshot], Broadcast[Snapshot]]",
        most: int,
        grants: float,
        at_once: float,
        clock: Callable[[], float],
    ) -> None:
        self._documents, self._send, self._clock = documents, send, clock
        self._most, self._grants = most, grants
        self.held: dict[Key, RebuiltSnapshot] = {}
        self._replaced: list[Broadcast[Snapshot]] = []
        self._at_once = self._left = at_once
        self._looked_at = clock()

    def has_time(self) -> bool:
        """Whether the budget has time left now."""
        now = self._clock()
        self._left = min(self._left + SHARE * (now - self._looked_at), self._at_once)
        self._looked_at = now
        return self._left > 0

    def rebuild(self, key: Key, offsets: Offsets, moment: int | None = None) -> RebuiltSnapshot:
        """Rebuild the snapshot at these offsets, in place of the oldest ones. Raises NoLongerKnown; see `DocumentLog`.

        Its time counts in either case: offsets that cost work and are not known in the end must not be free to name.
        """
        began = self._clock()
        try:
            self._hold(key, self._documents.snapshot_at(offsets, None, moment))
        finally:
            self._left -= self._clock() - began
        return self.held[key]

    def _hold(self, key: Key, snapshot: Snapshot) -> None:
        grants = grants_of(snapshot)
        while self.held and self._is_full(grants):
            self._let_go(next(iter(self.held)))
        broadcast = self._send(snapshot.without_findings())
        self.held[key] = RebuiltSnapshot(broadcast, snapshot.version, grants, self._clock())

    def _is_full(self, grants: int) -> bool:
        together = sum(rebuilt.grants for rebuilt in self.held.values())
        return len(self.held) >= self._most or together + grants > self._grants

    def _let_go(self, key: Key) -> None:
        self._replaced.append(self.held.pop(key).broadcast)

    def tidy(self) -> None:
        """After a commit: destroy what only batches before it have used, and let go of what is old."""
        while self._replaced:
            self._replaced.pop().destroy()
        for key, rebuilt in list(self.held.items()):
            if self._clock() - rebuilt.rebuilt_at > HELD_SECONDS:
                self._let_go(key)


class PastSnapshots:
    """The snapshots in force at the times of audit events. For `documents` and `send` see `RebuiltSnapshots`.

    `kept`: how many snapshots of the present are held. `clock`: seconds.
    """

    def __init__(
        self,
        documents: DocumentLog,
        send: "Callable[[Snapshot], Broadcast[Snapshot]]",
        kept: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._documents, self._most = documents, TIMES_HELD * kept
        # By since when and until when (ms) each was in force.
        self._rebuilt = RebuiltSnapshots[tuple[int, int | None]](
            documents, send, self._most, float("inf"), AT_ONCE_SECONDS, clock
        )
        self._lost: set[int] = set()  # since when those were in force that cannot be rebuilt

    def held(self) -> tuple[PublishedSnapshot, ...]:
        """What is held, oldest first."""
        spans = sorted(self._rebuilt.held.items(), key=lambda item: item[0][0])
        # Never the newest: its number is that of no snapshot of the present.
        return tuple(
            PublishedSnapshot(-1, since, rebuilt.version, rebuilt.broadcast, until) for (since, until), rebuilt in spans
        )

    def rebuild(self, moments: Iterable[int]) -> bool:
        """Rebuild the snapshots in force at these moments (ms), as far as they can be; whether there is any new one."""
        before = len(self._rebuilt.held)
        for moment in sorted(set(moments), reverse=True):
            if len(self._rebuilt.held) >= self._most or not self._rebuilt.has_time():
                break
            self._rebuild(moment)
        return len(self._rebuilt.held) > before

    def _rebuild(self, moment: int) -> None:
        try:
            span = self._documents.policies_at(moment)
            if span.since in self._lost or any(since == span.since for since, _ in self._rebuilt.held):
                return
            self._lost.add(span.since)  # until it is there
            rebuilt = self._rebuilt.rebuild((span.since, span.until), span.offsets, moment)
        except NoLongerKnown as error:
            log.debug("policies of an audit event's time are no longer known", error=str(error))
            return
        self._lost.discard(span.since)
        log.info("policies of audit events' time rebuilt", version=rebuilt.version, since=span.since)

    def tidy(self) -> None:
        """After a commit: let go of what was rebuilt a while ago."""
        self._rebuilt.tidy()
        if len(self._lost) > self._most:
            self._lost.clear()
