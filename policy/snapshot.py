"""A snapshot: everything that decisions are made from, at one moment. Immutable, and plain data when pickled."""

import bisect
from collections.abc import Iterable, Mapping
from typing import Any

from policy.facts import Facts, FactTable
from policy.library import Library, Rejected
from policy.model import Grant, Membership, Reading, Unanswerable
from policy.patterns import Name, PatternIndex, matches
from policy.system import EVERYONE
from policy.systems import all_systems
from policy.times import ALWAYS, Window

CACHED = 50_000  # entries a cache may hold before it is emptied
MERGED_UP_TO = 2_000  # grants of one holder; with more its index is shared instead of merged into others

Path = Mapping[str, Membership | None]  # holder -> the membership by which it was reached


class Realm:
    """One system's part of a snapshot: grants by holder, memberships by member, facts, refused documents."""

    def __init__(self, readings: Iterable[Reading], facts: Facts, broken: Mapping[str, str]) -> None:
        self.grants: dict[str, list[Grant]] = {}
        self.memberships: dict[str, list[Membership]] = {}
        self.facts = facts
        self.broken = dict(broken)
        for reading in readings:
            for grant in reading.grants:
                self.grants.setdefault(grant.holder, []).append(grant)
            for membership in reading.memberships:
                self.memberships.setdefault(membership.member, []).append(membership)
        self._start()

    def _start(self) -> None:
        self.edges = sorted(set(self._edges()))
        self._paths: dict[tuple[tuple[str, ...], int], Path] = {}
        self._indexes: dict[tuple[tuple[str, ...], Name], PatternIndex[Grant]] = {}

    def _edges(self) -> Iterable[int]:
        windows = {grant.window for grants in self.grants.values() for grant in grants}
        windows |= {membership.window for ways in self.memberships.values() for membership in ways}
        yield from (edge for window in windows for edge in (window.start, window.end) if edge is not None)

    def __getstate__(self) -> dict[str, Any]:
        kept = ("grants", "memberships", "facts", "broken")
        return {name: value for name, value in self.__dict__.items() if name in kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._start()

    def epoch(self, at: int | None) -> int:
        """The number of validity edges passed at ``at``: answers do not change within an epoch; -1: unknown."""
        return -1 if at is None else bisect.bisect_right(self.edges, at)

    def reach(self, start: tuple[str, ...], at: int | None) -> Path:
        """Every holder that ``start`` is, directly or through memberships in force at ``at``."""
        key = (start, self.epoch(at))
        if (path := self._paths.get(key)) is None:
            _make_room(self._paths)
            path = self._paths[key] = self._walk(start, at)
        return path

    def _walk(self, start: tuple[str, ...], at: int | None) -> Path:
        path: dict[str, Membership | None] = dict.fromkeys((*start, EVERYONE))
        todo = list(path)
        while todo:
            for membership in self.memberships.get(todo.pop(), ()):
                if membership.holder not in path and in_force(membership.window, at):
                    path[membership.holder] = membership
                    todo.append(membership.holder)
        return path

    def grants_on(self, path: Path, permission: Name, object_: Name, at: int | None) -> list[Grant]:
        """The grants in force of the holders of ``path`` that match permission and object."""
        holders = [holder for holder in path if holder in self.grants]
        small = tuple(holder for holder in holders if len(self.grants[holder]) <= MERGED_UP_TO)
        found = self._index(small, permission).find(object_) if small else []
        for holder in holders:
            if len(self.grants[holder]) > MERGED_UP_TO:
                found += self._index((holder,), permission).find(object_)
        return [grant for grant in found if grant.window is ALWAYS or in_force(grant.window, at)]

    def _index(self, holders: tuple[str, ...], permission: Name) -> PatternIndex[Grant]:
        index = self._indexes.get((holders, permission))
        if index is None:
            _make_room(self._indexes)
            index = self._indexes[holders, permission] = PatternIndex()
            for grant in (grant for holder in holders for grant in self.grants[holder]):
                if matches(grant.permission, permission):
                    index.add(grant.object, grant)
        return index


def in_force(window: Window, at: int | None) -> bool:
    """Whether ``window`` holds at ``at``; raises Unanswerable when it matters and the time is not known."""
    if window == ALWAYS:
        return True
    if at is None:
        raise Unanswerable("time-needed", "a time-bound document applies, and the request does not say its time")
    return window.holds(at)


def _make_room(cache: dict[Any, Any]) -> None:
    if len(cache) >= CACHED:
        cache.clear()


class Snapshot:
    """Compiled policies and facts. ``version``: ``sha256:…`` over the policies, equal for equal documents."""

    def __init__(self, policies: Library, facts: Library | None = None) -> None:
        self.version = policies.version()
        self.rejected: tuple[Rejected, ...] = policies.rejected()
        self.warnings = _warnings(policies)
        self.realms = {name: _realm(name, policies, facts or Library(facts_only=True)) for name in all_systems()}


def _realm(system: str, policies: Library, facts: Library) -> Realm:
    shelves = [shelf for key, shelf in policies.shelves.items() if key.system == system]
    upper = [shelf for key, shelf in facts.shelves.items() if key.system == system]
    readings = [shelf.reading() for shelf in shelves]
    tables = [FactTable(f for r in layer for f in r.facts) for layer in (readings, [s.reading() for s in upper])]
    broken = [shelf for shelf in (*shelves, *upper) if shelf.broken]
    lost = {(shelf.key.kind, shelf.key.name): str(shelf.key) for shelf in broken}
    bound = {holder: str(shelf.key) for shelf in broken for holder in shelf.binds}
    return Realm(readings, Facts(*tables, broken=lost), bound)


def _warnings(policies: Library) -> tuple[tuple[str, str], ...]:
    """(document, warning) pairs of all documents in force, sorted."""
    shelves = policies.shelves.items()
    return tuple(sorted((str(key), text) for key, shelf in shelves for text in shelf.reading().warnings))


def compile_documents(documents: Iterable[object]) -> Snapshot:
    """Compile documents (dicts in the form of contracts.md) in any order.

    Refused ones are listed in ``snapshot.rejected``, each with ``key`` and ``errors``.
    """
    library = Library()
    for document in documents:
        library.put(document)
    return Snapshot(library)
