"""The layer of the facts topic: what platforms publish and what the job derives, apart from the policies.

It changes far more often than they do, so it is not compiled with them: each change is applied to it in place, and a
snapshot is put together with it (`Snapshot.with_facts`).
"""

from collections.abc import Iterable

import msgspec

from policy.documents import Key
from policy.facts import FactTable
from policy.library import Library, Shelf
from policy.model import Fact


class FactChange(msgspec.Struct, frozen=True):
    """What one document of the facts topic says now. `broken`: it was refused and no good version stands in its place.

    `binds`: the holders that a broken one would have bound.
    """

    key: Key
    facts: tuple[Fact, ...] = ()
    broken: bool = False
    binds: frozenset[str] = frozenset()


def change_of(key: Key, shelf: Shelf | None) -> FactChange:
    """What the document of a shelf says now; None: it is gone."""
    if shelf is None:
        return FactChange(key)
    return FactChange(key, shelf.reading().facts, shelf.broken, shelf.binds if shelf.broken else frozenset())


class FactLayer:
    """The facts of all systems, by system, and what is broken among their documents."""

    def __init__(self, changes: Iterable[FactChange] = ()) -> None:
        self._tables: dict[str, FactTable] = {}
        self._said: dict[Key, FactChange] = {}
        self._bound: dict[Key, frozenset[str]] = {}
        for change in changes:
            self.apply(change)

    def __len__(self) -> int:
        return len(self._said)

    def table(self, system: str) -> FactTable:
        """The facts of a system; it stays the same object."""
        return self._tables.setdefault(system, FactTable())

    def bound(self, system: str) -> dict[Key, frozenset[str]]:
        """The broken documents of a system, each with the holders that it would have bound."""
        return {key: holders for key, holders in self._bound.items() if key.system == system}

    def apply(self, change: FactChange) -> None:
        """Put what a document says now in the place of what it said."""
        table, key = self.table(change.key.system), change.key
        before = self._said.pop(key, FactChange(key))
        for fact in before.facts:
            table.remove(fact.kind, fact.name)
        table.refused.pop((key.kind, key.name), None)
        self._bound.pop(key, None)
        for fact in change.facts:
            table.put(fact)
        if change.broken:
            table.refused[key.kind, key.name] = str(key)
            self._bound[key] = change.binds
        if change.facts or change.broken:
            self._said[key] = change


def layer_of(library: Library) -> FactLayer:
    """The layer of all documents in a library of facts."""
    return FactLayer(change_of(key, shelf) for key, shelf in library.shelves.items())
