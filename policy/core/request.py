"""Access requests: AuthZEN's shape with an envelope (contracts, "Access request").

A request is checked once, here; translators receive it typed. ``time`` and ``deadline`` are ms since
the epoch. Unknown fields are ignored and play no part in the decision; but for names that readers which ignore case,
such as Go's, take for known ones: see `check_letter_case`.
"""

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from policy.core.conversion import prepare_types
from policy.core.times import to_ms
from policy.core.unique_names import decode_json

MAX_NESTING = 32  # walks through a value recurse, and Python ends them at a thousand calls
MAX_EVALUATIONS = 1000  # so that the answer to a batch fits into a record of 4 MiB
MAX_CLAIMED_GROUPS = 1024  # more than identity providers put into a token; Windows ends at 1,015
CLAIMS = frozenset({"groups", "roles", "token", "facts", "time"})
Semantic = Literal["execute_all", "deny_on_first_deny", "permit_on_first_permit"]


class MalformedRequest(Exception):
    """The input is not a request; the message names the field. In the stream: the dead-letter topic."""


class Subject(msgspec.Struct, frozen=True, gc=False):
    type: str
    id: str
    properties: dict[str, Any] = {}


class Action(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """``properties``: read by systems whose rules have a place for them, of any type until then."""

    name: str
    properties: Any = None


class Resource(msgspec.Struct, frozen=True, gc=False):
    type: str
    id: str
    properties: dict[str, Any] = {}


class Request(msgspec.Struct, frozen=True, gc=False):
    """One question: may ``subject`` do ``action`` on ``resource``? ``time`` in ms, None when not given.

    ``max_claimed_groups``: how many groups it may claim, and how many roles: set by who reads it, never by the request.
    """

    id: str
    system: str
    subject: Subject
    action: Action
    resource: Resource
    context: dict[str, Any] = {}
    time: int | None = None
    deadline: int | None = None
    max_claimed_groups: int = MAX_CLAIMED_GROUPS

    @property
    def items(self) -> "tuple[Request | IncompleteItem, ...]":
        """What is decided: itself, as a batch has its items."""
        return (self,)


class IncompleteItem(msgspec.Struct, frozen=True, gc=False):
    """An item of a batch that is no question: false, with an error reason for it alone."""

    message: str


class Batch(msgspec.Struct, frozen=True, gc=False):
    """Several questions with one answer record (AuthZEN evaluations)."""

    id: str
    system: str
    items: tuple[Request | IncompleteItem, ...]
    semantic: Semantic = "execute_all"
    time: int | None = None
    deadline: int | None = None


_CONTAINERS = (dict, list, tuple)


class _Options(msgspec.Struct, frozen=True):
    evaluations_semantic: Semantic = "execute_all"


class _Envelope(msgspec.Struct):
    id: str
    system: str
    subject: Subject | None = None
    action: Action | None = None
    resource: Resource | None = None
    context: dict[str, Any] = {}
    time: str | int | None = None
    deadline: str | int | None = None
    evaluations: list[Any] = []
    options: _Options = _Options()


class _Item(msgspec.Struct):
    """``system``, ``deadline``, ``evaluations``: a batch's, for all of its items."""

    subject: Subject | None = None
    action: Action | None = None
    resource: Resource | None = None
    context: dict[str, Any] | None = None
    system: Any = None
    deadline: Any = None
    evaluations: Any = None


prepare_types(_Envelope, _Item)  # the first requests may come in several threads


# msgspec takes each sequence that is no list, such as an array or a range, for a mapping, and asks for its keys.
UNREADABLE = (ValueError, TypeError, AttributeError)

REQUEST_NAMES = frozenset(_Envelope.__struct_fields__)
"""Of the members of a request."""

PART_NAMES = (
    ("subject", frozenset(Subject.__struct_fields__)),
    ("action", frozenset(Action.__struct_fields__)),
    ("resource", frozenset(Resource.__struct_fields__)),
    ("options", frozenset(_Options.__struct_fields__)),
)
"""Of the members of each part of a request that is an object."""

_OF_CONTEXT = frozenset({"min_policy_offsets"})  # the other names are the application's

_ITEM_NAMES = frozenset(_Item.__struct_fields__)


def check_letter_case(value: Any, names: frozenset[str]) -> None:
    """Raise ValueError when a member of a request differs from one of these names, or of those of its parts, in case
    alone.

    JSON names are compared exactly (RFC 8259), but Go's encoding/json and others take `Subject` for `subject`, and the
    last of both counts: a gateway or a log would read another request than the one that is decided.
    """
    if not isinstance(value, dict):
        value = dict(value) if isinstance(value, Mapping) else {}
    _check_parts(value, names)
    if isinstance(items := value.get("evaluations"), list):
        for item in items:  # not those of an item: however deep a text nests them, nobody reads them
            if isinstance(item, dict):
                _check_parts(item, _ITEM_NAMES)


def _check_parts(value: dict[str, Any], names: frozenset[str]) -> None:
    if not names.issuperset(value):
        _check_case_of(value, names)
    for part, part_names in PART_NAMES:
        if part in value and isinstance(members := value[part], dict) and not part_names.issuperset(members):
            _check_case_of(members, part_names, f"{part}.")
    if isinstance(context := value.get("context"), dict):
        # Older policies would be new enough. A scalar is no offsets for anybody, and caches do not compare it.
        nested = {name: inner for name, inner in context.items() if isinstance(inner, _CONTAINERS)}
        if not _OF_CONTEXT.issuperset(nested):
            _check_case_of(nested, _OF_CONTEXT, "context.")


def _check_case_of(members: Mapping[Any, Any], names: frozenset[str], path: str = "") -> None:
    for name in members.keys() - names:
        folded = name.casefold() if isinstance(name, str) else ""  # as Go does, which takes U+017F for s, U+212A for k
        if folded in names:
            raise ValueError(f"{path}{name}: some readers ignore case and take it for {path}{folded}: rename it")


def parse_request(value: Mapping[str, Any], max_claimed_groups: int = MAX_CLAIMED_GROUPS) -> Request | Batch:
    """Check ``value`` and return it typed; raises MalformedRequest naming the field that is wrong.

    ``max_claimed_groups``: of groups, and of roles, that it may claim; with more of them the answer is ``error``.
    """
    try:
        check_nesting(value)
        check_letter_case(value, REQUEST_NAMES)
        return _typed(msgspec.convert(value, _Envelope), max_claimed_groups)
    except (*UNREADABLE, RecursionError) as error:
        raise MalformedRequest(f"not a request: {error}") from error


def decode_request(data: bytes) -> Request | Batch:
    """The request in ``data`` (JSON, UTF-8), as `parse_request` would return it; raises MalformedRequest."""
    try:
        value = decode_json(data)
        if data.count(b"{") + data.count(b"[") > MAX_NESTING:  # else it cannot be nested too deep
            check_nesting(value)
        check_letter_case(value, REQUEST_NAMES)
        return _typed(msgspec.convert(value, _Envelope), MAX_CLAIMED_GROUPS)
    except (ValueError, RecursionError) as error:
        raise MalformedRequest(f"not a request: {error}") from error


def _typed(envelope: "_Envelope", most: int) -> Request | Batch:
    if not envelope.id or not envelope.system:
        raise ValueError("id and system must not be empty")
    if envelope.evaluations:
        return _batch(envelope, most)
    return _request(envelope, most, envelope.subject, envelope.action, envelope.resource, envelope.context)


def _request(
    envelope: "_Envelope",
    most: int,
    subject: Subject | None,
    action: Action | None,
    resource: Resource | None,
    context: dict[str, Any],
) -> Request:
    if subject is None or action is None or resource is None:
        parts = {"subject": subject, "action": action, "resource": resource}
        lacking = ", ".join(name for name, part in parts.items() if part is None)
        raise ValueError(f"Object missing required field `{lacking}`")
    if not (subject.type and subject.id and action.name and resource.type and resource.id):
        raise ValueError("type, id and name of subject, action and resource must not be empty")
    time, deadline = _moments(envelope)
    return Request(envelope.id, envelope.system, subject, action, resource, context, time, deadline, most)


def _moments(envelope: "_Envelope") -> tuple[int | None, int | None]:
    time = None if envelope.time is None else to_ms(envelope.time)
    return time, None if envelope.deadline is None else to_ms(envelope.deadline)


def _batch(envelope: "_Envelope", most: int) -> Batch:
    items: tuple[Request | IncompleteItem, ...] = (IncompleteItem(f"more than {MAX_EVALUATIONS} evaluations"),)
    if len(envelope.evaluations) <= MAX_EVALUATIONS:
        items = tuple(_evaluation(envelope, most, value) for value in envelope.evaluations)
    time, deadline = _moments(envelope)
    return Batch(envelope.id, envelope.system, items, envelope.options.evaluations_semantic, time, deadline)


def _evaluation(envelope: "_Envelope", most: int, value: Any) -> Request | IncompleteItem:
    """An item of a batch; what it does not say, the envelope says, whole objects at a time."""
    try:
        item = msgspec.convert(value, _Item)
        _check_item(envelope, item)
        context = envelope.context if item.context is None else item.context
        subject, action = item.subject or envelope.subject, item.action or envelope.action
        return _request(envelope, most, subject, action, item.resource or envelope.resource, context)
    except UNREADABLE as error:
        return IncompleteItem(f"not an evaluation: {error}")


def _check_item(envelope: "_Envelope", item: _Item) -> None:
    """Raise ValueError for what would be allowed by another system's policies, too late, or for other questions."""
    for name in ("system", "deadline"):
        if getattr(item, name) not in (None, getattr(envelope, name)):
            raise ValueError(f"{name}: differs from that of the batch, which holds for all of its evaluations")
    if item.evaluations:
        raise ValueError("evaluations: an item has none of its own: list them in the batch")


def usable_time(request: "Request | Batch", trust: frozenset[str]) -> int | None:
    """The time of evaluation (ms): the request's, where that claim is trusted; None: not known."""
    return request.time if "time" in trust else None


def check_nesting(value: object) -> None:
    """Raise ValueError when mappings and lists are nested in ``value`` deeper than `MAX_NESTING`."""
    level: list[Any] = [value] if isinstance(value, _CONTAINERS) else []
    for _ in range(MAX_NESTING):
        level = [  # each request is gone through: no calls
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if type(inner) is not str and isinstance(inner, _CONTAINERS)
        ]
        if not level:
            return
    raise ValueError(f"nested deeper than {MAX_NESTING}")
