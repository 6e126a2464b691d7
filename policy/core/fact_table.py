"""The facts of one layer: what the policy topics say of things, or what the facts topic does.

A table answers for now, and for moments of the past: it keeps superseded versions of things up to a number of them,
because a past access is evaluated with the facts known of its time. `FactTable.at` answers for one moment; it raises
Unanswerable for what is not known any more, and never guesses.
"""

import collections
import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from policy.core.document import SINCE_EVER
from policy.core.model import NO_LONGER_KNOWN, Fact, Unanswerable
from policy.core.persistent import Names, PersistentMap
from policy.core.times import ALWAYS, Window, to_text

SUPERSEDED_KEPT = 50_000  # versions of one system's facts that are not in force any more
VERSIONS_KEPT = 64  # of one thing
FUTURE = 1 << 62  # nothing is known before it

Thing = tuple[str, str]
"""Kind and name."""

Lookup = tuple[str, ...]
"""What was looked up: ``("name", kind, name)``, ``("key", kind, index, value)`` or ``("refused", kind)``."""


class FactVersion(msgspec.Struct, frozen=True, gc=False):
    """What is known of one thing from the moment ``since`` (ms) on: its facts and refusals; none: it is not there.

    There are several facts where its document has versions that say themselves when each is in force. ``refusals``:
    when no good version of its document stands, and that document. ``recorded``: when the log said all this, ms: a
    login is in force since it happened, and becomes known later.
    """

    since: int = SINCE_EVER
    facts: tuple[Fact, ...] = ()
    refusals: tuple[tuple[Window, str], ...] = ()
    recorded: int = SINCE_EVER

    @property
    def is_empty(self) -> bool:
        """Whether the thing is not there."""
        return not self.facts and not self.refusals

    @property
    def keys(self) -> set[tuple[str, str]]:
        """Under which it is looked up."""
        return {key for fact in self.facts for key in fact.keys}

    @property
    def lasts(self) -> bool:
        """Whether it says the same at every moment of its own."""
        return all(fact.timeless for fact in self.facts) and all(window is ALWAYS for window, _ in self.refusals)

    @property
    def edges(self) -> set[int]:
        """The moments (ms) at which its facts and refusals begin or cease to count."""
        windows = (*(fact.window for fact in self.facts), *(window for window, _ in self.refusals))
        events = {fact.not_before for fact in self.facts if fact.not_before is not None}
        return events.union(*(window.edges for window in windows))

    def fact(self, at: int | None) -> Fact | None:
        """The fact that counts at a moment (ms; None: not known, which raises Unanswerable where it matters)."""
        for fact in self.facts:
            if fact.timeless or fact.counts(at):
                return fact
        return None

    def refusal(self, at: int | None) -> str | None:
        """The document that is refused at a moment (ms; None: at any)."""
        return next((document for window, document in self.refusals if at is None or window.holds(at)), None)

    def differs(self, before: "FactVersion") -> bool:
        """Whether it says something else than the one before; a deletion also by saying since when it holds."""
        if (before.facts, before.refusals) != (self.facts, self.refusals):
            return True
        return self.is_empty and self.since != self.recorded and before.since != self.since

    def lookups(self, thing: Thing) -> set[Lookup]:
        """Those by which it is found, or that it is refused."""
        kind, name = thing
        lookups: set[Lookup] = {("name", kind, name), *(("key", kind, *key) for key in self.keys)}
        return lookups | {("refused", kind)} if self.refusals else lookups


class _Versions(msgspec.Struct, frozen=True, gc=False):
    """The versions of one thing in the order of the log. ``known_from``: before this moment (ms) there may have been
    others.
    """

    newest: FactVersion
    older: tuple[FactVersion, ...] = ()
    known_from: int = SINCE_EVER

    def at(self, moment: int) -> FactVersion | None:
        """The version in force at a moment (ms), None: it was before all of these.

        It is the last one that was recorded by then. One that was recorded later counts if it had begun by then, and
        no earlier than that one: logins are reported late, and not always in their order.
        """
        in_force: FactVersion | None = None
        for version in (*self.older, self.newest):
            later = in_force is None or version.recorded <= moment or version.since >= in_force.since
            if version.since <= moment and later:
                in_force = version
        return in_force

    def edges(self) -> set[int]:
        """The moments (ms) at which another version comes into force, or what one says begins or ceases to count."""
        versions = (*self.older, self.newest)
        begun = itertools.accumulate((version.since for version in versions), max)
        late = {version.recorded for version, since in zip(versions, begun, strict=True) if version.since < since}
        return late.union((version.since for version in versions), *(version.edges for version in versions))


class FactTable:
    """Empty at first, changed by `put`. A copy costs the root of the number of facts, see `policy.core.persistent`.

    ``superseded_kept``: so many versions that are not in force any more. ``all_after``: the log's records after that
    moment (ms) are all there, also when it is read for the first time; before it compaction may have removed some.
    """

    def __init__(self, superseded_kept: int | None = None, all_after: int = FUTURE) -> None:
        self._moment: int | None = None
        self._kinds: dict[str, PersistentMap[str, _Versions]] = {}
        self._names = Names()  # by the keys of the facts in force
        self._past_names = Names()  # by the keys of the others
        self._refused: PersistentMap[Thing, None] = PersistentMap()
        self._once_refused: PersistentMap[Thing, None] = PersistentMap()
        self._dated: PersistentMap[Thing, None] = PersistentMap()  # things of which not all counts at every moment
        self._superseded: collections.deque[Thing] = collections.deque()
        self._superseded_kept = SUPERSEDED_KEPT if superseded_kept is None else superseded_kept
        self._known_from: dict[str, int] = {}  # by kind: from then on (ms) every version of all its facts is kept
        self._all_from = FUTURE  # what is not there was not there since then (ms)
        self._all_after = all_after
        self._size = 0

    def __getstate__(self) -> dict[str, object]:
        """Most things have one version alone: these are packed, and indexes are made again."""
        single: dict[str, list[tuple[FactVersion, int]]] = {}
        others: dict[str, dict[str, _Versions]] = {}
        for kind, things in self._kinds.items():
            single[kind], others[kind] = [], {}
            for name, versions in things.items():
                if versions.older or not versions.newest.facts:
                    others[kind][name] = versions
                else:
                    single[kind].append((versions.newest, versions.known_from))
        left_out = ("_kinds", "_names", "_past_names")
        state = {name: value for name, value in self.__dict__.items() if name not in left_out}
        return {**state, "single": single, "others": others}

    def __setstate__(self, state: dict[str, Any]) -> None:
        single, others = state.pop("single"), state.pop("others")
        self.__dict__.update(state)
        self._kinds = {}
        for kind, packed in single.items():
            things = {newest.facts[0].name: _Versions(newest, known_from=known_from) for newest, known_from in packed}
            self._kinds[kind] = PersistentMap({**things, **others[kind]})
        everything = [(kind, name, of) for kind, things in self._kinds.items() for name, of in things.items()]
        self._names = Names(((kind, *key), name) for kind, name, of in everything for key in of.newest.keys)
        past = ((kind, name, version) for kind, name, of in everything for version in of.older)
        self._past_names = Names(((kind, *key), name) for kind, name, version in past for key in version.keys)

    def copy(self) -> "FactTable":
        """The table as it is, whatever is put into this one later.

        It does not know in which order versions were superseded: of its own changes it keeps as many as any table.
        """
        other = self._alias()
        other._kinds = {kind: things.copy() for kind, things in self._kinds.items()}
        other._names, other._past_names = self._names.copy(), self._past_names.copy()
        other._refused, other._once_refused = self._refused.copy(), self._once_refused.copy()
        other._dated, other._superseded = self._dated.copy(), collections.deque()
        other._known_from = dict(self._known_from)
        return other

    def at(self, moment: int) -> "FactTable":
        """What was known at a moment (ms), of a table that does not change any more."""
        other = self._alias()
        other._moment = moment
        return other

    def _alias(self) -> "FactTable":
        other = object.__new__(FactTable)
        other.__dict__.update(self.__dict__)
        return other

    def sees_all_from_now(self, absent_since: int) -> None:
        """Note that all changes are put from now on; what is not there was not there since a moment (ms)."""
        self._all_after, self._all_from = SINCE_EVER - 1, absent_since

    def put(self, thing: Thing, version: FactVersion, at: int = SINCE_EVER) -> int:
        """Note what is known of a thing now, at a moment of the log (ms). Returns from when on (ms) it is in force."""
        kind, name = thing
        if len(self._dated):
            self._dated.discard(thing)
        if not version.lasts:
            self._dated[thing] = None
        things = self._kinds.get(kind)
        if things is None:
            things = self._kinds[kind] = PersistentMap()
        before = things.get(name)
        if before is None:
            self._put_first(thing, things, version, at > self._all_after)
        elif version.differs(before.newest):
            self._supersede(thing, things, before, version)
        while len(self._superseded) > self._superseded_kept:
            self._drop_oldest(self._superseded.popleft())
        is_late = before is not None and any(version.since < other.since for other in (before.newest, *before.older))
        return max(version.since, version.recorded) if is_late else version.since

    def _put_first(
        self, thing: Thing, things: PersistentMap[str, _Versions], version: FactVersion, complete: bool
    ) -> None:
        if version.is_empty and complete:
            return
        # Below a refused one a good version may have been in force, which compaction has removed.
        known_from = FUTURE if version.refusals else version.since
        things[thing[1]] = _Versions(version, known_from=SINCE_EVER if complete else known_from)
        if not complete:
            self._settle(thing[0], version.since)
        self._index(thing, version)

    def _supersede(
        self, thing: Thing, things: PersistentMap[str, _Versions], before: _Versions, version: FactVersion
    ) -> None:
        kind, name = thing
        self._unindex(thing, before.newest)
        known_from = before.known_from if before.known_from < FUTURE else version.since
        things[name] = _Versions(version, (*before.older, before.newest), known_from)
        for key in before.newest.keys:
            self._past_names.add((kind, *key), name)
        self._index(thing, version)
        self._superseded.append(thing)
        if len(before.older) >= VERSIONS_KEPT:
            self._drop_oldest(thing)

    def _index(self, thing: Thing, version: FactVersion) -> None:
        if version.refusals:
            self._refused[thing] = self._once_refused[thing] = None
        if version.facts:
            self._size += 1
            for key in version.keys:
                self._names.add((thing[0], *key), thing[1])

    def _unindex(self, thing: Thing, version: FactVersion) -> None:
        self._refused.discard(thing)
        if version.facts:
            self._size -= 1
            for key in version.keys:
                self._names.discard((thing[0], *key), thing[1])

    def _drop_oldest(self, thing: Thing) -> None:
        kind, name = thing
        versions = self._kinds[kind].get(name)
        if versions is None or not versions.older:
            return
        oldest, *older = versions.older
        for key in oldest.keys.difference(*(version.keys for version in older)):
            self._past_names.discard((kind, *key), name)
        following = older[0] if older else versions.newest
        since = following.since if following.since >= oldest.since else following.recorded
        if not older and versions.newest.is_empty:
            self._kinds[kind].discard(name)
            self._once_refused.discard(thing)
            self._all_from = max(self._all_from, since)
        else:
            known_from = max(versions.known_from, since)
            self._kinds[kind][name] = _Versions(versions.newest, tuple(older), known_from)
        self._settle(kind, since)

    def _settle(self, kind: str, since: int) -> None:
        self._known_from[kind] = max(self._known_from.get(kind, since), since)

    def __len__(self) -> int:
        return self._size

    @property
    def timeless(self) -> bool:
        """Whether all of it counts at every moment."""
        return self._moment is None and not len(self._dated)

    @property
    def known_from(self) -> int:
        """From then on (ms) it is known of every moment what the facts said."""
        return max(self._all_from, *self._known_from.values()) if self._known_from else self._all_from

    def _all_versions(self, kind: str, name: str) -> _Versions | None:
        things = self._kinds.get(kind)
        return things.get(name) if things is not None else None

    def _version(self, kind: str, name: str) -> FactVersion | None:
        """What is known of a thing; None: nothing. Raises Unanswerable when that is not known any more."""
        versions, moment = self._all_versions(kind, name), self._moment
        if moment is None:
            return versions.newest if versions is not None else None
        version = versions.at(moment) if versions is not None else None
        unknown = versions is not None and moment < versions.known_from
        if unknown or (version is None and moment < self._all_from):
            raise _no_longer_known(f"{kind} {name}", moment)
        return version

    def _check_all(self, kind: str) -> None:
        moment = self._moment
        if moment is not None and moment < max(self._all_from, self._known_from.get(kind, self._all_from)):
            raise _no_longer_known(f"every {kind}", moment)

    def get(self, kind: str, name: str, at: int | None = None) -> Fact | None:
        """The fact that counts at a moment (ms; None: not known), or None. A table of the past has its own moment."""
        version = self._version(kind, name)
        return version.fact(at if self._moment is None else self._moment) if version is not None else None

    def refusal(self, kind: str, name: str, at: int | None = None) -> str | None:
        """The refused document of a thing that has no good version; None: there is none."""
        if self._moment is None and not len(self._refused):
            return None
        version = self._version(kind, name)
        return version.refusal(at if self._moment is None else self._moment) if version is not None else None

    def refusals(self, kind: str, at: int | None = None) -> list[str]:
        """Names of the refused things of ``kind``."""
        self._check_all(kind)
        return [name for name in self.refused_names(kind) if self.refusal(kind, name, at) is not None]

    def find(self, kind: str, index: str, value: str, at: int | None = None) -> frozenset[str]:
        """Names of the facts of ``kind`` with the key (index, value)."""
        self._check_all(kind)
        names = self.named(kind, index, value)
        if self.timeless:
            return names
        facts = ((name, self.get(kind, name, at)) for name in names)
        return frozenset(name for name, fact in facts if fact is not None and (index, value) in fact.keys)

    def named(self, kind: str, index: str, value: str) -> frozenset[str]:
        """Names of the facts of ``kind`` with the key (index, value) at some moment."""
        names = self._names.find((kind, index, value))
        return names if self._moment is None else names | self._past_names.find((kind, index, value))

    def refused_names(self, kind: str) -> list[str]:
        """Names of the things of ``kind`` that are refused at some moment."""
        refused = self._refused if self._moment is None else self._once_refused
        return [name for other, name in refused if other == kind]

    def edges(self) -> set[int]:
        """The moments (ms) at which a fact or a refusal begins or ceases to count; none in a table of the past."""
        if self._moment is not None:
            return set()
        return set[int]().union(*(self.edges_of(*thing) for thing in self._dated))

    def edges_of(self, kind: str, name: str) -> set[int]:
        """The same of one thing; in a table of the past also those at which something else became known of it."""
        versions = self._all_versions(kind, name)
        if versions is None:
            return set()
        return versions.newest.edges if self._moment is None else versions.edges()

    def lookups_of(self, thing: Thing, since: int) -> set[Lookup]:
        """The lookups that find a thing, or that it is refused, now or at a moment from ``since`` (ms) on."""
        of = self._all_versions(*thing)
        if of is None:
            return set()
        versions = (of.newest, *(version for version in of.older if version.since >= since), of.at(since))
        return set[Lookup]().union(*(version.lookups(thing) for version in versions if version is not None))

    # For tools, not for decisions: these are slow.

    def kinds(self) -> set[str]:
        """The kinds of all facts now."""
        return {kind for kind in self._kinds if next(iter(self.all(kind)), None) is not None}

    def names(self, kind: str) -> list[str]:
        """Names of all facts of ``kind`` now, sorted."""
        return sorted({fact.name for fact in self.all(kind)})

    def all(self, kind: str) -> Iterator[Fact]:
        """All facts of ``kind`` now, in force at whatever moment, in no particular order."""
        things: Iterable[_Versions] = self._kinds[kind].values() if kind in self._kinds else ()
        return (fact for versions in things for fact in versions.newest.facts)

    def versions(self, kind: str, name: str) -> tuple[Fact, ...]:
        """All facts of one thing now, each in force for a time."""
        versions = self._all_versions(kind, name)
        return versions.newest.facts if versions is not None else ()


def _no_longer_known(what: str, moment: int) -> Unanswerable:
    return Unanswerable(NO_LONGER_KNOWN, f"what the facts said of {what} at {to_text(moment)} is not known any more")
