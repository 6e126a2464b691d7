"""Names and texts from untrusted clients: counted in bounded memory, shortened, invisible characters escaped."""

import hashlib
from collections import Counter
from collections.abc import Hashable
from typing import Generic, TypeVar

import msgspec

CAPACITY = 10_000


class Row(msgspec.Struct, frozen=True):
    """A name and how often it came."""

    name: str
    count: int


class Ranking(msgspec.Struct, frozen=True):
    """The most frequent names, most frequent first. ``names``: how many different ones; None: too many to count.

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
        self._counts = Counter[str]()
        self._missed = 0

    def __len__(self) -> int:
        return len(self._counts)

    def add(self, name: str) -> None:
        """Count a name; a long one is kept by its beginning, its length and its hash."""
        self._counts[shortened(name)] += 1
        if len(self._counts) > 2 * self._capacity:
            self._prune()

    def _prune(self) -> None:
        ordered = sorted(self._counts.values(), reverse=True)
        least = ordered[self._capacity]
        self._counts = Counter({name: count - least for name, count in self._counts.items() if count > least})
        self._missed += least

    def top(self, number: int) -> Ranking:
        """The ``number`` most frequent names; of equal counts the first by name."""
        ordered = sorted(self._counts.items(), key=lambda pair: (-pair[1], pair[0]))[:number]
        rows = tuple(Row(name, count) for name, count in ordered)
        return Ranking(rows, None if self._missed else len(self._counts), self._missed)


T = TypeVar("T")
Rank = tuple[int, str, int]  # time (ms), topic, offset: unique for a record of topics with one partition


class Newest(Generic[T]):
    """Keeps the ``most`` things of the highest rank; of several with one name the one of the highest rank."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: dict[Hashable, tuple[Rank, T]] = {}

    def add(self, rank: Rank, thing: T, name: Hashable = None) -> None:
        """Keep it while nothing newer needs its room. ``name`` None: its rank is."""
        name = rank if name is None else name
        if name not in self._kept or self._kept[name][0] < rank:
            self._kept[name] = (rank, thing)
        if len(self._kept) > 2 * self._most:
            self._kept = dict(self._newest())

    def drop(self, name: Hashable) -> None:
        """Keep what has this name no more."""
        self._kept.pop(name, None)

    def _newest(self) -> list[tuple[Hashable, tuple[Rank, T]]]:
        return sorted(self._kept.items(), key=lambda pair: pair[1][0], reverse=True)[: self._most]

    def listed(self) -> tuple[T, ...]:
        """What is kept, newest first."""
        return tuple(thing for _, (_, thing) in self._newest())


LONGEST = 300  # characters


def shortened(text: str, longest: int = LONGEST) -> str:
    """``text``, or its beginning with its length and a hash."""
    if len(text) <= longest:
        return text
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{text[:longest]}… ({len(text):,} characters, sha256 {digest})"
