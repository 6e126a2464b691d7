"""The newest of many, in bounded memory."""

import heapq
from typing import Generic, TypeVar

T = TypeVar("T")
Rank = tuple[int, str, int]  # time (ms), topic, offset: unique for a record of topics with one partition


class Newest(Generic[T]):
    """Keeps the ``most`` things of the highest rank."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._heap: list[tuple[Rank, int, T]] = []
        self._taken = 0

    def add(self, rank: Rank, thing: T) -> None:
        """Keep it while nothing newer needs its room."""
        self._taken += 1
        heapq.heappush(self._heap, (rank, self._taken, thing))
        if len(self._heap) > self._most:
            heapq.heappop(self._heap)

    def listed(self) -> tuple[T, ...]:
        """What is kept, newest first."""
        return tuple(thing for _, _, thing in sorted(self._heap, key=lambda entry: entry[:2], reverse=True))
