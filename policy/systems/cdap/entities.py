"""Entities: their names, what a dotted name says, and Entity documents.

An entity is (kind, name), written ``KIND:NAME``. Its document says what it lies in. A name without a document
lies where its dots say: in the namespace before the first dot, a program also in the application before the second
(``program:ns.app.p``); a name without dots lies nowhere, nor does one with nothing before or behind the dot (``.d``).
That is how grants on entities which do not exist (yet, or any more) count for what is above them (CD-LIST). Where
documents contradict the names, see `below`.
"""

from collections.abc import Iterable, Iterator

import msgspec

from policy.core.document import Document
from policy.core.model import CompiledDocument
from policy.core.names import fault
from policy.core.pattern import Name
from policy.systems.cdap.catalogue import catalogue, lineage
from policy.systems.kit.validator import Validator, one_fact

KIND = "Entity"
MAX_NAME = 500  # characters of an entity's name in a document: each dot and ``?`` of a grant's makes a grant more


class Entity(msgspec.Struct, frozen=True):
    """``parent``: ``KIND:NAME``; None at a root."""

    parent: str | None


def parse_entity(text: str) -> Name:
    """(kind, name); raises ValueError. Every character of the name is taken literally (CD-Q12)."""
    kind, _, name = text.partition(":")
    if kind not in catalogue()["tree"] or not name:
        raise ValueError(f"{text!r} is not KIND:NAME with one of the kinds {', '.join(catalogue()['tree'])}")
    if wrong := fault(text):
        raise ValueError(f"{text!r} {wrong}")
    return (kind, name)


def written(entity: Name) -> str:
    """``KIND:NAME``."""
    return ":".join(entity)


def named_above(entity: Name) -> tuple[Name, ...]:
    """The entities that ``entity`` lies in by its dots, the namespace first."""
    kind, name = entity
    above = lineage(kind)
    segments = name.split(".", len(above))
    depths = (n for n in range(1, len(segments)) if all(segments[:n]) and segments[n:] != [""])
    return tuple((above[n - 1], ".".join(segments[:n])) for n in depths)


def named_properly(entity: Name) -> bool:
    """Whether ``entity`` can be what dotted names below it begin with."""
    segments = entity[1].split(".")
    return all(segments) and len(segments) == 1 + len(lineage(entity[0]))


def entity_field(validator: Validator, field: str, text: str) -> Name | None:
    """``text`` as the entity that a document's ``field`` names; None, and an error in the validator, if it is none."""
    try:
        if len(text) > MAX_NAME:
            raise ValueError(f"is longer than {MAX_NAME} characters")
        return parse_entity(text)
    except ValueError as error:
        validator.error(str(error), field)
        return None


def read_entity(document: Document) -> CompiledDocument:
    """What exists, and the links to what is above it (CD-Q6)."""
    validator = Validator(document.spec)
    entity = entity_field(validator, "name", document.key.name)
    validator.has("parent")  # known, also where the name is no entity, so that it is not read
    parent = _parent(validator, entity) if entity else None
    body = Entity(written(parent) if parent else None)
    return one_fact(document, validator, body, _keys(entity, parent) if entity else ())


def _parent(validator: Validator, entity: Name) -> Name | None:
    """As the document says, else as the dots say; of the right kind."""
    wanted = catalogue()["tree"][entity[0]]
    text = validator.text("parent", required=False)
    if text:
        parent = entity_field(validator, "parent", text)
        if parent and parent[0] != wanted:
            validator.error(f"the parent of a {entity[0]} is {'null' if wanted is None else f'a {wanted}'}", "parent")
        return parent
    named = [above for above in named_above(entity) if above[0] == wanted]
    if wanted and not named and entity[0] not in catalogue()["rootless"]:
        validator.error(f"required: the {wanted} that the {entity[0]} is in (CD-Q6)", "parent")
    return named[0] if named else None


def _keys(entity: Name, parent: Name | None) -> Iterator[tuple[str, str]]:
    """Where the entity is found again: below its parent, and where links and dots differ."""
    if parent is None:
        return
    dots, links = named_above(entity), (parent, *named_above(parent))
    yield ("parent", written(parent))
    yield from _each("beyond", (above for above in links if above not in dots))
    yield from _each("misnamed", (above for above in dots if above not in links))
    yield from _each("grandparent", named_above(parent))
    if lineage(parent[0]) and not named_above(parent):
        yield ("without_namespace", "")


def _each(index: str, entities: Iterable[Name]) -> Iterator[tuple[str, str]]:
    yield from ((index, written(entity)) for entity in entities)
