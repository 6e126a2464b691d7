"""A snapshot: everything that decisions are made from, at one moment. Immutable, and plain data when pickled."""

import bisect
import copy
import functools
import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from policy.affected import ALL
from policy.caching import Cache, weight_of_texts
from policy.documents import Key
from policy.facts import Facts, FactTable
from policy.grants import EffectivePermissions, Grants
from policy.index import Place
from policy.layer import FactLayer, layer_of
from policy.library import Library, Refusal, Rejected, Shelf
from policy.model import TIME_NEEDED, Grant, Membership, Reading, Unanswerable
from policy.packing import pack_grants, pack_memberships, unpack_grants, unpack_memberships
from policy.patterns import Name
from policy.system import EVERYONE
from policy.systems import all_systems
from policy.times import ALWAYS

HOLDER_BYTES = 100  # of one in a standing, beside its name

Bound = Mapping[Key, frozenset[str]]
"""Broken documents, each with the holders that it would have bound."""

Via = Mapping[str, Membership | None]  # holder -> the membership by which it was reached


class Standing:
    """Who a subject is within an epoch: its effective principals, and what these may do."""

    def __init__(self, realm: "Realm", via: Via, at: int | None) -> None:
        self.via = via
        self._realm, self._at, self._epoch = realm, at, realm.held_epoch(at)
        self._held = realm.index.held_by(via)
        self._permissions: dict[Place[int], EffectivePermissions] = {}

    def grants(self) -> Iterable[Grant]:
        """Every grant held, in force or not."""
        return itertools.chain.from_iterable(self._realm.grants.get(holder, ()) for holder in self.via)

    def permissions(self, permission: Name) -> EffectivePermissions:
        """What may be done by one permission."""
        index = self._realm.index
        patterns = index.permission(permission)
        found = self._permissions.get(patterns)
        if found is None:
            found = self._permissions[patterns] = index.effective(self._held, patterns, self._at, self._epoch)
        return found


class Realm:
    """One system's part of a snapshot: grants by holder, memberships by member, facts, refused documents."""

    def __init__(
        self, readings: Iterable[Reading], facts: FactTable, broken: Bound, refusals: Iterable[Refusal] = ()
    ) -> None:
        self.grants: dict[str, list[Grant]] = {}
        self.memberships: dict[str, list[Membership]] = {}
        self.facts = Facts(facts)
        self.broken = _broken(broken)
        self._refusals = tuple(sorted(refusals, key=lambda refusal: refusal.key, reverse=True))
        self._policy_facts, self._policy_broken = facts, broken
        for reading in readings:
            for grant in reading.grants:
                self.grants.setdefault(grant.holder, []).append(grant)
            for membership in reading.memberships:
                self.memberships.setdefault(membership.member, []).append(membership)
        for ways in self.memberships.values():
            if len(ways) > 1:
                ways.sort(key=_by_place)
        self._start()

    def _start(self) -> None:
        self._held_edges = sorted(set(self._edges()))
        self._standings: Cache[tuple[tuple[str, ...], int], Standing] = Cache()
        self.index = Grants(self.grants)

    def _edges(self) -> Iterable[int]:
        windows = {grant.window for grants in self.grants.values() for grant in grants}
        windows |= {membership.window for ways in self.memberships.values() for membership in ways}
        windows |= {refusal.window for refusal in self._refusals}
        yield from (edge for window in windows for edge in (window.start, window.end) if edge is not None)

    @functools.cached_property
    def edges(self) -> list[int]:
        """The moments (ms) at which answers may change, rising; worked out when asked for, which decisions never do."""
        known = self.facts.edges()
        return sorted({*self._held_edges, *known}) if known else self._held_edges

    def __getstate__(self) -> dict[str, Any]:
        kept = ("facts", "broken", "_policy_facts", "_policy_broken", "_refusals")
        packed = {"grants": pack_grants(self.grants), "memberships": pack_memberships(self.memberships)}
        return {**packed, **{name: value for name, value in self.__dict__.items() if name in kept}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.grants = unpack_grants(state["grants"])
        self.memberships = unpack_memberships(state["memberships"])
        self._start()

    def with_facts(self, system: str, layer: FactLayer, moment: int | None = None) -> "Realm":
        """The same with the facts of a layer below those of the policy topics, which win; see `Snapshot.with_facts`.

        What was worked out of grants and memberships is shared.
        """
        other = object.__new__(Realm)
        other.__dict__.update(self.__dict__)
        other.__dict__.pop("edges", None)
        other.facts = Facts(self._policy_facts, layer.table(system, moment))
        other.broken = _broken({**self._policy_broken, **layer.bound(system)})
        return other

    def broken_at(self, at: int | None) -> Mapping[str, str]:
        """Holders that are bound by a document which is broken at ``at`` (None: at any moment), each with that one."""
        if not self._refusals:
            return self.broken
        now = (refusal for refusal in self._refusals if at is None or refusal.window.holds(at))
        return {**{holder: str(refusal.key) for refusal in now for holder in refusal.binds}, **self.broken}

    def epoch(self, at: int | None) -> int:
        """How many edges lie behind ``at``: answers do not change within an epoch. -1: unknown."""
        return -1 if at is None else bisect.bisect_right(self.edges, at)

    def held_epoch(self, at: int | None) -> int:
        """The same for what is held: grants and memberships, whatever the facts are."""
        return -1 if at is None else bisect.bisect_right(self._held_edges, at)

    def interval(self, at: int, edges: Iterable[int] = ()) -> tuple[int | None, int | None]:
        """Since when and until when (ms; None: for ever) nothing begins or ceases to be in force, around a moment.

        Of the facts ``edges`` alone count, which a decision has read.
        """
        number = bisect.bisect_right(self._held_edges, at)
        since, until = self._held_edges[:number][-1:], self._held_edges[number : number + 1]
        since += [edge for edge in edges if edge <= at]
        until += [edge for edge in edges if edge > at]
        return max(since, default=None), min(until, default=None)

    def standing(self, start: tuple[str, ...], at: int | None) -> Standing:
        """Every holder that ``start`` is, directly or through memberships in force at ``at``.

        Raises Unanswerable when it depends on the time, and that is not known.
        """
        key = (start, self.held_epoch(at))
        standing = self._standings.get(key)
        if standing is None:
            via = self._walk((*start, EVERYONE), at)
            if at is None:
                self._check_complete(via)
            standing = Standing(self, via, at)
            weight = weight_of_texts(start) + HOLDER_BYTES * len(via)  # names of other holders are those of documents
            self._standings.hold(key, standing, weight)
        return standing

    def _walk(self, start: tuple[str, ...], at: int | None) -> Via:
        """Every holder on the shortest way, of several the first by name: the same whatever the order of documents."""
        via: dict[str, Membership | None] = dict.fromkeys(start)
        level = list(via)
        while level:
            reached = [way for member in level for way in self._ways(member, at)]
            level = []
            for way in reached:
                if way.holder not in via:
                    via[way.holder] = way
                    level.append(way.holder)
        return via

    def _ways(self, member: str, at: int | None) -> Iterator[Membership]:
        """The memberships in force at ``at``; the time not known, those that always are."""
        for way in self.memberships.get(member, ()):
            if way.window is ALWAYS or (way.window == ALWAYS if at is None else way.window.holds(at)):
                yield way

    def _check_complete(self, via: Via) -> None:
        """Raise Unanswerable if a time-bound membership may lead further than those that always are in force."""
        for member in via:
            for way in self.memberships.get(member, ()):
                if way.holder not in via:
                    raise Unanswerable("time-needed", TIME_NEEDED)


def _by_place(way: Membership) -> tuple[str, Any]:
    return way.holder, way.origin.place


def _broken(documents: Bound) -> dict[str, str]:
    """Holders that are bound by broken documents, each with the one that is told: of several the first."""
    return {holder: str(key) for key in sorted(documents, reverse=True) for holder in documents[key]}


class Snapshot:
    """Compiled policies and facts. ``version``: ``sha256:…`` over the policies, equal for equal documents.

    Threads may share it and take no lock for a decision. What it keeps of what it worked out is complete before it can
    be found, and may be emptied at any time; at worst two threads work out the same.

    ``history_held``: how many superseded versions of documents it holds for decisions that look back.
    """

    def __init__(self, policies: Library, facts: Library | None = None) -> None:
        self.version = policies.version()
        self.rejected: tuple[Rejected, ...] = policies.rejected()
        self.warnings = _warnings(policies)
        self.history_held = policies.history_held
        layer = layer_of(facts) if facts else FactLayer()
        self.realms = {name: _realm(name, policies).with_facts(name, layer) for name in all_systems()}
        self.prepared: dict[Any, Any] = {}  # what `policy.decide` keeps

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "prepared": {}}

    def with_facts(self, layer: FactLayer, moment: int | None = None) -> "Snapshot":
        """The same policies with the facts that a layer has now; what is applied to it later does not show here.

        Indexes are shared. ``moment``: with the facts that were in force then (ms), as far as the layer knows them;
        where it does not, requests that need them are answered ``error``.
        """
        other = copy.copy(self)  # by way of what is pickled: nothing prepared
        other.realms = {name: realm.with_facts(name, layer, moment) for name, realm in self.realms.items()}
        return other


def _realm(system: str, policies: Library) -> Realm:
    shelves = [shelf for key, shelf in policies.shelves.items() if key.system == system]
    refusals = [refusal for shelf in shelves for refusal in shelf.refusals()]
    broken = {refusal.key: refusal.binds for refusal in refusals if refusal.window is ALWAYS}
    for_a_time = [refusal for refusal in refusals if refusal.window is not ALWAYS]
    table = _table(shelves, broken, for_a_time)
    broken |= {_key_of(rejected): ALL for rejected, systems in policies.nameless.items() if system in systems}
    return Realm((shelf.reading() for shelf in shelves), table, broken, for_a_time)


def _key_of(rejected: Rejected) -> Key:
    """Of what says no key: as far as it does."""
    return Key(*(*rejected.key.split("/", 2), "?", "?")[:3])


def _table(shelves: list[Shelf], broken: Iterable[Key], for_a_time: Iterable[Refusal]) -> FactTable:
    refused = {(key.kind, key.name): str(key) for key in broken}
    table = FactTable((fact for shelf in shelves for fact in shelf.reading().facts), refused)
    for refusal in for_a_time:
        table.refuse(refusal.key.kind, refusal.key.name, str(refusal.key), refusal.window)
    return table


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
