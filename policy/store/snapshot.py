"""A snapshot: everything that decisions are made from, at one moment. Immutable, and plain data when pickled."""

import bisect
import contextlib
import copy
import functools
import gc
import itertools
import math
import operator
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from policy.core.caching import Cache, weight_of_texts
from policy.core.document import Key
from policy.core.facts import Facts, FactTable
from policy.core.model import TIME_NEEDED, CompiledDocument, Grant, Membership, Unanswerable
from policy.core.pattern import Name
from policy.core.times import ALWAYS, Window
from policy.matching.grants import EffectivePermissions, Grants
from policy.store.affected import ALL
from policy.store.delta import PolicySetChange, Refused, SnapshotChange, refused_of
from policy.store.documents import DocumentHistory, DocumentStore, Rejected
from policy.store.memberships import Via, reachable_principals
from policy.store.overlay import FactOverlay, layer_of
from policy.store.packing import pack_grants, pack_memberships, unpack_grants, unpack_memberships
from policy.systems.kit.system import EVERYONE

PRINCIPAL_BYTES = 100  # of an effective principal, beside its name
MANY_OBJECTS = 50_000

Bound = Mapping[Key, frozenset[str]]
"""Broken documents, each with the principals that it may have affected."""

NONE_REFUSED = Refused()

Held = TypeVar("Held", Grant, Membership)


class EffectivePrincipals:
    """Who a subject is within an epoch: its effective principals, and what these may do."""

    def __init__(self, policy_set: "PolicySet", via: Via, at: int | None) -> None:
        self.via = via
        self._policy_set, self._at = policy_set, at

    def grants(self) -> Iterable[Grant]:
        """Every grant held, in force or not."""
        return itertools.chain.from_iterable(self._policy_set.grants.get(principal, ()) for principal in self.via)

    def permissions(self, permission: Name) -> EffectivePermissions:
        """What may be done by one permission."""
        return self._policy_set.index.effective(self.via, permission, self._at)


class PolicySet:
    """One system's part of a snapshot: grants by principal, memberships by member, facts, refused documents."""

    def __init__(self, readings: Iterable[CompiledDocument], facts: FactTable, refused: Refused = NONE_REFUSED) -> None:
        self.grants: dict[str, list[Grant]] = {}
        self.memberships: dict[str, list[Membership]] = {}
        self.facts, self._policy_facts = Facts(facts), facts
        self._take_refused(refused)
        for compiled in readings:
            for grant in compiled.grants:
                self.grants.setdefault(grant.principal, []).append(grant)
            for membership in compiled.memberships:
                self.memberships.setdefault(membership.member, []).append(membership)
        for ways in self.memberships.values():
            if len(ways) > 1:
                ways.sort(key=_by_place)
        self._start()

    def _start(self) -> None:
        self._windows = Counter(_bounded(*self.grants.values(), *self.memberships.values()))
        self.index = Grants(self.grants)
        self._begin()

    def _begin(self) -> None:
        windows = (*self._windows, *(refusal.window for refusal in self._refusals))
        self._held_edges = sorted({edge for window in windows for edge in window.edges})
        self._cached_principals: Cache[tuple[tuple[str, ...], int], EffectivePrincipals] = Cache()

    def with_change(self, change: PolicySetChange) -> "PolicySet":
        """The policy set after a change of documents, without facts of an overlay. This one does not change.

        Both share what is alike: it costs as much as is different, beside copies of a few plain dictionaries.
        """
        other = object.__new__(PolicySet)
        other.grants = _changed(self.grants, change.no_grants, change.grants, _principal)
        other.memberships = _changed(self.memberships, change.no_memberships, change.memberships, _member)
        for member in {way.member for way in change.memberships}:
            other.memberships[member].sort(key=_by_place)
        other._windows = self._windows.copy()
        other._windows.subtract(_bounded(change.no_grants, change.no_memberships))
        other._windows.update(_bounded(change.grants, change.memberships))
        other._windows = +other._windows
        other._take_refused(change.refused or self._refused)
        known = self._policy_facts if change.table is None else change.table
        other._policy_facts = known.with_changes(change.no_facts, change.facts, other._refused.of_facts())
        other.facts = Facts(other._policy_facts)
        other._begin()
        same = not (change.no_grants or change.grants)
        other.index = self.index if same else self.index.with_changes(change.no_grants, change.grants)
        return other

    def says_the_same(self, other: "PolicySet") -> bool:
        """Whether both surely hold the same policies, whatever their facts of a layer: one was made of the other."""
        return (
            self.grants is other.grants
            and self.memberships is other.memberships
            and self._policy_facts is other._policy_facts
            and self._refused is other._refused
        )

    def _take_refused(self, refused: Refused) -> None:
        self._refused, self._policy_broken = refused, {**refused.broken, **refused.nameless}
        self._refusals = refused.for_a_time
        self.broken = _broken(self._policy_broken)

    @functools.cached_property
    def edges(self) -> list[int]:
        """The moments (ms) at which answers may change, rising; computed on demand, which decisions never do."""
        known = self.facts.edges()
        return sorted({*self._held_edges, *known}) if known else self._held_edges

    def __getstate__(self) -> dict[str, Any]:
        kept = ("facts", "broken", "_policy_facts", "_policy_broken", "_refused", "_refusals")
        packed = {"grants": pack_grants(self.grants), "memberships": pack_memberships(self.memberships)}
        return {**packed, **{name: value for name, value in self.__dict__.items() if name in kept}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.grants = unpack_grants(state["grants"])
        self.memberships = unpack_memberships(state["memberships"])
        self._start()

    def with_facts(self, system: str, overlay: FactOverlay, moment: int | None = None) -> "PolicySet":
        """The same with the facts of a layer below those of the policy topics, which win; see `Snapshot.with_facts`.

        What was worked out of grants and memberships is shared.
        """
        other = object.__new__(PolicySet)
        other.__dict__.update(self.__dict__)
        other.__dict__.pop("edges", None)
        other.facts = Facts(self._policy_facts, overlay.table(system, moment))
        other.broken = _broken({**self._policy_broken, **overlay.bound(system)})
        return other

    def refused_documents(self) -> dict[str, frozenset[str]]:
        """The documents that are refused at some moment without a good version, and the principals they affect."""
        found = {str(key): principals for key, principals in self._policy_broken.items()}
        for refusal in self._refusals:
            found[str(refusal.key)] = found.get(str(refusal.key), frozenset()) | refusal.affected_principals
        return found

    def broken_at(self, at: int | None) -> Mapping[str, Key]:
        """Principals that a document refused at ``at`` affects (None: at any moment), each with that one."""
        if not self._refusals:
            return self.broken
        now = (refusal for refusal in self._refusals if at is None or refusal.window.holds(at))
        broken = dict(self.broken)
        for refusal in now:
            for principal in refusal.affected_principals:
                broken[principal] = min(refusal.key, broken.get(principal, refusal.key))
        return broken

    def epoch(self, at: int | None) -> int:
        """How many edges lie behind ``at``: answers do not change within an epoch. -1: unknown."""
        return -1 if at is None else bisect.bisect_right(self.edges, at)

    def held_epoch(self, at: int | None) -> int:
        """The same for what is held: grants and memberships, whatever the facts are."""
        return -1 if at is None else bisect.bisect_right(self._held_edges, at)

    def interval(self, at: int, edges: Collection[int] = ()) -> tuple[int | None, int | None]:
        """Since when and until when (ms; None: for ever) nothing begins or ceases to be in force, around a moment.

        Of the facts ``edges`` alone count, which a decision has read.
        """
        number = bisect.bisect_right(self._held_edges, at)
        since, until = self._held_edges[:number][-1:], self._held_edges[number : number + 1]
        if edges:
            since += [edge for edge in edges if edge <= at]
            until += [edge for edge in edges if edge > at]
        return max(since, default=None), min(until, default=None)

    def effective_principals(self, start: tuple[str, ...], at: int | None) -> EffectivePrincipals:
        """Every principal that ``start`` is, directly or through memberships in force at ``at``.

        Raises Unanswerable when it depends on the time, and that is not known.
        """
        key = (start, self.held_epoch(at))
        found = self._cached_principals.get(key)
        if found is None:
            via = reachable_principals((*start, EVERYONE), self.memberships, lambda window: window.known_to_hold(at))
            if at is None:
                self._check_complete(via)
            found = EffectivePrincipals(self, via, at)
            # The names of the other principals are kept with the documents.
            weight = weight_of_texts(start) + PRINCIPAL_BYTES * len(via)
            self._cached_principals.hold(key, found, weight)
        return found

    def _check_complete(self, via: Via) -> None:
        """Raise Unanswerable if a time-bound membership may lead further than those that always are in force."""
        for member in via:
            for way in self.memberships.get(member, ()):
                if way.principal not in via:
                    raise Unanswerable("time-needed", TIME_NEEDED)


_principal, _member = operator.attrgetter("principal"), operator.attrgetter("member")


def _changed(
    held: Mapping[str, list[Held]], removed: Sequence[Held], added: Sequence[Held], owner: Callable[[Held], str]
) -> dict[str, list[Held]]:
    """What owners hold after a change: their lists are others, all others are the same."""
    less: dict[str, list[Held]] = {}
    more: dict[str, list[Held]] = {}
    for one in removed:
        less.setdefault(owner(one), []).append(one)
    for one in added:
        more.setdefault(owner(one), []).append(one)
    changed = dict(held)
    for name in dict.fromkeys((*less, *more)):
        changed[name] = _left(held.get(name, []), less.get(name, [])) + more.get(name, [])
        if not changed[name]:
            del changed[name]
    return changed


def _left(held: list[Held], removed: list[Held]) -> list[Held]:
    """Without what was removed. Only what its documents say is compared with it: that is little as a rule."""
    documents, gone, kept = {one.statement_id.document for one in removed}, Counter(removed), list[Held]()
    for one in held:
        if one.statement_id.document in documents and gone[one]:
            gone[one] -= 1
        else:
            kept.append(one)
    return kept


def _bounded(*parts: Sequence[Grant] | Sequence[Membership]) -> Iterator[Window]:
    windows = (one.window for part in parts for one in part)
    return (window for window in windows if window is not ALWAYS and window != ALWAYS)


def _by_place(way: Membership) -> tuple[Any, ...]:
    start, end = way.window.start, way.window.end
    return way.principal, way.statement_id.place, -1 if start is None else start, math.inf if end is None else end


def _broken(documents: Bound) -> dict[str, Key]:
    """Principals that refused documents affect, each with the first of these documents."""
    return {principal: key for key in sorted(documents, reverse=True) for principal in documents[key]}


class Snapshot:
    """Compiled policies and facts. ``version``: ``sha256:…`` over the policies, equal for equal documents.

    Threads may share it and take no lock for a decision. What it keeps of what it worked out is complete before it can
    be found, and may be emptied at any time; at worst two threads work out the same.

    ``history_held``: how many superseded versions of documents it holds for decisions that look back.
    """

    def __init__(self, policies: DocumentStore, facts: DocumentStore | None = None) -> None:
        self.version = policies.version()
        self.rejected: tuple[Rejected, ...] = policies.rejected()
        self.warnings = _warnings(policies)
        self.history_held = policies.history_held
        self.policy_sets = {name: _policy_set(name, policies) for name in policies.systems}
        if facts is not None:
            overlay = layer_of(facts)
            self.policy_sets = {
                name: policy_set.with_facts(name, overlay) for name, policy_set in self.policy_sets.items()
            }
        self.answers: dict[Any, Any] = {}  # the caches of `policy.decide`, by what it may rest on

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "answers": {}}

    def with_change(self, change: SnapshotChange) -> "Snapshot":
        """The snapshot after a change of documents; it knows no facts but theirs. This one does not change.

        What it says of documents that are refused or have warnings is left to the caller.
        """
        other = copy.copy(self)
        other.version, other.history_held, other.rejected, other.warnings = change.version, change.history_held, (), ()
        changed = {name: self.policy_sets[name].with_change(part) for name, part in change.policy_sets.items()}
        other.policy_sets = {**self.policy_sets, **changed}
        return other

    def without_findings(self) -> "Snapshot":
        """The same for those who decide: without refusals, warnings, and texts for people."""
        other = copy.copy(self)
        other.rejected, other.warnings = (), ()
        return other

    def with_facts(self, overlay: FactOverlay, moment: int | None = None) -> "Snapshot":
        """The same policies with the facts that a layer has now; what is applied to it later does not show here.

        Indexes are shared. ``moment``: with the facts that were in force then (ms), as far as the layer knows them;
        where it does not, requests that need them are answered ``error``.
        """
        other = copy.copy(self)  # by way of what is pickled: no answers
        other.policy_sets = {
            name: policy_set.with_facts(name, overlay, moment) for name, policy_set in self.policy_sets.items()
        }
        return other


def _policy_set(system: str, policies: DocumentStore) -> PolicySet:
    histories = [document_history for key, document_history in policies.histories.items() if key.system == system]
    refused = refused_of(
        (refusal for document_history in histories for refusal in document_history.refusals()),
        nameless_of(system, policies),
    )
    return PolicySet(
        (document_history.compiled() for document_history in histories), fact_table(histories, refused), refused
    )


def nameless_of(system: str, policies: DocumentStore) -> Mapping[Key, frozenset[str]]:
    """The documents of which every request of a system is answered ``error``: they do not say which they are."""
    return {_key_of(rejected): ALL for rejected, systems in policies.nameless.items() if system in systems}


def _key_of(rejected: Rejected) -> Key:
    """Of what says no key: as far as it does."""
    return Key(*(*rejected.key.split("/", 2), "?", "?")[:3])


def fact_table(histories: Iterable[DocumentHistory], refused: Refused = NONE_REFUSED) -> FactTable:
    """The facts of these documents; of one thing the last one counts."""
    table = FactTable(fact for document_history in histories for fact in document_history.compiled().facts)
    return table.with_changes((), (), refused.of_facts())


def _warnings(policies: DocumentStore) -> tuple[tuple[str, str], ...]:
    """(document, warning) pairs of all documents in force, sorted."""
    histories = policies.histories.items()
    return tuple(
        sorted((str(key), text) for key, document_history in histories for text in document_history.compiled().warnings)
    )


def compile_documents(documents: Iterable[object]) -> Snapshot:
    """Compile documents (dicts in the form of contracts.md) in any order.

    Refused ones are listed in ``snapshot.rejected``, each with ``key`` and ``errors``.
    """
    store = DocumentStore()
    with _without_collections():
        for document in documents:
            store.put(document)
        return Snapshot(store)


@contextlib.contextmanager
def _without_collections() -> Iterator[None]:
    """All that is made here stays, and holds no cycles: to search it for some again and again takes a quarter.

    Many new objects are not searched as new afterwards either: unfrozen objects count as old ones. Few are, as all that
    a process has frozen is walked to count it.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        # The caller may keep objects frozen: `unfreeze` would let go of them.
        if gc.get_count()[0] > MANY_OBJECTS and not gc.get_freeze_count():
            gc.freeze()
            gc.unfreeze()
        if was_enabled:
            gc.enable()
