"""Entities' names: a type with its namespaces, and an id."""

from collections.abc import Iterator, Mapping
from typing import Any

from policy.core.names import fault
from policy.systems.cedar.text import is_type

Uid = tuple[str, str]
"""Type and id."""

ENTITY_ESCAPE = "__entity"  # how Cedar's JSON writes an entity among values


def text_of(uid: Uid) -> str:
    """An entity for people, and its key among facts: a type has no quotes, so no two have the same."""
    return f'{uid[0]}::"{uid[1]}"'


def uid_of_text(text: str) -> Uid | None:
    """The contrary of `text_of`; None for any other text. No escapes: what stands between the quotes is the id."""
    type_, quote, rest = text.partition('::"')
    return (type_, rest[:-1]) if quote and rest.endswith('"') and len(rest) > 1 and is_type(type_) else None


def uid_fault(uid: Uid) -> str:
    """Why this names no entity, or may be taken for another one; "" when it does and may not."""
    if not is_type(uid[0]):
        return f"{uid[0]!r} is not an entity type such as User or App::User"
    wrong = fault(uid[1])
    return f"{uid[1]!r} {wrong}" if wrong else ""


def uid_of(value: object) -> Uid | None:
    """An entity as Cedar's JSON writes it, with or without its escape; None: it is none."""
    if isinstance(value, Mapping) and value.keys() == {ENTITY_ESCAPE}:
        value = value[ENTITY_ESCAPE]
    if not isinstance(value, Mapping) or value.keys() != {"type", "id"}:
        return None
    type_, id_ = value["type"], value["id"]
    return (type_, id_) if isinstance(type_, str) and isinstance(id_, str) else None


def references(value: Any) -> Iterator[Uid]:
    """The entities that a value refers to, however it is nested: more than Cedar sees in it, never fewer."""
    todo = [value]
    while todo:
        part = todo.pop()
        if isinstance(part, Mapping):
            if ENTITY_ESCAPE in part and (uid := uid_of(part[ENTITY_ESCAPE])) is not None:
                yield uid
            todo += part.values()
        elif isinstance(part, list | tuple):
            todo += part
