"""The facts of a layer at earlier offsets of their topic, in a worker: for requests that were answered by these.

Each is made from the nearest one before it that is held, by the changes between. Older ones than the layer began with
are not known.
"""

import bisect
import collections
from collections.abc import Iterable, Sequence

from policy import FactChange, FactOverlay

HELD = 16


class FactsAt:
    """`overlay`: the layer as it was at offset `since`, which is not changed any more."""

    def __init__(self, overlay: FactOverlay, since: int) -> None:
        self.since = since
        self._held: collections.OrderedDict[int, FactOverlay] = collections.OrderedDict({since: overlay})
        self._changes: list[FactChange] = []
        self._offsets: list[int] = []
        self._of_system: dict[str, list[int]] = {}

    def follow(self, start: int, changes: Iterable[FactChange]) -> None:
        """Add changes, numbered from `start` on, in the order of their offsets; those that are there are left out."""
        for change in list(changes)[max(len(self._changes) - start, 0) :]:
            self._changes.append(change)
            self._offsets.append(change.order)
            self._of_system.setdefault(change.key.system, []).append(len(self._changes) - 1)

    def newest_of(self, system: str, offset: int) -> int | None:
        """The offset of the newest change of a system's facts up to an offset; None: not known, it is too old."""
        if offset < self.since:
            return None
        numbers = self._of_system.get(system, ())
        count = bisect.bisect_right(numbers, offset, key=self._offsets.__getitem__)
        return self._offsets[numbers[count - 1]] if count else self.since

    def superseded(self, system: str, offset: int) -> int | None:
        """When the first change of a system's facts beyond an offset came, ms; None: there is none yet."""
        numbers = self._of_system.get(system, ())
        count = bisect.bisect_right(numbers, offset, key=self._offsets.__getitem__)
        return self._changes[numbers[count]].recorded if count < len(numbers) else None

    def at(self, offset: int) -> FactOverlay:
        """The layer at an offset, which must not be changed. `offset`: not before `since`."""
        overlay = self._held.get(offset)
        if overlay is None:
            nearest = max(base for base in self._held if base <= offset)
            overlay = self._held[nearest].copy()
            for change in self._between(nearest, offset):
                overlay.apply(change)
            self._held[offset] = overlay
        self._held.move_to_end(offset)
        while len(self._held) > HELD:
            del self._held[next(base for base in self._held if base != self.since)]
        return overlay

    def _between(self, after: int, upto: int) -> Sequence[FactChange]:
        return self._changes[bisect.bisect_right(self._offsets, after) : bisect.bisect_right(self._offsets, upto)]
