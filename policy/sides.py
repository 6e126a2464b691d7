"""Two sides of a change: a realm as it is, and the same with what some documents said before in its place."""

import itertools
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from policy.diff import Written, says_as_much
from policy.model import DENY, Effect, Grant, Membership, Reading
from policy.patterns import Pattern, covers, meet
from policy.snapshot import Realm
from policy.system import EVERYONE
from policy.times import ALWAYS, Window

Windows = tuple[Window, ...]


class Share:
    """What comes of being one holder while some windows hold. Answers are kept: many ask the same."""

    def __init__(self, grants: Iterable[Grant]) -> None:
        self._by_permission: dict[tuple[Effect, Pattern], list[Grant]] = {}
        for grant in grants:
            self._by_permission.setdefault((grant.effect, grant.permission), []).append(grant)
        self._covering: dict[tuple[Effect, Pattern], list[Grant]] = {}
        self._answers: dict[tuple[Effect, Pattern, Pattern, Window], bool] = {}

    def says(self, part: Grant) -> bool:
        """Whether some grant says as much as ``part``; one by one, so several that do so together do not count."""
        asked = (part.effect, part.permission, part.object, part.window)
        if asked not in self._answers:
            self._answers[asked] = any(says_as_much(grant, part) for grant in self._of(part.effect, part.permission))
        return self._answers[asked]

    def _of(self, effect: Effect, permission: Pattern) -> list[Grant]:
        """The grants whose permission takes in a permission."""
        if (effect, permission) not in self._covering:
            wide = (
                held
                for (kind, other), held in self._by_permission.items()
                if kind == effect and covers(other, permission)
            )
            self._covering[effect, permission] = list(itertools.chain.from_iterable(wide))
        return self._covering[effect, permission]


def common(grant: Grant, other: Grant) -> Grant | None:
    """As much of ``grant`` as ``other`` is about too; None: nothing."""
    permission, object_ = meet(other.permission, grant.permission), meet(other.object, grant.object)
    window = grant.window.meet(other.window)
    if permission is None or object_ is None or window is None:
        return None
    return msgspec.structs.replace(grant, permission=permission, object=object_, window=window)


class Links:
    """Who is a member of what, backwards, over both sides of a change."""

    def __init__(self, realm: Realm, readings: Iterable[Reading]) -> None:
        self._members: dict[str, list[str]] = {}
        for ways in (*realm.memberships.values(), *(reading.memberships for reading in readings)):
            for way in ways:
                self._members.setdefault(way.holder, []).append(way.member)

    def behind(self, holders: Iterable[str]) -> set[str]:
        """The holders, and all that may be one of them on either side, at any depth."""
        found = set(holders)
        todo = list(found)
        while todo:
            new = {member for member in self._members.get(todo.pop(), ()) if member not in found}
            found |= new
            todo += new
        return found


class Side:
    """A realm in which some documents say what ``readings`` (by ``system/kind/name``) has for them.

    ``at``: the moment (ms) of the change; what has ended by then counts for nothing.
    """

    def __init__(self, realm: Realm, readings: Mapping[str, Reading], at: int) -> None:
        self._realm, self._replaced, self._future = realm, readings.keys(), Window(at)
        self._grants: dict[str, list[Grant]] = {}
        self._ways: dict[str, list[Membership]] = {}
        for reading in readings.values():
            for grant in reading.grants:
                self._grants.setdefault(grant.holder, []).append(grant)
            for way in reading.memberships:
                self._ways.setdefault(way.member, []).append(way)
        self._shares: dict[tuple[str, Windows], Share] = {}
        self._standings: dict[frozenset[tuple[str, Windows]], Bearing] = {}

    def holders(self) -> list[str]:
        """Everything that holds a grant, sorted."""
        return sorted({*self._realm.grants, *self._grants})

    def grants(self, holder: str) -> list[Grant]:
        """What a holder itself holds."""
        return [*self._kept(self._realm.grants.get(holder, ())), *self._grants.get(holder, ())]

    def reached(self, *starts: str) -> dict[str, Windows]:
        """Every holder that ``starts`` are, at any depth, and when: the windows on the ways there taken together."""
        found: dict[str, Windows] = dict.fromkeys(starts, (ALWAYS,))
        todo = [(start, ALWAYS) for start in starts]
        while todo:
            member, window = todo.pop()
            for way in (*self._kept(self._realm.memberships.get(member, ())), *self._ways.get(member, ())):
                both, known = window.meet(way.window), found.get(way.holder, ())
                if both is not None and not any(other.covers(both) for other in known):
                    found[way.holder] = (*known, both)
                    todo.append((way.holder, both))
        return found

    def bearing(self, who: str) -> "Bearing":
        """All that a subject or claim holds; the same object for any two that hold the same."""
        reached = self.reached(who, EVERYONE).items()
        key = frozenset((holder, windows) for holder, windows in reached if self._holds_any(holder))
        if key not in self._standings:
            self._standings[key] = Bearing(self, dict(key))
        return self._standings[key]

    def share(self, holder: str, windows: Windows) -> Share:
        """What a holder itself holds while one of ``windows`` does."""
        if (holder, windows) not in self._shares:
            effective = (part for grant in self.grants(holder) for part in self.in_effect(grant, windows))
            self._shares[holder, windows] = Share(effective)
        return self._shares[holder, windows]

    def in_effect(self, grant: Grant, windows: Windows) -> Iterator[Grant]:
        """The grant for each of ``windows`` in which it holds, now or later."""
        for window in windows:
            both = window.meet(grant.window)
            if both is not None and both.meet(self._future) is not None:
                yield grant if both == grant.window else msgspec.structs.replace(grant, window=both)

    def _holds_any(self, holder: str) -> bool:
        return holder in self._realm.grants or holder in self._grants

    def _kept(self, written: Iterable[Written]) -> Iterable[Written]:
        return (one for one in written if one.origin.document not in self._replaced)


class Bearing:
    """What one who is some holders, each for some windows, holds on one side."""

    def __init__(self, side: Side, windows: Mapping[str, Windows]) -> None:
        self._side, self._windows = side, windows
        self.holders = sorted(windows)
        self._shares = [side.share(*held) for held in windows.items()]

    def parts(self, grant: Grant) -> Iterator[Grant]:
        """A grant of the side as far as it is held: for each window in which its holder is reached."""
        return self._side.in_effect(grant, self._windows.get(grant.holder, ()))

    def allowed(self, part: Grant) -> bool:
        """Whether an allow says as much as the allow ``part``."""
        return any(share.says(part) for share in self._shares)

    def denied(self, part: Grant) -> bool:
        """Whether a deny takes away all of the allow ``part``."""
        return self.allowed(msgspec.structs.replace(part, effect=DENY))
