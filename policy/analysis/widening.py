"""What a change of documents widens, one line for each principal and statement: what `opened` found, in words.

Counted are the principals that the changed documents name, a role or group as such; `policy.analysis.escalation` says
whom of them privileged access concerns. Whether something that is allowed lies under a deny that is gone is not looked
at. Facts that change widen what their system says (`policy.systems.kit.fact_changes`), else perhaps anything.
"""

from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec

from policy.analysis.edits import Edit
from policy.analysis.opened import (
    Edits,
    LiftedRefusal,
    Opened,
    OpenedByFact,
    OpenedGrants,
    OpenedStatement,
    Opens,
    opened,
)
from policy.analysis.wording import grant_words, window_text
from policy.core.limits import Work
from policy.core.model import ALLOW, Effect
from policy.store.snapshot import PolicySet
from policy.systems.kit.system import System

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


def widenings(system: System, policy_set: PolicySet, edits: Sequence[Edit], at: int, work: Work) -> Widenings:
    """What ``edits`` together widen. ``policy_set``: the system's after them. ``at``: when they were made, ms."""
    return widenings_of(opened(Edits(system, policy_set, edits, at), work))


def widenings_of(found: Opened) -> Widenings:
    """What was found to open, in words."""
    each = {widening for one in found.opens for widening in _widenings(found.edits.system, one)}
    return Widenings(tuple(sorted(each, key=_order)), found.complete)


def _order(one: Widening) -> tuple[str, int, str, str, str]:
    return one.document, -1 if one.statement is None else one.statement, one.who, one.action, one.resource


def _widenings(system: System, one: Opens) -> Iterator[Widening]:
    match one:
        case OpenedGrants():
            yield from _by_grants(system, one)
        case OpenedStatement(statement_id, statement):
            who, place = ", ".join(statement.principals) or "*", (statement_id.document, statement_id.statement)
            yield Widening(who, statement.text, "", *place, _kind(statement.effect), "", window_text(statement.window))
        case OpenedByFact():
            yield _by_fact(one)
        case LiftedRefusal(document, way):
            who, by = ("*", "") if way is None else (way.member, way.statement_id.document)
            yield Widening(who, "*", "*", document, None, "deny-lifted", by)


def _kind(effect: Effect) -> Widened:
    return "allowed" if effect == ALLOW else "deny-lifted"


def _by_grants(system: System, opens: OpenedGrants) -> Iterator[Widening]:
    for who, grant, part in opens.grants:
        words, (document, statement) = (
            grant_words(system, part),
            (grant.statement_id.document, grant.statement_id.statement),
        )
        by = opens.change.document if opens.change.ways and opens.change.document != document else ""
        when = window_text(part.window)
        yield Widening(who, words.action, words.resource, document, statement, _kind(opens.effect), by, when)


def _by_fact(one: OpenedByFact) -> Widening:
    change, opening = one.change, one.opening
    kind: Widened = "deny-lifted" if opening.lifts else "fact"
    resource = opening.resource or ("" if opening.lifts else f"{change.kind} {change.name}")
    return Widening(opening.who, opening.action, resource, change.document, None, kind)


def widening_text(one: Widening) -> str:
    """In words: who may do what now, or is no longer denied it, and where that stands."""
    place = one.document if one.statement is None else f"{one.document} statement {one.statement}"
    if one.kind == "fact":
        return f"what is known of {one.resource} is another, which may allow more ({place})"
    verb = "is no longer denied" if one.kind == "deny-lifted" else "may"
    by = f", by {one.by}" if one.by else ""
    on = f" on {one.resource}" if one.resource else ""
    return f"{one.who} {verb} {one.action}{on}{f' {one.when}' if one.when else ''} ({place}{by})"
