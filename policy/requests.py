"""Access requests: AuthZEN's shape with an envelope (contracts, "Access request").

A request is checked once, here; translators receive it typed. ``time`` and ``deadline`` are ms since
the epoch. Unknown fields are ignored and play no part in the decision.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Literal

import msgspec

from policy.times import to_ms

MAX_NESTING = 32
MAX_EVALUATIONS = 1000
CLAIMS = frozenset({"groups", "roles", "token", "facts", "time"})
Semantic = Literal["execute_all", "deny_on_first_deny", "permit_on_first_permit"]


class MalformedRequest(Exception):
    """The input is not a request; the message names the field. In the stream: the dead-letter topic."""


class Subject(msgspec.Struct, frozen=True):
    type: str
    id: str
    properties: dict[str, Any] = {}


class Action(msgspec.Struct, frozen=True):
    name: str


class Resource(msgspec.Struct, frozen=True):
    type: str
    id: str
    properties: dict[str, Any] = {}


class Request(msgspec.Struct, frozen=True):
    """One question: may ``subject`` do ``action`` on ``resource``? ``time`` in ms, None when not told."""

    id: str
    system: str
    subject: Subject
    action: Action
    resource: Resource
    context: dict[str, Any] = {}
    time: int | None = None
    deadline: int | None = None


class IncompleteItem(msgspec.Struct, frozen=True):
    """An item of a batch that is no question: false, with an error reason for it alone."""

    message: str


class Batch(msgspec.Struct, frozen=True):
    """Several questions with one answer record (AuthZEN evaluations)."""

    id: str
    system: str
    items: tuple[Request | IncompleteItem, ...]
    semantic: Semantic = "execute_all"
    time: int | None = None
    deadline: int | None = None


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
    subject: Subject | None = None
    action: Action | None = None
    resource: Resource | None = None
    context: dict[str, Any] | None = None


def parse_request(value: Mapping[str, Any]) -> Request | Batch:
    """Check ``value`` and return it typed; raises MalformedRequest naming the field that is wrong."""
    try:
        envelope = msgspec.convert(value, _Envelope)
        if not envelope.id or not envelope.system:
            raise ValueError("id and system must not be empty")
        check_nesting(value)
        if envelope.evaluations:
            return _batch(envelope)
        return _request(envelope, _Item(envelope.subject, envelope.action, envelope.resource))
    except (msgspec.ValidationError, ValueError, RecursionError) as error:
        raise MalformedRequest(f"not a request: {error}") from error


def _request(envelope: _Envelope, item: _Item) -> Request:
    subject, action, resource = item.subject, item.action, item.resource
    if subject is None or action is None or resource is None:
        lacking = [name for name in ("subject", "action", "resource") if getattr(item, name) is None]
        raise ValueError(f"Object missing required field `{lacking[0]}`")
    if not (subject.type and subject.id and action.name and resource.type and resource.id):
        raise ValueError("type, id and name of subject, action and resource must not be empty")
    time = None if envelope.time is None else to_ms(envelope.time)
    deadline = None if envelope.deadline is None else to_ms(envelope.deadline)
    context = envelope.context if item.context is None else item.context
    return Request(envelope.id, envelope.system, subject, action, resource, context, time, deadline)


def _batch(envelope: _Envelope) -> Batch:
    if len(envelope.evaluations) > MAX_EVALUATIONS:
        item: Request | IncompleteItem = IncompleteItem(f"more than {MAX_EVALUATIONS} evaluations")
        items: tuple[Request | IncompleteItem, ...] = (item,)
    else:
        items = tuple(_evaluation(envelope, value) for value in envelope.evaluations)
    time = None if envelope.time is None else to_ms(envelope.time)
    deadline = None if envelope.deadline is None else to_ms(envelope.deadline)
    semantic = envelope.options.evaluations_semantic
    return Batch(envelope.id, envelope.system, items, semantic, time, deadline)


def _evaluation(envelope: _Envelope, value: Any) -> Request | IncompleteItem:
    try:
        item = msgspec.convert(value, _Item)
        item.subject = item.subject or envelope.subject
        item.action = item.action or envelope.action
        item.resource = item.resource or envelope.resource
        return _request(envelope, item)
    except (msgspec.ValidationError, ValueError) as error:
        return IncompleteItem(f"not an evaluation: {error}")


def check_nesting(value: object, limit: int = MAX_NESTING) -> None:
    """Raise ValueError when ``value`` is nested deeper than ``limit``."""
    level: list[object] = [value]
    for _ in range(limit + 1):
        level = [inner for outer in level for inner in _inside(outer)]
        if not level:
            return
    raise ValueError(f"nested deeper than {limit}")


def _inside(value: object) -> Iterator[object]:
    if isinstance(value, Mapping):
        yield from value.values()
    elif isinstance(value, list | tuple):
        yield from value
