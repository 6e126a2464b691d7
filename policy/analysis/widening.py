"""What a change of documents widens, one line for each principal and statement: what `opened` found, in words.

Counted are the principals that the changed documents name, a role or group as such; `policy.analysis.escalation` says
whom of them privileged access concerns. Whether something that is allowed lies under a deny that is gone is not looked
at. Facts that change widen what their system says (`policy.systems.kit.fact_changes`), else perhaps anything.
"""

from collections.abc import Iterator
from typing import Literal

import msgspec

from policy.analysis.opened import LiftedRefusal, Opened, OpenedByFact, OpenedGrants, OpenedStatement, Opens
from policy.analysis.wording import grant_words, window_text
from policy.core.model import ALLOW, Effect, StatementId
from policy.systems.kit.system import EVERYONE, System

Widened = Literal["allowed", "deny-lifted", "fact"]


class Widening(msgspec.Struct, frozen=True, order=True, omit_defaults=True):
    """`who` is newly allowed `action` on `resource` by a statement of a document, or no longer denied it.

    `statement`: None for a document as such. `by`: of a membership that is new, or is gone, its document. `when`: the
    window in which it counts; "" for always. Of a system with an engine, `action` is the whole statement. Of the kind
    `fact`, what is known of `resource` is another: it may allow more, to whom is not worked out.
    """

    who: str
    action: str
    resource: str
    document: str
    statement: int | None = None
    kind: Widened = "allowed"
    by: str = ""
    when: str = ""


class Widenings(msgspec.Struct, frozen=True):
    """All of a change, sorted. ``complete``: False where the work was not enough: there may be more."""

    found: tuple[Widening, ...] = ()
    complete: bool = True


def widenings_of(result: Opened) -> Widenings:
    """What was found to open, in words."""
    each = {widening for item in result.opens for widening in _widenings(result.edits.system, item)}
    return Widenings(tuple(sorted(each, key=_order)), result.complete)


def _order(widening: Widening) -> tuple[str, int, str, str, str]:
    statement_id = StatementId(widening.document, widening.statement)
    return *statement_id.place, widening.who, widening.action, widening.resource


def _widenings(system: System, item: Opens) -> Iterator[Widening]:
    match item:
        case OpenedGrants():
            yield from _by_grants(system, item)
        case OpenedStatement(statement_id, statement):
            document, number, kind = statement_id.document, statement_id.statement, _kind(statement.effect)
            for who in statement.principals or (EVERYONE,):
                yield Widening(who, statement.text, "", document, number, kind, "", window_text(statement.window))
        case OpenedByFact():
            yield _by_fact(item)
        case LiftedRefusal(document, membership):
            who, by = ("*", "") if membership is None else (membership.member, membership.statement_id.document)
            yield Widening(who, "*", "*", document, None, "deny-lifted", by)


def _kind(effect: Effect) -> Widened:
    return "allowed" if effect == ALLOW else "deny-lifted"


def _by_grants(system: System, opens: OpenedGrants) -> Iterator[Widening]:
    for who, grant, part in opens.grants:
        words, document, statement = (
            grant_words(system, part),
            grant.statement_id.document,
            grant.statement_id.statement,
        )
        by = opens.change.document if opens.change.memberships and opens.change.document != document else ""
        when = window_text(part.window)
        yield Widening(who, words.action, words.resource, document, statement, _kind(opens.effect), by, when)


def _by_fact(item: OpenedByFact) -> Widening:
    change, opening = item.change, item.opening
    kind: Widened = "deny-lifted" if opening.lifts else "fact"
    resource = opening.resource or ("" if opening.lifts else f"{change.kind} {change.name}")
    return Widening(opening.who, opening.action, resource, change.document, None, kind)


def widening_text(widening: Widening) -> str:
    """In words: who may do what now, or is no longer denied it, and where that stands."""
    where = widening.document if widening.statement is None else f"{widening.document} statement {widening.statement}"
    if widening.kind == "fact":
        return f"what is known of {widening.resource} is another, which may allow more ({where})"
    verb = "is no longer denied" if widening.kind == "deny-lifted" else "may"
    by = f", by {widening.by}" if widening.by else ""
    on = f" on {widening.resource}" if widening.resource else ""
    return f"{widening.who} {verb} {widening.action}{on}{f' {widening.when}' if widening.when else ''} ({where}{by})"
