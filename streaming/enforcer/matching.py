"""Which grants decide, for a whole batch at once: in numbers, and each thing that many have in common worked out once.

A resource's id is cut at its last slash. Ids begin alike, and end alike: both parts are read once, and what both
together mean among the objects of all grants (`policy.objects`) is then a search for two numbers. So is which of the
grants on these objects decides for who holds them.
"""

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from policy.caching import BUDGET, ENTRY_BYTES
from policy.index import Place
from policy.model import Grant
from policy.names import fault
from policy.objects import Objects, decisive, precedence
from policy.patterns import Name
from streaming.enforcer.texts import Numbers

RESOURCES_HELD = 200_000
RESOURCE_BYTES = 256  # longer ids are not worth their memory
SLASH = "/"
OBJECTS_HELD = 4_000_000  # in sets, and in holdings
PAIR_BYTES = 64  # of a pair of numbers and what it stands for

UNKNOWN = -1
NOTHING = -1
HALF = 32  # bits of a pair of numbers
LOWER = (1 << HALF) - 1
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


class Pairs:
    """What is known of pairs of numbers below 2³¹, each written as one: the first in the upper half."""

    def __init__(self) -> None:
        self._pairs: Numbers = np.zeros(0, np.int64)  # rising
        self._known: Numbers = np.zeros(0, np.int64)

    def __len__(self) -> int:
        return len(self._pairs)

    def numbers(self, asked: Numbers, find: Callable[[Numbers], Sequence[int] | Numbers]) -> Numbers:
        """What is known of each, or else found: `find` is given the new ones, each once, and answers in their order."""
        distinct, which = np.unique(asked, return_inverse=True)  # in order they are found several times as fast
        places = np.searchsorted(self._pairs, distinct)
        missing = self._are_not_at(places, distinct)
        if missing.any():
            new, at = distinct[missing], places[missing]
            found = np.asarray(find(new), np.int64)
            self._pairs, self._known = np.insert(self._pairs, at, new), np.insert(self._known, at, found)
            places = np.searchsorted(self._pairs, distinct)
        numbers: Numbers = self._known[places][which]
        return numbers

    def _are_not_at(self, places: Numbers, pairs: Numbers) -> npt.NDArray[np.bool_]:
        if not len(self):
            return np.ones(len(pairs), np.bool_)
        others: npt.NDArray[np.bool_] = self._pairs[np.minimum(places, len(self) - 1)] != pairs
        return others


class Resources:
    """The ids of one system's resources, each as the number of the set of objects that match its name."""

    def __init__(self, name_of: Callable[[str], Name], objects: Objects) -> None:
        self._name_of, self._objects = name_of, objects
        self._sets: dict[tuple[int, ...], int] = {}
        self._starts, self._members = Growing(), Growing()
        self._forget()

    def _forget(self) -> None:
        self._beginnings: dict[bytes, int] = {}
        self._names: list[Name] = []  # of the beginnings, by their numbers
        self._endings: dict[bytes, int] = {}
        self._texts: list[str] = []  # of the endings, by their numbers
        self._known = Pairs()  # by the numbers of both

    def numbers(self, resources: pa.BinaryArray) -> Numbers:
        """The number of the set of each; UNKNOWN: it needs more care."""
        numbers = np.full(len(resources), UNKNOWN)
        parts = pc.split_pattern(resources, SLASH, max_splits=1, reverse=True)
        short = pc.binary_length(resources).to_numpy() <= RESOURCE_BYTES
        places = np.flatnonzero((np.diff(parts.offsets) == 2) & short)
        first = parts.offsets.to_numpy()[places]
        beginnings = each(parts.values.take(pa.array(first)), self._beginnings, self._begin)
        endings = each(parts.values.take(pa.array(first + 1)), self._endings, self._end)
        known = (beginnings != UNKNOWN) & (endings != UNKNOWN)
        pairs = beginnings[known] << HALF | endings[known]
        numbers[places[known]] = self._known.numbers(pairs, self._find)
        return numbers

    def _begin(self, beginning: bytes) -> int:
        """The number of an id's beginning: of what its name has before its last part."""
        number = UNKNOWN
        BUDGET.spend(ENTRY_BYTES + 3 * len(beginning))
        with contextlib.suppress(Exception):  # whatever it is, the careful way will tell
            self._names.append(self._name_of(f"{beginning.decode()}{SLASH}x")[:-1])
            number = len(self._names) - 1
        self._beginnings[beginning] = number
        return number

    def _end(self, ending: bytes) -> int:
        """The number of an id's ending: of its name's last part, which is never empty or at fault."""
        number = UNKNOWN
        BUDGET.spend(ENTRY_BYTES + 2 * len(ending))
        if ending and not fault(text := ending.decode()):
            self._texts.append(text)
            number = len(self._texts) - 1
        self._endings[ending] = number
        return number

    def _find(self, pairs: Numbers) -> list[int]:
        places: dict[int, Place[int]] = {}
        found = []
        BUDGET.spend(PAIR_BYTES * len(pairs))
        for pair in pairs.tolist():
            beginning = pair >> HALF
            place = places.get(beginning)
            if place is None:
                place = places[beginning] = self._objects.place(self._names[beginning])
            found.append(self._number_of(place.next(self._texts[pair & LOWER]).digest))
        return found

    def _number_of(self, objects: tuple[int, ...]) -> int:
        number = self._sets.setdefault(objects, len(self._sets))
        if number == len(self._starts):
            BUDGET.spend(ENTRY_BYTES + PAIR_BYTES * len(objects))
            self._starts.extend([len(self._members)])
            self._members.extend(objects)
        return number

    def members(self, sets: Numbers) -> tuple[Numbers, Numbers]:
        """The objects of these sets, one set after the other, and how many each has."""
        starts, members = self._starts.array(), self._members.array()
        counts = np.diff(starts, append=len(members))[sets]
        before = np.cumsum(counts) - counts
        return members[np.arange(counts.sum()) + np.repeat(starts[sets] - before, counts)], counts

    def make_room(self) -> bool:
        """Forget resources when there are too many. False: there are too many sets, and all has to be forgotten."""
        if max(len(self._known), len(self._beginnings), len(self._endings)) >= RESOURCES_HELD:
            self._forget()
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
        BUDGET.spend(ENTRY_BYTES + PAIR_BYTES * len(held))
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
