"""The Settings document of Cedar: the entity types of actions and of the groups that requests claim (CE-GROUPS).

It is a document, not a setting of the job, because it changes decisions: its changes are in `policy_version`, and a
decision of an earlier time is explained with the types of that time.
"""

import msgspec

from policy.core.document import Document
from policy.core.facts import Facts
from policy.core.model import CompiledDocument
from policy.systems.cedar.text import is_type
from policy.systems.kit.validator import Validator, one_fact

SETTINGS = "Settings"
NAME = "default"


class CedarSettings(msgspec.Struct, frozen=True):
    """The entity types of a request's action and of the groups of its subject."""

    action_type: str = "Action"
    group_type: str = "Group"


DEFAULT = CedarSettings()


def current_settings(facts: Facts) -> CedarSettings:
    """The settings in force at the moment of the facts; raises Unanswerable."""
    settings = facts.get(SETTINGS, NAME)
    return DEFAULT if settings is None else settings


def settings_of_all_times(facts: Facts) -> tuple[CedarSettings, ...]:
    """The settings in force at some moment; for tools, not for decisions."""
    versions = facts.versions(SETTINGS, NAME)
    bodies = tuple(fact.body for fact in versions)
    return bodies if any(fact.timeless for fact in versions) else (DEFAULT, *bodies)


def read_settings(document: Document) -> CompiledDocument:
    """A Settings document; raises DocumentRefused for a name other than ``default`` and for what is not a type."""
    validator = Validator(document.spec)
    if document.key.name != NAME:
        validator.error(f"there is one Settings document, cedar/{SETTINGS}/{NAME}: give it the name {NAME!r}", "name")
    settings = CedarSettings(
        _type(validator, "action_type", DEFAULT.action_type), _type(validator, "group_type", DEFAULT.group_type)
    )
    if settings.action_type == settings.group_type:
        same = settings.action_type
        validator.error(f"actions and groups cannot both have the type {same!r}: choose two types", "group_type")
    return one_fact(document, validator, settings)


def _type(validator: Validator, field: str, default: str) -> str:
    value = validator.text(field, required=False)
    if value and not is_type(value):
        validator.error(f"{value!r} is not an entity type such as Action or App::Action", field)
    return value or default
