"""A request in Cedar's terms: principal, action, resource and context, and the entities that it brings itself."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from policy.core.facts import Facts
from policy.core.model import Reason, Unanswerable
from policy.core.request import Request
from policy.systems.cedar.engine import Schema
from policy.systems.cedar.entities import Entities, Entity, documented, entity_of
from policy.systems.cedar.schema import current_schema
from policy.systems.cedar.settings import CedarSettings
from policy.systems.cedar.text import is_type
from policy.systems.cedar.uid import References, Uid, implicit_fault, implicit_form, references, text_of, uid_fault
from policy.systems.kit.claims import claimed

OWN_FIELDS = frozenset({"min_policy_offsets"})  # of a request's context: they are about lockkeeper itself
ACTION_PROPERTIES = "action_properties"
CLAIMS = ("groups", "roles", "token")  # properties of the subject with a trust of their own
FACTS = "facts"  # the trust that all other properties need


class CedarRequest(NamedTuple):
    """``claims``: what the request asserted and its answer rests on; ``untrusted``: what it must not assert."""

    principal: Uid
    action: Uid
    resource: Uid
    context: dict[str, Any]
    in_context: References
    entities: Entities
    claims: tuple[str, ...]
    untrusted: tuple[str, ...]
    notes: tuple[Reason, ...]
    schema: Schema | None

    @property
    def parts(self) -> dict[str, Uid]:
        """The parts of a scope."""
        return {"principal": self.principal, "action": self.action, "resource": self.resource}


def cedar_request(request: Request, facts: Facts, trust: frozenset[str], settings: CedarSettings) -> CedarRequest:
    """The request in Cedar's terms; raises Unanswerable."""
    principal, resource = (request.subject.type, request.subject.id), (request.resource.type, request.resource.id)
    _check_types(principal[0], resource[0], settings)
    schema = current_schema(facts)
    context = _context(request)
    in_context = references(context)
    _check_values(in_context.named, implicit_form(context), ("context", "malformed-context"), schema)
    own = _Own(facts, trust, schema)
    attributes = dict(request.subject.properties), dict(request.resource.properties)
    if "groups" in attributes[0] and schema is not None and schema.refuses(principal[0], "groups"):
        del attributes[0]["groups"]  # they are the parents: of a schema without such an attribute nothing reads it
        if principal == resource:
            attributes[1].pop("groups", None)
    if principal == resource:
        attributes = _of_one(*attributes)
    own.take(resource, attributes[1], "resource.properties")
    own.take(principal, attributes[0], "subject.properties")
    groups = claimed(request, "groups", "CE-GROUPS", trust)
    own.join(principal, [(settings.group_type, name) for name in groups.names])
    claims, untrusted = sorted({*own.used, *groups.used}), sorted({*own.untrusted, *groups.untrusted})
    action, entities = (settings.action_type, request.action.name), Entities(facts, own.entities, schema)
    notes = tuple(own.notes)
    return CedarRequest(
        principal, action, resource, context, in_context, entities, tuple(claims), tuple(untrusted), notes, schema
    )


def _check_types(subject: str, resource: str, settings: CedarSettings) -> None:
    """A group as the subject would be a member of itself: ``principal in Group::"admins"`` holds for the group."""
    for part, type_ in (("subject", subject), ("resource", resource)):
        if not is_type(type_):
            message = f"{part}.type {type_!r} is not an entity type such as User or App::User"
            raise Unanswerable(f"malformed-{part}", message, "CE-ENTITIES")
    if subject in (settings.group_type, settings.action_type):
        message = f"subject.type {subject!r} is reserved: the subject of a request is no group and no action"
        raise Unanswerable("malformed-subject", message, "CE-GROUPS")
    if resource == settings.action_type:
        message = f"resource.type {resource!r} is reserved for actions"
        raise Unanswerable("malformed-resource", message, "CE-ENTITIES")


def _context(request: Request) -> dict[str, Any]:
    context = {name: value for name, value in request.context.items() if name not in OWN_FIELDS}
    if ACTION_PROPERTIES in context:
        message = f"context.{ACTION_PROPERTIES} is reserved: send them as action.properties"
        raise Unanswerable("malformed-context", message, "CE-ENTITIES")
    properties = request.action.properties
    if properties is not None and not isinstance(properties, dict):
        raise Unanswerable("malformed-properties", "action.properties must be a mapping", "CE-ENTITIES")
    if properties:
        context[ACTION_PROPERTIES] = properties
    return context


def _check_values(
    named: Iterable[Uid], implicit: tuple[str, str] | None, where: tuple[str, str], schema: Schema | None
) -> None:
    """Raise Unanswerable for names of entities with a fault, and for forms that need a schema where there is none."""
    path, code = where
    for uid in named:
        if wrong := uid_fault(uid):
            raise Unanswerable(code, f"{path} refers to {text_of(uid)}: {wrong}", "CE-ENTITIES")
    if schema is None and implicit is not None:
        within, escape = implicit
        raise Unanswerable(code, implicit_fault(f"{path}{within}", escape), "CE-SCHEMA-FORM")


Properties = dict[str, Any]


def _of_one(subject: Properties, resource: Properties) -> tuple[Properties, Properties]:
    """The properties of an entity that is subject and resource at once."""
    if subject and resource and subject != resource:
        message = "subject and resource are one entity, and their properties differ"
        raise Unanswerable("malformed-properties", message, "CE-ENTITIES")
    return subject or resource, subject or resource


def _entity_of(uid: Uid, properties: Properties, path: str) -> Entity:
    """An entity with these properties; raises Unanswerable where Python's values are none of JSON."""
    try:
        return entity_of(uid, properties)
    except TypeError as error:
        raise Unanswerable("malformed-properties", f"{path}: {error}", "CE-ENTITIES") from None


class _Own:
    """The entities that a request brings, as far as it is trusted to (CE-ENTITIES, CE-GROUPS)."""

    def __init__(self, facts: Facts, trust: frozenset[str], schema: Schema | None) -> None:
        self._facts, self._trust, self._schema = facts, trust, schema
        self.entities: dict[Uid, Entity] = {}
        self.used, self.untrusted = set[str](), set[str]()
        self.notes: list[Reason] = []

    def take(self, uid: Uid, properties: Mapping[str, Any], path: str) -> None:
        """An entity with these properties, unless documents have it."""
        needed = {name: name if name in CLAIMS else FACTS for name in properties}
        trusted = {name: value for name, value in properties.items() if needed[name] in self._trust}
        described = documented(self._facts, uid)
        if described is not None:
            self.entities[uid] = described
            others = {name: value for name, value in trusted.items() if name not in CLAIMS}
            if others and _entity_of(uid, others, path).body != described.body:
                message = f"{path} is not used: {described.document} describes {text_of(uid)}"
                self.notes.append(Reason("claim-ignored", message, "CE-ENTITIES", described.document))
            return
        self.untrusted |= {needed[name] for name, value in properties.items() if name not in trusted and value != []}
        if trusted:
            entity = _entity_of(uid, trusted, path)
            _check_values(entity.refers, entity.implicit, (path, "malformed-properties"), self._schema)
            self.used |= {needed[name] for name in trusted}
            self.entities[uid] = entity

    def join(self, uid: Uid, parents: list[Uid]) -> None:
        """Give an entity more parents."""
        if parents:
            self.entities[uid] = (self.entities.get(uid) or entity_of(uid, {})).with_parents(parents)
