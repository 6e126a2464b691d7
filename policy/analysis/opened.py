"""What a change of documents opens: one answer, which differences, widenings, escalations and reviews show.

Opened are allows that are new to a principal and denies that are gone, facts that restrict no more, statements of an
engine, and documents that were refused, under which requests were errors. Counted are the principals that the changed
documents name, a role or group as such: who is behind them, `Edits.people` says. What a principal had before by another
grant, and what a deny takes away whole, opens nothing. A grant that moves to another statement or document is not new.

That is all that may widen: a member has what its role or group has, so what is not new to these is not new to it
either, and a member of one that is new is named by the change itself.
"""

import contextlib
import functools
import itertools
from collections.abc import Iterable, Iterator
from typing import NamedTuple, TypeAlias

import msgspec

from policy.analysis.edits import Edit, GrantChange, fact_changes_of, grant_changes
from policy.analysis.engine_changes import opened_statements
from policy.analysis.openings import openings
from policy.analysis.versions import PolicySetVersion, placeless
from policy.core.limits import Work, WorkExceeded
from policy.core.model import ALLOW, DENY, Effect, Grant, Membership, StatementId
from policy.core.times import Window
from policy.store.memberships import MembershipIndex
from policy.store.policy_set import PolicySet
from policy.systems.kit.engine import Statement, engine_of
from policy.systems.kit.fact_changes import FactChange, Opening
from policy.systems.kit.system import EVERYONE, System


class Edits:
    """Documents of one system that change together. ``policy_set``: after it. ``at``: when, ms.

    ``said``, ``says``: what they say before and after, by document; ``before``, ``after``: the whole policy set.
    """

    def __init__(self, system: System, policy_set: PolicySet, edits: Iterable[Edit], at: int) -> None:
        self.system, self.policy_set, self.at = system, policy_set, at
        self.edits = tuple(edit for edit in edits if edit.is_change)
        self.said = {edit.document: edit.before for edit in self.edits}
        self.says = {edit.document: edit.after for edit in self.edits}
        self.before = PolicySetVersion(system, policy_set, self.said, at)
        self.after = PolicySetVersion(system, policy_set, self.says, at)

    @functools.cached_property
    def memberships(self) -> MembershipIndex:
        """Who is a member of what, before or after."""
        parts = (*self.policy_set.memberships.values(), *(compiled.memberships for compiled in self.said.values()))
        return MembershipIndex(itertools.chain.from_iterable(parts))

    def people(self, principals: Iterable[str]) -> list[str]:
        """The subjects and claims that are one of these principals, before or after, sorted; ``*`` for everyone."""
        prefixes = (*self.system.subjects, *self.system.claims)
        members = self.memberships.members(principals)
        return sorted(name for name in members if name == EVERYONE or name.startswith(prefixes))

    def opened_for(self, who: str, effect: Effect, grants: Iterable[Grant]) -> Iterator["OpenedGrant"]:
        """As much of some allows as ``who`` has newly, or of some denies as ``who`` has no longer."""
        before, after = self.before.effective_grants(who), self.after.effective_grants(who)
        having, other = (after, before) if effect == ALLOW else (before, after)
        for grant in grants:
            for part in having.parts(grant):
                if not other.allowed(part) and not (effect == ALLOW and after.denied(part)):
                    yield OpenedGrant(who, grant, part)


class OpenedGrant(NamedTuple):
    """A grant that opens something for a principal, and the part that does."""

    who: str
    grant: Grant
    part: Grant


class OpenedGrants(msgspec.Struct, frozen=True):
    """Grants that came or went in one document, or to which its memberships lead, as far as they open something."""

    change: GrantChange
    effect: Effect
    grants: tuple[OpenedGrant, ...]


class OpenedStatement(msgspec.Struct, frozen=True):
    """An allow of an engine's policies that came, or a deny that went."""

    statement_id: StatementId
    statement: Statement


class OpenedByFact(msgspec.Struct, frozen=True):
    """Something else is known, which opens this."""

    change: FactChange
    opening: Opening


class LiftedRefusal(msgspec.Struct, frozen=True):
    """Requests that a refused document affected are errors no longer: it went, or is good.

    ``membership``: it stays, but this membership in what it affects is gone.
    """

    document: str
    membership: Membership | None = None


Opens: TypeAlias = OpenedGrants | OpenedStatement | OpenedByFact | LiftedRefusal


class Opened(msgspec.Struct, frozen=True):
    """All that ``edits`` open. ``complete``: False where the work was not enough: there may be more."""

    edits: Edits
    opens: tuple[Opens, ...]
    complete: bool


def opened(edits: Edits, work: Work) -> Opened:
    """What documents that change together open. The cost grows with the edits and the principals that they name."""
    opens: list[Opens] = []
    with contextlib.suppress(WorkExceeded):
        for each in (_by_refusals, _by_facts, _by_grants, _by_statements):
            opens.extend(each(edits, work))
    return Opened(edits, tuple(opens), not work.exceeded)


def _by_refusals(edits: Edits, work: Work) -> Iterator[LiftedRefusal]:
    """Refused documents that went, and members of what such a document affects who no longer are: both were errors."""
    yield from (LiftedRefusal(edit.document) for edit in edits.edits if edit.lifts_refusal)
    if not edits.policy_set.broken_at(None):
        return
    # The refused document may hold a deny (L6-Q10): who is no longer a member has neither that nor the error.
    kept = {placeless(membership) for compiled in edits.says.values() for membership in compiled.memberships}
    before = (membership for compiled in edits.said.values() for membership in compiled.memberships)
    for membership in (membership for membership in before if placeless(membership) not in kept):
        yield from (LiftedRefusal(document, membership) for document in _refused_without(edits, membership, work))


def _refused_without(edits: Edits, membership: Membership, work: Work) -> list[str]:
    """The refused documents by which requests of a membership's member were errors, and are none without it."""
    broken, now = edits.policy_set.broken_at(None), Window(edits.at)
    had, has = (version.reached(membership.member, EVERYONE) for version in (edits.before, edits.after))
    work.take(1 + len(had) + len(has))
    still = [window for principal in has.keys() & broken.keys() for window in has[principal]]
    by_membership = edits.before.reached(membership.principal)
    return sorted(
        {
            str(broken[principal])
            for principal in by_membership.keys() & had.keys() & broken.keys()
            for window in had[principal]
            if (left := window.meet(now)) is not None and not any(other.covers(left) for other in still)
        }
    )


def _by_facts(edits: Edits, work: Work) -> Iterator[OpenedByFact]:
    for change in fact_changes_of(edits.system, edits.edits):
        work.take(1 + len(change.before) + len(change.after))
        for opening in openings(edits.system, change, edits.policy_set.facts):
            yield OpenedByFact(change, opening)


def _by_grants(edits: Edits, work: Work) -> Iterator[OpenedGrants]:
    """Allows that came, then denies that went."""
    yield from _opened_of(edits, grant_changes(edits.says, edits.said, edits.after, ALLOW), ALLOW, work)
    yield from _opened_of(edits, grant_changes(edits.said, edits.says, edits.before, DENY), DENY, work)


def _opened_of(edits: Edits, changes: Iterable[GrantChange], effect: Effect, work: Work) -> Iterator[OpenedGrants]:
    for change in changes:
        grants: list[OpenedGrant] = []
        with contextlib.suppress(WorkExceeded):
            for who in change.principals:
                work.take(1 + len(change.grants))
                grants += edits.opened_for(who, effect, change.grants)
        if grants:
            yield OpenedGrants(change, effect, tuple(grants))
        work.take(0)  # raises where it was not enough for all of them


def _by_statements(edits: Edits, work: Work) -> Iterator[OpenedStatement]:
    if (engine := engine_of(edits.system)) is not None:
        statements = opened_statements(engine, edits.policy_set, edits.edits, edits.at, work)
        yield from (OpenedStatement(*statement) for statement in statements)
