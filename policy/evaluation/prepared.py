"""Prepared queries: all that an answer rests on, worked out once for requests that differ in their resource's id alone.

A query is prepared from one request. Where its system reads nothing else by the resource's id than its name, or does
not read it at all, the answers to all ids are prepared with it; else the answer to this id is. What is prepared holds
in an interval of time, in which nothing that it rests on begins or ceases to be in force, and as long as no fact
changes that it has read.
"""

import functools
import sys
from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar, cast

import msgspec

from policy.core.caching import BUDGET, ENTRY_BYTES
from policy.core.decision import Decision
from policy.core.facts import BOUND, Lookup, Reads
from policy.core.model import Expression, Grant, PermissionCheck
from policy.core.names import is_simple
from policy.core.request import CLAIMS, Request, usable_time
from policy.evaluation.evaluate import ResolvedQuery, conclude, failed, leaf, resolve
from policy.evaluation.trace import EvaluationTrace
from policy.matching.grants import EffectivePermissions
from policy.store.memberships import Via
from policy.store.snapshot import Snapshot
from policy.systems.kit.query import check_name
from policy.systems.kit.system import NamesResourceTwice, ObjectOf, System

ANSWER_BYTES = 1_500  # of an answer, beside what it says of the resource
QUERY_BYTES = 2_000  # of a query that keeps the evidence for its answers, beside its key
READER_BYTES = 150  # of a lookup that it has made
BOUND_ALONE = (BOUND,)


class CachedQuery:
    """What `PreparedQueries` keeps. ``reads``: what it has read of the facts. ``weight``: the bytes that the budget
    counts for it and its answers.
    """

    __slots__ = ("reads", "system", "weight")

    def __init__(self, system: str, reads: tuple[Lookup, ...]) -> None:
        self.system, self.reads, self.weight = system, reads, 0

    def holds(self, at: int | None) -> bool:
        """Whether it answers for a moment (ms; None: not known)."""
        raise NotImplementedError

    def spend(self, weight: int) -> None:
        """Count the bytes of what is about to be kept with it."""
        BUDGET.spend(weight)
        self.weight += weight

    def release(self) -> None:
        """Count its bytes no more: it is not kept any longer."""
        BUDGET.release(self.weight)
        self.weight = 0


class PreparedQuery(CachedQuery):
    """The answers to a query. Threads may share it: what it answers never changes.

    ``resource``: the id of the resource of the request that it was made from. ``repeats_id``: exactly one of its
    resource's properties is the id, and its key has there that it is: it answers for requests that repeat theirs in the
    same property.
    ``since``, ``until``: its interval, ms; None: for ever. ``for_every_id``: whether it answers for every id of a
    resource; if so, ``atom``: what is needed, where the answer depends on the id.
    """

    __slots__ = (
        "_answers",
        "_resolved",
        "_timeless",
        "_trace",
        "atom",
        "for_every_id",
        "objects",
        "resource",
        "since",
        "until",
    )

    def __init__(
        self, snapshot: Snapshot, request: Request, trust: frozenset[str] = CLAIMS, repeats_id: bool = False
    ) -> None:
        reads, at, policy_set = Reads(), usable_time(request, trust), snapshot.policy_sets.get(request.system)
        self.resource, self._timeless = request.resource.id, at is None
        self._resolved: ResolvedQuery | None = None
        self._trace: EvaluationTrace | None = None  # unless the answer depends on the resource's id
        self._answers: dict[str, Decision] = {}
        self.atom: PermissionCheck | None = None
        self.objects: ObjectOf | None = None
        self.for_every_id = False
        try:
            self._resolved = resolved = resolve(snapshot, request, trust, reads)
            self.objects = _objects_of(resolved.system, request, repeats_id)
            self.atom = _atom_of(resolved.query.expression) if self.objects else None
            self.for_every_id = self.atom is not None or not (repeats_id or resolved.system.reads_resource_id)
            if self.atom is None:
                self._trace = resolved.evaluate()
        except Exception as failure:
            self._answers[request.resource.id] = failed(failure)
        super().__init__(request.system, (*reads.lookups, BOUND) if reads.lookups else BOUND_ALONE)
        self.since: int | None = None
        self.until: int | None = None
        if policy_set is not None and at is not None:
            self.since, self.until = policy_set.interval(at, reads.edges)

    def holds(self, at: int | None) -> bool:
        """Whether it answers for a moment (ms; None: not known)."""
        if at is None or self._timeless:
            return self._timeless and at is None
        return (self.since is None or self.since <= at) and (self.until is None or at < self.until)

    @property
    def effective(self) -> EffectivePermissions:
        """What the subject may do by the permission of ``atom``."""
        assert self._resolved is not None
        assert self.atom is not None
        return self._resolved.effective_principals.permissions(self.atom.permission)

    @property
    def via(self) -> Via:
        """The effective principals of the subject, each with the membership by which it was reached."""
        assert self._resolved is not None
        return self._resolved.effective_principals.via

    @property
    def beside(self) -> tuple[Hashable, ...]:
        """What answers say beside the atom, the same for every resource."""
        assert self._resolved is not None
        query = self._resolved.query
        return query.claims, query.notes, query.untrusted

    def answer(self, resource: str) -> Decision:
        """The answer for a resource's id: any one, or unless ``for_every_id`` the request's own."""
        try:
            if self.for_every_id and self.atom is None:
                check_resource(resource)
                resource = self.resource
            answer = self._answers.get(resource)
            if answer is None:
                answer = self._work_out(resource)
                self.spend(ANSWER_BYTES + 4 * len(resource))
                self._answers[resource] = answer
            return answer
        except Exception as failure:
            return failed(failure)

    def _work_out(self, resource: str) -> Decision:
        if self.atom is None:
            assert self._trace is not None
            return conclude(self._trace)
        if resource != self.resource:
            return self._answer_on(self.atom, resource)
        return self.conclude(self.atom, self.effective.on(self.atom.object))

    def _answer_on(self, atom: PermissionCheck, resource: str) -> Decision:
        assert self.objects is not None
        check_resource(resource)
        name = self.objects.name(resource)
        on = msgspec.structs.replace(atom, object=name, object_text=self.objects.text(resource))
        return self.conclude(on, self.effective.on(name))

    def conclude(self, atom: PermissionCheck, grants: tuple[Grant, ...]) -> Decision:
        """The answer when these grants determine it, for an atom on whatever resource."""
        assert self._resolved is not None
        return conclude(self._resolved.to_trace(leaf(atom, grants)))


def check_resource(id_: str) -> None:
    """Raise Unanswerable when a resource's id may be taken for another name."""
    if not is_simple(id_):
        check_name(id_, "resource.id")


def _objects_of(system: System, request: Request, repeats_id: bool) -> ObjectOf | None:
    if repeats_id:
        return cast(NamesResourceTwice, system).object_of(request) if _names_resource_twice(type(system)) else None
    return ObjectOf(system.name_of_resource) if system.name_of_resource else None


@functools.cache
def _names_resource_twice(system: type[System]) -> bool:
    """Looked up once: it takes 7 µs for a protocol."""
    return issubclass(system, NamesResourceTwice)


def _atom_of(needed: Expression) -> PermissionCheck | None:
    """What is needed, where that is one permission check of the subject's own."""
    return needed if type(needed) is PermissionCheck and not needed.principals else None


Query = TypeVar("Query", bound=CachedQuery)


class _Generation(Generic[Query]):
    """Queries by their keys, and the keys of those that have read a fact; of queries that are gone, too."""

    __slots__ = ("queries", "readers")

    def __init__(self) -> None:
        self.queries: dict[Hashable, Query] = {}
        self.readers: dict[tuple[str, Lookup], set[Hashable]] = {}

    def put(self, key: Hashable, query: Query) -> None:
        self.queries[key] = query
        for lookup in query.reads:
            self.readers.setdefault((query.system, lookup), set()).add(key)

    def end(self, lookup: tuple[str, Lookup]) -> None:
        for key in self.readers.pop(lookup, ()):
            query = self.queries.pop(key, None)
            if query is not None:
                query.release()


class PreparedQueries(Generic[Query]):
    """Prepared queries by their keys; those that rest on a fact end with it.

    A key is everything that an answer reads except the time; with the resource's id or, for queries that answer for
    every id, without it. ``most``: how many are kept, in two generations. New queries are young, and so is an old one
    again that is found. When there is no room, the old ones are dropped, and of the young ones the first become old:
    these were found or prepared soonest after the last time, so those in frequent use are among them.

    ``queries``: the young ones, for callers that look a query up by themselves; see `recall` and `PreparedQuery.holds`.
    """

    def __init__(self, most: int = sys.maxsize) -> None:
        self._most = most
        self._young: _Generation[Query] = _Generation()
        self._old: _Generation[Query] = _Generation()
        self.queries = self._young.queries
        BUDGET.join(self)

    def __len__(self) -> int:
        return len(self._young.queries) + len(self._old.queries)

    def find(self, key: Hashable, at: int | None) -> Query | None:
        """The query that is prepared for a key and holds at a moment (ms; None: not known)."""
        query = self.queries.get(key) or self.recall(key)
        return query if query is not None and query.holds(at) else None

    def recall(self, key: Hashable) -> Query | None:
        """The old query with a key, which is young from now on."""
        query = self._old.queries.pop(key, None)
        if query is not None:
            self._young.put(key, query)
        return query

    def add(self, key: Hashable, query: Query, weight: int) -> None:
        """Keep a query in place of the one with its key. ``weight``: the bytes of both."""
        query.spend(ENTRY_BYTES + READER_BYTES * len(query.reads) + weight)
        if len(self) >= self._most:
            self._make_room()
        self._young.put(key, query)

    def _make_room(self) -> None:
        young, half = list(self._young.queries.items()), self._most // 2
        dropped = [*self._old.queries.values(), *(query for _, query in young[half:])]
        self._old, self._young = self._young, _Generation()
        self._old.queries, self.queries = dict(young[:half]), self._young.queries
        BUDGET.release(sum(query.weight for query in dropped))

    def end(self, changed: Iterable[tuple[str, Lookup]]) -> None:
        """End the queries that have read what has changed, by system."""
        for lookup in changed:
            self._young.end(lookup)
            self._old.end(lookup)

    def end_all_of(self, system: str) -> None:
        """End the queries of a system."""
        readers = {*self._young.readers, *self._old.readers}
        self.end([reader for reader in readers if reader[0] == system])

    def clear(self) -> None:
        """Forget all of them, and their answers."""
        for generation in (self._young, self._old):
            generation.queries.clear()
            generation.readers.clear()
