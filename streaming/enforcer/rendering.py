"""Decisions as JSON. An answer is rendered once for all resources that it is the same for; their ids are filled in."""

import operator
import re
import secrets
from collections.abc import Callable, Hashable, Sequence
from functools import cache

import msgspec

from policy import Batch, Decision, Grant, Missing, Outcome, Reason, Request
from policy.evaluation import Cache, PreparedQuery, route
from streaming.ops.tally import Label, label, outcome_of

TEMPLATE_BYTES = 1_000  # beside its texts
ANSWER_BYTES = 8192  # a larger answer is not made in columns …
SLOTS = 8  # … nor one that names the resource more often
PERMISSION, OBJECT, ROUTE = MARKS = [f"{name}-{secrets.token_hex(16)}" for name in ("permission", "object", "route")]
OBJECT_BYTES = OBJECT.encode()

_encode = msgspec.json.encode


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
    """The request as its decision repeats it. Properties of a subject may be secrets, and are left out."""
    subject = {"type": request.subject.type, "id": request.subject.id}
    return b',"request":' + _encode({"subject": subject, "action": request.action, "resource": request.resource})


def evaluations(batch: Batch, decision: Decision) -> bytes:
    """The answers to the items that were decided, each with its own request."""
    answered = zip(batch.items, decision.evaluations, strict=False)
    parts = (
        b"{%b%b}}" % (to_json(given), echo(item) if isinstance(item, Request) else b"") for item, given in answered
    )
    return b',"evaluations":[%b]' % b",".join(parts)


def inner(text: str) -> bytes:
    """A text as JSON has it between quotes."""
    return _encode(text)[1:-1]


class RenderedAnswer(msgspec.Struct, frozen=True, gc=False):
    """An answer as the texts around the resource's id. `size`: their bytes; `label`: as what it is counted.

    `is_large`: too large to be made in columns.
    """

    pieces: tuple[bytes, ...]
    size: int
    label: Label
    is_large: bool


class RenderedRequest(msgspec.Struct, frozen=True, gc=False):
    """What decisions repeat of a request: the texts around the resource's id, and its system, as JSON."""

    system: bytes
    before: bytes
    after: bytes

    @property
    def size(self) -> int:
        """Bytes of the texts."""
        return len(self.system) + len(self.before) + len(self.after)


class Form(msgspec.Struct, frozen=True):
    """How a record has an answer and its request in JSON. `outcome`: of an answer that is written so."""

    answer: Callable[[Decision], bytes] = to_json
    request: Callable[[Request], bytes] = echo
    outcome: Callable[[bytes], str] = outcome_of


DECISION = Form()
"""As decision records have it."""


def rendered(system: str, answer: bytes, form: Form, mark: bytes | None = None) -> RenderedAnswer:
    """An answer in JSON; `mark` stands where the resource's id is to be filled in."""
    pieces = (answer,) if mark is None else tuple(answer.split(mark))
    size = sum(map(len, pieces))
    is_large = size > ANSWER_BYTES or len(pieces) > SLOTS
    return RenderedAnswer(pieces, size, label(system, form.outcome(pieces[0])), is_large)


def rendered_request(request: Request, form: Form) -> RenderedRequest:
    """The request for any id of its resource."""
    marked = msgspec.structs.replace(request, resource=msgspec.structs.replace(request.resource, id=OBJECT))
    before, _, after = form.request(marked).partition(OBJECT_BYTES)
    return RenderedRequest(_encode(request.system), before, after)


class Template:
    """The answer that a grant (or the lack of one) determines for all queries that are alike, with three marks.

    `pieces` are the texts around the marks. `order` picks pieces and texts in the order in which they make the answer,
    from the pieces with the texts after them.
    """

    __slots__ = ("order", "pieces")

    def __init__(self, answer: bytes) -> None:
        marks = [mark.encode() for mark in MARKS]
        either = _either()
        self.pieces = (*either.split(answer), b"")
        texts = [len(self.pieces) + marks.index(mark) for mark in either.findall(answer)]
        picked = [number for pair in zip(range(len(texts)), texts, strict=True) for number in pair]
        # With the empty piece there are always two at least: with one alone, itemgetter gives no tuple.
        self.order = operator.itemgetter(*picked, len(texts), len(self.pieces) - 1)

    def fill(self, texts: tuple[bytes, bytes, bytes]) -> bytes:
        """The answer with this permission, object and route, as JSON has them between quotes."""
        return b"".join(self.order((*self.pieces, *texts)))


@cache
def _either() -> "re.Pattern[bytes]":
    return re.compile("|".join(MARKS).encode())


class Templates:
    """The templates of one snapshot, by what an answer rests on beside permission, object and route."""

    def __init__(self, form: Form) -> None:
        self._form = form
        self._templates: Cache[Hashable, Template] = Cache()

    def render(self, query: PreparedQuery, permission: bytes, grants: Sequence[Grant]) -> RenderedAnswer:
        """The answer to a query of one atom where these grants determine it, by precedence: for any resource.

        `permission`: the atom's, as JSON has it between quotes.
        """
        grant = grants[0] if grants else None
        held = b"" if grant is None else inner(route(query.via, grant.principal))
        text = self._template(query, grant).fill((permission, OBJECT_BYTES, held))
        return rendered(query.request.system, text, self._form, OBJECT_BYTES)

    def _template(self, query: PreparedQuery, grant: Grant | None) -> Template:
        """Grants live as long as the snapshot, so the id names one."""
        assert query.atom is not None
        atom, system = query.atom, query.request.system
        key = (system, atom.rule, atom.because, *query.beside, None if grant is None else id(grant))
        template = self._templates.get(key)
        if template is None:
            marked = msgspec.structs.replace(atom, permission_text=PERMISSION, object_text=OBJECT)
            template = Template(self._form.answer(query.conclude(marked, _by_route(grant))))
            self._templates.hold(key, template, TEMPLATE_BYTES + sum(map(len, template.pieces)) + len(atom.because))
        return template


def _by_route(grant: Grant | None) -> tuple[Grant, ...]:
    """The grant with the mark for its principal: no membership leads there, so the mark is the whole route."""
    return () if grant is None else (msgspec.structs.replace(grant, principal=ROUTE),)
