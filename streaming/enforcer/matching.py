"""Which grants decide, for a whole batch at once: in numbers, and each thing that many have in common worked out once.

A resource's id is cut at its last slash. Ids begin alike, and end alike: both parts are read once, and what both
together mean in the trie of all resource patterns (`policy.grants`) is then a search for two numbers. So is which of
the grants at that state decides for a subject's effective permissions.
"""

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from policy.grants import EffectivePermissions, Grants, Table
from policy.index import Place
from policy.model import Grant
from policy.names import fault
from policy.patterns import Name
from streaming.enforcer.texts import Numbers

RESOURCES_HELD = 200_000
RESOURCE_BYTES = 256  # longer ids are not worth their memory
SLASH = "/"
STATES_HELD = 200_000

UNKNOWN = -1
NOTHING = -1
HALF = 32  # bits of a pair of numbers
LOWER = (1 << HALF) - 1


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
    """The ids of one system's resources, each as the number of the state to which its name leads."""

    def __init__(self, name_of: Callable[[str], Name], grants: Grants) -> None:
        self._name_of, self._grants = name_of, grants
        self._numbers: dict[Place[Table], int] = {}
        self._states: list[Place[Table]] = []
        self._forget()

    def _forget(self) -> None:
        self._beginnings: dict[bytes, int] = {}
        self._names: list[Name] = []  # of the beginnings, by their numbers
        self._endings: dict[bytes, int] = {}
        self._texts: list[str] = []  # of the endings, by their numbers
        self._known = Pairs()  # by the numbers of both

    def numbers(self, resources: pa.BinaryArray) -> Numbers:
        """The number of the state of each; UNKNOWN: it needs more care."""
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
        with contextlib.suppress(Exception):  # whatever it is, the careful way will tell
            self._names.append(self._name_of(f"{beginning.decode()}{SLASH}x")[:-1])
            number = len(self._names) - 1
        self._beginnings[beginning] = number
        return number

    def _end(self, ending: bytes) -> int:
        """The number of an id's ending: of its name's last part, which is never empty or at fault."""
        number = UNKNOWN
        if ending and not fault(text := ending.decode()):
            self._texts.append(text)
            number = len(self._texts) - 1
        self._endings[ending] = number
        return number

    def _find(self, pairs: Numbers) -> list[int]:
        places: dict[int, Place[Table]] = {}
        found = []
        for pair in pairs.tolist():
            beginning = pair >> HALF
            place = places.get(beginning)
            if place is None:
                place = places[beginning] = self._grants.state(self._names[beginning])
            found.append(self._number_of(place.next(self._texts[pair & LOWER])))
        return found

    def _number_of(self, state: Place[Table]) -> int:
        number = self._numbers.setdefault(state, len(self._states))
        if number == len(self._states):
            self._states.append(state)
        return number

    def state(self, number: int) -> Place[Table]:
        """The state of the trie that has a number."""
        return self._states[number]

    def make_room(self) -> bool:
        """Forget resources when there are too many. False: there are too many states, and all has to be forgotten."""
        if max(len(self._known), len(self._beginnings), len(self._endings)) >= RESOURCES_HELD:
            self._forget()
        return len(self._states) < STATES_HELD


class Deciding:
    """Which grant decides for effective permissions on a resource, all three by numbers."""

    def __init__(self, resources: Resources) -> None:
        self._resources = resources
        self.grants: list[Grant] = []
        self._numbers: dict[int, int] = {}  # of the grants, by their ids: they live as long as this
        self._effective: dict[EffectivePermissions, int] = {}
        self._kept: list[EffectivePermissions] = []

    def number(self, effective: EffectivePermissions) -> int:
        """The number of effective permissions: subjects that may do the same have them in common."""
        number = self._effective.setdefault(effective, len(self._kept))
        if number == len(self._kept):
            self._kept.append(effective)
        return number

    def find(self, pairs: Numbers) -> list[int]:
        """The number of the grant for each of these pairs of effective permissions and a resource's state.

        NOTHING: none matches.
        """
        found = []
        for pair in pairs.tolist():
            grants = self._kept[pair >> HALF].at(self._resources.state(pair & LOWER))
            found.append(self._grant(grants[0]) if grants else NOTHING)
        return found

    def _grant(self, grant: Grant) -> int:
        number = self._numbers.setdefault(id(grant), len(self.grants))
        if number == len(self.grants):
            self.grants.append(grant)
        return number
