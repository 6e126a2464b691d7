"""Requests in JSON as far as an answer that is kept is found by: undecoded parts, and the content that these make."""

import functools
import re
from collections.abc import Mapping

import msgspec

from policy import MAX_NESTING, REQUEST_NAMES, Decision, Request, all_systems, check_letter_case, decode_json
from policy.evaluation import ID
from streaming.enforcer.requests import FIELD
from streaming.ops.tally import Label, label
from streaming.records.decision import echo, to_json

TIME = frozenset({"time"})
"""Added to the trust where the stream has set the time itself: it is no claim then."""

ID_BYTES, ID_ESCAPED = ID.encode(), b"\\u%04x" % ord(ID)
PROPERTY_IS_ID = b"\1"  # in contents
CONTEXT_MEMBERS = 32  # of one whose members are told apart
# A text of printable ASCII without escapes, a word, or a whole number. Others may be malformed.
_MEMBER = re.compile(
    rb'[ \t\r\n]*"([ !#-\[\]-~]*)"[ \t\r\n]*:[ \t\r\n]*("[ !#-\[\]-~]*"|true|false|null|-?(?:0|[1-9][0-9]{0,14}))'
    rb"[ \t\r\n]*([,}])"
)

Pieces = tuple[bytes, ...]
"""A text that was encoded once, around the resource's id as JSON has it between quotes."""

_encode = encoded_text = msgspec.json.encode


class ResourcePart(msgspec.Struct, gc=False):
    """The resource of a request."""

    type: msgspec.Raw
    id: str
    properties: msgspec.Raw = msgspec.Raw()


class QueryParts(msgspec.Struct, gc=False):
    """A request with its parts undecoded: to find its answer, nothing more is needed."""

    id: str
    system: msgspec.Raw
    subject: msgspec.Raw
    action: msgspec.Raw
    resource: ResourcePart
    context: msgspec.Raw = msgspec.Raw()
    time: str | int | None = None
    deadline: str | int | None = None
    evaluations: msgspec.Raw = msgspec.Raw()
    options: msgspec.Raw = msgspec.Raw()


class RenderedDecision(msgspec.Struct, frozen=True, gc=False):
    """A decision with what its record repeats of the request. `system`: as JSON; `label`: as what it is counted."""

    system: bytes
    pieces: Pieces
    label: Label


def pieces_of(text: bytes, shared: bool) -> Pieces:
    """The text around the resource's id; all of it where that is not left open."""
    return tuple(text.split(ID_BYTES)) if shared else (text,)


def render(request: Request, decision: Decision, shared: bool) -> tuple[RenderedDecision, int]:
    """A decision as answers are kept, and its bytes."""
    text = to_json(decision) + echo(request)
    rendered = RenderedDecision(
        _encode(request.system), pieces_of(text, shared), label(request.system, decision.outcome)
    )
    return rendered, len(text) + len(rendered.system)


def content_of(parts: QueryParts) -> tuple[bytes, bool]:
    """All that an answer reads but the resource's id and the time; and whether the id is a property, too.

    No part of well-formed JSON holds a control character, so that different parts make different contents. Where the
    properties have the id once, `PROPERTY_IS_ID` stands for it.
    """
    part = parts.resource
    properties: bytes | msgspec.Raw = part.properties
    repeats = False
    if properties:
        properties, id_ = bytes(properties), _encode(part.id)
        repeats = properties.count(id_) == 1 and b"\\" not in properties  # else texts may be written otherwise
        properties = properties.replace(id_, PROPERTY_IS_ID) if repeats else properties
    context = context_key(parts.system, parts.context)
    return b"\0".join((parts.system, parts.subject, parts.action, part.type, properties, context)), repeats


@functools.cache
def _context_fields() -> Mapping[bytes, frozenset[bytes]]:
    return {_encode(name): frozenset(name.encode() for name in fields) for name, fields in context_fields().items()}


def context_fields() -> Mapping[str, frozenset[str]]:
    """The fields of a context that are part of what is asked, by the system that is shown only these of its own."""
    # Which policies there must be is for the enforcer: `staleness` in requests.py.
    fields = {name: system.context_fields for name, system in all_systems().items()}
    return {name: shown | {FIELD} for name, shown in fields.items() if shown is not None}


def context_key(system: bytes | msgspec.Raw, context: bytes | msgspec.Raw) -> bytes:
    """The members of a context that are part of what is asked of a system (both as JSON); all of it where it has others
    than plain ones.

    The same as in `ContextFields.java`. A context that stands as a whole begins with a brace, members do not.
    """
    context = bytes(context)
    fields = _context_fields().get(bytes(system)) if context else None
    if fields is None:
        return context
    names, shown, position, separator = set[bytes](), list[bytes](), 1, b","
    while separator == b",":
        member = _MEMBER.match(context, position)
        if member is None or len(names) == CONTEXT_MEMBERS or member[1] in names:
            return context
        name, value, separator = member.groups()
        names.add(name)
        if name in fields:
            shown.append(b'"%b":%b,' % (name, value))
        position = member.end()
    return b"".join(shown) if position == len(context) else context


def may_be_kept(parts: QueryParts) -> bool:
    """Whether it is one request, and what no content has is there."""
    return bool(parts.id and parts.resource.id) and not (parts.evaluations or parts.options)


def may_share(content: bytes) -> bool:
    """Whether `ID` stands nowhere in the parts of a request."""
    return ID_BYTES not in content and ID_ESCAPED not in content.lower()


NAMES = ("id", "system", "subject", "action", "resource", "type", "id")
_TEXT = 2  # quotes
_NEEDED = _TEXT * (len(NAMES) + 2)  # and the texts of both ids
_MOMENT = {type(None): 0, int: _TEXT, str: 2 * _TEXT}  # and its name


def check_members(
    value: bytes,
    parts: QueryParts,
    content: bytes,
    repeats: bool,
    more: int = 0,
    names: frozenset[str] = REQUEST_NAMES,
) -> None:
    """Raise ValueError where a name stands twice in a request (RFC 8259 leaves open which counts), in whatever case, or
    it is nested too deep. The parts of its content are known to be well-formed.

    Another member, known or not, has the quotes of its name: with just as many as these parts have, there is none.
    `more`: the quotes of members that requests do not have; `names`: of all.
    """
    # The context stands last in the content, perhaps only a part of it.
    expected = _NEEDED + content.count(b'"', 0, content.rindex(b"\0")) + more
    expected += _MOMENT[type(parts.time)] + _MOMENT[type(parts.deadline)]
    if parts.resource.properties:
        expected += 2 * _TEXT if repeats else _TEXT
    if parts.context:
        expected += _TEXT + bytes(parts.context).count(b'"')
    if value.count(b'"') != expected:
        check_letter_case(decode_json(value), names)
        if value.count(b"{") + value.count(b"[") > MAX_NESTING:
            raise ValueError("perhaps nested too deep")
