"""Who gains and loses by a change: the subjects and claims behind the principals that documents name."""

from collections.abc import Iterator
from itertools import chain

from policy.analysis.diff import Compared, Difference, compare_written
from policy.analysis.versions import PolicySetVersion
from policy.core.model import Grant, Membership
from policy.store.memberships import MembershipIndex
from policy.store.snapshot import Snapshot
from policy.systems import all_systems
from policy.systems.kit.engine import Statement
from policy.systems.kit.system import EVERYONE

LOOKED_AT = 1000  # of those whom one difference concerns, the first by name


def concerned(old: Snapshot, new: Snapshot) -> dict[Difference, tuple[str, ...]]:
    """The differences of two snapshots, in order, each with those whose access it changes, sorted.

    They are subjects and claims. One that has the same by another grant, before or after, is left out. Of a statement
    of an engine, those that it names. Empty for a fact.
    """
    versions: dict[str, _Versions] = {}
    found: dict[Difference, tuple[str, ...]] = {}
    for one, written in compare_written(old, new):
        if one.system not in versions:
            versions[one.system] = _Versions(one.system, old, new)
        found[one] = tuple(versions[one.system].concerned_by(one, written))
    return found


class _Versions:
    """The policies of one system before and after."""

    def __init__(self, system: str, old: Snapshot, new: Snapshot) -> None:
        before, after = old.policy_sets[system], new.policy_sets[system]
        memberships = chain.from_iterable((*before.memberships.values(), *after.memberships.values()))
        self._memberships = MembershipIndex(memberships)
        self._before, self._after = (PolicySetVersion(version, {}, 0) for version in (before, after))
        self._prefixes = (*all_systems()[system].subjects, *all_systems()[system].claims)

    def concerned_by(self, one: Difference, written: Compared) -> Iterator[str]:
        """Those who have by what is written in one version what they have not in the other."""
        here, there = (self._after, self._before) if one.sign == "added" else (self._before, self._after)
        if isinstance(written, Statement):
            yield from written.principals
        if not isinstance(written, Grant | Membership):
            return
        member = written.principal if isinstance(written, Grant) else written.member
        grants = [written] if isinstance(written, Grant) else _led_to(here, written)
        for name in self._people(member):
            held, other = here.effective_grants(name), there.effective_grants(name)
            if any(not other.allowed(part) for grant in grants for part in held.parts(grant)):
                yield name

    def _people(self, principal: str) -> list[str]:
        names = sorted(
            n for n in self._memberships.members([principal]) if n == EVERYONE or n.startswith(self._prefixes)
        )
        return names[:LOOKED_AT]


def _led_to(version: PolicySetVersion, way: Membership) -> list[Grant]:
    return [grant for principal in version.reached(way.principal) for grant in version.grants(principal)]
