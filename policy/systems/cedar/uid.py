"""Entities' names: a type with its namespaces, and an id."""

import re
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from policy.core.names import fault
from policy.systems.cedar.text import is_type

Uid = tuple[str, str]
"""Type and id."""

SHORT_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "\\": "\\", "0": "\0", "'": "'", '"': '"'}
ESCAPE = re.compile(r"""\\(?:([nrt\\0'"])|x([0-7][0-9A-Fa-f])|u\{((?:[0-9A-Fa-f]_*){1,6})\})""")
QUOTED = re.compile(rf'(?:[^"\\\r]|{ESCAPE.pattern})*"')  # an id with the quote that ends it
ENTITY_ESCAPE = "__entity"  # how Cedar's JSON writes an entity among values


def text_of(uid: Uid) -> str:
    """An entity as policies write it, for people, and its key among facts: no two have the same."""
    id_ = uid[1]
    if '"' in id_ or "\\" in id_:
        id_ = id_.replace("\\", "\\\\").replace('"', '\\"')
    return f'{uid[0]}::"{id_}"'


def uid_of_text(text: str) -> Uid | None:
    """An entity as policies write it, with Cedar's escapes in its id; None for any other text.

    Equal to what Cedar parses (https://docs.cedarpolicy.com/policies/syntax-grammar.html), and without Cedar: a text of
    a command is no policy. An id with an escape that Cedar does not have, or with a bare quote, is none.
    """
    type_, quote, rest = text.partition('::"')
    if not (quote and is_type(type_) and QUOTED.fullmatch(rest)):
        return None
    try:
        return type_, ESCAPE.sub(_character, rest[:-1])
    except ValueError:
        return None


def _character(escape: re.Match[str]) -> str:
    short, byte, point = escape.groups()
    if short is not None:
        return SHORT_ESCAPES[short]
    code = int(byte or point.replace("_", ""), 16)
    if code > sys.maxunicode or 0xD800 <= code <= 0xDFFF:
        raise ValueError(escape[0])
    return chr(code)


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
