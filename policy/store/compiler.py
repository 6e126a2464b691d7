"""Follows a document store: a snapshot after each change of its documents, at the cost of what has changed."""

import copy

from policy.store.compiled_store import CompiledStore
from policy.store.delta import SnapshotChange
from policy.store.documents import DocumentStore
from policy.store.snapshot import Snapshot

MOST_CHANGES = 100  # that are remembered
# Where more than one of so many documents has changed, the change is taken from the empty snapshot: to take away what
# each of them said costs a hash of every grant. Where all 100,000 statements change it is 0.9 s instead of 2.8 s.
WHOLE = 4


class Compiler:
    """``snapshot``: of the documents of a store as they were when `compile` was called last.

    ``in_force``, ``refused``: by system, how many documents are in force, and how many have a refused newest version.
    """

    def __init__(self, store: DocumentStore) -> None:
        self.store = store
        self._begin()

    def _begin(self) -> None:
        self.store.take_changed()
        self._compiled, self.snapshot = CompiledStore(self.store), Snapshot(DocumentStore(systems=self.store.systems))
        self._changes: list[tuple[Snapshot, SnapshotChange]] = []  # each with the snapshot before it
        self._apply(self._compiled.change(self.store.histories))

    def _apply(self, change: SnapshotChange) -> None:
        self.snapshot = self.snapshot.with_change(change, self._compiled)
        self.in_force, self.refused = self._compiled.in_force, self._compiled.refused

    def following(self, store: DocumentStore) -> "Compiler":
        """The compiler of another store, which shares with this one what their documents have alike.

        This one does not change. It must be up to date with its store.
        """
        if store.systems != self.store.systems:
            return Compiler(store)
        other = copy.copy(self)
        other.store, other._compiled, other._changes = store, self._compiled.following(store), []
        store.take_changed()  # since others: what is different here is what counts
        store.note(self._compiled.different(store))
        other.compile()
        return other

    @property
    def newest(self) -> int:
        """The moment of the newest version of any document, ms; 0: there is none."""
        return self._compiled.newest

    def changes_since(self, snapshot: Snapshot | None) -> list[SnapshotChange] | None:
        """What ``snapshot`` differs in from an earlier one; None: that is not known, or it differs in too much."""
        if snapshot is self.snapshot:
            return []
        numbers = (number for number, (before, _) in enumerate(self._changes) if before is snapshot)
        first = next(numbers, None)
        return None if first is None else [change for _, change in self._changes[first:]]

    def compile(self) -> SnapshotChange | None:
        """Bring ``snapshot`` up to date. Returns what it differs in from the one before; None: in too much."""
        changed = self.store.take_changed()
        if WHOLE * len(changed) > len(self.store.histories):
            self._begin()
            return None
        change = self._compiled.change(changed)
        self._changes = [*self._changes[1 - MOST_CHANGES :], (self.snapshot, change)]
        self._apply(change)
        return change
