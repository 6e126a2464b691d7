"""The grants of a policy set in one index: found by effective principals, permission and resource.

No subject has an index of its own. A *right* is a permission pattern for which a principal has grants. All resource
patterns are in one trie, and at each of them are its grants by right. What a request matches is found in three steps:
the rights of the subject for the permission, which subjects with the same principals share; the trie state to which
the resource's name leads, which all subjects share; and what both have in common, at each of the few patterns that
match the name.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from policy.core.caching import BUDGET, ENTRY_BYTES
from policy.core.model import DENY, Grant, in_force
from policy.core.pattern import Name, Pattern
from policy.core.times import ALWAYS
from policy.matching.index import PatternIndex, TrieState

KNOWN_BYTES = 120  # of an answer that is kept
NUMBER_BYTES = 8  # of a grant in one, or of a right in a set

Thing = TypeVar("Thing")
Item = TypeVar("Item", bound=Hashable)

Rights = dict[int, int]
"""The rights of one principal, by the number of their permission pattern."""


def precedence(grant: Grant) -> tuple[bool, Any, str]:
    """By what grants go before others that match the same: denies first, then by document and statement."""
    return grant.effect != DENY, grant.statement_id.place, grant.principal


class Table:
    """The grants on one resource pattern, by right."""

    __slots__ = ("grants", "rights")

    def __init__(self, grants: dict[int, tuple[Grant, ...]]) -> None:
        self.rights, self.grants = frozenset(grants), grants


class EffectivePermissions:
    """What principals may do together by one permission, within an epoch of the policies."""

    __slots__ = ("_at", "_grants", "_known", "_rights")

    def __init__(self, grants: "Grants", rights: frozenset[int], at: int | None) -> None:
        self._grants, self._rights, self._at = grants, rights, at
        self._known: dict[TrieState[Table], tuple[Grant, ...]] = {}

    def on(self, resource: Name) -> tuple[Grant, ...]:
        """The determining grants for a resource: the denies in force that match it, else the allows; see `at`."""
        return self.at(self._grants.state(resource))

    def at(self, state: TrieState[Table]) -> tuple[Grant, ...]:
        """The same for all resources whose names lead to a state of the trie. By precedence: the first one decides.

        Raises Unanswerable when they depend on the time, and that is not known.
        """
        found = self._known.get(state)
        if found is None:
            found = self._work_out(state)
            BUDGET.spend(KNOWN_BYTES + NUMBER_BYTES * len(found))
            self._known[state] = found
        return found

    def _work_out(self, state: TrieState["Table"]) -> tuple[Grant, ...]:
        rights, elsewhere = self._rights, self._rights.isdisjoint
        matching = [
            grant
            for table in state.values
            if not elsewhere(table.rights)  # the fewer of both are gone through
            for right in rights & table.rights
            for grant in table.grants[right]
        ]
        if not matching:
            return ()
        matching = [grant for grant in matching if grant.window is ALWAYS or in_force(grant.window, self._at)]
        if len(matching) > 1:
            denies = [grant for grant in matching if grant.effect == DENY]
            matching = sorted(denies or matching, key=precedence)
        return tuple(matching)

    def forget(self) -> None:
        """Empty what is kept of answers."""
        self._known.clear()


class Grants:
    """The index of these grants by principal. Threads may share it: nothing is filed once it is made."""

    def __init__(self, grants: Mapping[str, Sequence[Grant]]) -> None:
        self._rights: dict[str, Rights] = {}
        self._uses: dict[int, int] = {}  # by permission pattern, how many principals have a right for it
        self._next_right = self._next_permission = 0
        self._matching: dict[TrieState[int], frozenset[int]] = {}
        self._permissions: PatternIndex[int] = PatternIndex()
        self._resources: PatternIndex[Table] = PatternIndex()
        self._effective: dict[tuple[frozenset[int], int], EffectivePermissions] = {}
        self._file(grants)
        BUDGET.join(self)

    def _file(self, grants: Mapping[str, Sequence[Grant]]) -> None:
        permissions, resources = _Numbered[Pattern](), _Numbered[Pattern]()
        tables: list[dict[int, tuple[Grant, ...]]] = []
        rights, uses = 0, self._uses
        for principal, held in grants.items():
            own = self._rights[principal] = {}
            for grant in held:
                permission = permissions.by_id.get(id(grant.permission))
                if permission is None:
                    permission = permissions.of(grant.permission)
                resource = resources.by_id.get(id(grant.object))
                if resource is None:
                    resource = resources.of(grant.object)
                right = own.get(permission)
                if right is None:
                    right = own[permission] = rights
                    rights += 1
                    uses[permission] = uses.get(permission, 0) + 1
                if resource == len(tables):
                    tables.append({right: (grant,)})
                else:
                    tables[resource][right] = (*tables[resource].get(right, ()), grant)
        self._next_right, self._next_permission = rights, len(permissions.things)
        for number, pattern in enumerate(permissions.things):
            self._permissions.add(pattern, number)
        for pattern, table in zip(resources.things, tables, strict=True):
            self._resources.add(pattern, Table(table))

    def with_changes(
        self, grants: Mapping[str, Sequence[Grant]], removed: Sequence[Grant], added: Sequence[Grant]
    ) -> "Grants":
        """The index of these grants, which differ from those of this one in what was ``removed`` and ``added``.

        It shares with this one, which does not change, all that is alike.
        """
        other = Grants({})
        edit = _Edit(self._permissions, self._rights, self._uses, self._next_permission, self._next_right)
        by_principal: dict[str, list[Pattern]] = {}
        for grant in (*removed, *added):
            by_principal.setdefault(grant.principal, []).append(grant.permission)
        for principal, permissions in by_principal.items():
            edit.hold(principal, grants.get(principal, ()), permissions)
        other._permissions = self._permissions.with_only(edit.permissions())
        other._rights, other._uses = edit.rights, edit.uses
        other._next_permission, other._next_right = edit.next_permission, edit.next_right
        other._resources = self._resources.with_only(self._tables(other, removed, added))
        return other

    def _tables(self, other: "Grants", removed: Sequence[Grant], added: Sequence[Grant]) -> dict[Pattern, Table | None]:
        """The tables that are different in the other index, by resource pattern."""
        changed: dict[Pattern, dict[int, tuple[list[Grant], list[Grant]]]] = {}
        for index, some, which in ((self, removed, 0), (other, added, 1)):
            for grant in some:
                right = index._right(grant)
                changed.setdefault(grant.object, {}).setdefault(right, ([], []))[which].append(grant)
        tables: dict[Pattern, Table | None] = {}
        for pattern, rights in changed.items():
            before = self._resources.only(pattern)
            held = dict(before.grants) if before is not None else {}
            for right, (less, more) in rights.items():
                held[right] = (*without(held.get(right, ()), less), *more)
                if not held[right]:
                    del held[right]
            tables[pattern] = Table(held) if held else None
        return tables

    def _right(self, grant: Grant) -> int:
        """The right by which a grant is found that is held here."""
        number = self._permissions.only(grant.permission)
        assert number is not None
        return self._rights[grant.principal][number]

    def state(self, resource: Name) -> TrieState[Table]:
        """The state of the trie to which a resource's name leads."""
        return self._resources.place(resource)

    def permission(self, permission: Name) -> TrieState[int]:
        """The patterns that match a permission: its state in their trie."""
        return self._permissions.place(permission)

    def held_by(self, principals: Iterable[str]) -> tuple[Rights, ...]:
        """The rights of each of the principals that has any."""
        return tuple(filter(None, map(self._rights.get, principals)))

    def effective(
        self, held: Iterable[Rights], patterns: TrieState[int], at: int | None, epoch: int
    ) -> EffectivePermissions:
        """What principals with these rights may do together by a permission that these patterns match.

        At a moment (ms; None: not known) of an epoch.
        """
        matching = self._matching.get(patterns)
        if matching is None:
            matching = self._matching[patterns] = frozenset(patterns.values)
        # The fewer of both are gone through.
        rights = frozenset([own[pattern] for own in held for pattern in own.keys() & matching])
        effective = self._effective.get((rights, epoch))
        if effective is None:
            BUDGET.spend(ENTRY_BYTES + 4 * NUMBER_BYTES * len(rights))
            effective = self._effective[rights, epoch] = EffectivePermissions(self, rights, at)
        return effective

    def clear(self) -> None:
        """Forget what was worked out."""
        for effective in list(self._effective.values()):
            effective.forget()
        self._effective.clear()
        self._matching.clear()


def without(items: Sequence[Item], less: Sequence[Item]) -> list[Item]:
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


class _Edit:
    """The rights of an index that is made out of another."""

    def __init__(
        self,
        permissions: PatternIndex[int],
        rights: Mapping[str, Rights],
        uses: Mapping[int, int],
        next_permission: int,
        next_right: int,
    ) -> None:
        self._permissions, self.next_permission, self.next_right = permissions, next_permission, next_right
        self.rights, self.uses = dict(rights), dict(uses)
        self._numbers: dict[Pattern, int] = {}  # of the permission patterns that were looked up

    def hold(self, principal: str, grants: Iterable[Grant], permissions: Iterable[Pattern]) -> None:
        """Give a principal the rights for its grants, where these differ in grants of some permissions alone."""
        own = dict(self.rights.get(principal, {}))
        held = {id(grant.permission): grant.permission for grant in grants}  # most are the same objects
        held_patterns = set(held.values())
        for pattern in dict.fromkeys(permissions):
            number = self._number(pattern)
            if pattern in held_patterns and number not in own:
                own[number] = self.next_right
                self.next_right += 1
                self.uses[number] = self.uses.get(number, 0) + 1
            elif pattern not in held_patterns and own.pop(number, None) is not None:
                self.uses[number] -= 1
        if own:
            self.rights[principal] = own
        else:
            self.rights.pop(principal, None)

    def _number(self, pattern: Pattern) -> int:
        number = self._numbers.get(pattern)
        if number is None:
            number = self._permissions.only(pattern)
            if number is None:
                number = self.next_permission
                self.next_permission += 1
            self._numbers[pattern] = number
        return number

    def permissions(self) -> dict[Pattern, int | None]:
        """The numbers of the patterns that were looked up; None: no principal has a right for it any more."""
        for number in self._numbers.values():
            if not self.uses.get(number):
                self.uses.pop(number, None)
        return {pattern: number if number in self.uses else None for pattern, number in self._numbers.items()}


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
