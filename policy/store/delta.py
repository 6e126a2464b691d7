"""What a snapshot differs in from another: plain data, a few kB where a document has changed.

A snapshot is only ever made by a change of another one (`Snapshot.with_change`), the first one by a change of the empty
one: in the process that compiles as in those that decide. Changes that follow one another are one by `together`.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import TypeVar

import msgspec

from policy.core.document import Key
from policy.core.fact_table import FactVersion, Thing
from policy.core.model import Grant, Membership
from policy.core.times import ALWAYS
from policy.matching.grants import without
from policy.store.history import Refusal

Item = TypeVar("Item", bound=Hashable)


class Refused(msgspec.Struct, frozen=True):
    """The refused documents of a system, each with the principals that it affects.

    ``broken``: at every moment; ``for_a_time``: while their windows hold; ``nameless``: at every moment, and they do
    not say which document they are.
    """

    broken: Mapping[Key, frozenset[str]] = {}
    for_a_time: tuple[Refusal, ...] = ()
    nameless: Mapping[Key, frozenset[str]] = {}


def refused_of(refusals: Iterable[Refusal], nameless: Mapping[Key, frozenset[str]]) -> Refused:
    """All of these."""
    every = tuple(refusals)
    broken = {refusal.key: refusal.affected_principals for refusal in every if refusal.window is ALWAYS}
    return Refused(broken, tuple(refusal for refusal in every if refusal.window is not ALWAYS), nameless)


class PolicySetChange(msgspec.Struct, frozen=True):
    """What one system's part differs in: what went and came; ``facts``: what is known now of the things that changed;
    ``refused``: all that is refused now; None: the same as before.
    """

    no_grants: Sequence[Grant] = ()
    grants: Sequence[Grant] = ()
    no_memberships: Sequence[Membership] = ()
    memberships: Sequence[Membership] = ()
    facts: Mapping[Thing, FactVersion] = {}
    refused: Refused | None = None

    @property
    def size(self) -> int:
        """How much is different."""
        parts = self.no_grants, self.grants, self.no_memberships, self.memberships, self.facts
        return sum(map(len, parts)) + (len(self.refused.broken) + len(self.refused.nameless) if self.refused else 0)

    def then(self, later: "PolicySetChange") -> "PolicySetChange":
        """Both as one."""
        return PolicySetChange(
            *_then(self.no_grants, self.grants, later.no_grants, later.grants),
            *_then(self.no_memberships, self.memberships, later.no_memberships, later.memberships),
            {**self.facts, **later.facts},
            later.refused or self.refused,
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


def difference(before: Sequence[Item], after: Sequence[Item]) -> tuple[Sequence[Item], Sequence[Item]]:
    """What went and what came."""
    if before == after:
        return (), ()
    if not before or not after:  # most of a whole build: nothing is compared
        return before, after
    return without(before, after), without(after, before)


def _then(
    removed: Sequence[Item], added: Sequence[Item], later_removed: Sequence[Item], later_added: Sequence[Item]
) -> tuple[list[Item], list[Item]]:
    """What was added and then removed again is in neither."""
    return [*removed, *without(later_removed, added)], [*without(added, later_removed), *later_added]
