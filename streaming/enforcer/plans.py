"""The short way: most requests are like one before them but for two texts, their id and their resource's id.

A *plan* is what is known of all requests with the same text around these two slots: who asks, which permission is
needed, and what the answers are. It is made from a request that went the careful way, and proved before it is used:
with marks in its slots the text is still that request, with the marks for the two ids and nothing else changed. By
JSON's grammar any other text without quotes, backslashes and control characters may then stand in their place and
changes nothing else either. So the requests of a plan need not be decoded to be known.

All records of a batch are gone through together, in columns, and what many have in common is worked out once: the plan
for each key, the objects that match for each resource's id, the answer for each plan and set of matching objects.
"""

import secrets
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from policy.model import Grant
from policy.objects import Objects
from policy.patterns import Name
from policy.requests import MalformedRequest, Request, decode_request
from policy.systems import all_systems
from streaming.enforcer.answers import Answers, Outline, echo
from streaming.enforcer.texts import ID, RESOURCE, Numbers, Shape, Texts, filled, shape_of
from streaming.observability.tally import Label, label

PLANS_HELD = 50_000
TEXT_BYTES = 4096  # longer ones go the careful way; so a batch of decisions is no larger than Arrow can have it
TOLD_BYTES = 16_384  # the same of answers
SHAPES_HELD = 8
RESOURCES_HELD = 200_000
RESOURCE_BYTES = 256  # longer ids are not worth their memory
PAIRS_HELD = 300_000  # of plans and sets of objects, with the number of the answer
ANSWERS_HELD = 100_000

UNKNOWN = -1
HALF = 32  # bits
Codes = npt.NDArray[np.int32]


class Way(msgspec.Struct, frozen=True, gc=False):
    """An answer to requests of a plan: what stands around their resource's id. `label`: what it is counted as."""

    told: tuple[bytes, ...]
    label: Label


class Answered(msgspec.Struct, frozen=True):
    """Records of one system with their answers.

    `rows`: their numbers; `ids`: with the quotes; `resources`: their ids, without; `ways`: which of `told` each gets.
    """

    system: str
    rows: Numbers
    ids: pa.BinaryArray
    resources: pa.BinaryArray
    ways: Codes
    told: Sequence[Way]

    def among(self, which: npt.NDArray[np.bool_]) -> "Answered":
        """Those of `which` alone."""
        if which.all():
            return self
        mask = pa.array(which)
        ids, resources = self.ids.filter(mask), self.resources.filter(mask)
        return Answered(self.system, self.rows[which], ids, resources, self.ways[which], self.told)


class Plan:
    """The answers to all requests that differ from each other in their slots alone.

    `echo`: what stands before and after the resource's id where a decision says who asked for what.
    """

    __slots__ = ("_echo", "_outline", "_ways")

    def __init__(self, outline: Outline, echo: tuple[bytes, bytes]) -> None:
        self._outline, self._echo = outline, echo
        self._ways: dict[int, int] = {}

    def way(self, objects: Sequence[int], told: list[Way]) -> int:
        """The number of the answer about a resource that matches these objects; a new one is appended to `told`."""
        grant = self._outline.grant_among(objects)  # it lives as long as the snapshot, so its id names it
        number = self._ways.get(id(grant))
        if number is None:
            number = self._ways[id(grant)] = self._tell(grant, told)
        return number

    def _tell(self, grant: Grant | None, told: list[Way]) -> int:
        pieces, outcome = self._outline.pieces(grant)
        before, after = self._echo
        way = Way((*pieces[:-1], pieces[-1] + before, after), label(self._outline.system, outcome))
        if sum(map(len, way.told)) > TOLD_BYTES:
            return UNKNOWN
        told.append(way)
        return len(told) - 1


class Resources:
    """The ids of one system's resources, each as the number of the set of objects that match it."""

    def __init__(self, name_of: Callable[[str], Name], objects: Objects) -> None:
        self.sets: list[tuple[int, ...]] = []
        self._name_of, self._objects = name_of, objects
        self._known: dict[bytes, int] = {}
        self._numbers: dict[tuple[int, ...], int] = {}

    def number(self, resource: bytes) -> int:
        """The number of its set; UNKNOWN: it needs more care."""
        number = self._known.get(resource)
        if number is None:
            number = self._find(resource)
            if len(resource) <= RESOURCE_BYTES:
                self._known[resource] = number
        return number

    def _find(self, resource: bytes) -> int:
        try:
            objects = self._objects.matching(self._name_of(resource.decode()))
        except Exception:  # whatever it is, the careful way will tell
            return UNKNOWN
        number = self._numbers.setdefault(objects, len(self.sets))
        if number == len(self.sets):
            self.sets.append(objects)
        return number

    def make_room(self) -> None:
        """Forget resources when there are too many. Their sets stay: there are fewer, and answers are known by them."""
        if len(self._known) >= RESOURCES_HELD:
            self._known.clear()


class Family:
    """The plans for one system's requests."""

    def __init__(self, answers: Answers, system: str, name_of: Callable[[str], Name]) -> None:
        self._answers, self._system, self._name_of = answers, system, name_of
        self._shapes: list[Shape] = []
        self._sighted: set[int] = set()
        self._marks = f"id-{secrets.token_hex(16)}", f"resource-{secrets.token_hex(16)}"
        self._forget()

    def _forget(self) -> None:
        self._plans: list[Plan] = []
        self._keys: dict[bytes, int] = {}  # UNKNOWN: not to be proved
        self._resources = Resources(self._name_of, self._answers.objects(self._system))
        self._told: list[Way] = []
        self._pairs: dict[int, int] = {}  # by the number of the plan, and in the lower half of that of the set

    def make_room(self) -> None:
        """Forget what there is too much of; between batches, within which numbers must hold."""
        self._resources.make_room()
        if len(self._pairs) >= PAIRS_HELD:
            self._pairs.clear()
        if len(self._keys) >= PLANS_HELD or len(self._told) >= ANSWERS_HELD:
            self._forget()

    def answer(self, texts: Texts, rows: Numbers) -> Iterator[Answered]:
        """The answers to those of these records that have a plan, by shapes."""
        for shape in tuple(self._shapes):
            cut = texts.cut(shape, rows)
            plans = _each(cut.keys(), self._plan)
            known = np.flatnonzero(plans != UNKNOWN)
            numbers = self._ways_of(plans[known], cut.piece(RESOURCE, known))
            known, numbers = known[numbers != UNKNOWN], numbers[numbers != UNKNOWN]
            if known.size:
                rows = np.setdiff1d(rows, cut.rows[known], assume_unique=True)
                ways = pa.array(numbers).dictionary_encode()
                told = [self._told[number] for number in ways.dictionary.to_pylist()]
                slots = cut.piece(ID, known), cut.piece(RESOURCE, known)
                yield Answered(self._system, cut.rows[known], *slots, ways.indices.to_numpy(), told)

    def _plan(self, key: bytes) -> int:
        return self._keys.get(key, UNKNOWN)

    def _ways_of(self, plans: Codes, resources: pa.BinaryArray) -> Codes:
        sets = _each(resources, self._resources.number)
        return _each(pa.array(plans.astype(np.int64) << HALF | sets), self._way)

    def _way(self, pair: int) -> int:
        if pair < 0:
            return UNKNOWN  # as the set is
        number = self._pairs.get(pair)
        if number is None:
            objects = self._resources.sets[pair & (1 << HALF) - 1]
            number = self._pairs[pair] = self._plans[pair >> HALF].way(objects, self._told)
        return number

    def learn(self, text: bytes, asked: Request, trust: frozenset[str]) -> None:
        """Make a plan from a text and the request that it is, the second time that its like comes by."""
        if (found := shape_of(text, asked.id.encode(), asked.resource.id.encode())) is None:
            return
        shape, key = found
        if key in self._keys or not self._sighted_before(key):
            return
        outline = self._answers.outline(asked, trust)
        if outline is None:
            return  # perhaps for its resource alone, and others are simpler
        self._keys[key] = UNKNOWN
        if self._proved(key, text):
            self._keys[key] = len(self._plans)
            self._plans.append(Plan(outline, self._echo(asked)))
            self._note_shape(shape)

    def _sighted_before(self, key: bytes) -> bool:
        if (number := hash(key)) in self._sighted:
            return True
        if len(self._sighted) >= PLANS_HELD:
            self._sighted.clear()
        self._sighted.add(number)
        return False

    def _proved(self, key: bytes, text: bytes) -> bool:
        """Whether the marks in the slots, and they alone, become the two ids."""
        id_, resource = self._marks
        try:
            asked = decode_request(text)
            marked = decode_request(filled(key, id_.encode(), resource.encode()))
        except MalformedRequest:
            return False
        if not isinstance(asked, Request):
            return False
        expected = msgspec.structs.replace(asked.resource, id=resource)
        return marked == msgspec.structs.replace(asked, id=id_, resource=expected)

    def _echo(self, asked: Request) -> tuple[bytes, bytes]:
        mark = self._marks[1]
        marked = msgspec.structs.replace(asked, resource=msgspec.structs.replace(asked.resource, id=mark))
        before, _, after = echo(marked).partition(mark.encode())
        return before, after

    def _note_shape(self, shape: Shape) -> None:
        if shape not in self._shapes:
            self._shapes = [shape, *self._shapes[: SHAPES_HELD - 1]]


class Plans:
    """The plans of one snapshot and trust, for the moments of one epoch."""

    def __init__(self, answers: Answers, trust: frozenset[str], epoch: Hashable) -> None:
        self.epoch = epoch
        self._answers, self._trust = answers, trust
        self._families: dict[str, Family] = {}

    def answer(self, texts: Texts) -> Iterator[Answered]:
        """The answers to those of the texts that have a plan, in groups."""
        rows = np.flatnonzero(texts.plain)
        for family in tuple(self._families.values()):
            family.make_room()
            for answered in family.answer(texts, rows):
                rows = np.setdiff1d(rows, answered.rows, assume_unique=True)
                yield answered

    def learn(self, text: bytes, asked: Request) -> None:
        """Make a plan from a text and the request that it is, the second time that its like comes by."""
        name_of = all_systems()[asked.system].name_of_resource
        if name_of is None or len(text) > TEXT_BYTES:
            return
        family = self._families.get(asked.system)
        if family is None:
            family = self._families[asked.system] = Family(self._answers, asked.system, name_of)
        family.learn(text, asked, self._trust)


def _each(values: pa.Array, told: Callable[[Any], int]) -> Codes:
    """What is told of each of the values, asked once for those that are equal."""
    coded = values.dictionary_encode()
    answers = np.fromiter(map(told, coded.dictionary.to_pylist()), np.int32, len(coded.dictionary))
    found: Codes = answers[coded.indices.to_numpy()]
    return found
