"""The grants of a policy set in one index: found by effective principals, permission and resource.

No subject has an index of its own. All resource patterns are in one trie, and at each of them are its grants by
principal, each with the number of its permission pattern. What a request matches is found in three steps: the numbers
of the patterns that match its permission; the few resource patterns that match the resource's name; and at each of
these the grants of the effective principals that have one of the numbers.
"""

import itertools
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, KeysView, Mapping, Sequence
from typing import Any, Generic, TypeVar

from policy.core.model import DENY, Grant, in_force
from policy.core.pattern import Name, Pattern
from policy.core.times import ALWAYS
from policy.matching.index import PatternIndex, TrieState

LISTED = 16  # grants of a principal on a resource pattern that are gone through; more are found by their numbers

Thing = TypeVar("Thing")
Item = TypeVar("Item", bound=Hashable)


def precedence(grant: Grant) -> tuple[bool, tuple[str, int], str]:
    """By what grants go before others that match the same: denies first, then by document and statement."""
    return grant.effect != DENY, grant.statement_id.place, grant.principal


Entry = tuple[Any, ...] | dict[int, list[Grant]]
"""The grants of a principal on a resource pattern, by the number of their permission pattern.

A tuple has number and grant by turns: there is an entry for every few grants, and pairs would take more than these.
"""

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

    def on(self, resource: Name) -> tuple[Grant, ...]:
        """The determining grants for a resource: the denies in force that match it, else the allows; see `at`."""
        return self._determining(self._grants.tables(resource))

    def at(self, state: TrieState[Table]) -> tuple[Grant, ...]:
        """The same for all resources whose names lead to a state of the trie. By precedence: the first one decides.

        Raises Unanswerable when they depend on the time, and that is not known.
        """
        return self._determining(state.values)

    def _determining(self, tables: Iterable[Table]) -> tuple[Grant, ...]:
        principals, matching = self._principals, list[Grant]()
        for table in tables:
            if isinstance(table, tuple):
                if table[0] in principals:
                    matching += self._matching(table[1])
            else:
                for principal in principals & table.keys():  # the fewer of both are gone through
                    matching += self._matching(table[principal])
        if not matching:
            return ()
        matching = [grant for grant in matching if grant.window is ALWAYS or in_force(grant.window, self._at)]
        if len(matching) > 1:
            denies = [grant for grant in matching if grant.effect == DENY]
            matching = sorted(denies or matching, key=precedence)
        return tuple(matching)

    def _matching(self, entry: Entry) -> list[Grant]:
        permissions = self._permissions
        if isinstance(entry, dict):
            return [grant for number in permissions & entry.keys() for grant in entry[number]]
        return [grant for number, grant in _pairs(entry) if number in permissions]


class Grants:
    """The index of these grants by principal. Threads may share it: nothing is filed once it is made."""

    def __init__(self, grants: Mapping[str, Sequence[Grant]]) -> None:
        self._uses: list[int] = []  # by the number of a permission pattern, how many grants have it
        self._permissions: PatternIndex[int] = PatternIndex()
        self._resources: PatternIndex[Table] = PatternIndex()
        self._file(grants)

    def _file(self, grants: Mapping[str, Sequence[Grant]]) -> None:
        permissions, resources = _Numbered[Pattern](), _Numbered[Pattern]()
        tables: list[dict[str, list[tuple[int, Grant]]]] = []
        uses = self._uses
        for principal, held in grants.items():
            for grant in held:
                permission = permissions.by_id.get(id(grant.permission))
                if permission is None:
                    permission = permissions.of(grant.permission)
                if permission == len(uses):
                    uses.append(1)
                else:
                    uses[permission] += 1
                resource = resources.by_id.get(id(grant.object))
                if resource is None:
                    resource = resources.of(grant.object)
                if resource == len(tables):
                    tables.append({principal: [(permission, grant)]})
                elif principal in tables[resource]:
                    tables[resource][principal].append((permission, grant))
                else:
                    tables[resource][principal] = [(permission, grant)]
        for number, pattern in enumerate(permissions.things):
            self._permissions.add(pattern, number)
        for pattern, table in zip(resources.things, tables, strict=True):
            self._resources.add(pattern, _table({principal: _entry(pairs) for principal, pairs in table.items()}))

    def with_changes(self, removed: Sequence[Grant], added: Sequence[Grant]) -> "Grants":
        """The index of the grants of this one without those ``removed`` and with those ``added``.

        It shares with this one, which does not change, all that is alike.
        """
        other = Grants({})
        numbers = self._numbers(dict.fromkeys(grant.permission for grant in (*removed, *added)))
        other._uses = uses = [*self._uses, *[0] * (max(numbers.values(), default=-1) + 1 - len(self._uses))]
        for some, more in ((removed, -1), (added, 1)):
            for grant in some:
                uses[numbers[grant.permission]] += more
        other._permissions = self._permissions.with_only(
            {pattern: number if uses[number] else None for pattern, number in numbers.items()}
        )
        other._resources = self._resources.with_only(self._tables(numbers, removed, added))
        return other

    def _numbers(self, permissions: Iterable[Pattern]) -> dict[Pattern, int]:
        """The numbers of permission patterns; those that are not known get the next ones."""
        numbers: dict[Pattern, int] = {}
        following = len(self._uses)
        for pattern in permissions:
            number = self._permissions.only(pattern)
            if number is None:
                number, following = following, following + 1
            numbers[pattern] = number
        return numbers

    def _tables(
        self, numbers: Mapping[Pattern, int], removed: Sequence[Grant], added: Sequence[Grant]
    ) -> dict[Pattern, Table | None]:
        """The tables that change, by resource pattern; None: without grants."""
        changed: dict[Pattern, dict[str, tuple[list[Grant], list[Grant]]]] = {}
        for some, which in ((removed, 0), (added, 1)):
            for grant in some:
                changed.setdefault(grant.object, {}).setdefault(grant.principal, ([], []))[which].append(grant)
        tables: dict[Pattern, Table | None] = {}
        for pattern, principals in changed.items():
            table = _entries(self._resources.only(pattern))
            for principal, (less, more) in principals.items():
                gone = [(numbers[grant.permission], grant) for grant in less]
                come = [(numbers[grant.permission], grant) for grant in more]
                pairs = [*without(_pairs(table.get(principal, ())), gone), *come]
                if pairs:
                    table[principal] = _entry(pairs)
                else:
                    table.pop(principal, None)
            tables[pattern] = _table(table) if table else None
        return tables

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
        return self._resources.place(resource)

    def effective(self, principals: Mapping[str, object], permission: Name, at: int | None) -> EffectivePermissions:
        """What principals may do together by a permission at a moment (ms; None: not known)."""
        return EffectivePermissions(self, principals.keys(), self._permissions.place(permission).distinct, at)


def _table(entries: dict[str, Entry]) -> Table:
    return next(iter(entries.items())) if len(entries) == 1 else entries


def _entries(table: Table | None) -> dict[str, Entry]:
    """Those of a table, as a dictionary that may be changed; None: there is no table."""
    if table is None:
        return {}
    return dict([table]) if isinstance(table, tuple) else dict(table)


def _entry(pairs: Sequence[tuple[int, Grant]]) -> Entry:
    if len(pairs) <= LISTED:
        return tuple(itertools.chain.from_iterable(pairs))
    numbered: dict[int, list[Grant]] = {}
    for number, grant in pairs:
        numbered.setdefault(number, []).append(grant)
    return numbered


def _pairs(entry: Entry) -> Iterable[tuple[int, Grant]]:
    if isinstance(entry, dict):
        return ((number, grant) for number, grants in entry.items() for grant in grants)
    parts = iter(entry)
    return zip(parts, parts, strict=True)


def without(items: Iterable[Item], less: Sequence[Item]) -> list[Item]:
    """The items without some of them; of equal ones as many go as are named."""
    if not less:
        return list(items)
    gone = Counter(less)
    kept: list[Item] = []
    for item in items:
        if gone.get(item):
            gone[item] -= 1
        else:
            kept.append(item)
    return kept


class _Numbered(Generic[Thing]):
    """Distinct things in the order in which they came. Most come again as the same object: its hash is not needed."""

    def __init__(self) -> None:
        self.things: list[Thing] = []
        self._by_value: dict[Thing, int] = {}
        self.by_id: dict[int, int] = {}

    def of(self, thing: Thing) -> int:
        """The number of a thing, which is to live as long as this."""
        number = self._by_value.setdefault(thing, len(self.things))
        if number == len(self.things):
            self.things.append(thing)
        self.by_id[id(thing)] = number
        return number
