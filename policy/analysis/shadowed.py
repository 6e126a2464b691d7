"""Shadowed allows: those that take effect when a deny is removed."""

import functools
import itertools
from collections.abc import Callable, Iterable

import msgspec

from policy.analysis.versions import EffectiveGrants, PolicySetVersion, common
from policy.core.model import ALLOW, Grant
from policy.core.pattern import Pattern, overlaps
from policy.matching.index import PatternIndex
from policy.store.memberships import MembershipIndex

COMPANIONS = 1_000  # of an allow's principals, the first by name


class ShadowedAllows(msgspec.Struct, frozen=True):
    """An allow that a deny took away. ``companion``: who holds it, where it is not the one who is rid of the deny."""

    allow: Grant
    companion: str = ""


class ShadowIndex:
    """The allows of a version, found by what they have in common with a deny.

    ``denied``: the permissions of all denies that will be looked up. ``take``: is called with the steps of work, and
    may end it.
    """

    def __init__(
        self,
        version: PolicySetVersion,
        memberships: MembershipIndex,
        denied: Iterable[Pattern],
        take: Callable[[int], None] = lambda _steps: None,
    ) -> None:
        self._version, self._memberships, self._take = version, memberships, take
        permissions = set(denied)
        self._allows: PatternIndex[list[Grant]] = PatternIndex()
        wanted = functools.cache(lambda permission: any(overlaps(permission, other) for other in permissions))
        for principal in version.principals():
            take(1)
            for grant in version.grants(principal):
                if grant.effect == ALLOW and wanted(grant.permission):
                    if (allows := self._allows.get(grant.object)) is not None:
                        allows.append(grant)
                    else:
                        self._allows.put(grant.object, [grant])
        self._met: dict[tuple[Pattern, Pattern], dict[str, list[Grant]]] = {}

    def find(
        self, deny: Grant, before: EffectiveGrants, after: EffectiveGrants, may_join: Callable[[str], bool]
    ) -> ShadowedAllows | None:
        """An allow that ``deny`` took away before and nothing does after, first looked for with its own principal.

        ``may_join``: whether a request may have another principal, of this name, beside its own.
        """
        parts = list(before.parts(deny))
        for part in parts:
            if (allow := self._own(part, after)) is not None:
                return ShadowedAllows(allow)
        return next(filter(None, (self._of_a_companion(part, after, may_join) for part in parts)), None)

    def _own(self, deny: Grant, after: EffectiveGrants) -> Grant | None:
        met = self._meeting(deny)
        self._take(len(met))
        allows = (allow for principal in sorted(met.keys() & after.principals) for allow in met[principal])
        return next((allow for allow in allows if _comes_through(allow, deny, after, after)), None)

    def _of_a_companion(
        self, deny: Grant, after: EffectiveGrants, may_join: Callable[[str], bool]
    ) -> ShadowedAllows | None:
        for principal, allows in sorted(self._meeting(deny).items()):
            for who in self._companions(principal, may_join):
                self._take(1 + len(allows))
                effective = self._version.effective_grants(who)
                for allow in allows:
                    if _comes_through(allow, deny, after, effective):
                        return ShadowedAllows(allow, who)
        return None

    def _meeting(self, deny: Grant) -> dict[str, list[Grant]]:
        """The allows that have something in common with ``deny``, by principal."""
        key = (deny.permission, deny.object)
        if key not in self._met:
            met = self._met[key] = dict[str, list[Grant]]()
            for allow in itertools.chain.from_iterable(self._allows.meeting(deny.object)):
                if overlaps(allow.permission, deny.permission):
                    met.setdefault(allow.principal, []).append(allow)
        return self._met[key]

    def _companions(self, principal: str, may_join: Callable[[str], bool]) -> list[str]:
        """Who holds what the principal does and may share a request with one who is rid of a deny."""
        return sorted(filter(may_join, self._memberships.members([principal])))[:COMPANIONS]


def _comes_through(allow: Grant, deny: Grant, rid: EffectiveGrants, effective: EffectiveGrants) -> bool:
    """Whether ``effective`` holds a part of ``allow`` that ``deny`` matches and that neither of the two is denied."""
    within = (common(whole, deny) for whole in effective.parts(allow))
    return any(part is not None and not rid.denied(part) and not effective.denied(part) for part in within)
