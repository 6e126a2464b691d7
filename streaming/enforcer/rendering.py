"""Decisions as JSON. An answer is rendered once for all resources that it is the same for; their ids are filled in."""

import itertools
import operator
import re
import secrets
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple, TypeVar

import msgspec
import numpy as np
import pyarrow as pa

from policy import Batch, Decision, Grant, Missing, Outcome, Reason, Request, StatementId
from policy.evaluation import EFFECTS, EVERYTHING, PreparedQuery, Via, route
from streaming.ops.tally import Label, label, outcome_of
from streaming.records.packing import NO_TEXT, Codes, ColumnarBatch, DictionaryColumn, Part

TEMPLATE_BYTES = 1_000  # beside its texts
ANSWER_BYTES = 8192  # a larger answer is not made in columns …
SLOTS = 8  # … nor one that names the resource more often
PERMISSION, OBJECT, ROUTE, DOCUMENT = (
    f"{name}-{secrets.token_hex(16)}" for name in ("permission", "object", "route", "document")
)
STATEMENT = 1 << 62 | secrets.randbits(62)  # a number in answers, too
PLACEHOLDERS = [text.encode() for text in (PERMISSION, OBJECT, ROUTE, DOCUMENT, str(STATEMENT))]
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
    # The same fields as Decision.to_record, without the plain data in between.
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
    pieces: tuple[bytes, ...]

    @property
    def size(self) -> int:
        """Bytes of the texts."""
        return len(self.system) + sum(map(len, self.pieces))


class Form(msgspec.Struct, frozen=True):
    """How a record has an answer and its request in JSON. `outcome`: of an answer that is written so."""

    answer: Callable[[Decision], bytes] = to_json
    request: Callable[[Request], bytes] = echo
    outcome: Callable[[bytes], str] = outcome_of


DECISION = Form()
"""As decision records have it."""


def rendered(system: str, answer: bytes, form: Form, placeholder: bytes | None = None) -> RenderedAnswer:
    """An answer in JSON; `placeholder` stands where the resource's id is to be filled in."""
    pieces = (answer,) if placeholder is None else tuple(answer.split(placeholder))
    size = sum(map(len, pieces))
    is_large = size > ANSWER_BYTES or len(pieces) > SLOTS
    return RenderedAnswer(pieces, size, label(system, form.outcome(pieces[0])), is_large)


def rendered_request(request: Request, system: bytes, form: Form, repeats_id: bool) -> RenderedRequest:
    """The request for any id of its resource. `system`: as JSON. `repeats_id`: a property is the id, too."""
    resource = request.resource
    if repeats_id:
        properties = {name: OBJECT if value == resource.id else value for name, value in resource.properties.items()}
        resource = msgspec.structs.replace(resource, properties=properties)
    resource = msgspec.structs.replace(resource, id=OBJECT)
    text = form.request(msgspec.structs.replace(request, resource=resource))
    return RenderedRequest(system, tuple(text.split(OBJECT_BYTES)))


class Template:
    """The answer to all queries that are alike, with placeholders.

    `pieces` are the texts around the placeholders. `order` selects pieces and texts in the order of the answer,
    from the pieces with the texts after them.
    """

    __slots__ = ("order", "pieces")

    def __init__(self, answer: bytes) -> None:
        either = _either()
        self.pieces = (*either.split(answer), b"")
        texts = [len(self.pieces) + PLACEHOLDERS.index(found) for found in either.findall(answer)]
        indexes = [number for pair in zip(range(len(texts)), texts, strict=True) for number in pair]
        # With the empty piece there are always two at least: with one alone, itemgetter gives no tuple.
        self.order = operator.itemgetter(*indexes, len(texts), len(self.pieces) - 1)

    def fill(self, *texts: bytes) -> bytes:
        """The answer with these texts in place of `PLACEHOLDERS`, as JSON has them between quotes."""
        return b"".join(self.order((*self.pieces, *texts)))


@cache
def _either() -> "re.Pattern[bytes]":
    return re.compile(b"|".join(PLACEHOLDERS))


Determining = tuple[str, bool] | None
"""What the text of an answer depends on of the determining grant: its effect, and whether it is of a numbered
statement; None: there is no grant.
"""

PLACEHOLDER_GRANTS: dict[Determining, tuple[Grant, ...]] = {
    None: (),
    # No membership leads to that principal, so it is the whole route.
    **{
        (effect, statement is not None): (
            Grant(ROUTE, effect, EVERYTHING, EVERYTHING, StatementId(DOCUMENT, statement)),
        )
        for effect in EFFECTS
        for statement in (STATEMENT, None)
    },
}


class AnswerTemplates:
    """The templates of the answers to queries of one permission check that differ in what `PLACEHOLDERS` are for alone.

    `query`: one of them, which is not kept. `size`: the bytes of all.
    """

    __slots__ = ("_form", "_system", "_templates", "size")

    def __init__(self, form: Form, query: PreparedQuery) -> None:
        assert query.atom is not None
        self._form, self._system = form, query.system
        atom = msgspec.structs.replace(query.atom, permission_text=PERMISSION, object_text=OBJECT)
        self._templates = {
            determining: Template(form.answer(query.conclude(atom, grants)))
            for determining, grants in PLACEHOLDER_GRANTS.items()
        }
        texts = itertools.chain.from_iterable(template.pieces for template in self._templates.values())
        self.size = TEMPLATE_BYTES * len(self._templates) + sum(map(len, texts))

    def render(self, permission: bytes, object_: bytes, via: Via, grant: Grant | None) -> RenderedAnswer:
        """The answer that a grant determines, for any resource; None: there is none.

        `permission`, `object_`: the atom's, as JSON has them between quotes; the latter with the placeholder. `via`:
        the effective principals.
        """
        if grant is None:
            text = self._templates[None].fill(permission, object_, b"", b"", b"")
        else:
            document, number = grant.statement_id.document, grant.statement_id.statement
            names = inner(route(via, grant.principal)), inner(document), b"%d" % (number or 0)
            text = self._templates[grant.effect, number is not None].fill(permission, object_, *names)
        return rendered(self._system, text, self._form, OBJECT_BYTES)


Shared = TypeVar("Shared")


class DecisionEnvelope(msgspec.Struct, frozen=True):
    """What all decisions on records of one partition in one batch begin and end with."""

    head: bytes
    tail: bytes


def layout(
    envelope: DecisionEnvelope, number: Any, request_id: Any, system: Any, at: Any, answer: Any, evaluations: Any = b""
) -> Any:
    """The texts that make a decision record: bytes, or parts of a columnar batch.

    `number`: the offset; `request_id`: as JSON; `at`: its time; `answer`: the texts of the answer and its
    request, as `Answer` has them.
    """
    begin = (envelope.head, number, b'","request_id":', request_id, b',"system":', system, b',"time":"', at, b'",')
    return *begin, *answer, envelope.tail, number, b"}}", evaluations, b"}"


Answered = tuple[int, bytes, bytes, int, RenderedAnswer, RenderedRequest]
"""A request with its answer: the number of its record, its id and its resource's in JSON, without escapes, its time
(ms), and both as they are rendered.
"""


class AnsweredColumns(NamedTuple):
    """The same as columns; the numbers of the records rise."""

    rows: tuple[int, ...]
    ids: tuple[bytes, ...]
    resources: tuple[bytes, ...]
    times: tuple[int, ...]
    answers: tuple[RenderedAnswer, ...]
    requests: tuple[RenderedRequest, ...]


class Beside(msgspec.Struct, frozen=True):
    """What a decision record has of its request's record. `times`: as texts."""

    keys: pa.BinaryArray
    offsets: pa.Array
    times: DictionaryColumn
    headers: pa.BinaryArray


def columnar_batch(
    envelope: DecisionEnvelope, answered: AnsweredColumns, beside: Beside, which: Codes, answers: list[RenderedAnswer]
) -> ColumnarBatch:
    """The decisions. `which`: of the answers."""
    number = beside.offsets.cast(pa.string()).cast(pa.binary())
    ids = pa.array(answered.ids, pa.binary())
    resources = pa.array([text[1:-1] for text in answered.resources], pa.binary())
    of, requests = coded(answered.requests)
    system = DictionaryColumn(pa.array([request.system for request in requests], pa.binary()), of)
    answer = *_filled(which, answers, resources), *_filled(of, requests, resources)
    parts = layout(envelope, number, ids, system, beside.times, answer)
    return ColumnarBatch(beside.keys, beside.headers, parts, np.array(answered.rows, np.int32))


def _filled(
    which: Codes, texts: Sequence[RenderedAnswer | RenderedRequest], resources: pa.BinaryArray
) -> Iterator[Part]:
    """Texts by record: their pieces, and the resource's id between each two of them."""
    for number, pieces in enumerate(itertools.zip_longest(*(text.pieces for text in texts))):
        if number:
            yield _where([piece is not None for piece in pieces], which, resources)
        yield DictionaryColumn(pa.array(pieces, pa.binary()), which)


def _where(answers: list[bool], which: Codes, resources: pa.BinaryArray) -> Part:
    """The ids of the resources of those records whose answer is among these."""
    if all(answers):
        return resources
    rows: Codes = np.arange(len(which), dtype=np.int32)
    return DictionaryColumn(resources, np.where(np.array(answers)[which], rows, np.int32(NO_TEXT)))


def coded(shared: Sequence[Shared]) -> tuple[Codes, list[Shared]]:
    """Objects that are shared as codes: their indexes in the list of the distinct ones."""
    distinct = {id(one): one for one in shared}
    indexes = {number: index for index, number in enumerate(distinct)}
    codes = np.fromiter(map(indexes.__getitem__, map(id, shared)), np.int32, len(shared))
    return codes, list(distinct.values())
