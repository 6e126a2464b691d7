"""Entities' names: a type with its namespaces, and an id."""

import re
import sys
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from policy.core.names import fault
from policy.systems.cedar.text import is_type

Uid = tuple[str, str]
"""Type and id."""

SHORT_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "\\": "\\", "0": "\0", "'": "'", '"': '"'}
ESCAPE = re.compile(r"""\\(?:([nrt\\0'"])|x([0-7][0-9A-Fa-f])|u\{((?:[0-9A-Fa-f]_*){1,6})\})""")
QUOTED = re.compile(rf'(?:[^"\\\r]|{ESCAPE.pattern})*"')  # an id with the quote that ends it
ENTITY_ESCAPE = "__entity"  # how Cedar's JSON writes an entity among values
EXTENSION_ESCAPE = "__extn"  # and a call of an extension function
ESCAPES = (ENTITY_ESCAPE, EXTENSION_ESCAPE)
IMPLICIT = {frozenset({"type", "id"}): ENTITY_ESCAPE, frozenset({"fn", "arg"}): EXTENSION_ESCAPE}
SCALARS = frozenset({str, int, bool, float, type(None)})  # asking an abstract class takes longer


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


class References(NamedTuple):
    """Entities that a value refers to. ``possible``: what else Cedar may read as one, if a schema says so."""

    named: tuple[Uid, ...]
    possible: tuple[Uid, ...]


NO_REFERENCES = References((), ())


def references(value: Any) -> References:
    """The entities that a value refers to, however it is nested: more than Cedar sees in it, never fewer.

    Cedar ignores further fields beside ``type`` and ``id``, and takes ``[type, id]`` for both of them (cedarpy 4.12).
    """
    named, possible = dict[Uid, None](), dict[Uid, None]()
    todo = [(value, False)]
    while todo:
        part, escaped = todo.pop()
        is_mapping = isinstance(part, dict | Mapping)
        if not is_mapping and not isinstance(part, list | tuple):
            continue
        fields = (part.get("type"), part.get("id")) if is_mapping else part
        if len(fields) == 2 and isinstance(fields[0], str) and isinstance(fields[1], str):
            exact = is_mapping and len(part) == 2 and is_type(fields[0])
            (named if escaped or exact else possible)[fields[0], fields[1]] = None
        inside = part.items() if is_mapping else enumerate(part)
        todo += ((inner, name == ENTITY_ESCAPE) for name, inner in inside if type(inner) not in SCALARS)
    if not named and not possible:
        return NO_REFERENCES
    return References(tuple(named), tuple(uid for uid in possible if uid not in named and is_type(uid[0])))


def implicit_form(value: Any) -> tuple[str, str] | None:
    """Where a value has an entity or extension value without its escape, and the escape; None: nowhere.

    Cedar reads such a one as a record unless a schema says what it is (CE-SCHEMA-FORM).
    """
    todo = [("", value)]
    for path, part in todo:
        is_mapping = isinstance(part, dict | Mapping)
        if not is_mapping and not isinstance(part, list | tuple):
            continue
        if is_mapping and len(part) == 2 and all(isinstance(inner, str) for inner in part.values()):
            escape = IMPLICIT.get(frozenset(part))
            if escape is not None:
                return path, escape
        inside = part.items() if is_mapping else enumerate(part)
        further = [(name, inner) for name, inner in inside if type(inner) not in SCALARS and name not in ESCAPES]
        todo += ((f"{path}.{name}" if is_mapping else f"{path}[{name}]", inner) for name, inner in further)
    return None


def leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """The values within a value that hold no others, with their paths, by name: scalars, and all with an escape."""
    if isinstance(value, Mapping) and not value.keys() & {*ESCAPES}:
        for name in sorted(value):
            yield from leaves(value[name], f"{path}.{name}")
    elif isinstance(value, list | tuple):
        for number, inner in enumerate(value):
            yield from leaves(inner, f"{path}[{number}]")
    else:
        yield path, value


def implicit_fault(path: str, escape: str) -> str:
    """What is wrong with an implicit form where no schema says what it is, and how it is corrected."""
    fields = next(sorted(fields, reverse=True) for fields, of in IMPLICIT.items() if of == escape)
    written = ", ".join(fields)
    return (
        f"{path} is {{{written}}}, which is a record where no Schema document declares another type: "
        f"write {{{escape}: {{{written}}}}}, or publish the schema"
    )
