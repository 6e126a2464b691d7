"""The grants of a policy set in one index: found by effective principals, permission and resource.

No subject has an index of its own, so its first decision costs no more than later ones. All resource patterns are in
one trie, and at each of them is a table of its grants by principal. An example of the search: may user:dana, a member
of role:ops, do kafka:ReadTopicData on the topic orders, with these grants?

    1  role:ops   allow  kafka:Read*  on  topic orders        3  user:dana  deny  kafka:*  on  topic ord*
    2  role:ops   allow  kafka:List*  on  topic orders        4  role:dev   allow  *        on  everything

1. Permission patterns are numbered, and are in a trie of their own: kafka:ReadTopicData matches those of 1, 3 and 4. It
   is asked once for a request, however many resources that has.
2. The trie of resources leads the name of orders to three tables: of `orders`, `ord*` and everything. A table is looked
   up by the principals that both have, of which the fewer are gone through: those of 1 and 2, and of 3; role:dev is not
   among the subject's.
3. Of the entries of these principals the grants remain whose number is one of step 1: 1 and 3.
4. Those in force at the moment are the answer: 1 and 3. Which of them determine the decision is not known here
   (`policy.evaluation.evaluate.deny_overrides`).
"""

import itertools
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, KeysView, Mapping, Sequence
from typing import Any, TypeVar

from policy.core.model import Grant, in_force
from policy.core.pattern import Name, Pattern
from policy.core.times import ALWAYS
from policy.matching.index import PatternIndex, TrieState

LISTED = 16  # grants of a principal on a resource pattern that are gone through; more are looked up by their numbers

Item = TypeVar("Item", bound=Hashable)


Entry = tuple[Any, ...] | dict[int, list[Grant]]
"""The grants of a principal on a resource pattern, by the number of their permission pattern.

A tuple has number and grant by turns: there is an entry for every few grants, and pairs would take more than these.
"""

Numbered = list[Any]
"""The number of a permission pattern and a grant with it by turns, as in an entry."""

Table = dict[str, Entry] | tuple[str, Entry]
"""The grants on one resource pattern, by principal; most patterns have but one."""


class EffectivePermissions:
    """What principals may do together by one permission, at a moment.

    ``principals`` are searched by name. ``permissions``: the numbers of the patterns that match the permission.
    """

    __slots__ = ("_at", "_grants", "_permissions", "_principals")

    def __init__(
        self, grants: "Grants", principals: KeysView[str], permissions: frozenset[int], at: int | None
    ) -> None:
        self._grants, self._principals, self._permissions, self._at = grants, principals, permissions, at

    def on(self, resource: Name) -> list[Grant]:
        """The grants in force that match a resource, in no particular order.

        Raises Unanswerable when they depend on the time, and that is not known.
        """
        return self._in_force(self._grants.tables(resource))

    def at(self, state: TrieState[Table]) -> list[Grant]:
        """The same for all resources whose names lead to a state of the trie."""
        return self._in_force(state.values)

    def _in_force(self, tables: Iterable[Table]) -> list[Grant]:
        principals, matching = self._principals, list[Grant]()
        for table in tables:
            if isinstance(table, tuple):
                if table[0] in principals:
                    matching += self._matching(table[1])
            else:
                for principal in principals & table.keys():  # the fewer of both are gone through
                    matching += self._matching(table[principal])
        return [grant for grant in matching if grant.window is ALWAYS or in_force(grant.window, self._at)]

    def _matching(self, entry: Entry) -> list[Grant]:
        permissions = self._permissions
        if isinstance(entry, dict):
            return [grant for number in permissions & entry.keys() for grant in entry[number]]
        return [grant for number, grant in _pairs(entry) if number in permissions]


class Grants:
    """The index of grants. Threads may share it: it does not change, `with_changes` makes another one."""

    def __init__(self) -> None:
        self._uses: list[int] = []  # by the number of a permission pattern, how many grants have it
        self._permissions: PatternIndex[int] = PatternIndex()
        self._resources: PatternIndex[Table] = PatternIndex()

    def with_changes(self, removed: Sequence[Grant], added: Sequence[Grant]) -> "Grants":
        """The index of the grants of this one without those ``removed`` and with those ``added``.

        It shares with this one all that is alike.
        """
        other = Grants()
        other._uses = list(self._uses)
        other._permissions, other._resources = self._permissions.copy(), self._resources.copy()
        less, more = other._by_resource(removed, -1), other._by_resource(added, 1)
        for pattern in {**less, **more}:
            other._resources.change(pattern, _table_change(less.get(pattern, {}), more.get(pattern, {})))
        for permission in {grant.permission for grant in removed}:
            number = other._permissions.get(permission)
            if number is not None and not other._uses[number]:
                other._permissions.change(permission, lambda _: None)
        return other

    def _by_resource(self, grants: Iterable[Grant], uses: int) -> dict[Pattern, dict[str, Numbered]]:
        """Grants with the numbers of their permissions, by resource pattern and principal; each counts ``uses``."""
        numbers: dict[Pattern, int] = {}
        by_pattern: dict[Pattern, dict[str, Numbered]] = {}
        for grant in grants:
            number = numbers.get(grant.permission)
            if number is None:
                number = numbers[grant.permission] = self._number(grant.permission)
            self._uses[number] += uses
            table = by_pattern.setdefault(grant.object, {})
            numbered = table.get(grant.principal)
            if numbered is None:
                table[grant.principal] = [number, grant]
            else:
                numbered += (number, grant)
        return by_pattern

    def _number(self, permission: Pattern) -> int:
        """The number of a permission pattern; a new one gets the next."""
        number = self._permissions.get(permission)
        if number is None:
            number = len(self._uses)
            self._uses.append(0)
            self._permissions.put(permission, number)
        return number

    def tables(self, resource: Name) -> Sequence[Table]:
        """The tables of the resource patterns that match a resource's name."""
        return self._resources.find(resource)

    def principals(self, permissions: Iterable[Name], resource: Name) -> Iterator[str]:
        """Who has grants of any effect and time that match a resource and one of the permissions; some repeatedly."""
        numbers = frozenset(itertools.chain.from_iterable(map(self._permissions.find, permissions)))
        for table in self.tables(resource):
            for principal, entry in [table] if isinstance(table, tuple) else table.items():
                if not numbers.isdisjoint(entry if isinstance(entry, dict) else entry[::2]):
                    yield principal

    def state(self, resource: Name) -> TrieState[Table]:
        """The state of the trie to which a resource's name leads."""
        return self._resources.state(resource)

    def effective(self, principals: Mapping[str, object], permission: Name, at: int | None) -> EffectivePermissions:
        """What principals may do together by a permission at a moment (ms; None: not known)."""
        return EffectivePermissions(self, principals.keys(), self._permissions.state(permission).distinct, at)


def _table_change(
    removed: Mapping[str, Numbered], added: Mapping[str, Numbered]
) -> Callable[[Table | None], Table | None]:
    """How a table changes by the grants of principals that went and came; None: there are none on its pattern."""

    def change(table: Table | None) -> Table | None:
        entries = {} if table is None else dict([table]) if isinstance(table, tuple) else dict(table)
        for principal, numbered in removed.items():
            left = without(_pairs(entries[principal]), list(_pairs(numbered)))
            entries[principal] = _entry([*itertools.chain.from_iterable(left)])
        for principal, numbered in added.items():
            before = entries.get(principal)
            present = itertools.chain.from_iterable(_pairs(before)) if before else ()
            entries[principal] = _entry([*present, *numbered])
        for principal in removed:
            if not entries[principal]:
                del entries[principal]
        return next(iter(entries.items())) if len(entries) == 1 else entries or None

    return change


def _entry(numbered: Numbered) -> Entry:
    if len(numbered) <= 2 * LISTED:
        return tuple(numbered)
    by_number: dict[int, list[Grant]] = {}
    for number, grant in _pairs(numbered):
        by_number.setdefault(number, []).append(grant)
    return by_number


def _pairs(numbered: Entry | Numbered) -> Iterable[tuple[int, Grant]]:
    if isinstance(numbered, dict):
        return ((number, grant) for number, grants in numbered.items() for grant in grants)
    turns = iter(numbered)
    return zip(turns, turns, strict=True)


def without(
    items: Iterable[Item], removed: Sequence[Item], may_go: Callable[[Item], bool] = lambda _: True
) -> list[Item]:
    """The items without those removed; of equal ones as many go as are named.

    ``may_go``: a quick test of an item that none fails which is to go, as comparing grants takes a hash of each.
    """
    if not removed:
        return list(items)
    counts, left = Counter(removed), list[Item]()
    for item in items:
        if may_go(item) and counts.get(item):
            counts[item] -= 1
        else:
            left.append(item)
    return left
