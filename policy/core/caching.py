"""Caches whose size is bounded by the bytes that they hold, all of a process together.

What is worth keeping depends on names that untrusted clients choose, and may be long: entries that are only counted
would take any amount of memory. So each is weighed once, when it is put in. When the caches of a process hold too much,
all of them are emptied: what is needed still is worked out again.
"""

import sys
import weakref
from collections.abc import Iterable
from typing import Protocol, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")

HELD_BYTES = 512 << 20
ENTRY_BYTES = 250  # of an entry, beside the texts in it


class Clearable(Protocol):
    """What lets go of all that it holds."""

    def clear(self) -> None:
        """Let go."""


class Budget:
    """How many bytes the caches of a process may hold. ``most`` may be changed at any time.

    What a cache held that is no more counts until it is released, or the others are emptied. Threads may share it
    without a lock: at worst they empty the caches twice, or some bytes are not counted.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._held = 0
        self._caches: weakref.WeakValueDictionary[int, Clearable] = weakref.WeakValueDictionary()

    def join(self, cache: Clearable) -> None:
        """Empty a cache, too, when there is too much. It is not kept alive."""
        self._caches[id(cache)] = cache

    def spend(self, weight: int) -> None:
        """Count the bytes of what is about to be held, and make room for it."""
        if self._held + weight > self.most:
            for cache in self._caches.valuerefs():
                if (alive := cache()) is not None:
                    alive.clear()
            self._held = 0
        self._held += weight

    def release(self, weight: int) -> None:
        """Count the bytes no more of what was held, and is not since the caches were emptied the last time."""
        self._held = max(self._held - weight, 0)


BUDGET = Budget(HELD_BYTES)
"""Of this process."""


class Cache(dict[Key, Value]):
    """A dictionary whose entries count against the budget of the process: put in by `hold`."""

    __slots__ = ("__weakref__",)

    def __init__(self) -> None:
        super().__init__()
        BUDGET.join(self)

    def hold(self, key: Key, value: Value, weight: int) -> None:
        """Put in an entry of so many bytes, beside what every entry takes."""
        BUDGET.spend(ENTRY_BYTES + weight)
        self[key] = value


def weight_of_texts(texts: Iterable[str]) -> int:
    """The bytes of texts that are keys of a dictionary."""
    return sum(ENTRY_BYTES + sys.getsizeof(text) for text in texts)
