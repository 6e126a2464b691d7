"""Answers as JSON. Those to plain questions are rendered once and filled in: most differ in a few texts alone."""

import contextlib
import operator
import re
import secrets
from collections.abc import Hashable, Sequence
from typing import NamedTuple

import msgspec

from policy.decide import answer, conclude_atom
from policy.decisions import Decision, Missing, Outcome
from policy.explain import route
from policy.grants import Grants
from policy.model import Grant, Holds, Reason
from policy.patterns import Name
from policy.query import to_question
from policy.requests import Batch, Request
from policy.snapshot import Snapshot, Standing
from policy.systems import all_systems
from streaming.observability.tally import Label

TEMPLATES_HELD = 50_000
TIME = frozenset({"time"})
"""Added to the trust where the stream has set the time itself: it is no claim then."""

_encode = msgspec.json.encode

Answer = tuple[bytes, bytes, bytes]
"""JSON of a decision: its fields up to and with `claims`, `,"request":{…}`, and `,"evaluations":[…]` of a batch."""

Labelled = tuple[bytes, bytes, bytes, Label]
"""An answer, and as what it is counted."""


class Context(msgspec.Struct, gc=False):
    """The part of a decision record that says why."""

    outcome: Outcome
    reasons: tuple[Reason, ...]
    missing: tuple[Missing, ...]
    claims: tuple[str, ...]


def to_json(decision: Decision) -> bytes:
    """A decision as its record has it, up to and with `claims`."""
    # Decision.to_record in other words: the same fields, without plain data made of them in between.
    context = _encode(Context(decision.outcome, decision.reasons, decision.missing, decision.claims))
    return b'"decision":%b,"context":%b' % (b"true" if decision.allowed else b"false", context[:-1])


def echo(request: Request) -> bytes:
    """Who asked for what, for those who read decisions without the requests. Properties of a subject may be secrets."""
    subject = {"type": request.subject.type, "id": request.subject.id}
    told = {"subject": subject, "action": request.action, "resource": request.resource}
    return b',"request":' + _encode(told)


def _evaluations(batch: Batch, decision: Decision) -> bytes:
    """The answers to the items that were decided, each with its own request."""
    answered = zip(batch.items, decision.evaluations, strict=False)
    parts = (
        b"{%b%b}}" % (to_json(given), echo(item) if isinstance(item, Request) else b"") for item, given in answered
    )
    return b',"evaluations":[%b]' % b",".join(parts)


class Template:
    """The answer to every question that a grant decides (or the lack of one), whoever asks, about whatever object.

    `pieces` are what stands around the texts to fill in, which are marked in `decision` with `marks`. `order` picks
    pieces and texts in the order in which they make the answer, from the pieces with the texts after them.
    """

    __slots__ = ("order", "outcome", "pieces")

    def __init__(self, decision: Decision, marks: Sequence[bytes]) -> None:
        either, answer = b"|".join(marks), to_json(decision)
        self.outcome = decision.outcome
        self.pieces = tuple(re.split(either, answer))
        texts = [len(self.pieces) + marks.index(mark) for mark in re.findall(either, answer)]
        picked = [number for pair in zip(range(len(texts)), texts, strict=True) for number in pair]
        self.order = operator.itemgetter(*picked, len(texts))

    def fill(self, texts: tuple[bytes, bytes, bytes]) -> bytes:
        """The answer with these permission, object and route, as JSON has them between quotes."""
        return b"".join(self.order(self.pieces + texts))


class Answers:
    """What `policy.answer` says to requests, under one snapshot.

    Most questions are one atom: does the subject hold a permission on an object? One grant decides it, or the lack of
    one, and all answers by the same grant are alike but for three texts: the permission's, the object's, and the route
    by which the subject came to hold the grant. So the first is rendered by the engine with marks for these texts,
    and the others are the same with theirs in place. Everything else goes the engine's whole way.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._templates: dict[Hashable, Template] = {}
        self._marks = [f"{name}-{secrets.token_hex(16)}" for name in ("permission", "object", "route")]
        self.object_mark = self._marks[1].encode()

    def of(self, asked: Request | Batch, trust: frozenset[str]) -> Answer:
        """The answer to a request, whose `time` is the moment to judge by."""
        if isinstance(asked, Batch):
            decision = answer(self._snapshot, asked, trust | TIME)
            return to_json(decision), b"", _evaluations(asked, decision)
        return self._single(asked, trust), echo(asked), b""

    def _single(self, asked: Request, trust: frozenset[str]) -> bytes:
        outline = self.outline(asked, trust)
        if outline is not None:
            with contextlib.suppress(Exception):  # whatever it is: the engine's whole way answers `error`, and says why
                return outline.answer(outline.atom.object, inner(outline.atom.object_text))
        return to_json(answer(self._snapshot, asked, trust | TIME))

    def outline(self, request: Request, trust: frozenset[str]) -> "Outline | None":
        """What the answer to a question of one atom rests on; None: it is not one, or needs the engine's care."""
        realm = self._snapshot.realms.get(request.system)
        if realm is None or realm.broken_at(request.time) or request.time is None:
            return None
        try:
            question = to_question(all_systems()[request.system], request, realm.facts.at(request.time), trust)
            atom = question.requirement
            if type(atom) is not Holds or atom.holders or question.notes or question.contested:
                return None
            return Outline(self, request.system, realm.standing(question.holders, request.time), atom, question.claims)
        except Exception:  # the engine's whole way answers `error`, and says why
            return None

    def grants(self, system: str) -> Grants:
        """The index of a system's grants."""
        return self._snapshot.realms[system].index

    def template(self, outline: "Outline", grant: Grant | None) -> Template:
        """The template of the answers that `grant` decides; it lives as long as the snapshot, so its id names it."""
        atom, claims = outline.atom, outline.claims
        key = (outline.system, atom.rule, atom.because, claims, grant and id(grant))
        template = self._templates.get(key)
        if template is None:
            permission, object_, route = self._marks
            marked = msgspec.structs.replace(atom, permission_text=permission, object_text=object_)
            grants = () if grant is None else (msgspec.structs.replace(grant, holder=route),)
            system, nobody = all_systems()[outline.system], Standing(self._snapshot.realms[outline.system], {}, None)
            decision = conclude_atom(system, nobody, marked, grants, claims)
            template = Template(decision, [mark.encode() for mark in self._marks])
            if len(self._templates) >= TEMPLATES_HELD:
                self._templates.clear()
            self._templates[key] = template
        return template


class Outline:
    """Who asks for which permission, in one epoch: all that an answer rests on, but for the object."""

    __slots__ = ("_answers", "_permission", "_standing", "atom", "claims", "effective", "system")

    def __init__(self, answers: Answers, system: str, standing: Standing, atom: Holds, claims: tuple[str, ...]) -> None:
        self.system, self.atom, self.claims = system, atom, claims
        self._answers, self._standing = answers, standing
        self.effective = standing.permissions(atom.permission)
        self._permission = inner(atom.permission_text)

    def grant(self, object_: Name) -> Grant | None:
        """The grant that decides about an object; None: there is none."""
        grants = self.effective.on(object_)
        return grants[0] if grants else None

    def answer(self, object_: Name, text: bytes) -> bytes:
        """The answer about an object; `text`: what it is called, as JSON has it between quotes."""
        return self.filling(self.grant(object_)).answer(text)

    def pieces(self, filling: "Filling") -> tuple[bytes, ...]:
        """An answer as what stands around the object's text."""
        mark = self._answers.object_mark
        return tuple(filling.answer(mark).split(mark))

    def filling(self, grant: Grant | None) -> "Filling":
        """All that the answer rests on, but for the object, when this grant decides."""
        held = b"" if grant is None else inner(route(self._standing.via, grant.holder))
        return Filling(self._answers.template(self, grant), self._permission, held)


class Filling(NamedTuple):
    """A template with two of its texts: the permission and the route, as JSON has them between quotes."""

    template: Template
    permission: bytes
    route: bytes

    def answer(self, text: bytes) -> bytes:
        """The answer about the object of this name, as JSON has it between quotes."""
        return self.template.fill((self.permission, text, self.route))


def inner(text: str) -> bytes:
    """A text as JSON has it between quotes."""
    return _encode(text)[1:-1]
