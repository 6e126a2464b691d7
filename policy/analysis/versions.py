"""A policy set before or after a change of some documents."""

from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

import msgspec

from policy.core.grouping import grouped
from policy.core.model import DENY, CompiledDocument, Effect, Grant, Membership, StatementId
from policy.core.pattern import Pattern, meet
from policy.core.times import Window
from policy.matching.subsuming import Holders, SubsumptionIndex
from policy.store.memberships import Windows, reachable_windows
from policy.store.policy_set import PolicySet
from policy.systems.kit.system import EVERYONE, System

Written = TypeVar("Written", Grant, Membership)


def placeless(written: Written) -> Written:
    """A grant or membership without where it is written, which says nothing of what it does."""
    return msgspec.structs.replace(written, statement_id=StatementId(""))


def common(grant: Grant, other: Grant) -> Grant | None:
    """As much of ``grant`` as ``other`` is about too; None: nothing."""
    permission, object_ = meet(other.permission, grant.permission), meet(other.object, grant.object)
    window = grant.window.meet(other.window)
    if permission is None or object_ is None or window is None:
        return None
    return msgspec.structs.replace(grant, permission=permission, object=object_, window=window)


class PolicySetVersion:
    """A policy set in which some documents say what ``documents`` (by ``system/kind/name``) has for them.

    ``at``: the moment (ms) of the change; what has ended by then counts for nothing.
    """

    def __init__(
        self, system: System, policy_set: PolicySet, documents: Mapping[str, CompiledDocument], at: int
    ) -> None:
        self._implied, self._policy_set = system.implied, policy_set
        self._replaced, self.future = documents.keys(), Window(at)
        grants = (grant for document in documents.values() for grant in document.grants)
        memberships = (membership for document in documents.values() for membership in document.memberships)
        self._grants = grouped(grants, lambda grant: grant.principal)
        self._memberships = grouped(memberships, lambda membership: membership.member)
        # Only what principals hold that were looked up: a change of one document names few of 100,000.
        self._index, self._filed = SubsumptionIndex(), set[str]()
        self._effective: dict[str, EffectiveGrants] = {}
        self._shared: dict[frozenset[tuple[str, Windows]], EffectiveGrants] = {}

    def principals(self) -> list[str]:
        """Everything that holds a grant, sorted."""
        return sorted({*self._policy_set.grants, *self._grants})

    def grants(self, principal: str) -> list[Grant]:
        """The grants of a principal itself."""
        return [*self._kept(self._policy_set.grants.get(principal, ())), *self._grants.get(principal, ())]

    def reached(self, *starts: str) -> dict[str, Windows]:
        """Every principal that ``starts`` are, at any depth, and when: the windows on the ways there taken together."""
        return reachable_windows(starts, self._memberships_of)

    def _memberships_of(self, member: str) -> Iterator[Membership]:
        yield from self._kept(self._policy_set.memberships.get(member, ()))
        yield from self._memberships.get(member, ())

    def effective_grants(self, who: str) -> "EffectiveGrants":
        """All grants of a subject or claim; the same object for any two with the same grants."""
        if who not in self._effective:
            reached = self.reached(who, EVERYONE).items()
            key = frozenset((principal, windows) for principal, windows in reached if self._holds_any(principal))
            # Members of the same groups have the same grants: these are compared once for all of them, not for each.
            if key not in self._shared:
                self._shared[key] = EffectiveGrants(self, dict(key))
            self._effective[who] = self._shared[key]
        return self._effective[who]

    def file(self, principals: Iterable[str]) -> None:
        """Have what these hold found by `covering`."""
        for principal in principals:
            if principal not in self._filed:
                self._filed.add(principal)
                for grant in self.grants(principal):
                    self._index.add(grant)
                    for other in self._implied(grant):
                        self._index.add(other)

    def covering(self, part: Grant) -> Iterator[Holders]:
        """The filed grants that each cover ``part`` alone, with principal and window."""
        return self._index.covering(part)

    def in_effect(self, grant: Grant, windows: Windows) -> Iterator[Grant]:
        """The grant for each of ``windows`` in which it holds, now or later."""
        for window in windows:
            both = self.meet(window, grant.window)
            if both is not None:
                yield grant if both == grant.window else msgspec.structs.replace(grant, window=both)

    def meet(self, window: Window, other: Window) -> Window | None:
        """When two windows hold together, now or later; None: never, or it is over."""
        both = window.meet(other)
        return both if both is not None and both.meet(self.future) is not None else None

    def _holds_any(self, principal: str) -> bool:
        return principal in self._policy_set.grants or principal in self._grants

    def _kept(self, written: Iterable[Written]) -> Iterable[Written]:
        return (item for item in written if item.statement_id.document not in self._replaced)


class EffectiveGrants:
    """The grants that a subject has in one version: those of all its principals, each for some windows."""

    def __init__(self, version: PolicySetVersion, windows: Mapping[str, Windows]) -> None:
        self._version, self._windows = version, windows
        self.principals = windows.keys()
        self._answers: dict[tuple[Effect, Pattern, Pattern, Window], bool] = {}
        version.file(self.principals)

    def parts(self, grant: Grant) -> Iterator[Grant]:
        """A grant of the version as far as it is held: for each window in which its principal is reached."""
        return self._version.in_effect(grant, self._windows.get(grant.principal, ()))

    def allowed(self, part: Grant) -> bool:
        """Whether one allow says as much as the allow ``part``; several that do so together do not count."""
        request = (part.effect, part.permission, part.object, part.window)
        if request not in self._answers:
            covering = self._version.covering(part)
            self._answers[request] = any(self._in_time(held_by, part.window) for held_by in covering)
        return self._answers[request]

    def _in_time(self, covering: Holders, wanted: Window) -> bool:
        """Whether it is held here for as long as ``wanted``, from the change on."""
        # What had begun by then is no more for having begun earlier: a start that has passed may go, or be another.
        ahead = wanted.meet(self._version.future) or wanted
        meetings = (
            self._version.meet(window, own)
            for principal in covering.keys() & self._windows.keys()
            for window in self._windows[principal]
            for own in covering[principal]
        )
        return any(both is not None and both.covers(ahead) for both in meetings)

    def denied(self, part: Grant) -> bool:
        """Whether a deny takes away all of the allow ``part``."""
        return self.allowed(msgspec.structs.replace(part, effect=DENY))
