"""The principals that a refused document affects: while no good version stands, they are answered ``error``.

It may have held a deny, wherever its author wrote it: so whatever text stands in any of its fields counts, keys too.
Where no principal can be read at all, every request of the system is answered ``error`` (`EVERYONE`).
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from policy.core.document import Key, texts_within
from policy.core.names import plain
from policy.systems.kit.system import EVERYONE, Kind, System

ALL: frozenset[str] = frozenset({EVERYONE})
GROUP = "group:"
MOST_PREFIXES = 32  # a hostile document had a name of a thousand colons, which ended in a RecursionError
WILDCARD = "*"
UNREADABLE = object()  # in place of a document that is no plain data: not JSON or YAML, or too large
ENVELOPE = frozenset({"system", "kind", "name"})
# A text of a refused document may list several principals, or quote one: each part is taken for a name, too.
SEPARATORS = re.compile(r"""[\s,;|"'`\[\](){}<>=]+""")


def affected(system: System, key: Key, value: object) -> frozenset[str]:
    """The principals that a refused document names; `EVERYONE` where they cannot be determined.

    ``value``: the document as it came, or UNREADABLE. Documents of a kind that is ``missed`` affect none: every request
    that needs one is answered ``error``. Where a system has no prefixes of principals (its engine compares them in its
    own terms), no text shows whom a document names.
    """
    kind = system.kinds.get(key.kind)
    if kind is None or not key.name:
        return ALL
    if kind.missed or kind.fact:
        return frozenset()
    if not system.subjects:
        return ALL
    if kind.principals and (value is UNREADABLE or _says_nothing(value) or _is_opaque(value, kind.principals)):
        return ALL
    document = value if isinstance(value, Mapping) else {"spec": value}
    if kind.of_entries and any(_names_nobody(entry, kind) for entry in _entries(document.get("spec"))):
        return ALL
    texts = list(_texts(kind, document))
    if kind.anyone and any(plain(part).startswith(kind.anyone) for text, _ in texts for part in _names_in(text)):
        return ALL
    named = (principal for text, bare in texts for principal in _principals_of(system, text, bare))
    return frozenset({*_by_name(system, key, document), *named})


def _by_name(system: System, key: Key, document: Mapping[Any, Any]) -> Iterator[str]:
    """Who holds it through its name, and through another that it gives itself: then perhaps as another kind."""
    spec = document.get("spec")
    fields = frozenset({*document, *(spec if isinstance(spec, Mapping) else ())})
    for name in {key.name, plain(key.name)}:
        yield from system.held_by(key.kind, name, fields)
    for name in set(texts_within(document.get("name"))) - {key.name}:
        for kind in system.kinds:
            yield from system.held_by(kind, name, fields)


def _says_nothing(value: object) -> bool:
    """Whether a document has no spec that could be read, and no text in its place either."""
    if not isinstance(value, Mapping):
        return not any(texts_within(value))
    beside = [part for field, part in value.items() if field not in ENVELOPE]
    return not isinstance(value.get("spec"), Mapping) and not any(texts_within(beside))


def _is_opaque(value: object, principals: tuple[str, ...]) -> bool:
    """Whether a field for principals holds what is no name: a truth value, a fraction, nothing in a list; or a name
    that may stand for any principal.
    """
    todo, seen = [(value, False)], set[int]()
    while todo:
        part, named = todo.pop()
        if isinstance(part, Mapping | list | tuple | set):
            if id(part) not in seen:
                seen.add(id(part))
                todo += _inside(part, named, principals)
                if named and any(map(_may_be_anyone, texts_within(part))):
                    return True
        elif named and (isinstance(part, bool) or not isinstance(part, str | int) or _may_be_anyone(str(part))):
            return True
    return False


def _may_be_anyone(text: str) -> bool:
    """Whether a text in a principal's place has no name behind a prefix, or a ``*`` for one of its names."""
    return plain(text).endswith(":") or any(_is_wildcard(name) for name in _names_in(text))


def _is_wildcard(name: str) -> bool:
    return plain(name).rpartition(":")[2] == WILDCARD


def _entries(spec: object) -> Iterator[object]:
    """The spec, the items of its lists, and what stands in the place of a list of one."""
    yield spec
    for part in spec.values() if isinstance(spec, Mapping) else ():
        yield from part if isinstance(part, list | tuple) else [part] if isinstance(part, Mapping) else []


def _names_nobody(entry: object, kind: Kind) -> bool:
    """Whether an entry has no name but in the fields that name no principal."""
    if isinstance(entry, Mapping):
        entry = [part for field, part in entry.items() if field not in kind.of_entries]
    return not any(plain(text) and not _is_wildcard(text) for text in texts_within([entry]))


def _inside(part: Any, named: bool, principals: tuple[str, ...]) -> Iterator[tuple[Any, bool]]:
    """The items of a container, and whether each is a principal's place; of a mapping in one its fields are read."""
    if isinstance(part, Mapping):
        yield from ((item, field in principals) for field, item in part.items() if item is not None)
    else:
        yield from ((item, named) for item in part)


def _texts(kind: Kind, document: Mapping[Any, Any]) -> Iterator[tuple[str, bool]]:
    """Every text that may name a principal, and whether it does so without a prefix too."""
    spec, own_fields = document.get("spec"), {*kind.principals, *kind.beside}
    for field, part in (spec if isinstance(spec, Mapping) else {"spec": spec}).items():
        bare = field not in kind.beside
        yield from ((text, bare) for text in texts_within([field, part]) if text not in own_fields)
    beside = {field: part for field, part in document.items() if field not in ENVELOPE and field != "spec"}
    yield from ((text, True) for text in texts_within(beside) if text not in own_fields)


def _principals_of(system: System, text: str, bare: bool) -> Iterator[str]:
    """The principals that a text may mean: the whole of it and its parts, each with any prefix or the one it has."""
    names = _names_in(text)
    for name in names | set(map(plain, names)):  # as it is written too: blanks may belong to it (VV-Q11)
        yield from _written(system, name, bare)


def _names_in(text: str) -> set[str]:
    return {text, *SEPARATORS.split(text)} - {""}


def _written(system: System, name: str, bare: bool) -> Iterator[str]:
    """`EVERYONE` for a name of more than `MOST_PREFIXES`: each of its ends may be meant, and these are too many."""
    prefixes = (*system.subjects, *system.claims, GROUP)
    for _ in range(MOST_PREFIXES):
        if name.startswith(prefixes):
            yield name
            if bare:  # where ids are bare, it may be the id of a user, too
                yield from (f"{prefix}{name}" for prefix in system.subjects)
            if name.startswith(GROUP) and GROUP not in system.claims:
                yield from (f"{prefix}{name.removeprefix(GROUP)}" for prefix in system.claims)
            return
        if not bare:
            return
        yield from (f"{prefix}{name}" for prefix in prefixes)
        name = name.partition(":")[2]
        if not name:
            return
    yield EVERYONE
