"""The short way: most requests are like one before them but for two texts, their id and their resource's id.

A *plan* is what is known of all requests with the same text around these two slots: who asks, which permission is
needed, and what the answers are. It is made from a request that went the careful way, and proved before it is used:
with marks in its slots the text is still that request, with the marks for the two ids and nothing else changed. By
JSON's grammar any other text without quotes, backslashes and control characters may then stand in their place and
changes nothing else either. So the requests of a plan need not be decoded to be known.

All records of a batch are gone through together, in columns, and what many have in common is worked out once: the plan
for each key, the objects that match for each resource's id, the answer for each plan and grant that decides.
"""

import secrets
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import TypeVar

import msgspec
import numpy as np
import pyarrow as pa

from policy.patterns import Name
from policy.requests import MalformedRequest, Request, decode_request
from policy.systems import all_systems
from streaming.enforcer.answers import Answers, Outline, echo
from streaming.enforcer.matching import (
    HALF,
    LOWER,
    NOTHING,
    UNKNOWN,
    Deciding,
    Growing,
    Pairs,
    Resources,
    each,
)
from streaming.enforcer.texts import ID, RESOURCE, Codes, Numbers, Rows, Shape, Texts, filled, shape_of
from streaming.observability.tally import Label, label

PLANS_HELD = 50_000
TEXT_BYTES = 4096  # longer ones go the careful way; so a batch of decisions is no larger than Arrow can have it
TOLD_BYTES = 16_384  # the same of answers
SHAPES_HELD = 8
ANSWERS_HELD = 100_000
PAIRS_HELD = 1_000_000

Meaning = TypeVar("Meaning")


class Told(msgspec.Struct, frozen=True, gc=False):
    """An answer: what stands around the resource's id, and how many bytes that is. `label`: what it is counted as."""

    pieces: tuple[bytes, ...]
    size: int
    label: Label


class Echo(msgspec.Struct, frozen=True, gc=False):
    """What stands before and after the resource's id where a decision says who asked for what."""

    before: bytes
    after: bytes


class Answered(msgspec.Struct, frozen=True):
    """Records of one system with their answers.

    `rows`: their numbers; `ids`: with the quotes; `resources`: their ids, without; `answers`: which of `told` each
    gets; `askers`: which of `echoes`.
    """

    system: str
    rows: Numbers
    ids: pa.BinaryArray
    resources: pa.BinaryArray
    answers: Codes
    told: Sequence[Told]
    askers: Codes
    echoes: Sequence[Echo]

    def among(self, which: Rows) -> "Answered":
        """Those of `which` alone."""
        if which.all():
            return self
        mask = pa.array(which)
        ids, resources = self.ids.filter(mask), self.resources.filter(mask)
        answers, askers = self.answers[which], self.askers[which]
        return Answered(self.system, self.rows[which], ids, resources, answers, self.told, askers, self.echoes)


class Plan(msgspec.Struct, frozen=True):
    """The answers to all requests that differ from each other in their slots alone."""

    outline: Outline
    echo: Echo


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
        self._resources = Resources(self._name_of, self._answers.grants(self._system))
        self._deciding = Deciding(self._resources)
        self._effective_of = Growing()  # by the numbers of the plans
        self._grants = Pairs()  # which one decides, by the numbers of effective permissions and of a state
        self._told: list[Told] = []
        self._numbers: dict[Hashable, int] = {}  # in `_told`, by all that an answer is made of
        self._answers_of = Pairs()  # numbers in `_told` by those of the plan and of the grant, from 1

    def make_room(self) -> None:
        """Forget what there is too much of; between batches, within which numbers must hold."""
        room = self._resources.make_room()
        if not room or len(self._keys) >= PLANS_HELD or len(self._told) >= ANSWERS_HELD:
            self._forget()
        if max(len(self._grants), len(self._answers_of)) >= PAIRS_HELD:
            self._grants, self._answers_of = Pairs(), Pairs()

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """The shapes that its plans have."""
        return tuple(self._shapes)

    def answer(self, texts: Texts, shape: Shape, rows: Numbers) -> Answered | None:
        """The answers to those of these records that have this shape and a plan; None: there are none."""
        cut = texts.cut(shape, rows)
        plans = each(cut.keys(), self._keys, lambda _: UNKNOWN)
        known = np.flatnonzero(plans != UNKNOWN)
        states = self._resources.numbers(cut.piece(RESOURCE, known))
        known, states = known[states != UNKNOWN], states[states != UNKNOWN]
        numbers = self._told_to(plans[known], states)
        known, numbers = known[numbers != UNKNOWN], numbers[numbers != UNKNOWN]
        if not known.size:
            return None
        answers, told = _coded(numbers, self._told.__getitem__)
        askers, echoes = _coded(plans[known], lambda plan: self._plans[plan].echo)
        slots = cut.piece(ID, known), cut.piece(RESOURCE, known)
        return Answered(self._system, cut.rows[known], *slots, answers, told, askers, echoes)

    def _told_to(self, plans: Numbers, states: Numbers) -> Numbers:
        """The number of the answer for each plan and state of a resource; UNKNOWN: it needs more care."""
        effective = self._effective_of.array()[plans]
        grants = self._grants.numbers(effective << HALF | states, self._deciding.find)
        return self._answers_of.numbers(plans << HALF | grants - NOTHING, self._find)

    def _find(self, pairs: Numbers) -> list[int]:
        grants = (pairs & LOWER) + NOTHING
        return list(map(self._number_of, (pairs >> HALF).tolist(), grants.tolist()))

    def _number_of(self, plan: int, grant: int) -> int:
        """The number of what a plan's requests are told when this grant decides; UNKNOWN: it is too much."""
        outline = self._plans[plan].outline
        filling = outline.filling(None if grant == NOTHING else self._deciding.grants[grant])
        number = self._numbers.get(filling)
        if number is None:
            pieces = outline.pieces(filling)
            told = Told(pieces, sum(map(len, pieces)), label(self._system, filling.template.outcome))
            # From here nothing can fail: an answer that was not kept would be taken for the next one.
            number = UNKNOWN
            if told.size <= TOLD_BYTES:
                number = len(self._told)
                self._told.append(told)
            self._numbers[filling] = number
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
            plan, number = Plan(outline, self._echo(asked)), self._deciding.number(outline.effective)
            # From here nothing can fail: a key whose plan was not kept would get the next plan's answers.
            self._effective_of.extend([number])
            self._plans.append(plan)
            self._keys[key] = len(self._plans) - 1
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

    def _echo(self, asked: Request) -> Echo:
        mark = self._marks[1]
        marked = msgspec.structs.replace(asked, resource=msgspec.structs.replace(asked.resource, id=mark))
        before, _, after = echo(marked).partition(mark.encode())
        return Echo(before, after)

    def _note_shape(self, shape: Shape) -> None:
        if shape not in self._shapes:
            self._shapes = [shape, *self._shapes[: SHAPES_HELD - 1]]


class Plans:
    """The plans of one snapshot and trust, for the moments of one epoch."""

    def __init__(self, answers: Answers, trust: frozenset[str], epoch: Hashable) -> None:
        self.epoch = epoch
        self._answers, self._trust = answers, trust
        self._families: dict[str, Family] = {}

    def answer(self, texts: Texts, left: Rows) -> Iterator[Answered]:
        """The answers to those of the texts that are left and have a plan, in groups."""
        rows = np.flatnonzero(texts.plain & left)
        for family in tuple(self._families.values()):
            family.make_room()
            for shape in family.shapes:
                answered = family.answer(texts, shape, rows)
                if answered is not None:
                    rows = _without(rows, answered.rows)
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


def _coded(numbers: Numbers, meaning: Callable[[int], Meaning]) -> tuple[Codes, list[Meaning]]:
    """Numbers as codes: places in a list of what the distinct ones mean."""
    distinct, codes = np.unique(numbers, return_inverse=True)
    return codes.astype(np.int32), list(map(meaning, distinct.tolist()))


def _without(rows: Numbers, others: Numbers) -> Numbers:
    """Those of the rows that are not among the others. Both rise."""
    if len(rows) == len(others):
        return rows[:0]
    return np.setdiff1d(rows, others, assume_unique=True)
