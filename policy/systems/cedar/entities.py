"""Entities: those of documents, those that a request brings, and the part of them that a request needs (CE-SLICE)."""

import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from policy.core.document import Document
from policy.core.facts import Facts
from policy.core.limits import MAX_RELATED
from policy.core.model import CompiledDocument, Fact, StatementId, Unanswerable
from policy.systems.cedar import engine
from policy.systems.cedar.engine import Schema
from policy.systems.cedar.hierarchy import has_more_pairs, in_cycle
from policy.systems.cedar.uid import Uid, implicit_fault, implicit_form, references, text_of, uid_fault, uid_of
from policy.systems.kit.validator import Validator

ENTITIES = "Entities"
ENTITY = "Entity"  # kind of the facts about single entities
UID = "uid"  # the index by which they are found
MAX_LEVELS = 32  # of parents, and of references from attribute to attribute
MAX_BYTES = 4 << 20  # of the entities of one request as JSON
MAX_PAIRS = 500_000  # of an entity and an ancestor, of one request: the library works out each of them
# Of single values, to name the one that does not conform: who sends a request chooses how many there are.
MOST_CHECKS = 20

Item = TypeVar("Item")


class Entity(msgspec.Struct, frozen=True, gc=False):
    """One entity. ``body``: its attributes and tags as fields of a JSON object; ``refers``: to which they refer.

    ``possible``: what else in them a schema may declare as an entity. ``implicit``: where, and without which escape,
    they first have a form that needs a schema.
    """

    uid: Uid
    body: str
    parents: tuple[Uid, ...] = ()
    refers: tuple[Uid, ...] = ()
    document: str = ""
    possible: tuple[Uid, ...] = ()
    implicit: tuple[str, str] | None = None

    @property
    def text(self) -> str:
        """Cedar's JSON."""
        parents = ",".join(map(_json_of, self.parents))
        return f'{{"uid":{_json_of(self.uid)},{self.body},"parents":[{parents}]}}'

    def with_single_values(self) -> Iterator["Entity"]:
        """The same without parents and values, and with one of its attributes or tags alone: for each, by name."""
        yield Entity(self.uid, '"attrs":{}')
        for field, values in json.loads(f"{{{self.body}}}").items():
            for name in sorted(values):
                body = {"attrs": {}, field: {name: values[name]}}
                yield Entity(self.uid, json.dumps(body)[1:-1])

    def with_parents(self, parents: Iterable[Uid]) -> "Entity":
        """The same with these parents, too."""
        return msgspec.structs.replace(self, parents=tuple(dict.fromkeys((*self.parents, *parents))))


def _json_of(uid: Uid) -> str:
    return f'{{"type":{json.dumps(uid[0])},"id":{json.dumps(uid[1])}}}'


def entity_of(
    uid: Uid,
    attributes: Mapping[str, Any],
    parents: tuple[Uid, ...] = (),
    tags: Mapping[str, Any] | None = None,
    document: str = "",
) -> Entity:
    """An entity with these attributes, parents and tags."""
    body = f'"attrs":{json.dumps(attributes)}' + (f',"tags":{json.dumps(tags)}' if tags else "")
    refers = references([attributes, tags or {}])
    implicit = implicit_form(attributes) or implicit_form(tags or {})
    return Entity(uid, body, parents, refers.named, document, refers.possible, implicit)


def read_entities(document: Document) -> CompiledDocument:
    """The entities of an Entities document as facts; raises DocumentRefused naming every error."""
    validator = Validator(document.spec)
    entities, seen = list[Entity](), set[Uid]()
    for item in validator.forms("entities"):
        entity = _entity(item, str(document.key))
        if entity is not None and entity.uid in seen:
            item.error(f"{text_of(entity.uid)} stands here twice", "uid")
        elif entity is not None:
            seen.add(entity.uid)
            entities.append(entity)
    validator.refuse_window(document.window)
    validator.reject_unknown()
    if not validator.errors and (cyclic := in_cycle({entity.uid: entity.parents for entity in entities})):
        validator.error(f"{text_of(cyclic)} has a cycle among its parents", "entities")
    if not validator.errors:
        try:
            # Without parents: of a chain of 3,000 the library works out 4,500,000 pairs, which takes seconds.
            parentless = (msgspec.structs.replace(entity, parents=()) for entity in entities)
            engine.parse_entities(engine.entity_list(entity.text for entity in parentless))
        except engine.EngineError as error:
            validator.error(str(error), "entities")
    validator.finish()
    key = str(document.key)
    names = [text_of(entity.uid) for entity in entities]
    return CompiledDocument(
        facts=tuple(
            Fact(ENTITY, f"{name}#{key}", entity, ((UID, name),), StatementId(key, number))
            for number, (name, entity) in enumerate(zip(names, entities, strict=True))
        )
    )


def _entity(validator: Validator, document: str) -> Entity | None:
    """Errors stay in the validator."""
    uid = _uid(validator, validator.raw("uid"), "uid")
    parents = validator.raw("parents")
    if parents is not None and not isinstance(parents, list | tuple):
        validator.error("must be a list of {type, id}", "parents")
        parents = ()
    above = [_uid(validator, parent, f"parents[{number}]") for number, parent in enumerate(parents or ())]
    values = {field: validator.raw(field) for field in ("attrs", "tags")}
    for field, value in values.items():
        if value is not None and not isinstance(value, Mapping):
            validator.error("must be a mapping", field)
            return None
        for other in references(value).named:
            if wrong := uid_fault(other):
                validator.error(f"refers to {text_of(other)}: {wrong}", field)
    validator.reject_unknown()
    if uid is None:
        return None
    return entity_of(uid, values["attrs"] or {}, tuple(filter(None, above)), values["tags"], document)


def _uid(validator: Validator, value: object, field: str) -> Uid | None:
    uid = uid_of(value)
    if uid is None:
        validator.error("required, as {type, id}", field)
    elif wrong := uid_fault(uid):
        validator.error(wrong, field)
        return None
    return uid


class Entities:
    """The entities that documents and one request know; counts what is looked up (CE-LIMITS).

    Actions are also those of the schema, with their groups (CE-SCHEMA).
    """

    def __init__(self, facts: Facts, own: Mapping[Uid, Entity], schema: Schema | None = None) -> None:
        self._facts, self._own, self._schema = facts, own, schema
        self._found: dict[Uid, Entity | None] = {}

    def get(self, uid: Uid) -> Entity | None:
        """An entity; raises Unanswerable where two documents say different things of it, and for too many."""
        if uid not in self._found:
            if len(self._found) > MAX_RELATED:
                message = f"the request needs more than {MAX_RELATED} entities"
                raise Unanswerable("too-many-objects", message, "CE-LIMITS")
            self._found[uid] = self._own.get(uid) or documented(self._facts, uid)
        return self._found[uid]

    def ancestors(self, uid: Uid) -> list[Uid]:
        """An entity itself, its parents, theirs, and so on."""
        return self._reached([uid], by_values=False)

    def closure(self, start: Iterable[Uid]) -> list[Entity]:
        """What is known of these entities, of their ancestors, and of all that their attributes refer to.

        Without what the schema knows: Cedar adds its actions. Raises Unanswerable (CE-LIMITS, CE-SCHEMA-FORM).
        """
        reached = self._reached(start, by_values=True)
        entities = [entity for uid in sorted(reached) if (entity := self.get(uid)) is not None]
        if self._schema is None:
            _check_forms(entities)
        if sum(len(entity.body) for entity in entities) > MAX_BYTES:
            raise Unanswerable(
                "too-many-objects", f"the entities that the request needs have more than {MAX_BYTES} bytes", "CE-LIMITS"
            )
        if has_more_pairs({entity.uid: entity.parents for entity in entities}, MAX_PAIRS):
            message = f"the entities that the request needs have more than {MAX_PAIRS} ancestors together"
            raise Unanswerable("too-many-objects", message, "CE-LIMITS")
        return entities

    def _reached(self, start: Iterable[Uid], by_values: bool) -> list[Uid]:
        reached = dict.fromkeys(start)
        level = list(reached)
        for _ in range(MAX_LEVELS):
            if not level:
                return list(reached)
            further = dict.fromkeys(uid for child in level for uid in self._next(child, by_values))
            level = [uid for uid in further if uid not in reached]
            reached.update(dict.fromkeys(level))
        raise Unanswerable("too-many-objects", f"entities are nested deeper than {MAX_LEVELS}", "CE-LIMITS")

    def _next(self, uid: Uid, by_values: bool) -> tuple[Uid, ...]:
        """The parents of an entity, and with ``by_values`` those that its attributes and tags refer to."""
        entity, schema = self.get(uid), self._schema
        groups = () if schema is None else schema.actions.get(uid, ())
        if entity is None:
            return groups
        if not by_values:
            return (*entity.parents, *groups)
        return (*entity.parents, *groups, *entity.refers, *(() if schema is None else entity.possible))


def nonconformity(entity: Entity, schema: Schema) -> str:
    """Why an entity does not conform to a schema.

    Of several faults Cedar names one at random. A decision is the same each time, so values are checked one by one, and
    parents too. A fault that shows only beside other values, as one of them is required, is not named.
    """
    whole = _fault([entity], schema)
    if engine.FIRST_FAULT.match(whole):  # Cedar looks for these before it looks at single values
        return whole
    bare = Entity(entity.uid, entity.body)
    with_parent = (bare.with_parents([parent]) for parent in sorted(entity.parents))
    smaller = bare.with_single_values() if _fault([bare], schema) else with_parent
    faults = (fault for single in itertools.islice(smaller, MOST_CHECKS) if (fault := _fault([single], schema)))
    named = next((fault for fault in faults if not engine.FIRST_FAULT.match(fault)), None)
    return named or f"an attribute or parent of {text_of(entity.uid)} is not as the schema declares"


def first_nonconforming(entities: Sequence[Entity], schema: Schema) -> Entity | None:
    """The first entity that does not conform to a schema; None: each by itself does."""
    return first_faulty(entities, lambda part: bool(_fault(part, schema)))


def first_faulty(items: Sequence[Item], have_fault: Callable[[Sequence[Item]], bool]) -> Item | None:
    """The first item with a fault, by halving: who sends a request chooses how many there are. None: each is sound."""
    while len(items) > 1:
        first, second = items[: len(items) // 2], items[len(items) // 2 :]
        items = first if have_fault(first) else second
    return items[0] if items and have_fault(items) else None


def _fault(entities: Sequence[Entity], schema: Schema) -> str:
    try:
        engine.parse_entities(engine.entity_list(entity.text for entity in entities), schema)
    except engine.EngineError as error:
        return str(error)
    return ""


def _check_forms(entities: Iterable[Entity]) -> None:
    """Whether a document is meant to be read with a schema shows here, not before: either may come first."""
    for entity in entities:
        if entity.implicit is not None:
            path, escape = entity.implicit
            message = f"{entity.document}: {implicit_fault(f'{text_of(entity.uid)}{path}', escape)}"
            raise Unanswerable("malformed-entity", message, "CE-SCHEMA-FORM")


def documented(facts: Facts, uid: Uid) -> Entity | None:
    """What documents say of an entity, policy topics before the facts topic.

    Raises Unanswerable where two documents of the same layer say different things.
    """
    names = sorted(facts.find_first(ENTITY, UID, text_of(uid)))
    if not names:
        return None
    entities: list[Entity] = [entity for name in names if (entity := facts.get(ENTITY, name)) is not None]
    if any(other.text != entities[0].text and not _is_alike(other, entities[0]) for other in entities[1:]):
        documents = " and ".join(sorted({entity.document for entity in entities}))
        message = f"{text_of(uid)} is described by {documents}, and not alike: keep one"
        raise Unanswerable("contradicting-documents", message, "CE-ENTITIES")
    return entities[0]


def _is_alike(entity: Entity, other: Entity) -> bool:
    """Whether two descriptions of an entity say the same, in whatever order."""
    first, second = (json.dumps(json.loads(f"{{{each.body}}}"), sort_keys=True) for each in (entity, other))
    return first == second and set(entity.parents) == set(other.parents)
