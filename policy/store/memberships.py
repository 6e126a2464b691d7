"""Memberships followed: from a subject to its effective principals, and back from a principal to its members."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from policy.core.model import Membership
from policy.core.times import ALWAYS, Window

Via = Mapping[str, Membership | None]
"""Effective principals, each with the membership by which it was reached; None: the subject or a claim itself."""

Windows = tuple[Window, ...]


def reachable_principals(
    start: Iterable[str], memberships: Mapping[str, Sequence[Membership]], applies: Callable[[Window], bool]
) -> Via:
    """Every principal that ``start`` is by memberships (by member) whose window ``applies``.

    Each by the shortest path, of several by the first membership.
    """
    via: dict[str, Membership | None] = dict.fromkeys(start)
    todo = list(via)
    for member in todo:  # grows meanwhile: breadth first
        for way in memberships.get(member, ()):
            if way.principal not in via and (way.window is ALWAYS or applies(way.window)):
                via[way.principal] = way
                todo.append(way.principal)
    return via


def reachable_windows(
    start: Iterable[str], memberships_of: Callable[[str], Iterable[Membership]]
) -> dict[str, Windows]:
    """Every principal that ``start`` is at any moment, and when: the windows on each path taken together.

    Not the same loop as `reachable_principals`, which decisions wait for: with windows it takes four times as long.
    """
    found: dict[str, Windows] = dict.fromkeys(start, (ALWAYS,))
    todo = [(member, ALWAYS) for member in found]
    for member, window in todo:
        for way in memberships_of(member):
            both, known = window.meet(way.window), found.get(way.principal, ())
            if both is not None and not any(other.covers(both) for other in known):
                found[way.principal] = (*known, both)
                todo.append((way.principal, both))
    return found


class MembershipIndex:
    """The members of principals, by memberships of any time."""

    def __init__(self, memberships: Iterable[Membership]) -> None:
        self._members: dict[str, list[str]] = {}
        for way in memberships:
            self._members.setdefault(way.principal, []).append(way.member)

    def members(self, principals: Iterable[str]) -> set[str]:
        """The principals, and all that may be one of them, at any depth."""
        found = set(principals)
        todo = list(found)
        while todo:
            new = {member for member in self._members.get(todo.pop(), ()) if member not in found}
            found |= new
            todo += new
        return found
