"""What a change of policies changes: requests replayed on both sides, grants and memberships compared."""

import functools
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, cast

import msgspec

from policy.analysis.edits import edits_between, fact_changes_of, principals_that_differ
from policy.analysis.opened import (
    Edits,
    LiftedRefusal,
    Opened,
    OpenedByFact,
    OpenedGrant,
    OpenedGrants,
    OpenedStatement,
    opened,
)
from policy.analysis.openings import opening_text
from policy.analysis.versions import Written, placeless
from policy.analysis.wording import grant_text, membership_text
from policy.core.decision import Decision
from policy.core.limits import Work
from policy.core.model import Grant, Membership
from policy.core.request import CLAIMS
from policy.core.times import Window
from policy.evaluation.authorize import decide
from policy.store.policy_set import PolicySet
from policy.store.snapshot import Snapshot
from policy.systems import all_systems
from policy.systems.kit.engine import Engine, Statement, engine_of, statement_facts, statements_of
from policy.systems.kit.fact_changes import FactChange, Opening
from policy.systems.kit.system import System

Sign = Literal["removed", "changed", "added"]
SIGNS: tuple[Sign, ...] = ("removed", "changed", "added")
BEGINNING = 0  # differences are of all that is written, whenever it counts

Contents = dict[tuple[Hashable, Window], tuple[Statement, str]]
"""What an engine's statements do; each with the first of them that does so, and its document."""


class Changed(msgspec.Struct, frozen=True):
    """A request that is answered otherwise now. ``number`` counts the requests from 1."""

    number: int
    request: Mapping[str, Any]
    before: Decision
    after: Decision


class Difference(msgspec.Struct, frozen=True):
    """A grant, membership or fact that came, went or changed.

    ``widens``: more may get through than before, which is what `opened` says; ``narrows``: less, which is what the
    change back would open. A fact narrows nothing. Grants are in the notation of their system.
    """

    system: str
    sign: Sign
    text: str
    document: str
    widens: bool
    narrows: bool = False


def replay(
    old: Snapshot, new: Snapshot, requests: Iterable[Mapping[str, Any]], trust: frozenset[str] = CLAIMS
) -> Iterator[Changed]:
    """The requests whose outcome, or that of one of their evaluations, differs."""
    for number, request in enumerate(requests, 1):
        before, after = decide(old, request, trust=trust), decide(new, request, trust=trust)
        if _outcomes(before) != _outcomes(after):
            yield Changed(number, request, before, after)


def _outcomes(decision: Decision) -> list[str]:
    return [decision.outcome, *(item.outcome for item in decision.evaluations)]


class Compared(NamedTuple):
    """A difference, and the grants by which it opens or closes something."""

    difference: Difference
    opens: tuple[OpenedGrant, ...] = ()
    closes: tuple[OpenedGrant, ...] = ()
    names: tuple[str, ...] = ()  # of a statement of an engine, those that it names


def compare(old: Snapshot, new: Snapshot) -> list[Difference]:
    """Every grant, membership and fact that differs, by system and document, removed ones first."""
    return [compared.difference for sides in sides_of(old, new) for compared in sides.differences()]


def sides_of(old: Snapshot, new: Snapshot) -> "list[Sides]":
    """What is to be compared, system by system."""
    names = sorted(new.policy_sets)
    return [Sides(all_systems()[name], old.policy_sets[name], new.policy_sets[name]) for name in names]


class Sides:
    """The policy sets of one system before and after a change, and what the change and the change back open."""

    def __init__(self, system: System, old: PolicySet, new: PolicySet) -> None:
        self.system, self._old, self._new = system, old, new
        self.forth = Edits(system, new, edits_between(system, old, new), BEGINNING)
        self.back = Edits(system, old, edits_between(system, new, old), BEGINNING)
        self.opened, self.closed = opened(self.forth, Work()), opened(self.back, Work())

    def differences(self) -> list[Compared]:
        """All of them, by document, removed ones first."""
        compared = [*self._grants(), *self._memberships(), *self._statements(), *self._facts(), *self._refusals()]
        return sorted(compared, key=lambda entry: _order(entry.difference))

    def _grants(self) -> Iterator[Compared]:
        opens, closes = self._opens.by_grant, self._closes.by_grant
        for sign, grant in _on_one_side(*_of_principals_that_differ(self._old.grants, self._new.grants)):
            text, document, key = grant_text(grant, self.system), grant.statement_id.document, placeless(grant)
            yield self._compared(sign, text, document, opens.get(key), closes.get(key))

    def _memberships(self) -> Iterator[Compared]:
        opens, closes = self._opens.by_membership, self._closes.by_membership
        for sign, membership in _on_one_side(*_of_principals_that_differ(self._old.memberships, self._new.memberships)):
            text, document, key = membership_text(membership), membership.statement_id.document, placeless(membership)
            yield self._compared(sign, text, document, opens.get(key), closes.get(key))

    def _compared(
        self, sign: Sign, text: str, document: str, opens: list[OpenedGrant] | None, closes: list[OpenedGrant] | None
    ) -> Compared:
        difference = Difference(self.system.name, sign, text, document, opens is not None, closes is not None)
        return Compared(difference, tuple(opens or ()), tuple(closes or ()))

    @functools.cached_property
    def _opens(self) -> "_OpenedIndex":
        return _OpenedIndex(self.opened)

    @functools.cached_property
    def _closes(self) -> "_OpenedIndex":
        return _OpenedIndex(self.closed)

    def _statements(self) -> Iterator[Compared]:
        """The statements of an engine that are on one side alone, wherever they are written."""
        if (engine := engine_of(self.system)) is None:
            return
        # By content, not by place: statements of a text are numbered, and one in front moves all others.
        before, after = (_by_content(engine, side) for side in (self._old, self._new))
        for sign, here, there in (("removed", before, after), ("added", after, before)):
            for content, (statement, document) in here.items():
                if content in there:
                    continue
                opens, closes = content in self._opens.statements, content in self._closes.statements
                text = grant_text(statement)
                yield Compared(
                    Difference(self.system.name, cast("Sign", sign), text, document, opens, closes),
                    names=statement.principals,
                )

    def _facts(self) -> Iterator[Compared]:
        for change in fact_changes_of(self.system, self.forth.edits):
            yield from map(Compared, self._of_fact(change, self._opens.by_fact.get((change.kind, change.name), ())))

    def _of_fact(self, change: FactChange, opens: Sequence[Opening]) -> Iterator[Difference]:
        """One for each restriction that is gone, else one: where nothing opens, of document kinds alone."""
        name, document = self.system.name, change.document or f"{self.system.name}/{change.kind}/{change.name}"
        sign: Sign = "added" if not change.before else "removed" if not change.after else "changed"
        lifted = (opening_text(opening, change) for opening in opens if opening.lifts)
        yield from (Difference(name, sign, text, document, True) for text in lifted)
        widens = any(not opening.lifts for opening in opens)
        if widens or (not opens and (change.kind in self.system.kinds or engine_of(self.system) is not None)):
            thing = change.name.removesuffix(f"#{document}")  # one document may hold several facts
            yield Difference(name, sign, f"what is known of {change.kind} {thing}", document, widens)

    def _refusals(self) -> Iterator[Compared]:
        """Refused documents that affect requests on one side, and on the other not, or not all of them."""
        closing = "is refused and without a good version: requests that it affects are errors"
        opening = "was refused and without a good version: requests that it affected were errors"
        for document in sorted(self._closes.refusals):
            yield Compared(Difference(self.system.name, "added", closing, document, False, True))
        for document in sorted(self._opens.refusals):
            yield Compared(Difference(self.system.name, "removed", opening, document, True))


class _OpenedIndex:
    """What was found to open, by the grant, membership, statement or fact that does."""

    def __init__(self, result: Opened) -> None:
        self.by_grant: dict[Grant, list[OpenedGrant]] = {}
        self.by_membership: dict[Membership, list[OpenedGrant]] = {}
        self.by_fact: dict[tuple[str, str], list[Opening]] = {}
        self.statements: set[tuple[Hashable, Window]] = set()
        self.refusals: set[str] = set()
        for item in result.opens:
            match item:
                case OpenedGrants():
                    self._add_grants(item)
                case OpenedStatement(_, statement):
                    self.statements.add((statement.compared, statement.window))
                case OpenedByFact(change, opening):
                    self.by_fact.setdefault((change.kind, change.name), []).append(opening)
                case LiftedRefusal(document, membership):
                    if membership is None:
                        self.refusals.add(document)
                    else:
                        self.by_membership.setdefault(placeless(membership), [])

    def _add_grants(self, opens: OpenedGrants) -> None:
        """A membership that is new opens what its member has newly, else a grant does."""
        by_member: dict[str, list[Membership]] = {}
        for membership in opens.change.memberships:
            by_member.setdefault(membership.member, []).append(placeless(membership))
        for opened_grant in opens.grants:
            # With a new membership its grants may be years old: the line of the membership says what it opens.
            if not opens.change.memberships:
                self.by_grant.setdefault(placeless(opened_grant.grant), []).append(opened_grant)
            for membership in by_member.get(opened_grant.who, ()):
                self.by_membership.setdefault(membership, []).append(opened_grant)


def _order(difference: Difference) -> tuple[str, str, int, str]:
    return difference.system, difference.document, SIGNS.index(difference.sign), difference.text


def _of_principals_that_differ(
    old: Mapping[str, list[Written]], new: Mapping[str, list[Written]]
) -> tuple[list[Written], list[Written]]:
    """All that those hold who hold something else on the other side; nothing of others is on one side alone."""
    principals = principals_that_differ(old, new)
    before, after = ([written for name in principals for written in side.get(name, ())] for side in (old, new))
    return before, after


def _on_one_side(before: list[Written], after: list[Written]) -> Iterator[tuple[Sign, Written]]:
    """What is there on one side alone; where it is written counts for nothing."""
    sides: tuple[tuple[Sign, list[Written], list[Written]], ...] = (
        ("removed", before, after),
        ("added", after, before),
    )
    for sign, here, there in sides:
        others = {placeless(item) for item in there}
        yield from ((sign, item) for item in here if placeless(item) not in others)


def _by_content(engine: Engine, side: PolicySet) -> Contents:
    contents: Contents = {}
    for statement_id, statement in statements_of(engine, statement_facts(engine, side.facts)):
        contents.setdefault((statement.compared, statement.window), (statement, statement_id.document))
    return contents
