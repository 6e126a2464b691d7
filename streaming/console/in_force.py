"""The policies in force, as they were read, and whether they may be out of date."""

import time

import msgspec
from starlette.exceptions import HTTPException

from policy import Snapshot, to_text
from streaming.console.reading import Cluster, no_page_message
from streaming.pdp.follower import Follower
from streaming.pdp.reading import Read, suspend_aware_clock, why_stale


class OutOfDate(msgspec.Struct, frozen=True):
    """Policies that `lockkeeper serve` would not decide by. ``why``; ``at``: when they were read; ``age``: s ago."""

    why: str
    at: str
    age: int


class InForce:
    """What a follower has read. `bound`: seconds after which policies that are not read on are out of date."""

    def __init__(self, cluster: Cluster, follower: Follower, bound: float) -> None:
        self._cluster, self._follower, self._bound = cluster, follower, bound

    def read(self) -> Read:
        """The newest reading. Raises HTTPException before the first one, with why there is none yet."""
        if (read := self._follower.read) is not None:
            return read
        error = self._follower.unread_error
        why = "the policies are being read" if error is None else self._cluster.explain(error)
        raise HTTPException(503, no_page_message(why))

    def snapshot(self) -> Snapshot:
        """The policies of the same."""
        return self.read().snapshot

    def known(self) -> Snapshot | None:
        """The same; None before the first one."""
        read = self._follower.read
        return None if read is None else read.snapshot

    def out_of_date(self) -> OutOfDate | None:
        """How old they are, where that is too old to be called current; None: they are current, or not read yet."""
        read = self._follower.read
        if read is None or (why := why_stale(read, self._bound, self._follower.stuck > 0)) is None:
            return None
        age = suspend_aware_clock() - read.at
        return OutOfDate(why, to_text(time.time_ns() // 1_000_000 - round(age * 1000)), round(age))
