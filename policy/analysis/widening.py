"""What a change of documents widens: allows that are new to those who hold them, and denies that are gone.

Counted are the principals that the changed documents name, a role or group as such; `policy.analysis.escalation` says
whom of them privileged access concerns. What a principal was allowed before by another grant, or what a deny takes away
whole, widens nothing. Whether something that is allowed lies under a deny that is gone is not looked at.

Facts that change widen what their system says (`policy.systems.kit.fact_changes`), else perhaps anything. A refused
document without a good version, which may have held a deny, widens when it goes or is corrected.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec

from policy.analysis.diff import placeless
from policy.analysis.edits import Edit, GrantChange, fact_changes_of, grant_changes
from policy.analysis.engine_changes import opened
from policy.analysis.openings import openings
from policy.analysis.versions import PolicySetVersion
from policy.analysis.wording import grant_words, window_text
from policy.core.limits import Work, WorkExceeded
from policy.core.model import ALLOW, DENY, Effect, Grant, StatementId
from policy.store.snapshot import PolicySet
from policy.systems.kit.engine import Engine, engine_of
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
    changed = [edit for edit in edits if edit.is_change]
    found: set[Widening] = set()
    with contextlib.suppress(WorkExceeded):
        if changed:
            found.update(_of_refusals(policy_set, changed, at, work))
            found.update(_of_facts(system, policy_set, changed, work))
            found.update(_of_grants(system, policy_set, changed, at, work))
            if (engine := engine_of(system)) is not None:
                found.update(_of_engine(engine, policy_set, changed, at, work))
    return Widenings(tuple(sorted(found, key=_order)), not work.exceeded)


def _order(one: Widening) -> tuple[str, int, str, str, str]:
    return one.document, -1 if one.statement is None else one.statement, one.who, one.action, one.resource


def _of_grants(system: System, policy_set: PolicySet, edits: Sequence[Edit], at: int, work: Work) -> Iterator[Widening]:
    said = {edit.document: edit.before for edit in edits}
    says = {edit.document: edit.after for edit in edits}
    before, after = PolicySetVersion(policy_set, said, at), PolicySetVersion(policy_set, says, at)
    for start in grant_changes(says, said, after, ALLOW):
        for who, part in _parts(start, after, before, ALLOW, work):
            if not after.effective_grants(who).denied(part):
                yield _widening(system, who, part, start)
    for start in grant_changes(said, says, before, DENY):
        for who, part in _parts(start, before, after, DENY, work):
            yield _widening(system, who, part, start)


def _of_refusals(policy_set: PolicySet, edits: Sequence[Edit], at: int, work: Work) -> Iterator[Widening]:
    """Refused documents that went, and members of what such a document affects who no longer are: both were errors."""
    for edit in edits:
        if edit.lifts_refusal:
            yield Widening("*", "*", "*", edit.document, None, "deny-lifted")
    if not (broken := policy_set.broken_at(None)):
        return
    before = PolicySetVersion(policy_set, {edit.document: edit.before for edit in edits}, at)
    kept = {placeless(way) for edit in edits for way in edit.after.memberships}
    for edit in edits:
        for way in edit.before.memberships:
            reached = before.reached(way.principal) if placeless(way) not in kept else {}
            work.take(1 + len(reached))
            for document in sorted({str(broken[principal]) for principal in reached.keys() & broken.keys()}):
                yield Widening(way.member, "*", "*", document, None, "deny-lifted", edit.document)


def _of_facts(system: System, policy_set: PolicySet, edits: Sequence[Edit], work: Work) -> Iterator[Widening]:
    for change in fact_changes_of(system, edits):
        work.take(1 + len(change.before) + len(change.after))
        for one in openings(system, change, policy_set.facts):
            kind: Widened = "deny-lifted" if one.lifts else "fact"
            resource = one.resource or ("" if one.lifts else f"{change.kind} {change.name}")
            yield Widening(one.who, one.action, resource, change.document, None, kind)


def _parts(
    start: GrantChange, here: PolicySetVersion, there: PolicySetVersion, effect: Effect, work: Work
) -> Iterator[tuple[str, Grant]]:
    """The grants of a start that are held here, and in the other version by nothing that says as much."""
    for who in start.principals:
        work.take(1 + len(start.grants))
        held, other = here.effective_grants(who), there.effective_grants(who)
        for grant in start.grants:
            assert grant.effect == effect
            yield from ((who, part) for part in held.parts(grant) if not other.allowed(part))


def _widening(system: System, who: str, part: Grant, start: GrantChange) -> Widening:
    words = grant_words(system, part)
    document, statement = part.statement_id.document, part.statement_id.statement
    kind: Widened = "allowed" if part.effect == ALLOW else "deny-lifted"
    by = start.document if start.ways and start.document != document else ""
    return Widening(who, words.action, words.resource, document, statement, kind, by, window_text(part.window))


def _of_engine(engine: Engine, policy_set: PolicySet, edits: Sequence[Edit], at: int, work: Work) -> Iterator[Widening]:
    for statement_id, statement in opened(engine, policy_set, edits, at, work, privileged=False):
        kind: Widened = "allowed" if statement.effect == ALLOW else "deny-lifted"
        who, place = ", ".join(statement.principals) or "*", _place(statement_id)
        yield Widening(who, statement.text, "", *place, kind, "", window_text(statement.window))


def _place(statement_id: StatementId) -> tuple[str, int | None]:
    return statement_id.document, statement_id.statement
