"""The layer of the facts topic: what platforms publish and what the job derives, apart from the policies.

It changes far more often than they do, so it is not compiled with them: each change is applied to it in place, at a
cost that does not depend on how many facts there are. A snapshot is put together with it as it is then
(`Snapshot.with_facts`), and does not change with it.
"""

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from policy.core.document import SINCE_EVER, Key
from policy.core.fact_table import FUTURE, FactTable, FactVersion, Lookup, Thing
from policy.core.facts import BOUND
from policy.core.model import Fact, Unanswerable
from policy.core.times import Window
from policy.store.documents import DocumentStore
from policy.store.history import DocumentHistory
from policy.systems import all_systems


class FactChange(msgspec.Struct, frozen=True):
    """What one document of the facts topic says now. `refused`: when no good version stands in place of a refused one.

    `affected_principals`: the principals that a refused one may have affected. `at`: since when, ms by the log.
    `order`: the offset of the record by which it says so, -1: not known; `recorded`: when that came, ms. It is later
    than `at` where the record was refused and an older version stays in force. `since`: of a deletion that says when
    the fact ceased to be, that moment (ms).
    """

    key: Key
    facts: tuple[Fact, ...] = ()
    refused: tuple[Window, ...] = ()
    affected_principals: frozenset[str] = frozenset()
    at: int = SINCE_EVER
    order: int = -1
    recorded: int = SINCE_EVER
    since: int | None = None

    def versions(self) -> dict[Thing, FactVersion]:
        """What it says of each thing."""
        kind = all_systems()[self.key.system].kinds.get(self.key.kind)
        field, recorded = kind.since if kind else "", max(self.at, self.recorded)
        refusals, own = tuple((window, str(self.key)) for window in self.refused), (self.key.kind, self.key.name)
        versions = dict[Thing, FactVersion]()
        if refusals or not self.facts:
            # Only what says itself since when it holds may say when it ceased to: other facts are dated by the log.
            ended = self.at if self.since is None or refusals or not field else min(self.since, self.at)
            versions[own] = FactVersion(ended, (), refusals, recorded)
        for fact in self.facts:
            thing = (fact.kind, fact.name)
            facts = (*versions[thing].facts, fact) if thing in versions else (fact,)
            begins = getattr(fact.body, field, self.at)
            versions[thing] = FactVersion(begins, facts, refusals if thing == own else (), recorded)
        return versions


def change_of(key: Key, document_history: DocumentHistory | None) -> FactChange:
    """What a document says now; None: it is gone."""
    if document_history is None:
        return FactChange(key)
    refusals, newest, in_force = tuple(document_history.refusals()), document_history.newest, document_history.in_force
    return FactChange(
        key,
        document_history.compiled().facts,
        tuple(refusal.window for refusal in refusals),
        frozenset[str]().union(*(refusal.affected_principals for refusal in refusals)),
        newest.at if refusals or in_force is None else in_force.at,
        newest.order,
        newest.at,
        newest.since,
    )


def changes_of(key: Key, document_history: DocumentHistory, new: int) -> Iterator[FactChange]:
    """What a document said after each of its `new` newest versions."""
    for count in range(max(len(document_history.versions) - new, 0) + 1, len(document_history.versions) + 1):
        yield change_of(key, document_history.first(count))


class FactOverlay:
    """The facts of all systems, by system, and the principals that refused ones affect; see `FactTable`."""

    def __init__(self, changes: Iterable[FactChange] = (), all_held_after: int = FUTURE) -> None:
        self._all_after = all_held_after
        self._tables: dict[str, FactTable] = {}
        self._copies: dict[str, FactTable] = {}  # of the tables as they are now
        self._elsewhere: dict[Key, tuple[Thing, ...]] = {}  # documents whose facts are not named like themselves
        self._bound: dict[Key, frozenset[str]] = {}
        self._ever_refused: dict[Key, frozenset[str]] = {}  # of any time, those that affect principals
        self.changed_at = SINCE_EVER
        for change in changes:
            self.apply(change)

    def __len__(self) -> int:
        return sum(map(len, self._tables.values())) + len(self._bound)

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_copies": {}}

    def table(self, system: str, moment: int | None = None) -> FactTable:
        """The facts of a system as they are now, whatever is applied later; as they were at a moment (ms)."""
        copy = self._copies.get(system)
        if copy is None:
            copy = self._copies[system] = self._table(system).copy()
        # Of most accesses every change is older: no version has to be looked for.
        return copy if moment is None or moment >= self.changed_at else copy.at(moment)

    @property
    def known_from(self) -> int:
        """From then on (ms) it is known of every moment what the facts of all systems said."""
        return max((table.known_from for table in self._tables.values()), default=FUTURE)

    def _table(self, system: str) -> FactTable:
        table = self._tables.get(system)
        if table is None:
            table = self._tables[system] = FactTable(all_after=self._all_after)
        return table

    def refused_documents(self, system: str, moment: int | None = None) -> Mapping[Key, frozenset[str]]:
        """The refused documents of a system, each with the principals that it may have affected, see `table`."""
        if moment is None or moment >= self.changed_at:
            return {key: principals for key, principals in self._bound.items() if key.system == system}
        table, of_system = self.table(system, moment), [key for key in self._ever_refused if key.system == system]
        return {key: self._ever_refused[key] for key in of_system if _may_be_refused(table, key)}

    def copy(self) -> "FactOverlay":
        """The layer as it is, whatever is applied to this one later."""
        other = FactOverlay(all_held_after=self._all_after)
        other._tables = {system: table.copy() for system, table in self._tables.items()}
        other._elsewhere, other._bound, other.changed_at = dict(self._elsewhere), dict(self._bound), self.changed_at
        other._ever_refused = dict(self._ever_refused)
        return other

    def sees_all_from_now(self, absent_since: int) -> None:
        """Note that every change is applied from now on. What is not there was not there since a moment (ms)."""
        for system in all_systems():
            self._table(system).sees_all_from_now(absent_since)
        self._copies.clear()

    def apply(self, change: FactChange) -> set[Lookup]:
        """Put what a document says now in the place of what it said. Tables handed out before do not change.

        Returns the lookups that it may answer otherwise from now on.
        """
        key, versions = change.key, change.versions()
        own = (key.kind, key.name)
        for thing in self._elsewhere.pop(key, (own,)):
            versions.setdefault(thing, FactVersion(change.at, recorded=max(change.at, change.recorded)))
        table, changed = self._table(key.system), set[Lookup]()
        for thing, version in versions.items():
            changed |= table.lookups_of(thing, version.since) | version.lookups(thing)
            self.changed_at = max(self.changed_at, table.put(thing, version, change.at))
        if versions.keys() != {own}:
            self._elsewhere[key] = tuple(versions)
        before = self._bound.pop(key, None)
        if change.refused:
            self._bound[key] = change.affected_principals
            if change.affected_principals:
                self._ever_refused[key] = change.affected_principals | self._ever_refused.get(key, frozenset())
        if before != self._bound.get(key):
            changed.add(BOUND)
        self._copies.pop(key.system, None)
        return changed


def _may_be_refused(table: FactTable, key: Key) -> bool:
    """Whether a document is refused at the moment of a table, also where that is not known any more: nobody is accused
    of what an error kept from being decided.
    """
    try:
        return table.refusal(key.kind, key.name) is not None
    except Unanswerable:
        return True


def layer_of(store: DocumentStore) -> FactOverlay:
    """The overlay of all documents in a store of facts."""
    return FactOverlay(change_of(key, document_history) for key, document_history in store.histories.items())
