"""Whom differences of policies concern: the subjects and claims behind the principals that documents name."""

from collections.abc import Iterable
from itertools import chain

from policy.analysis.diff import Difference
from policy.analysis.versions import MembershipIndex
from policy.core.model import CompiledDocument, Membership
from policy.store.snapshot import Snapshot
from policy.systems import all_systems
from policy.systems.kit.engine import engine_of
from policy.systems.kit.system import EVERYONE


def concerned(old: Snapshot, new: Snapshot, differences: Iterable[Difference]) -> dict[Difference, tuple[str, ...]]:
    """The subjects and claims that each difference is about, sorted: all that may be its principal, in any version."""
    links: dict[str, MembershipIndex] = {}
    found: dict[Difference, tuple[str, ...]] = {}
    for one in differences:
        system = all_systems()[one.system]
        if one.system not in links:
            before = CompiledDocument(memberships=_memberships(old, one.system))
            links[one.system] = MembershipIndex(new.policy_sets[one.system], [before])
        prefixes = (*system.subjects, *system.claims)
        names = links[one.system].behind([one.principal]) if one.principal else set[str]()
        people = tuple(sorted(name for name in names if name == EVERYONE or name.startswith(prefixes)))
        found[one] = people or ((one.principal,) if engine_of(system) is not None and one.principal else ())
    return found


def _memberships(snapshot: Snapshot, system: str) -> tuple[Membership, ...]:
    return tuple(chain.from_iterable(snapshot.policy_sets[system].memberships.values()))
