"""The short way: most requests are like one before them but for two texts, their id and their resource's id.

A *plan* is what is known of all requests with the same text around these two *slots*: who asks, which permission is
needed, and what the answers are. It is made from a request that went the careful way, and proved before it is used:
with marks in its slots the text is still that request, with the marks for the two ids and nothing else changed. By
JSON's grammar any other text without quotes, backslashes and control characters may then stand in their place and
changes nothing else either. So the requests of a plan need not be decoded to be known.
"""

import secrets
from collections.abc import Callable, Hashable

import msgspec

from policy.model import Grant
from policy.patterns import Name
from policy.requests import MalformedRequest, Request, decode_request
from policy.systems import all_systems
from streaming.enforcer.answers import Answers, Outline, echo
from streaming.observability.tally import Label, label

PLANS_HELD = 50_000
PLAN_CHARACTERS = 4096  # longer texts are not worth their memory
SHAPES_HELD = 4
NAMES_HELD = 50_000
NAME_BYTES = 512  # longer ones are not worth their memory

Key = tuple[bytes, bytes, bytes]
"""The text before the id, from there to the resource's id, and after that: each from quote to quote."""


class Shape(msgspec.Struct, frozen=True):
    """What stands right before the slots, as some producer writes requests: `"id":"`, `"resource":{"id":"`."""

    before_id: bytes
    before_resource: bytes

    def slots(self, text: bytes) -> tuple[int, int, int, int]:
        """Where the slots begin and end: in order, unless the text is none of this shape."""
        id_start = text.find(self.before_id) + len(self.before_id)
        id_end = text.find(b'"', id_start)
        resource_start = text.find(self.before_resource, id_end) + len(self.before_resource)
        return id_start, id_end, resource_start, text.find(b'"', resource_start)


class Plan:
    """The answers to all requests that differ from each other in their slots alone. `system`: as JSON.

    `echo`: what stands before and after the resource's id where a decision says who asked for what. `names`: known
    names of resources, by their ids.
    """

    __slots__ = ("_answers", "_echo", "_name_of", "_names", "_outline", "system")

    def __init__(
        self, name_of: Callable[[str], Name], names: dict[bytes, Name], outline: Outline, echo: tuple[bytes, bytes]
    ) -> None:
        self.system = msgspec.json.encode(outline.system)
        self._name_of, self._names, self._outline, self._echo = name_of, names, outline, echo
        self._answers: dict[int, tuple[list[bytes], Label]] = {}

    def answer(self, resource: bytes) -> tuple[list[bytes], Label]:
        """The answer as what stands around the resource's id wherever it is said, and what it is counted as.

        Raises when the resource needs more care.
        """
        name = self._names.get(resource) or self._named(resource)
        grant = self._outline.grant(name)  # it lives as long as the snapshot, so its id names it
        return self._answers.get(id(grant)) or self._decided(grant)

    def _named(self, resource: bytes) -> Name:
        name = self._name_of(resource.decode())
        if len(resource) <= NAME_BYTES:
            if len(self._names) >= NAMES_HELD:
                self._names.clear()
            self._names[resource] = name
        return name

    def _decided(self, grant: Grant | None) -> tuple[list[bytes], Label]:
        told, outcome = self._outline.pieces(grant)
        before, after = self._echo
        given = [*told[:-1], told[-1] + before, after], label(self._outline.system, outcome)
        self._answers[id(grant)] = given
        return given


class Plans:
    """The plans of one snapshot and trust, for the moments of one epoch."""

    def __init__(self, answers: Answers, trust: frozenset[str], epoch: Hashable) -> None:
        self.epoch = epoch
        self._answers, self._trust = answers, trust
        self._plans: dict[Key, Plan | None] = {}  # None: not to be proved
        self._sighted: set[int] = set()
        self._shapes: list[Shape] = []
        self._names: dict[str, dict[bytes, Name]] = {}
        self._marks = f"id-{secrets.token_hex(16)}", f"resource-{secrets.token_hex(16)}"

    def find(self, text: bytes) -> tuple[Plan, bytes, bytes] | None:
        """The plan for a plain text (see `plain_texts`), its id with the quotes, its resource's id without."""
        for shape in self._shapes:
            a, b, c, d = shape.slots(text)
            if a < b < c < d and (plan := self._plans.get((text[:a], text[b:c], text[d:]))) is not None:
                return plan, text[a - 1 : b + 1], text[c:d]
        return None

    def learn(self, text: bytes, asked: Request) -> None:
        """Make a plan from a plain text and the request that it is, the second time that its like comes by."""
        name_of = all_systems()[asked.system].name_of_resource
        if name_of is None or len(text) > PLAN_CHARACTERS or (shape := _shape(text, asked)) is None:
            return
        a, b, c, d = shape.slots(text)
        key = (text[:a], text[b:c], text[d:])
        if key in self._plans or not self._sighted_before(key):
            return
        outline = self._answers.outline(asked, self._trust)
        if outline is None:
            return  # perhaps for its resource alone, and others are simpler
        if len(self._plans) >= PLANS_HELD:
            self._plans.clear()
        names = self._names.setdefault(asked.system, {})
        self._plans[key] = Plan(name_of, names, outline, self._echo(asked)) if self._proved(key, text) else None
        self._note_shape(shape)

    def _echo(self, asked: Request) -> tuple[bytes, bytes]:
        mark = self._marks[1]
        marked = msgspec.structs.replace(asked, resource=msgspec.structs.replace(asked.resource, id=mark))
        before, _, after = echo(marked).partition(mark.encode())
        return before, after

    def _sighted_before(self, key: Key) -> bool:
        if (number := hash(key)) in self._sighted:
            return True
        if len(self._sighted) >= PLANS_HELD:
            self._sighted.clear()
        self._sighted.add(number)
        return False

    def _proved(self, key: Key, text: bytes) -> bool:
        """Whether the marks in the slots, and they alone, become the two ids."""
        (before, between, after), (id_, resource) = key, self._marks
        try:
            asked = decode_request(text)
            marked = decode_request(b"".join((before, id_.encode(), between, resource.encode(), after)))
        except MalformedRequest:
            return False
        if not isinstance(asked, Request):
            return False
        expected = msgspec.structs.replace(asked.resource, id=resource)
        return marked == msgspec.structs.replace(asked, id=id_, resource=expected)

    def _note_shape(self, shape: Shape) -> None:
        if shape not in self._shapes:
            self._shapes = [shape, *self._shapes[: SHAPES_HELD - 1]]


def _shape(text: bytes, asked: Request) -> Shape | None:
    """The shape of a text, guessed from where its ids are written first: what is made of it has to be proved."""
    id_, resource = (msgspec.json.encode(value) for value in (asked.id, asked.resource.id))
    id_start = text.find(id_) + 1
    resource_at = text.find(b'"resource"', id_start)
    resource_start = text.find(resource, resource_at) + 1
    label = text.rfind(b'"', 0, max(0, text.rfind(b'"', 0, max(0, id_start - 1))))
    if not 0 <= label < id_start <= resource_at < resource_start:
        return None
    shape = Shape(text[label:id_start], text[resource_at:resource_start])
    a, b, c, d = shape.slots(text)
    return shape if (a, text[a:b], c, text[c:d]) == (id_start, id_[1:-1], resource_start, resource[1:-1]) else None
