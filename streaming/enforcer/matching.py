"""Which grants decide, for a whole batch at once: in numbers, and each thing that many have in common worked out once.

A resource's id is read once, and its name is looked up once among the objects of all grants (`policy.objects`). Which
of the grants on these objects a subject holds is then a search for the two numbers, its holding's and the object's.
"""

import contextlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from policy.model import Grant
from policy.objects import Objects, decisive, precedence
from policy.patterns import Name
from streaming.enforcer.texts import Numbers

RESOURCES_HELD = 200_000
RESOURCE_BYTES = 256  # longer ids are not worth their memory
OBJECTS_HELD = 4_000_000  # in sets, and in holdings

UNKNOWN = -1
NOTHING = -1
HALF = 32  # bits of a pair of numbers
NEVER = np.iinfo(np.int64).max


def each(values: pa.Array, known: Mapping[Any, int], find: Callable[[Any], int]) -> Numbers:
    """The number that each of the values is known by, or else found for it; asked once for those that are equal."""
    coded = values.dictionary_encode()
    distinct = coded.dictionary.to_pylist()
    numbers = zip(distinct, map(known.get, distinct), strict=True)
    found = [find(value) if number is None else number for value, number in numbers]
    answers: Numbers = np.array(found, np.int64)[coded.indices.to_numpy()]
    return answers


class Growing:
    """Numbers that become more."""

    def __init__(self) -> None:
        self._array: Numbers = np.zeros(0, np.int64)
        self._new: list[int] = []

    def __len__(self) -> int:
        return len(self._array) + len(self._new)

    def extend(self, numbers: Iterable[int]) -> None:
        """Append these."""
        self._new.extend(numbers)

    def array(self) -> Numbers:
        """All of them."""
        if self._new:
            self._array = np.concatenate([self._array, np.array(self._new, np.int64)])
            self._new = []
        return self._array


class Resources:
    """The ids of one system's resources, each as the number of the set of objects that match its name."""

    def __init__(self, name_of: Callable[[str], Name], objects: Objects) -> None:
        self._name_of, self._objects = name_of, objects
        self._known: dict[bytes, int] = {}
        self._sets: dict[tuple[int, ...], int] = {}
        self._starts, self._members = Growing(), Growing()

    def numbers(self, resources: pa.BinaryArray) -> Numbers:
        """The number of the set of each; UNKNOWN: it needs more care."""
        return each(resources, self._known, self._find)

    def _find(self, resource: bytes) -> int:
        number = UNKNOWN
        with contextlib.suppress(Exception):  # whatever it is, the careful way will tell
            objects = self._objects.matching(self._name_of(resource.decode()))
            number = self._sets.setdefault(objects, len(self._sets))
            if number == len(self._starts):
                self._starts.extend([len(self._members)])
                self._members.extend(objects)
        if len(resource) <= RESOURCE_BYTES:
            self._known[resource] = number
        return number

    def members(self, sets: Numbers) -> tuple[Numbers, Numbers]:
        """The objects of these sets, one set after the other, and how many each has."""
        starts, members = self._starts.array(), self._members.array()
        counts = np.diff(starts, append=len(members))[sets]
        before = np.cumsum(counts) - counts
        return members[np.arange(counts.sum()) + np.repeat(starts[sets] - before, counts)], counts

    def make_room(self) -> bool:
        """Forget resources when there are too many. False: there are too many sets, and all has to be forgotten."""
        if len(self._known) >= RESOURCES_HELD:
            self._known.clear()
        return len(self._members) < OBJECTS_HELD


class Holdings:
    """What subjects hold of permissions, numbered: the same for subjects that hold the same."""

    def __init__(self) -> None:
        self.grants: list[Grant] = []  # by their numbers: one that goes before another of the same holding is lower
        self._numbers: dict[tuple[int, ...], int] = {}
        self._kept: list[tuple[Mapping[int, Grant], ...]] = []  # the tables' ids are theirs as long as they are kept
        self._keys = Growing()  # a holding's number and an object's, rising
        self._decides = Growing()  # for each of them the grant's number

    def number(self, tables: tuple[Mapping[int, Grant], ...]) -> int:
        """The number of the holding of these grants: by object, the one that decides among those in the same table."""
        key = tuple(map(id, tables))
        number = self._numbers.get(key)
        if number is None:
            number = len(self._kept)
            self._file(number, tables)
            self._kept.append(tables)
            self._numbers[key] = number
        return number

    def _file(self, number: int, tables: tuple[Mapping[int, Grant], ...]) -> None:
        held: dict[int, Grant] = {}
        for table in tables:
            for object_, grant in table.items():
                held[object_] = decisive((held[object_], grant)) if object_ in held else grant
        ranked = sorted(held, key=lambda object_: precedence(held[object_]))
        place = {object_: len(self.grants) + rank for rank, object_ in enumerate(ranked)}
        objects = sorted(held)
        self.grants += [held[object_] for object_ in ranked]
        self._keys.extend([number << HALF | object_ for object_ in objects])
        self._decides.extend([place[object_] for object_ in objects])

    def deciding(self, holdings: Numbers, objects: Numbers, counts: Numbers) -> Numbers:
        """The number of the grant that decides for each of the holdings; NOTHING: none does.

        `objects`: which a name matches, so many (`counts`) for the first, and so on.
        """
        keys, decides = self._keys.array(), self._decides.array()
        found = np.full(len(holdings), NEVER)
        asked = np.repeat(holdings << HALF, counts) | objects
        if len(keys) and len(asked):
            places = np.minimum(np.searchsorted(keys, asked), len(keys) - 1)
            grants = np.where(keys[places] == asked, decides[places], NEVER)
            some = np.flatnonzero(counts)
            found[some] = np.minimum.reduceat(grants, (np.cumsum(counts) - counts)[some])
        return np.where(found == NEVER, NOTHING, found)

    def has_room(self) -> bool:
        """False: there are too many, and all has to be forgotten."""
        return len(self.grants) < OBJECTS_HELD
