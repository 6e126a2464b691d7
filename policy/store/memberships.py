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
        for membership in memberships.get(member, ()):
            principal, window = membership.principal, membership.window
            if principal not in via and (window is ALWAYS or applies(window)):
                via[principal] = membership
                todo.append(principal)
    return via


def reachable_windows(
    start: Iterable[str], memberships_of: Callable[[str], Iterable[Membership]]
) -> dict[str, Windows]:
    """Every principal that ``start`` is at any moment, and when: the windows on each path taken together.

    Not the same loop as `reachable_principals`, which decisions wait for: with windows it takes four times as long.
    """
    windows: dict[str, Windows] = dict.fromkeys(start, (ALWAYS,))
    todo = [(member, ALWAYS) for member in windows]
    for member, window in todo:
        for membership in memberships_of(member):
            both, others = window.meet(membership.window), windows.get(membership.principal, ())
            # What a window covers that is there leads nowhere new: so cycles of memberships end.
            if both is not None and not any(other.covers(both) for other in others):
                windows[membership.principal] = (*others, both)
                todo.append((membership.principal, both))
    return windows


class MembershipIndex:
    """The members of principals, by memberships of any time."""

    def __init__(self, memberships: Iterable[Membership]) -> None:
        self._members: dict[str, list[str]] = {}
        for membership in memberships:
            self._members.setdefault(membership.principal, []).append(membership.member)

    def members(self, principals: Iterable[str]) -> set[str]:
        """The principals, and all that may be one of them, at any depth."""
        members = set(principals)
        todo = list(members)
        while todo:
            new = {member for member in self._members.get(todo.pop(), ()) if member not in members}
            members |= new
            todo += new
        return members
