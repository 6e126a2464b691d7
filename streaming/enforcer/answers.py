"""Answers as JSON. Those to plain questions are rendered once and filled in: most differ in their object alone."""

import secrets

import msgspec

from policy.decide import answer, conclude_atom
from policy.decisions import Decision, Missing, Outcome
from policy.model import Grant, Holds, Reason
from policy.requests import Batch, Request
from policy.snapshot import Snapshot, Standing
from policy.systems import all_systems

TEMPLATES_HELD = 50_000

_encode = msgspec.json.encode

Answer = tuple[bytes, bytes, bytes]
"""JSON of a decision: its fields up to and with `claims`, `,"request":{…}`, and `,"evaluations":[…]` of a batch."""

TemplateKey = tuple[Standing, str, str, str, tuple[str, ...], tuple[int, ...]]


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
        if isinstance(asked, Batch):
            decision = answer(self._snapshot, asked, trust)
            return to_json(decision), b"", _evaluations(asked, decision)
        plain = self._plain(asked, trust)
        return plain or to_json(answer(self._snapshot, asked, trust)), echo(asked), b""

    def _plain(self, request: Request, trust: frozenset[str]) -> bytes | None:
        """The answer to a question of one atom; None: it is not one, or needs more care than is taken here."""
        realm = self._snapshot.realms.get(request.system)
        if realm is None or realm.broken:
            return None
        try:
            question = all_systems()[request.system].ask(request, realm.facts, trust)
            atom = question.requirement
            if type(atom) is not Holds or atom.holders or question.notes or question.contested:
                return None
            standing = realm.standing(question.holders, request.time)
            grants = standing.grants_on(atom.permission, atom.object, request.time)
        except Exception:  # whatever it is: the engine's whole way answers `error`, and says why
            return None
        template = self._template(request.system, standing, atom, grants, question.claims)
        return _encode(atom.object_text)[1:-1].join(template)

    def _template(
        self, system: str, standing: Standing, atom: Holds, grants: list[Grant], claims: tuple[str, ...]
    ) -> list[bytes]:
        """What stands around the object's text. Grants live as long as the snapshot: their ids name them."""
        key = (standing, atom.permission_text, atom.rule, atom.because, claims, tuple(map(id, grants)))
        template = self._templates.get(key)
        if template is None:
            marked = msgspec.structs.replace(atom, object_text=self._mark)
            decision = conclude_atom(all_systems()[system], standing, marked, grants, claims)
            template = to_json(decision).split(self._mark.encode())
            if len(self._templates) >= TEMPLATES_HELD:
                self._templates.clear()
            self._templates[key] = template
        return template
