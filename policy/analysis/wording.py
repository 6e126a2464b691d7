"""Patterns and grants in words, for findings, differences and listings."""

from collections.abc import Hashable
from typing import NamedTuple

from policy.core.model import CompiledDocument, Grant, Membership
from policy.core.pattern import Exact, Name, Pattern, pattern_text
from policy.core.times import ALWAYS, Window, to_text
from policy.systems import all_systems
from policy.systems.kit.engine import Statement, engine_of, statements_of
from policy.systems.kit.system import System


class GrantWords(NamedTuple):
    """What a grant is about, as the documents of its system write it."""

    action: str
    resource: str


def grant_words(system: System, grant: Grant) -> GrantWords:
    """The permission and the object of a grant in the notation of its system."""
    return GrantWords(*system.notation(grant))


def literal_name(pattern: Pattern) -> Name | None:
    """The one name that a pattern matches; None: it matches several."""
    texts = tuple(part.text for part in pattern.parts if isinstance(part, Exact))
    return None if pattern.open or len(texts) < len(pattern.parts) else texts


def grant_text(grant: Grant | Statement, system: System | None = None) -> str:
    """ "role:readers allow kafka/List* on kafka/topic/**"; of an engine's statement its own text.

    ``system``: that of the grant, for its notation: "role:readers allow kafka:List* on kafka:topic:*".
    """
    window = window_text(grant.window)
    if isinstance(grant, Statement):
        text = grant.text
    else:
        plain = GrantWords(pattern_text(grant.permission), pattern_text(grant.object))
        action, resource = plain if system is None else grant_words(system, grant)
        text = f"{grant.principal} {grant.effect} {action} on {resource}"
    return f"{text} {window}" if window else text


def membership_text(membership: Membership) -> str:
    """ "user:dana is group:readers"."""
    return f"{membership.member} is {membership.principal} {window_text(membership.window)}".strip()


def document_contents(system: str, compiled: CompiledDocument) -> dict[Hashable, str]:
    """The grants, memberships and engine's statements of a document in words, by what they are compared."""
    engine = engine_of(all_systems()[system])
    statements = statements_of(engine, compiled.facts) if engine is not None else ()
    lines = (*map(grant_text, compiled.grants), *map(membership_text, compiled.memberships))
    return {line: line for line in lines} | {
        (statement.compared, statement.window): grant_text(statement) for _, statement in statements
    }


def window_text(window: Window) -> str:
    """ "from … until …"; empty for always."""
    if window == ALWAYS:
        return ""
    ends = (("from", window.start), ("until", window.end))
    return " ".join(f"{word} {to_text(moment)}" for word, moment in ends if moment is not None)
