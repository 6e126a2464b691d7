"""PolicySet documents: each policy a fact, found again by its scope (CE-SLICE)."""

import hashlib
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from policy.core.document import Document
from policy.core.model import CompiledDocument, Fact, StatementId
from policy.core.times import ALWAYS
from policy.systems.cedar import engine
from policy.systems.cedar.text import Piece, Unsplittable, split
from policy.systems.cedar.uid import Uid, text_of, uid_fault, uid_of
from policy.systems.kit.validator import MAX_STATEMENTS, Validator

POLICY_SET = "PolicySet"
POLICY = "Policy"  # kind of the facts about single policies
SCOPE = "scope"  # the index by which they are found
EVERY = "every"  # the key of a policy whose scope says nothing
NARROWEST_FIRST = (
    ("==", "resource", "principal"),
    ("in", "resource", "principal"),
    ("==", "action"),
    ("in", "action"),
    ("is", "principal", "resource"),
)
SLOTS = ("?principal", "?resource")

Effect = Literal["permit", "forbid"]
Operator = Literal["any", "==", "in", "is"]


class Scope(msgspec.Struct, frozen=True, gc=False):
    """What a scope says of principal, action or resource. ``is``: of ``type``, and in one of ``uids`` if any."""

    operator: Operator = "any"
    uids: tuple[Uid, ...] = ()
    type: str = ""

    def fits(self, uid: Uid, within: Container[Uid]) -> bool:
        """Whether an entity satisfies it. ``within``: the entity itself and its ancestors."""
        if self.operator == "any":
            return True
        if self.operator == "==":
            return uid == self.uids[0]
        if self.operator == "is" and self.type != uid[0]:
            return False
        return any(named in within for named in self.uids) or (self.operator == "is" and not self.uids)


class Policy(msgspec.Struct, frozen=True, gc=False):
    """One policy, or one link of a template. ``text``: as it is written; ``literals``: what its conditions name.

    ``conditions``: the digest of what Cedar parsed of them, empty without any; ``slots``: of a link, what stands in the
    template's.
    """

    id: str
    effect: Effect
    text: str
    principal: Scope
    action: Scope
    resource: Scope
    literals: tuple[Uid, ...]
    annotations: tuple[tuple[str, str], ...]
    statement_id: StatementId
    slots: tuple[tuple[str, Uid], ...] = ()
    conditions: bytes = b""

    @property
    def content(self) -> tuple[Any, ...]:
        """What it does, as Cedar parsed it: equal for two policies only if they do the same, whatever their texts.

        Annotations are no part of it, nor the order of entities in a scope: they change no decision. A link is what its
        template says with the slots filled; slots stand in scopes alone.
        """
        scopes = (self.principal, self.action, self.resource)
        sorted_scopes = ((scope.operator, tuple(sorted(set(scope.uids))), scope.type) for scope in scopes)
        return (self.effect, *sorted_scopes, self.conditions)

    @property
    def named(self) -> str:
        """What decisions call it: its effect, its id and its other annotations (CE-DETERMINING)."""
        beside = "".join(f", @{name}({value!r})" for name, value in self.annotations)
        return f"{self.effect} {self.id!r}{beside}"

    @property
    def scopeless(self) -> bool:
        """Whether it is for every principal, action and resource."""
        return all(scope.operator == "any" for scope in (self.principal, self.action, self.resource))


class _Read(NamedTuple):
    """A policy or template as Cedar parsed it, and where it is written."""

    number: int
    piece: Piece
    is_template: bool
    json: Mapping[str, Any]
    conditions: bytes

    @property
    def annotations(self) -> dict[str, str]:
        return {name: value or "" for name, value in self.json.get("annotations", {}).items()}


def read_policy_set(document: Document) -> CompiledDocument:
    """The policies of a PolicySet document as facts; raises DocumentRefused naming every error (CE-REFUSED)."""
    validator = Validator(document.spec)
    text, links = validator.raw("policies"), validator.forms("links", required=False)
    if not isinstance(text, str) or not text.strip():
        validator.error("required, as Cedar text with at least one policy", "policies")
        text = ""
    read = _read(validator, text)
    ids = _ids(validator, document, read)
    literals = _literals(validator, read)
    for entry in read:
        _refuse_names(validator, entry, literals)
    templates = {ids[entry.number]: entry for entry in read if entry.is_template}
    static = (entry for entry in read if not entry.is_template)
    policies = [_policy(document, entry.number, entry, ids[entry.number], literals, {}) for entry in static]
    policies += _links(document, templates, links, literals, ids)
    validator.reject_unknown()
    validator.finish()
    window = ALWAYS if document.window == ALWAYS else document.window  # by identity, facts know that they always count
    facts = (Fact(POLICY, _name(policy), policy, keys_of(policy), policy.statement_id, window) for policy in policies)
    return CompiledDocument(facts=tuple(facts), warnings=tuple(_warnings(templates, policies)))


def _name(policy: Policy) -> str:
    return f"{policy.statement_id.statement}#{policy.statement_id.document}"


def _read(validator: Validator, text: str) -> list[_Read]:
    """The policies and templates of a text; errors stay in the validator."""
    try:
        pieces = split(text)
    except Unsplittable as error:
        validator.error(str(error), "policies")
        return []
    if len(pieces) > MAX_STATEMENTS:
        validator.error(f"{len(pieces)} policies; at most {MAX_STATEMENTS}: split the document", "policies")
        return []
    if not pieces and text:
        validator.error("has no policy: delete the document if it is to say nothing", "policies")
    errors, read = len(validator.errors), list[_Read]()
    try:
        answers = engine.parse([piece.text for piece in pieces])
    except engine.EngineError as error:
        validator.error(str(error), "policies")
        return []
    for number, (piece, parsed) in enumerate(zip(pieces, answers, strict=True)):
        if isinstance(parsed, engine.EngineError):
            validator.error(f"line {piece.line}: {parsed}", f"policies[{number}]")
        else:
            read.append(_Read(number, piece, parsed.is_template, parsed.json, _digest(parsed.conditions)))
    return read if len(validator.errors) == errors else []


def _digest(conditions: str) -> bytes:
    """The digest, for the JSON of conditions may be ten times as long as their text."""
    return b"" if conditions == "[]" else hashlib.sha256(conditions.encode()).digest()


def _ids(validator: Validator, document: Document, read: list[_Read]) -> list[str]:
    """By the annotation @id, else by the document's name and the number (CE-DUPLICATE)."""
    ids, first = list[str](), dict[str, int]()
    for number, entry in enumerate(read):
        id_ = entry.annotations.get("id") or f"{document.key.name}#{entry.number}"
        if first.setdefault(id_, number) != number:
            message = f"the id {id_!r} is also that of policies[{first[id_]}] (CE-DUPLICATE)"
            validator.error(message, f"policies[{number}]")
        ids.append(id_)
    return ids


def _literals(validator: Validator, read: list[_Read]) -> Mapping[str, Uid]:
    """The entities that conditions name, by their text."""
    texts = list(dict.fromkeys(text for entry in read for text in entry.piece.in_conditions))
    if not texts:
        return {}
    try:
        scopes = engine.to_json("\n".join(f"permit(principal == {text}, action, resource);" for text in texts))
    except engine.EngineError as error:
        validator.error(str(error), "policies")
        return {}
    return {text: _entity(json["principal"]["entity"]) for text, (_, json) in zip(texts, scopes, strict=True)}


def _refuse_names(validator: Validator, entry: _Read, literals: Mapping[str, Uid]) -> None:
    """A name that may be taken for another one is an error."""
    conditions = (literals[text] for text in entry.piece.in_conditions if text in literals)
    for uid in dict.fromkeys((*_in_scope(entry), *conditions)):
        if wrong := uid_fault(uid):
            validator.error(f"line {entry.piece.line}: {text_of(uid)}: {wrong}", f"policies[{entry.number}]")


def _in_scope(entry: _Read) -> Iterator[Uid]:
    for part in ("principal", "action", "resource"):
        inner = entry.json[part].get("in", entry.json[part])
        yield from map(_entity, inner.get("entities", ()))
        if "entity" in inner:
            yield _entity(inner["entity"])


def _entity(value: object) -> Uid:
    uid = uid_of(value)
    assert uid is not None, value
    return uid


def _policy(
    document: Document, number: int, entry: _Read, id_: str, literals: Mapping[str, Uid], slots: Mapping[str, Uid]
) -> Policy:
    json = entry.json
    named = (literals[text] for text in entry.piece.in_conditions if text in literals)
    return Policy(
        id_,
        json["effect"],
        entry.piece.text,
        _scope(json["principal"], slots),
        _scope(json["action"], slots),
        _scope(json["resource"], slots),
        tuple(dict.fromkeys(named)),
        tuple(sorted((name, value) for name, value in entry.annotations.items() if name != "id")),
        StatementId(str(document.key), number),
        tuple(sorted(slots.items())),
        entry.conditions,
    )


def _scope(json: Mapping[str, Any], slots: Mapping[str, Uid]) -> Scope:
    operator = json["op"]
    if operator == "All":
        return Scope()
    inner = json.get("in", {}) if operator == "is" else json
    if "slot" in inner:
        uids: tuple[Uid, ...] = (slots[inner["slot"]],)
    elif "entities" in inner:
        uids = tuple(map(_entity, inner["entities"]))
    else:
        uids = (_entity(inner["entity"]),) if "entity" in inner else ()
    return Scope(operator, uids, json.get("entity_type", ""))


def _links(
    document: Document,
    templates: Mapping[str, _Read],
    links: list[Validator],
    literals: Mapping[str, Uid],
    ids: Sequence[str],
) -> Iterator[Policy]:
    """The links of templates (CE-TEMPLATES), in Cedar's JSON form; they are numbered after the policies."""
    taken = set(ids)
    for number, link in enumerate(links):
        template, new_id = link.text("templateId"), link.text("newId")
        if template and template not in templates:
            link.error(f"no template {template!r} in this document{link.nearest(template, templates)}", "templateId")
        if new_id in taken:
            link.error(f"the id {new_id!r} is also another policy's (CE-DUPLICATE)", "newId")
        taken.add(new_id)
        slots = _slots(link, templates.get(template))
        link.reject_unknown()
        if template in templates and slots is not None:
            yield _policy(document, len(ids) + number, templates[template], new_id, literals, slots)


def _slots(link: Validator, template: _Read | None) -> Mapping[str, Uid] | None:
    """What a link puts in the slots of its template, all of them; None: it is not valid."""
    values = link.mapping("values")
    needed = [slot for slot in SLOTS if template is not None and _has(template, slot)]
    filled = dict[str, Uid]()
    for slot in SLOTS:
        uid = uid_of(values.raw(slot))
        if slot in needed and uid is None:
            values.error("required, as {type, id}", slot)
        elif uid is not None and slot not in needed and template is not None:
            values.error("is no slot of the template", slot)
        elif uid is not None and (wrong := uid_fault(uid)):
            values.error(wrong, slot)
        elif uid is not None:
            filled[slot] = uid
    values.reject_unknown()
    return filled if len(filled) == len(needed) else None


def _has(template: _Read, slot: str) -> bool:
    json = template.json[slot.removeprefix("?")]
    return slot in (json.get("slot"), json.get("in", {}).get("slot") if isinstance(json.get("in"), Mapping) else None)


def _warnings(templates: Mapping[str, _Read], policies: list[Policy]) -> Iterator[str]:
    linked = {policy.text for policy in policies if policy.slots}
    for id_, template in templates.items():
        if template.piece.text not in linked:
            yield f"policies[{template.number}]: the template {id_!r} has no link, so it decides nothing (CE-TEMPLATES)"


def keys_of(policy: Policy) -> tuple[tuple[str, str], ...]:
    """The keys under which requests find a policy: by the part of its scope that fits the fewest requests."""
    for operator, *parts in NARROWEST_FIRST:
        for part in parts:
            scope: Scope = getattr(policy, part)
            if scope.operator == operator or (operator == "in" and scope.operator == "is" and scope.uids):
                return tuple((SCOPE, key) for key in dict.fromkeys(_keys(part, scope)))
    return ((SCOPE, EVERY),)


def _keys(part: str, scope: Scope) -> Iterator[str]:
    if scope.uids:
        operator = "==" if scope.operator == "==" else "in"
        yield from (f"{part} {operator} {text_of(uid)}" for uid in scope.uids)
    elif scope.operator == "is":
        yield f"{part} is {scope.type}"


def keys_for(part: str, uid: Uid, within: list[Uid]) -> Iterator[str]:
    """The keys of policies whose scope an entity may satisfy. ``within``: the entity itself and its ancestors."""
    yield f"{part} == {text_of(uid)}"
    yield f"{part} is {uid[0]}"
    yield from (f"{part} in {text_of(ancestor)}" for ancestor in within)
