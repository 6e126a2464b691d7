"""A persistent mapping: its copies share everything that did not change since they were taken."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Generic, TypeVar, overload

K = TypeVar("K")
V = TypeVar("V")

FULL = 64  # entries of a shard on average in a small mapping; in a large one, twice as many as there are shards
GROWTH = 4


class PersistentMap(Generic[K, V]):
    """A mapping in shards, each shared by all copies until one of them writes to it.

    Of n entries, a copy and the first write to a shard after it cost in the order of the root of n. A copy that no code
    writes to can be read by other threads while the original changes.
    """

    __slots__ = ("_owned", "_shards", "_size")

    def __init__(self, entries: Mapping[K, V] | None = None) -> None:
        self._shards: list[dict[K, V]] = [dict(entries or {})]
        self._owned = {0}  # the shards that no copy shares
        self._size = len(self._shards[0])
        if self._size > FULL:
            self._grow()

    def __reduce__(self) -> tuple[type["PersistentMap[K, V]"], tuple[dict[K, V]]]:
        # Another process hashes otherwise: the shards are made again there.
        return PersistentMap, (dict(self.items()),)

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[K]:
        for shard in self._shards:
            yield from shard

    def items(self) -> Iterable[tuple[K, V]]:
        """Keys with their values, in no particular order."""
        for shard in self._shards:
            yield from shard.items()

    def values(self) -> Iterable[V]:
        """The values, in no particular order."""
        for shard in self._shards:
            yield from shard.values()

    def __contains__(self, key: K) -> bool:
        return key in self._shards[hash(key) % len(self._shards)]

    @overload
    def get(self, key: K) -> V | None: ...

    @overload
    def get(self, key: K, default: V) -> V: ...

    def get(self, key: K, default: V | None = None) -> V | None:
        """The value of a key."""
        return self._shards[hash(key) % len(self._shards)].get(key, default)

    def __setitem__(self, key: K, value: V) -> None:
        shard = self._own(key)
        if key not in shard:
            self._size += 1
            if self._size > _room(len(self._shards)):
                self._grow()
                shard = self._own(key)
        shard[key] = value

    def discard(self, key: K) -> None:
        """Remove a key; one that is not there is no error."""
        if key in self:
            del self._own(key)[key]
            self._size -= 1

    def copy(self) -> "PersistentMap[K, V]":
        """The same entries; what is written to either from now on does not show in the other."""
        other = PersistentMap.__new__(PersistentMap)
        other._shards, other._owned, other._size = list(self._shards), set(), self._size
        self._owned = set()
        return other

    def _own(self, key: K) -> dict[K, V]:
        number = hash(key) % len(self._shards)
        if number not in self._owned:
            self._shards[number] = dict(self._shards[number])
            self._owned.add(number)
        return self._shards[number]

    def _grow(self) -> None:
        count = len(self._shards)
        while self._size > _room(count):
            count *= GROWTH
        shards: list[dict[K, V]] = [{} for _ in range(count)]
        for key, value in self.items():
            shards[hash(key) % count][key] = value
        self._shards, self._owned = shards, set(range(count))


def _room(shards: int) -> int:
    """How many entries so many shards are for: a copy then costs about as much as the first write after it."""
    return shards * max(FULL, 2 * shards)


class Names:
    """Sets of names by key, as a persistent mapping; a large set is one itself."""

    SMALL = 64

    def __init__(self, names: Iterable[tuple[tuple[str, str, str], str]] = ()) -> None:
        sets: dict[tuple[str, str, str], dict[str, None]] = {}
        for key, name in names:
            sets.setdefault(key, {})[name] = None
        self._sets = PersistentMap({key: self._set_of(of_key) for key, of_key in sets.items()})
        self._owned: set[tuple[str, str, str]] = set()  # the large sets that no copy shares

    def find(self, key: tuple[str, str, str]) -> frozenset[str]:
        """The names under a key."""
        return frozenset(self._sets.get(key, frozenset()))

    def add(self, key: tuple[str, str, str], name: str) -> None:
        """Put a name under a key."""
        present = self._sets.get(key, frozenset())
        if isinstance(present, frozenset):
            self._sets[key] = self._set_of(dict.fromkeys((*present, name)))
        else:
            self._writable(key, present)[name] = None

    def discard(self, key: tuple[str, str, str], name: str) -> None:
        """Take a name away from under a key; one that is not there is no error."""
        present = self._sets.get(key, frozenset())
        if isinstance(present, frozenset):
            left: frozenset[str] | PersistentMap[str, None] = present - {name}
        else:
            left = self._writable(key, present)
            left.discard(name)
        if len(left):
            self._sets[key] = left
        else:
            self._sets.discard(key)

    def copy(self) -> "Names":
        """The same sets; see `PersistentMap.copy`."""
        other = Names()
        other._sets, self._owned = self._sets.copy(), set()
        return other

    def _set_of(self, names: dict[str, None]) -> frozenset[str] | PersistentMap[str, None]:
        return frozenset(names) if len(names) <= self.SMALL else PersistentMap(names)

    def _writable(self, key: tuple[str, str, str], names: PersistentMap[str, None]) -> PersistentMap[str, None]:
        if key not in self._owned:
            names = names.copy()
            self._sets[key] = names
            self._owned.add(key)
        return names
