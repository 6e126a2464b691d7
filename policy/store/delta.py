"""What a snapshot differs in from the one before: plain data, a few kB where a document has changed.

`Snapshot.with_change` makes the later one out of the earlier one, in the process that compiles and in those that
decide. Several changes are taken together by `together`.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import TypeVar

import msgspec

from policy.core.document import Key
from policy.core.facts import FactTable, Refusals, RefusedWhile
from policy.core.model import Fact, Grant, Membership
from policy.core.times import ALWAYS
from policy.matching.grants import without
from policy.store.documents import Refusal

Item = TypeVar("Item", bound=Hashable)


class Refused(msgspec.Struct, frozen=True):
    """The refused documents of a system, each with the principals that it affects.

    ``broken``: at every moment; ``for_a_time``: while their windows hold; ``nameless``: at every moment, and they name
    no place of their own.
    """

    broken: Mapping[Key, frozenset[str]] = {}
    for_a_time: tuple[Refusal, ...] = ()
    nameless: Mapping[Key, frozenset[str]] = {}

    def of_facts(self) -> Refusals:
        """As the table of facts knows them."""
        while_refused: RefusedWhile = {}
        for refusal in self.for_a_time:
            place = (refusal.key.kind, refusal.key.name)
            while_refused.setdefault(place, []).append((refusal.window, str(refusal.key)))
        return {(key.kind, key.name): str(key) for key in self.broken}, while_refused


class PolicySetChange(msgspec.Struct, frozen=True):
    """What one system's part differs in.

    ``no_facts``: of the things of these facts nothing is known any more, but for ``facts``. ``refused``: all that is
    refused now; None: the same as before. ``table``: all facts, where documents contradict each other; None: as above.
    """

    no_grants: tuple[Grant, ...] = ()
    grants: tuple[Grant, ...] = ()
    no_memberships: tuple[Membership, ...] = ()
    memberships: tuple[Membership, ...] = ()
    no_facts: tuple[Fact, ...] = ()
    facts: tuple[Fact, ...] = ()
    refused: Refused | None = None
    table: FactTable | None = None

    @property
    def size(self) -> int:
        """How much is different."""
        parts = self.no_grants, self.grants, self.no_memberships, self.memberships, self.no_facts, self.facts
        refused = len(self.refused.broken) + len(self.refused.nameless) if self.refused else 0
        return sum(map(len, parts)) + refused + (len(self.table) if self.table is not None else 0)

    def then(self, later: "PolicySetChange") -> "PolicySetChange":
        """Both as one."""
        no_grants, grants = _then(self.no_grants, self.grants, later.no_grants, later.grants)
        no_ways, ways = _then(self.no_memberships, self.memberships, later.no_memberships, later.memberships)
        gone = {(fact.kind, fact.name) for fact in later.no_facts}
        facts = (*(fact for fact in self.facts if (fact.kind, fact.name) not in gone), *later.facts)
        table, refused = later.table, later.refused or self.refused
        if table is None and self.table is not None:
            table = self.table.with_changes(later.no_facts, later.facts, ({}, {}))
        return PolicySetChange(
            no_grants, grants, no_ways, ways, (*self.no_facts, *later.no_facts), facts, refused, table
        )


class SnapshotChange(msgspec.Struct, frozen=True):
    """What a snapshot differs in, by system; a system that it does not name is as it was."""

    version: str
    history_held: int
    policy_sets: Mapping[str, PolicySetChange]

    @property
    def size(self) -> int:
        """How much is different."""
        return sum(policy_set.size for policy_set in self.policy_sets.values())


def together(changes: Sequence[SnapshotChange]) -> SnapshotChange:
    """Changes that follow one another as one; there is at least one."""
    policy_sets: dict[str, PolicySetChange] = {}
    for change in changes:
        for system, policy_set in change.policy_sets.items():
            policy_sets[system] = policy_sets[system].then(policy_set) if system in policy_sets else policy_set
    return SnapshotChange(changes[-1].version, changes[-1].history_held, policy_sets)


def difference(before: Sequence[Item], after: Sequence[Item]) -> tuple[list[Item], list[Item]]:
    """What went and what came."""
    if before == after:
        return [], []
    return without(before, after), without(after, before)


def _then(
    removed: Sequence[Item], added: Sequence[Item], later_removed: Sequence[Item], later_added: Sequence[Item]
) -> tuple[tuple[Item, ...], tuple[Item, ...]]:
    """What was added and then removed again is in neither."""
    return (*removed, *without(later_removed, added)), (*without(added, later_removed), *later_added)


def refused_of(refusals: Iterable[Refusal], nameless: Mapping[Key, frozenset[str]]) -> Refused:
    """What these refusals are together, and the documents that name no place of their own."""
    every = tuple(refusals)
    broken = {refusal.key: refusal.affected_principals for refusal in every if refusal.window is ALWAYS}
    return Refused(broken, tuple(refusal for refusal in every if refusal.window is not ALWAYS), nameless)
