"""Compiles a document store again and again, at the cost of what has changed in between.

A snapshot is made out of the one before: it is equal to one that is compiled from all documents (`Snapshot`), but for
the order of what the same principal has, on which nothing depends.
"""

import bisect
import copy
import itertools
import operator
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from policy.core.document import Key
from policy.core.model import CompiledDocument
from policy.store.delta import PolicySetChange, SnapshotChange, difference, refused_of
from policy.store.documents import DocumentHistory, DocumentStore, Refusal, Rejected, lines_of, version_of
from policy.store.snapshot import Snapshot, fact_table, nameless_of

MOST_CHANGES = 100  # that are remembered
WHOLE = 4  # where more than one of so many documents has changed, all are compiled


class _Compiled(msgspec.Struct, frozen=True):
    """What is known of one document. `lines`: of the version; `at`: the moment of its newest version, ms."""

    compiled: CompiledDocument = CompiledDocument()
    refusals: tuple[Refusal, ...] = ()
    lines: tuple[str, ...] = ()
    rejected: tuple[Rejected, ...] = ()
    superseded: int = 0
    in_force: bool = False
    refused: bool = False
    at: int = -1


NOTHING = _Compiled()

Item = TypeVar("Item")


class Compiler:
    """Follows a document store. ``snapshot``: of its documents as they were when `compile` was called last.

    ``in_force``, ``refused``: by system, how many documents are in force, and how many have a refused newest version.
    """

    def __init__(self, store: DocumentStore) -> None:
        self._store = store
        self._changes: list[tuple[Snapshot, SnapshotChange]] = []  # each with the snapshot before it
        self._start()

    def _start(self) -> None:
        store = self._store
        store.take_changed()
        self.snapshot = Snapshot(store)
        self._documents = {key: _compiled(key, document_history) for key, document_history in store.histories.items()}
        documents = self._documents.values()
        self._lines = sorted(line for one in documents for line in one.lines)
        self._warnings = list(self.snapshot.warnings)
        self._nameless = dict(store.nameless)
        self._refusals: dict[str, dict[Key, tuple[Refusal, ...]]] = {name: {} for name in store.systems}
        self._rejected: dict[Key, tuple[Rejected, ...]] = {}
        self._places: Counter[tuple[str, str, str]] = Counter()  # of facts, with how many documents say some
        self._superseded = 0
        self.in_force, self.refused = Counter[str](), Counter[str]()
        for key, one in self._documents.items():
            self._count(key, NOTHING, one)

    def following(self, store: DocumentStore) -> "Compiler":
        """The compiler of another store, which shares with this one what their documents have alike.

        This one does not change. It must be up to date with its store.
        """
        if store.systems != self._store.systems:
            return Compiler(store)
        other = copy.copy(self)
        other._store, other._changes = store, []
        other._documents, other._lines, other._warnings = dict(self._documents), [*self._lines], [*self._warnings]
        other._nameless, other._rejected, other._places = {**self._nameless}, {**self._rejected}, self._places.copy()
        other._refusals = {system: dict(refusals) for system, refusals in self._refusals.items()}
        other.in_force, other.refused = self.in_force.copy(), self.refused.copy()
        mine, theirs = self._store.histories, store.histories
        store.take_changed()  # since others: what is different here is what counts
        store.note(key for key in {**mine, **theirs} if not _is_alike(mine.get(key), theirs.get(key)))
        other.compile()
        return other

    @property
    def store(self) -> DocumentStore:
        """The documents that it follows."""
        return self._store

    @property
    def newest(self) -> int:
        """The moment of the newest version of any document, ms; 0: there is none."""
        return max((one.at for one in self._documents.values()), default=0)

    def changes_since(self, snapshot: Snapshot | None) -> list[SnapshotChange] | None:
        """What ``snapshot`` differs in from an earlier one; None: that is not known, or it differs in too much."""
        if snapshot is self.snapshot:
            return []
        numbers = (number for number, (before, _) in enumerate(self._changes) if before is snapshot)
        first = next(numbers, None)
        return None if first is None else [change for _, change in self._changes[first:]]

    def compile(self) -> SnapshotChange | None:
        """Bring ``snapshot`` up to date. Returns what it differs in from the one before; None: in too much."""
        changed = {key: self._documents.get(key, NOTHING) for key in self._store.take_changed()}
        if WHOLE * len(changed) > len(self._store.histories):
            self._start()
            self._changes.clear()
            return None
        after = {key: self._again(key) for key in changed}
        systems = {key.system for key in changed}
        contradicting = {key.system for key in changed if self._contradicts(key, changed[key])}
        for key, before in changed.items():
            self._count(key, before, after[key])
        contradicting |= {key.system for key in changed if self._contradicts(key, after[key])}
        nameless = self._nameless != self._store.nameless
        self._nameless = dict(self._store.nameless)
        policy_sets: dict[str, PolicySetChange] = {}
        for system in self._store.systems if nameless else systems:
            of_system = {key: (one, after[key]) for key, one in changed.items() if key.system == system}
            policy_sets[system] = self._policy_set(system, of_system, nameless, system in contradicting)
        for key, before in changed.items():
            self._write(key, before, after[key])
        policy_sets = {
            system: policy_set for system, policy_set in policy_sets.items() if policy_set != PolicySetChange()
        }
        return self._follow(SnapshotChange(self._version(), self._superseded, policy_sets))

    def _follow(self, change: SnapshotChange) -> SnapshotChange:
        self._changes = [*self._changes[1 - MOST_CHANGES :], (self.snapshot, change)]
        self.snapshot = self.snapshot.with_change(change)
        rejected = {one for some in self._rejected.values() for one in some}
        self.snapshot.rejected = tuple(sorted({*rejected, *self._nameless}))
        self.snapshot.warnings = tuple(self._warnings)
        return change

    def _again(self, key: Key) -> _Compiled:
        document_history = self._store.histories.get(key)
        if document_history is None:
            self._documents.pop(key, None)
            return NOTHING
        found = self._documents[key] = _compiled(key, document_history)
        return found

    def _contradicts(self, key: Key, one: _Compiled) -> bool:
        """Whether other documents say something of the same things."""
        return any(self._places[place] > 1 for place in _places(key, one.compiled))

    def _count(self, key: Key, before: _Compiled, after: _Compiled) -> None:
        """Put what is known of a document in place of what was."""
        self._superseded += after.superseded - before.superseded
        self.in_force[key.system] += after.in_force - before.in_force
        self.refused[key.system] += after.refused - before.refused
        self._places.subtract(_places(key, before.compiled))
        self._places.update(_places(key, after.compiled))
        for place in _places(key, before.compiled):
            if not self._places[place]:
                del self._places[place]
        _keep(self._refusals.setdefault(key.system, {}), key, after.refusals)
        _keep(self._rejected, key, after.rejected)

    def _write(self, key: Key, before: _Compiled, after: _Compiled) -> None:
        """Put what is written of a document in place of what was."""
        _replace(self._lines, before.lines, after.lines)
        _replace(self._warnings, _warnings(key, before), _warnings(key, after))

    def _policy_set(
        self, system: str, changed: Mapping[Key, tuple[_Compiled, _Compiled]], nameless: bool, contradicting: bool
    ) -> PolicySetChange:
        refused = None
        if nameless or any(before.refusals != after.refusals for before, after in changed.values()):
            refusals = itertools.chain.from_iterable(self._refusals[system].values())
            refused = refused_of(refusals, nameless_of(system, self._store))
        pairs = [(before.compiled, after.compiled) for before, after in changed.values()]
        grants = _together(difference(before.grants, after.grants) for before, after in pairs)
        ways = _together(difference(before.memberships, after.memberships) for before, after in pairs)
        facts = _together((before.facts, after.facts) for before, after in pairs if before.facts != after.facts)
        table = None
        if contradicting and facts != ((), ()):
            histories = self._store.histories.values()
            table, facts = (
                fact_table(document_history for document_history in histories if document_history.key.system == system),
                ((), ()),
            )
        return PolicySetChange(*grants, *ways, *facts, refused, table)

    def _version(self) -> str:
        nameless = sorted(f"{rejected.key} {rejected.errors}" for rejected in self._nameless)
        return version_of([*self._lines, *nameless])


def _compiled(key: Key, document_history: DocumentHistory) -> _Compiled:
    current = document_history.in_force
    return _Compiled(
        document_history.compiled(),
        tuple(document_history.refusals()),
        tuple(lines_of(key, document_history)),
        tuple(Rejected(str(key), version.errors) for version in document_history.versions if version.errors),
        document_history.superseded,
        current is not None and not current.deleted,
        not document_history.newest.good,
        document_history.newest.at,
    )


def _is_alike(mine: DocumentHistory | None, theirs: DocumentHistory | None) -> bool:
    """Whether two histories surely say the same: they have the very same versions."""
    if mine is theirs:
        return True
    if mine is None or theirs is None or (mine.kind.point_in_time and mine.known_from != theirs.known_from):
        return False
    return len(mine.versions) == len(theirs.versions) and all(map(operator.is_, mine.versions, theirs.versions))


def _places(key: Key, compiled: CompiledDocument) -> set[tuple[str, str, str]]:
    return {(key.system, fact.kind, fact.name) for fact in compiled.facts}


def _warnings(key: Key, one: _Compiled) -> list[tuple[str, str]]:
    return [(str(key), text) for text in one.compiled.warnings]


def _keep(held: dict[Key, tuple[Any, ...]], key: Key, some: tuple[Any, ...]) -> None:
    if some:
        held[key] = some
    else:
        held.pop(key, None)


def _replace(ordered: list[Any], before: Sequence[Any], after: Sequence[Any]) -> None:
    """Take some out of a sorted list, and put others in."""
    for one in before:
        del ordered[bisect.bisect_left(ordered, one)]
    for one in after:
        bisect.insort(ordered, one)


def _together(pairs: Iterable[tuple[Sequence[Item], Sequence[Item]]]) -> tuple[tuple[Item, ...], tuple[Item, ...]]:
    """All that went, and all that came."""
    gone, come = list[Item](), list[Item]()
    for before, after in pairs:
        gone += before
        come += after
    return tuple(gone), tuple(come)
