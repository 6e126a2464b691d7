"""Counting names that strangers choose, in bounded memory."""

from collections.abc import Iterable

import msgspec

from streaming.report.texts import shortened

CAPACITY = 10_000


class Row(msgspec.Struct, frozen=True):
    """A name and how often it came."""

    name: str
    count: int


class Ranking(msgspec.Struct, frozen=True):
    """The most frequent names, most frequent first. ``names``: how many different ones; None: too many to tell.

    ``missed``: by so much at most a count may be too low, and a name that is not listed may have come; 0: exact.
    """

    rows: tuple[Row, ...]
    names: int | None
    missed: int

    @property
    def exact(self) -> bool:
        """Whether every count is the true one."""
        return self.missed == 0


class BoundedCounter:
    """Counts names exactly while there are no more than twice ``capacity`` of them, and says when it cannot.

    Beyond, it keeps the ``capacity`` most frequent and takes the count of the next from all of them (the algorithm
    of Misra and Gries, in batches). No count is ever too high; ``missed`` bounds by how much one may be too low.
    """

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self._counts: dict[str, int] = {}
        self._missed = 0

    def __len__(self) -> int:
        return len(self._counts)

    def add(self, name: str, count: int = 1) -> None:
        """Count a name; a long one is kept by its beginning, its length and its hash."""
        name = shortened(name)
        self._counts[name] = self._counts.get(name, 0) + count
        if len(self._counts) > 2 * self._capacity:
            self._prune()

    def _prune(self) -> None:
        ordered = sorted(self._counts.values(), reverse=True)
        least = ordered[self._capacity]
        self._counts = {name: count - least for name, count in self._counts.items() if count > least}
        self._missed += least

    def top(self, number: int) -> Ranking:
        """The ``number`` most frequent names; of equal counts the first by name."""
        ordered = sorted(self._counts.items(), key=lambda pair: (-pair[1], pair[0]))[:number]
        rows = tuple(Row(name, count) for name, count in ordered)
        return Ranking(rows, None if self._missed else len(self._counts), self._missed)


def counted(names: Iterable[str], capacity: int = CAPACITY) -> BoundedCounter:
    """A counter of ``names``."""
    counter = BoundedCounter(capacity)
    for name in names:
        counter.add(name)
    return counter
