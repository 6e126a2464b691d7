"""The Settings document of Cedar: the entity types of actions and of the groups that requests claim (CE-GROUPS).

It is a document, not a setting of the job, because it changes decisions: its changes are in `policy_version`, and a
decision of an earlier time is explained with the types of that time.
"""

import msgspec

from policy.core.document import Document
from policy.core.facts import Facts
from policy.core.model import CompiledDocument, Fact, StatementId
from policy.systems.cedar.text import is_type
from policy.systems.kit.validator import Validator

SETTINGS = "Settings"
NAME = "default"


class EntityTypes(msgspec.Struct, frozen=True):
    """``action``: the type of a request's action. ``group``: the type of the groups of its subject."""

    action: str = "Action"
    group: str = "Group"


DEFAULT = EntityTypes()


def entity_types(facts: Facts) -> EntityTypes:
    """The types in force; raises Unanswerable."""
    found = facts.get(SETTINGS, NAME)
    return DEFAULT if found is None else found


def all_entity_types(facts: Facts) -> tuple[EntityTypes, ...]:
    """The types in force at any moment; for tools, not for decisions."""
    versions = facts.versions(SETTINGS, NAME)
    bodies = tuple(fact.body for fact in versions)
    return bodies if any(fact.timeless for fact in versions) else (DEFAULT, *bodies)


def read_settings(document: Document) -> CompiledDocument:
    """A Settings document; raises DocumentRefused for a name other than ``default`` and for what is not a type."""
    form = Validator(document.spec)
    if document.key.name != NAME:
        form.error(f"there is one Settings document, cedar/{SETTINGS}/{NAME}: give it the name {NAME!r}", "name")
    types = EntityTypes(_type(form, "action_type", DEFAULT.action), _type(form, "group_type", DEFAULT.group))
    if types.action == types.group:
        form.error(f"actions and groups cannot both have the type {types.action!r}: choose two types", "group_type")
    form.refuse_window(document.window)
    form.reject_unknown()
    form.finish()
    return CompiledDocument(facts=(Fact(SETTINGS, NAME, types, (), StatementId(str(document.key))),))


def _type(form: Validator, field: str, default: str) -> str:
    if not form.has(field):
        return default
    value = form.text(field)
    if value and not is_type(value):
        form.error(f"{value!r} is not an entity type such as Action or App::Action", field)
    return value
