"""Answers as JSON. Those to plain questions are rendered once and filled in: most differ in their object alone."""

import contextlib
import secrets

import msgspec

from policy.decide import answer, conclude_atom
from policy.decisions import Decision, Missing, Outcome
from policy.model import Grant, Holds, Reason
from policy.patterns import Name
from policy.requests import Batch, Request
from policy.snapshot import Snapshot, Standing
from policy.systems import all_systems

TEMPLATES_HELD = 50_000

_encode = msgspec.json.encode

Answer = tuple[bytes, bytes]
"""JSON of a decision: its fields up to and with `claims`, and `,"evaluations":[…]` of a batch."""

TemplateKey = tuple[str, Standing | None, str, str, str, tuple[str, ...], tuple[int, ...]]


class Context(msgspec.Struct, gc=False):
    """The part of a decision record that says why."""

    outcome: Outcome
    reasons: tuple[Reason, ...]
    missing: tuple[Missing, ...]
    claims: tuple[str, ...]


def to_json(decision: Decision) -> Answer:
    """A decision as its record has it."""
    evaluations = [item.to_record() for item in decision.evaluations]
    listed = b',"evaluations":' + _encode(evaluations) if evaluations else b""
    # Decision.to_record in other words: the same fields, without plain data made of them in between.
    context = _encode(Context(decision.outcome, decision.reasons, decision.missing, decision.claims))
    return b'"decision":%b,"context":%b' % (b"true" if decision.allowed else b"false", context[:-1]), listed


class Answers:
    """What `policy.answer` says to requests, under one snapshot.

    Most questions are one atom: does the subject hold a permission on an object? The answers to two that find the same
    grants differ in the object's text alone. So the first is rendered by the engine with a mark for that text, and the
    others are the same with theirs in its place. Everything else goes the engine's whole way.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._templates: dict[TemplateKey, list[bytes]] = {}
        self._mark = f"object-{secrets.token_hex(16)}"  # no document can hold it

    def of(self, asked: Request | Batch, trust: frozenset[str]) -> Answer:
        """The answer to a request, whose `time` is the moment to judge by."""
        outline = self.outline(asked, trust) if isinstance(asked, Request) else None
        if outline is not None:
            with contextlib.suppress(Exception):  # whatever it is: the engine's whole way answers `error`, and says why
                return _encode(outline.atom.object_text)[1:-1].join(outline.template(outline.atom.object)), b""
        return to_json(answer(self._snapshot, asked, trust))

    def outline(self, request: Request, trust: frozenset[str]) -> "Outline | None":
        """What the answer to a question of one atom rests on; None: it is not one, or needs the engine's care."""
        realm = self._snapshot.realms.get(request.system)
        if realm is None or realm.broken:
            return None
        try:
            question = all_systems()[request.system].ask(request, realm.facts, trust)
            atom = question.requirement
            if type(atom) is not Holds or atom.holders or question.notes or question.contested:
                return None
            standing = realm.standing(question.holders, request.time)
        except Exception:  # the engine's whole way answers `error`, and says why
            return None
        return Outline(self, request.system, standing, atom, question.claims, request.time)

    def template(self, outline: "Outline", grants: list[Grant]) -> list[bytes]:
        """What stands around the object's text where these grants match. Their ids name them: they live as long."""
        atom, claims = outline.atom, outline.claims
        standing = outline.standing if grants else None  # without grants it does not matter who asks
        key = (outline.system, standing, atom.permission_text, atom.rule, atom.because, claims, tuple(map(id, grants)))
        template = self._templates.get(key)
        if template is None:
            marked = msgspec.structs.replace(atom, object_text=self._mark)
            decision = conclude_atom(all_systems()[outline.system], outline.standing, marked, grants, claims)
            template = to_json(decision)[0].split(self._mark.encode())
            if len(self._templates) >= TEMPLATES_HELD:
                self._templates.clear()
            self._templates[key] = template
        return template


class Outline:
    """Who asks for which permission at which moment (`at`, ms): all that an answer rests on, but for the object."""

    __slots__ = ("_answers", "_at", "atom", "claims", "standing", "system")

    def __init__(
        self, answers: Answers, system: str, standing: Standing, atom: Holds, claims: tuple[str, ...], at: int | None
    ) -> None:
        self._answers, self._at = answers, at
        self.system, self.standing, self.atom, self.claims = system, standing, atom, claims

    def template(self, object_: Name) -> list[bytes]:
        """What stands around an object's text in the answer about it; raises when it cannot be answered."""
        grants = self.standing.grants_on(self.atom.permission, object_, self._at)
        return self._answers.template(self, grants)
