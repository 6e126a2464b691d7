"""The layer of the facts topic: what platforms publish and what the job derives, apart from the policies.

It changes far more often than they do, so it is not compiled with them: each change is applied to it in place, at a
cost that does not depend on how many facts there are. A snapshot is put together with it as it is then
(`Snapshot.with_facts`), and does not change with it.

It keeps superseded versions too, up to a number of them: a past access is evaluated with the facts known of its time.
"""

import collections
import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from policy.core.document import SINCE_EVER, Key
from policy.core.facts import BOUND, FactSource, Lookup, edges_of
from policy.core.model import NO_LONGER_KNOWN, Fact, Unanswerable
from policy.core.times import to_text
from policy.store.documents import DocumentHistory, DocumentStore
from policy.store.persistent import Names, PersistentMap
from policy.systems import all_systems

SUPERSEDED_HELD = 50_000  # versions of one system's facts that are not in force any more
VERSIONS_HELD = 64  # of one fact
FUTURE = 1 << 62  # nothing is known before it

Place = tuple[str, str]
"""Kind and name."""


class FactChange(msgspec.Struct, frozen=True):
    """What one document of the facts topic says now. `broken`: it was refused and no good version stands in its place.

    `affected_principals`: the principals that a refused one may have affected. `at`: since when, ms by the log.
    `order`: the offset of the record by which it says so, -1: not known; `recorded`: when that came, ms. It is later
    than `at` where the record was refused and an older version stays in force. `since`: of a deletion that says when
    the fact ceased to be, that moment (ms).
    """

    key: Key
    facts: tuple[Fact, ...] = ()
    broken: bool = False
    affected_principals: frozenset[str] = frozenset()
    at: int = SINCE_EVER
    order: int = -1
    recorded: int = SINCE_EVER
    since: int | None = None


def change_of(key: Key, document_history: DocumentHistory | None) -> FactChange:
    """What the document of a shelf says now; None: it is gone."""
    if document_history is None:
        return FactChange(key)
    at = (
        document_history.newest.at
        if document_history.broken or document_history.in_force is None
        else document_history.in_force.at
    )
    return FactChange(
        key,
        document_history.compiled().facts,
        document_history.broken,
        document_history.affected_principals if document_history.broken else frozenset(),
        at,
        document_history.newest.order,
        document_history.newest.at,
        document_history.newest.since,
    )


def changes_of(key: Key, document_history: DocumentHistory, new: int) -> Iterator[FactChange]:
    """What the document of a shelf said after each of its `new` newest versions."""
    for count in range(max(len(document_history.versions) - new, 0) + 1, len(document_history.versions) + 1):
        yield change_of(key, document_history.first(count))


class Version(msgspec.Struct, frozen=True):
    """What was known of one thing from a moment (ms) on: its fact, or that its document was refused, or nothing.

    `recorded`: when the log said so, ms: a login is in force since it happened, and becomes known later. Of a document
    from files with versions, each in force for a time, there are several facts.
    """

    since: int
    facts: tuple[Fact, ...] = ()
    refused: str | None = None
    recorded: int = SINCE_EVER

    @property
    def keys(self) -> set[tuple[str, str]]:
        """Under which it is found."""
        return {key for fact in self.facts for key in fact.keys}

    @property
    def timeless(self) -> bool:
        """Whether it counts at every moment of its own."""
        return not self.facts or (len(self.facts) == 1 and self.facts[0].timeless)

    def fact(self, at: int | None) -> Fact | None:
        """The fact that counts at a moment (ms; None: not known)."""
        if self.timeless:
            return self.facts[0] if self.facts else None
        return next((fact for fact in self.facts if fact.counts(at)), None)


class Held(msgspec.Struct, frozen=True):
    """The versions of one thing in the order of the log: the newest, and older ones. `known_from`: before this moment
    (ms) there may have been others.
    """

    newest: Version
    older: tuple[Version, ...] = ()
    known_from: int = SINCE_EVER

    def at(self, moment: int) -> Version | None:
        """The version in force at a moment (ms), None: it was before all of these.

        It is the last one that was recorded by then. One that was recorded later counts if it had begun by then, and
        no earlier than that one: logins are reported late, and not always in their order.
        """
        found: Version | None = None
        for version in (*self.older, self.newest):
            later = found is None or version.recorded <= moment or version.since >= found.since
            if version.since <= moment and later:
                found = version
        return found

    def edges(self) -> set[int]:
        """The moments (ms) at which another version comes into force."""
        versions = (*self.older, self.newest)
        begun = itertools.accumulate((version.since for version in versions), max)
        late = {version.recorded for version, since in zip(versions, begun, strict=True) if version.since < since}
        return late.union(version.since for version in versions)


class OverlayTable:
    """The facts of one system in the layer. A copy of it does not change with it; see `policy.store.persistent`.

    `all_held_after`: the log's records after that moment (ms) are all there, also when it is read for the first time.
    """

    def __init__(self, all_held_after: int = FUTURE) -> None:
        self._kinds: dict[str, PersistentMap[str, Held]] = {}
        self._names = Names()  # by the keys of the facts in force
        self._past_names = Names()  # by the keys of the others
        self._refused: PersistentMap[Place, str] = PersistentMap()
        self._once_refused: PersistentMap[Place, None] = PersistentMap()
        self._dated: PersistentMap[Place, None] = PersistentMap()  # things whose facts count for a time only
        self._superseded: collections.deque[Place] = collections.deque()
        self._known_from: dict[str, int] = {}  # by kind: from then on (ms) every version of all its facts is held
        self._all_from = FUTURE  # what is not held was not there since then (ms)
        self._all_held_after = all_held_after
        self._size = 0

    def __getstate__(self) -> dict[str, object]:
        """Most things have one version alone: these are packed, and indexes are made again."""
        plain: dict[str, list[tuple[Version, int]]] = {}
        others: dict[str, dict[str, Held]] = {}
        for kind, known in self._kinds.items():
            plain[kind], others[kind] = [], {}
            for name, held in known.items():
                if held.older or not held.newest.facts:
                    others[kind][name] = held
                else:
                    plain[kind].append((held.newest, held.known_from))
        kept = {name: value for name, value in self.__dict__.items() if name not in ("_kinds", "_names", "_past_names")}
        return {**kept, "plain": plain, "others": others}

    def __setstate__(self, state: dict[str, Any]) -> None:
        plain, others = state.pop("plain"), state.pop("others")
        self.__dict__.update(state)
        self._kinds = {}
        for kind, packed in plain.items():
            held = {newest.facts[0].name: Held(newest, known_from=known_from) for newest, known_from in packed}
            self._kinds[kind] = PersistentMap({**held, **others[kind]})
        everything = [(kind, name, held) for kind, known in self._kinds.items() for name, held in known.items()]
        self._names = Names(((kind, *key), name) for kind, name, held in everything for key in held.newest.keys)
        past = ((kind, name, version) for kind, name, held in everything for version in held.older)
        self._past_names = Names(((kind, *key), name) for kind, name, version in past for key in version.keys)

    def copy(self) -> "OverlayTable":
        """The table as it is, whatever is applied to this one later."""
        other = OverlayTable()
        other._kinds = {kind: held.copy() for kind, held in self._kinds.items()}
        other._names, other._past_names = self._names.copy(), self._past_names.copy()
        other._refused, other._once_refused = self._refused.copy(), self._once_refused.copy()
        other._dated, other._superseded = self._dated.copy(), collections.deque()
        other._known_from, other._all_from, other._size = dict(self._known_from), self._all_from, self._size
        return other

    def sees_all_from_now(self, absent_since: int) -> None:
        """Note that all changes are applied from now on; what is not held was not there since a moment (ms)."""
        self._all_held_after, self._all_from = SINCE_EVER - 1, absent_since

    def put(self, place: Place, version: Version, at: int) -> int:
        """Note what is known of a thing now, at a moment of the log (ms). Returns from when on (ms) it is in force."""
        kind, name = place
        if len(self._dated):
            self._dated.discard(place)
        if not version.timeless:
            self._dated[place] = None
        held = self._kinds.get(kind)
        if held is None:
            held = self._kinds[kind] = PersistentMap()
        before = held.get(name)
        if before is None:
            self._first(place, held, version, at > self._all_held_after)
        elif _differ(before.newest, version):
            self._next(place, held, before, version)
        self._forget_oldest()
        is_late = before is not None and any(version.since < one.since for one in (before.newest, *before.older))
        return max(version.since, version.recorded) if is_late else version.since

    def _first(self, place: Place, held: PersistentMap[str, Held], version: Version, complete: bool) -> None:
        if not version.facts and version.refused is None and complete:
            return
        # Below a refused one a good version may have been in force, which compaction has removed.
        begun = version.since if version.refused is None else FUTURE
        held[place[1]] = Held(version, known_from=SINCE_EVER if complete else begun)
        if not complete:
            self._settle(place[0], version.since)
        self._index(place, version)

    def _next(self, place: Place, held: PersistentMap[str, Held], before: Held, version: Version) -> None:
        self._unindex(place, before.newest)
        known_from = before.known_from if before.known_from < FUTURE else version.since
        held[place[1]] = Held(version, (*before.older, before.newest), known_from)
        for key in before.newest.keys:
            self._past_names.add((place[0], *key), place[1])
        self._index(place, version)
        self._superseded.append(place)
        if len(before.older) >= VERSIONS_HELD:
            self._drop_oldest(place)

    def _index(self, place: Place, version: Version) -> None:
        if version.refused is not None:
            self._refused[place] = version.refused
            self._once_refused[place] = None
        if version.facts:
            self._size += 1
            for key in version.keys:
                self._names.add((place[0], *key), place[1])

    def _unindex(self, place: Place, version: Version) -> None:
        self._refused.discard(place)
        if version.facts:
            self._size -= 1
            for key in version.keys:
                self._names.discard((place[0], *key), place[1])

    def _forget_oldest(self) -> None:
        while len(self._superseded) > SUPERSEDED_HELD:
            self._drop_oldest(self._superseded.popleft())

    def _drop_oldest(self, place: Place) -> None:
        kind, name = place
        held = self._kinds[kind].get(name)
        if held is None or not held.older:
            return
        gone, kept = held.older[0], held.older[1:]
        for key in gone.keys.difference(*(version.keys for version in kept)):
            self._past_names.discard((kind, *key), name)
        following = kept[0] if kept else held.newest
        since = following.since if following.since >= gone.since else following.recorded
        if not kept and not held.newest.facts and held.newest.refused is None:
            self._kinds[kind].discard(name)
            self._once_refused.discard(place)
            self._all_from = max(self._all_from, since)
        else:
            self._kinds[kind][name] = Held(held.newest, kept, max(held.known_from, since))
        self._settle(kind, since)

    def _settle(self, kind: str, since: int) -> None:
        self._known_from[kind] = max(self._known_from.get(kind, since), since)

    # What `policy.core.facts.Facts` asks for.

    def __len__(self) -> int:
        return self._size

    @property
    def timeless(self) -> bool:
        """Whether all of it counts at every moment."""
        return not len(self._dated)

    def get(self, kind: str, name: str, at: int | None = None) -> Fact | None:
        """The fact, or None."""
        known = self._kinds.get(kind)
        held = known.get(name) if known is not None else None
        return held.newest.fact(at) if held is not None else None

    def refusal(self, kind: str, name: str, at: int | None = None) -> str | None:
        """The refused document of a thing that has no good version; None: there is none."""
        return self._refused.get((kind, name)) if len(self._refused) else None

    def refusals(self, kind: str, at: int | None = None) -> list[str]:
        """Names of the refused things of ``kind``."""
        return [name for of, name in self._refused if of == kind]

    def find(self, kind: str, index: str, value: str, at: int | None = None) -> frozenset[str]:
        """Names of the facts of ``kind`` with the key (index, value)."""
        names = self._names.find((kind, index, value))
        if self.timeless:
            return names
        found = ((name, self.get(kind, name, at)) for name in names)
        return frozenset(name for name, fact in found if fact is not None and (index, value) in fact.keys)

    def kinds(self) -> set[str]:
        """The kinds of all facts; slow: for tools, not for decisions."""
        return set(self._kinds)

    def names(self, kind: str) -> list[str]:
        """Names of all facts of ``kind``, sorted; slow: for tools, not for decisions."""
        return sorted({fact.name for fact in self.all(kind)})

    def all(self, kind: str) -> Iterable[Fact]:
        """All facts of ``kind``, in force at whatever moment, in no particular order."""
        held = self._kinds.get(kind)
        return (fact for one in (held.values() if held is not None else ()) for fact in one.newest.facts)

    def versions(self, kind: str, name: str) -> tuple[Fact, ...]:
        """All facts of one thing that count at some moment."""
        known = self._kinds.get(kind)
        held = known.get(name) if known is not None else None
        return held.newest.facts if held is not None else ()

    def edges(self) -> set[int]:
        """The moments (ms) at which a fact begins or ceases to count."""
        return set[int]().union(*(self.edges_of(*place) for place in self._dated))

    def edges_of(self, kind: str, name: str) -> set[int]:
        """The same of one thing."""
        return edges_of(self.versions(kind, name)) if (kind, name) in self._dated else set()

    def named(self, kind: str, index: str, value: str) -> Iterable[str]:
        """Names of the facts of ``kind`` with the key (index, value) at some moment."""
        return self._names.find((kind, index, value))

    def refused_names(self, kind: str) -> Iterable[str]:
        """Names of the things of ``kind`` that are refused."""
        return self.refusals(kind)

    def lookups_of(self, kind: str, name: str, since: int) -> set[Lookup]:
        """The lookups that find a thing, or that it is refused, now or at a moment from ``since`` (ms) on."""
        known = self._kinds.get(kind)
        held = known.get(name) if known is not None else None
        if held is None:
            return set()
        versions = (held.newest, *(version for version in held.older if version.since >= since), held.at(since))
        return set[Lookup]().union(*(_lookups(kind, name, version) for version in versions if version is not None))

    @property
    def known_from(self) -> int:
        """From then on (ms) it is known of every moment what the facts said."""
        return max(self._all_from, *self._known_from.values()) if self._known_from else self._all_from

    def edges_at(self, kind: str, name: str) -> set[int]:
        """The moments (ms) at which what was known of a thing changed, or its facts began or ceased to count."""
        known = self._kinds.get(kind)
        held = known.get(name) if known is not None else None
        if held is None:
            return set()
        return held.edges().union(*(edges_of(version.facts) for version in (held.newest, *held.older)))

    def named_at(self, kind: str, index: str, value: str) -> frozenset[str]:
        """Names of the facts of ``kind`` with the key (index, value) in any version."""
        return self._names.find((kind, index, value)) | self._past_names.find((kind, index, value))

    def refused_names_at(self, kind: str) -> list[str]:
        """Names of the things of ``kind`` that are refused in any version."""
        return [name for of, name in self._once_refused if of == kind]

    def version_at(self, kind: str, name: str, moment: int) -> Version | None:
        """What was known of a thing at a moment (ms), None: nothing; Unanswerable when that is not known any more."""
        known = self._kinds.get(kind)
        held = known.get(name) if known is not None else None
        version = held.at(moment) if held is not None else None
        unknown = held is not None and moment < held.known_from
        if unknown or (version is None and moment < self._all_from):
            raise _no_longer_known(f"{kind} {name}", moment)
        return version

    def found_at(self, kind: str, index: str, value: str, moment: int) -> frozenset[str]:
        """The names under a key at a moment (ms); Unanswerable when that is not known any more."""
        self._check_all(kind, moment)
        pair = (index, value)
        names = self.named_at(kind, index, value)
        found = ((name, self.version_at(kind, name, moment)) for name in names)
        facts = ((name, version.fact(moment) if version else None) for name, version in found)
        return frozenset(name for name, fact in facts if fact is not None and pair in fact.keys)

    def refused_at(self, kind: str, moment: int) -> list[str]:
        """Names of the things of ``kind`` that were refused at a moment (ms); Unanswerable as above."""
        self._check_all(kind, moment)
        found = ((name, self.version_at(kind, name, moment)) for name in self.refused_names_at(kind))
        return [name for name, version in found if version and version.refused is not None]

    def _check_all(self, kind: str, moment: int) -> None:
        if moment < max(self._all_from, self._known_from.get(kind, self._all_from)):
            raise _no_longer_known(f"every {kind}", moment)


def _differ(before: Version, after: Version) -> bool:
    """Whether a version says something else; a deletion also by saying of itself since when it holds."""
    if (before.facts, before.refused) != (after.facts, after.refused):
        return True
    says_since = after.since != after.recorded and not after.facts and after.refused is None
    return says_since and before.since != after.since


def _lookups(kind: str, name: str, version: Version) -> set[Lookup]:
    found: set[Lookup] = {("name", kind, name), *(("key", kind, *key) for key in version.keys)}
    return found if version.refused is None else found | {("refused", kind)}


def _no_longer_known(what: str, moment: int) -> Unanswerable:
    return Unanswerable(NO_LONGER_KNOWN, f"what the facts said of {what} at {to_text(moment)} is not known any more")


class TableAt:
    """A table as it was at a moment (ms). Raises Unanswerable for what is not known any more."""

    timeless = False

    def __init__(self, table: OverlayTable, moment: int) -> None:
        self._table, self._moment = table, moment
        self.kinds, self.names, self.all, self.versions = table.kinds, table.names, table.all, table.versions
        self.named, self.refused_names, self.edges_of = table.named_at, table.refused_names_at, table.edges_at

    def get(self, kind: str, name: str, at: int | None = None) -> Fact | None:
        """The fact, or None."""
        version = self._table.version_at(kind, name, self._moment)
        return version.fact(self._moment) if version is not None else None

    def refusal(self, kind: str, name: str, at: int | None = None) -> str | None:
        """The refused document of a thing that had no good version; None: there was none."""
        version = self._table.version_at(kind, name, self._moment)
        return version.refused if version is not None else None

    def refusals(self, kind: str, at: int | None = None) -> list[str]:
        """Names of the refused things of ``kind``."""
        return self._table.refused_at(kind, self._moment)

    def find(self, kind: str, index: str, value: str, at: int | None = None) -> frozenset[str]:
        """Names of the facts of ``kind`` with the key (index, value)."""
        return self._table.found_at(kind, index, value, self._moment)

    def edges(self) -> set[int]:
        """None: it is one moment."""
        return set()


class FactOverlay:
    """The facts of all systems, by system, and what is broken among their documents; see `OverlayTable`."""

    def __init__(self, changes: Iterable[FactChange] = (), all_held_after: int = FUTURE) -> None:
        self._all_held_after = all_held_after
        self._tables: dict[str, OverlayTable] = {}
        self._copies: dict[str, OverlayTable] = {}  # of the tables as they are now
        self._elsewhere: dict[Key, tuple[Place, ...]] = {}  # documents whose facts are not named like themselves
        self._bound: dict[Key, frozenset[str]] = {}
        self.changed_at = SINCE_EVER
        for change in changes:
            self.apply(change)

    def __len__(self) -> int:
        return sum(map(len, self._tables.values())) + len(self._bound)

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_copies": {}}

    def table(self, system: str, moment: int | None = None) -> FactSource:
        """The facts of a system as they are now, whatever is applied later; as they were at a moment (ms)."""
        copy = self._copies.get(system)
        if copy is None:
            copy = self._copies[system] = self._table(system).copy()
        # Of most accesses every change is older: no version has to be looked for.
        return copy if moment is None or moment >= self.changed_at else TableAt(copy, moment)

    @property
    def known_from(self) -> int:
        """From then on (ms) it is known of every moment what the facts of all systems said."""
        return max((table.known_from for table in self._tables.values()), default=FUTURE)

    def _table(self, system: str) -> OverlayTable:
        table = self._tables.get(system)
        if table is None:
            table = self._tables[system] = OverlayTable(self._all_held_after)
        return table

    def bound(self, system: str) -> Mapping[Key, frozenset[str]]:
        """The broken documents of a system, each with the principals that it may have affected."""
        return {key: principals for key, principals in self._bound.items() if key.system == system}

    def copy(self) -> "FactOverlay":
        """The layer as it is, whatever is applied to this one later."""
        other = FactOverlay(all_held_after=self._all_held_after)
        other._tables = {system: table.copy() for system, table in self._tables.items()}
        other._elsewhere, other._bound, other.changed_at = dict(self._elsewhere), dict(self._bound), self.changed_at
        return other

    def sees_all_from_now(self, absent_since: int) -> None:
        """Note that every change is applied from now on. What is not held was not there since a moment (ms)."""
        for system in all_systems():
            self._table(system).sees_all_from_now(absent_since)
        self._copies.clear()

    def apply(self, change: FactChange) -> set[Lookup]:
        """Put what a document says now in the place of what it said. Tables handed out before do not change.

        Returns the lookups that it may answer otherwise from now on.
        """
        key, versions = change.key, _versions(change)
        own = (key.kind, key.name)
        for place in self._elsewhere.pop(key, (own,)):
            versions.setdefault(place, Version(change.at, recorded=_recorded(change)))
        table, changed = self._table(key.system), set[Lookup]()
        for place, version in versions.items():
            changed |= table.lookups_of(*place, version.since) | _lookups(*place, version)
            self.changed_at = max(self.changed_at, table.put(place, version, change.at))
        if versions.keys() != {own}:
            self._elsewhere[key] = tuple(versions)
        before = self._bound.pop(key, None)
        if change.broken:
            self._bound[key] = change.affected_principals
        if before != self._bound.get(key):
            changed.add(BOUND)
        self._copies.pop(key.system, None)
        return changed


def _recorded(change: FactChange) -> int:
    return max(change.at, change.recorded)


def _versions(change: FactChange) -> dict[Place, Version]:
    """What a change says of each thing."""
    kind = all_systems()[change.key.system].kinds.get(change.key.kind)
    field, found = kind.since if kind else "", dict[Place, Version]()
    if not change.facts:
        refused = str(change.key) if change.broken else None
        # Only what says itself since when it holds may say when it ceased to: other facts are dated by the log.
        since = change.at if refused or change.since is None or not field else min(change.since, change.at)
        return {(change.key.kind, change.key.name): Version(since, (), refused, _recorded(change))}
    for fact in change.facts:
        place = (fact.kind, fact.name)
        before = found[place].facts if place in found else ()
        since = getattr(fact.body, field, change.at)
        found[place] = Version(since, (*before, fact), None, _recorded(change))
    return found


def layer_of(store: DocumentStore) -> FactOverlay:
    """The overlay of all documents in a store of facts."""
    return FactOverlay(change_of(key, document_history) for key, document_history in store.histories.items())
