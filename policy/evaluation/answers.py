"""Answers that are kept, found again by all that they rest on.

What a decision reads of a request, but for the time and the resource's id, is its *content*: bytes that its reader
makes so that different requests have different ones. Where a system reads the id for its name alone, an answer is
found by the content and the state of the trie to which the name leads, which may never have been seen; where it does
not read the id, by the content; else by the content and the id. What may change an answer beside that is its `Basis`.
"""

import sys
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Generic, TypeVar

import msgspec

from policy.core.caching import BUDGET, ENTRY_BYTES, Cache
from policy.core.decision import Decision
from policy.core.fact_table import Lookup
from policy.core.facts import BOUND, Reads
from policy.core.model import PermissionCheck
from policy.core.names import is_simple
from policy.core.request import Request, Resource, usable_time
from policy.evaluation.evaluate import ResolvedQuery, conclude, deny_overrides, failed, leaf, resolve
from policy.matching.grants import Table
from policy.matching.index import TrieState
from policy.store.policy_set import PolicySet
from policy.systems.kit.query import check_name
from policy.systems.kit.system import ObjectOf, System

ID = "\N{INTERLINEAR ANNOTATION ANCHOR}"
"""In an answer to several resources, the id of each: a format character, which no name has."""

ANSWERS_KEPT = 200_000  # queries, as a rule fewer by the budget in bytes: for callers that have no bound of their own
# Of content and id; larger ones are not worth their memory. A request may claim 1,024 groups by default, of up to 120
# bytes in a directory: with 4 KiB, answers to users in 60 of these were worked out each time.
KEY_BYTES = 128 << 10
ID_BYTES = 256  # the same of ids alone
QUERY_BYTES = 2_000  # beside its key and answers
ANSWER_BYTES = 1_500  # beside what its size says
STATE_BYTES = 100  # two pointers in a dictionary that doubles as it grows
STATES_BYTES = 1_000
READER_BYTES = 150  # of a lookup
FIRST, LAST = -sys.maxsize, sys.maxsize

State = TrieState[Table]
PolicySets = Mapping[str, PolicySet]
Rendered = TypeVar("Rendered")
Render = Callable[[Request, Decision, bool], tuple[Rendered, int]]
"""An answer in its caller's form, and its bytes. True: ``ID`` stands for the resource's id in both."""


class Basis(msgspec.Struct, frozen=True, gc=False):
    """What an answer rests on beside what was asked: it ends when one of the facts that were looked up changes, found
    or not, and holds from moment ``since`` (ms) up to, without it, ``until``. None such: the time is not known.

    ``principals``: those that the subject is before memberships are followed. It ends when a change of policies affects
    one of them, see `PolicySet.affected_principals`.
    """

    system: str
    lookups: tuple[Lookup, ...]
    since: int
    until: int
    principals: tuple[str, ...] = ()

    def holds(self, at: int | None) -> bool:
        """Whether the answer does at a moment (ms; None: not known)."""
        return self.since <= at < self.until if at is not None else self.until < self.since


class Answer(msgspec.Struct, Generic[Rendered], frozen=True, gc=False):
    """An answer that was rendered once."""

    rendered: Rendered
    basis: Basis


class States:
    """Ids of resources, each with the state of the trie to which its name leads."""

    def __init__(self, policy_set: PolicySet, objects: ObjectOf) -> None:
        self._index, self._name_of = policy_set.index, objects.name
        self.has_levels, self.scope = objects.has_levels, objects.scope
        self.by_id: Cache[str, State] = Cache()
        self._by_head: Cache[str, State] = Cache()  # ids that begin alike are read once, up to their last slash

    def find(self, id_: str) -> State:
        """The state for an id that is not among them. Raises Unanswerable for an invalid one."""
        check_resource(id_)
        branch = self.branch(id_) if is_simple(id_) else None
        if branch is None:
            return self.put(id_, self._index.state(self._name_of(id_)))
        head, before = branch
        return self.put(id_, before.next(id_[len(head) :]))

    def branch(self, id_: str) -> tuple[str, State] | None:
        """What stands before the last part of a simple id, and the state to which that leads; None: it has one part."""
        head = id_[: id_.rfind("/") + 1] if self.has_levels else ""
        if len(head) == len(id_) or (self.has_levels and not head):
            return None
        before = self._by_head.get(head)
        if before is None:
            before = self._index.state(self._name_of(f"{head}x")[:-1])
            if len(head) <= ID_BYTES:
                self._by_head.hold(head, before, len(head))
        return head, before

    def put(self, id_: str, state: State) -> State:
        """Keep the state for an id."""
        if len(id_) <= ID_BYTES:
            self.by_id.hold(id_, state, len(id_))
        return state


class CachedQuery(Generic[Rendered]):
    """The answers to one content. ``weight``: the bytes that the budget counts for it."""

    __slots__ = ("basis", "only", "weight")

    for_any_id = False

    def __init__(self, basis: Basis, only: Answer[Rendered] | None) -> None:
        self.basis, self.only, self.weight = basis, only, 0

    def answer(self, id_: str) -> Answer[Rendered]:
        """The answer for the id that it was worked out for."""
        assert self.only is not None
        return self.only

    def spend(self, weight: int) -> None:
        """Count the bytes of what is about to be kept with it."""
        BUDGET.spend(weight)
        self.weight += weight


class AnyId(CachedQuery[Rendered]):
    """One answer for all ids."""

    __slots__ = ()

    for_any_id = True

    def answer(self, id_: str) -> Answer[Rendered]:
        """The answer for any id. Raises Unanswerable for an invalid one."""
        check_resource(id_)
        return super().answer(id_)


class ByState(CachedQuery[Rendered]):
    """An answer for each state. The query needs one permission check, whose object is the resource."""

    __slots__ = ("_answers", "_check", "_effective", "_render", "_request", "_resolved", "states")

    def __init__(
        self,
        basis: Basis,
        states: States,
        resolved: ResolvedQuery,
        check: PermissionCheck,
        request: Request,
        render: Render[Rendered],
    ) -> None:
        super().__init__(basis, None)
        self.states, self._resolved, self._check = states, resolved, check
        self._request, self._render = request, render
        self._effective = resolved.effective_principals.permissions(check.permission)
        self._answers: dict[State | int, Answer[Rendered]] = {}

    def answer(self, id_: str) -> Answer[Rendered]:
        """The answer for any id. Raises Unanswerable for an invalid one."""
        state = self.states.by_id.get(id_) or self.states.find(id_)
        return self._answers.get(state) or self.work_out(state)

    def state(self, id_: str) -> State:
        """The state to which an id leads."""
        return self.states.by_id.get(id_) or self.states.find(id_)

    def work_out(self, state: State) -> Answer[Rendered]:
        """The answer for a state that has none yet."""
        try:
            grants = deny_overrides(self._effective.at(state))
        except Exception as failure:
            answer = self._rendered(failed(failure))
        else:
            determining = id(grants[0]) if grants else 0  # the only one in an answer; it lives as long as the policies
            answer = self._answers.get(determining) or self._rendered(
                conclude(self._resolved.to_trace(leaf(self._check, grants)))
            )
            self._answers[determining] = answer
        self.spend(STATE_BYTES)
        self._answers[state] = answer
        return answer

    def _rendered(self, decision: Decision) -> Answer[Rendered]:
        rendered, size = self._render(self._request, decision, True)
        self.spend(ANSWER_BYTES + size)
        return Answer(rendered, self.basis)


class _Generation(Generic[Rendered]):
    """Queries by their keys, and the keys of those that have looked something up; of queries that are gone, too."""

    def __init__(self) -> None:
        self.queries: dict[Hashable, CachedQuery[Rendered]] = {}
        self.readers: dict[tuple[str, Lookup], set[Hashable]] = {}

    def put(self, key: Hashable, query: CachedQuery[Rendered]) -> None:
        self.queries[key] = query
        for lookup in query.basis.lookups:
            self.readers.setdefault((query.basis.system, lookup), set()).add(key)

    def end(self, lookup: tuple[str, Lookup]) -> None:
        for key in self.readers.pop(lookup, ()):
            if (query := self.queries.pop(key, None)) is not None:
                BUDGET.release(query.weight)


class AnswerCache(Generic[Rendered]):
    """The answers by the policies of a snapshot to those who may make the claims of ``trust``.

    Threads may share it. ``most``: how many queries are kept, beside the budget of the process. They are of two
    generations. A new one is young, and an old one again when it is found; when half of them are young, the old ones
    are dropped and the young ones become old: those in frequent use stay.
    """

    def __init__(
        self, policy_sets: PolicySets, trust: frozenset[str], render: Render[Rendered], most: int = sys.maxsize
    ) -> None:
        self.policy_sets, self.trust = policy_sets, trust
        self._render, self._most = render, most
        self.clear()
        BUDGET.join(self)

    def __len__(self) -> int:
        return len(self._young.queries) + len(self._old.queries)

    def clear(self) -> None:
        """Forget all of them."""
        self._young, self._old = _Generation[Rendered](), _Generation[Rendered]()
        self._queries = self._young.queries
        self._states: Cache[tuple[str, str], States] = Cache()  # by system and scope

    def find(self, content: bytes, id_: str, at: int | None) -> Answer[Rendered] | None:
        """The answer to a request that differs from one before in its time (ms; None: not known) and id at the most.

        None: it has to be worked out.
        """
        queries = self._queries
        query = queries.get(content) or queries.get((content, id_)) or self._recall(content, (content, id_))
        if query is None or not query.basis.holds(at):
            return None
        try:
            return query.answer(id_)
        except Exception:  # an invalid id: `add` answers it
            return None

    def kept(self, content: bytes, id_: str) -> CachedQuery[Rendered] | None:
        """The query by which a request was just answered, if it is kept."""
        return self._queries.get(content) or self._queries.get((content, id_))

    def _recall(self, *keys: Hashable) -> CachedQuery[Rendered] | None:
        for key in keys:
            if (query := self._old.queries.pop(key, None)) is not None:
                self._young.put(key, query)
                return query
        return None

    def add(
        self, content: bytes, request: Request, repeats_id: bool = False, may_share: bool = True
    ) -> Answer[Rendered]:
        """Work out the answer to a request and keep it.

        ``repeats_id``: exactly one property of its resource is the id, and its content has there that it is.
        ``may_share``: nothing else that is rendered of it has ``ID``.
        """
        query, id_ = self._query(request, repeats_id, may_share), request.resource.id
        answer, size = query.answer(id_), len(content) + len(id_)
        if size <= KEY_BYTES:
            self._put((content, id_) if type(query) is CachedQuery else content, query, size)
        else:
            BUDGET.release(query.weight)
        return answer

    def alone(self, request: Request) -> Answer[Rendered]:
        """The answer to a request, worked out and not kept."""
        query = self._query(request, may_share=False)
        BUDGET.release(query.weight)
        return query.answer(request.resource.id)

    def _put(self, key: Hashable, query: CachedQuery[Rendered], size: int) -> None:
        texts = 2 * size  # of the key, and of the request that the query holds
        query.spend(ENTRY_BYTES + QUERY_BYTES + READER_BYTES * len(query.basis.lookups) + texts)
        if len(self._queries) >= max(self._most // 2, 1):
            BUDGET.release(sum(old.weight for old in self._old.queries.values()))
            self._old, self._young = self._young if self._most > 1 else _Generation(), _Generation()
            self._queries = self._young.queries
        self._young.put(key, query)

    def policies_at(self, at: int | None) -> tuple[PolicySets, int]:
        """The policies and facts that requests of a moment (ms) are evaluated with, and since when these hold."""
        return self.policy_sets, FIRST

    def _query(self, request: Request, repeats_id: bool = False, may_share: bool = True) -> CachedQuery[Rendered]:
        policy_sets, first = self.policies_at(request.time)
        reads, at, system = Reads(), usable_time(request, self.trust), request.system
        try:
            resolved = resolve(policy_sets, request, self.trust, reads)
            objects = _objects_of(resolved.system, request, repeats_id) if may_share else None
            if objects is not None and (check := _shared_check(resolved, objects)) is not None:
                basis, states = _basis(system, policy_sets, reads, at, first), self._states_of(system, objects)
                states.put(request.resource.id, policy_sets[system].index.state(check.object))
                return ByState(basis, states, resolved, check, _for_all(request, repeats_id), self._render)
            decision = conclude(resolved.evaluate())
            shared = may_share and not (repeats_id or resolved.system.reads_resource_id)
        except Exception as failure:
            decision, shared = failed(failure), False
        rendered, size = self._render(_for_all(request) if shared else request, decision, shared)
        basis = _basis(system, policy_sets, reads, at, first)
        query = (AnyId if shared else CachedQuery)(basis, Answer(rendered, basis))
        query.spend(ANSWER_BYTES + size)
        return query

    def _states_of(self, system: str, objects: ObjectOf) -> States:
        states = self._states.get((system, objects.scope))
        if states is None:
            states = States(self.policy_sets[system], objects)
            self._states.hold((system, objects.scope), states, STATES_BYTES + len(objects.scope))
        return states

    def follow(self, policy_sets: PolicySets, changed: Iterable[tuple[str, Lookup]]) -> None:
        """Go on with other policies and facts. The facts of their layers differ in these lookups, by system."""
        before, self.policy_sets = self.policy_sets, policy_sets
        if policy_sets.keys() != before.keys():
            self.clear()
            return
        other = [name for name in policy_sets if not policy_sets[name].says_the_same(before[name])]
        for scope in [scope for scope in self._states if scope[0] in other]:
            del self._states[scope]
        for lookup in (*changed, *((name, BOUND) for name in other)):  # each query looks up BOUND
            self._young.end(lookup)
            self._old.end(lookup)


def check_resource(id_: str) -> None:
    """Raise Unanswerable when a resource's id may be taken for another name."""
    if not is_simple(id_):
        check_name(id_, "resource.id")


def _for_all(request: Request, repeats_id: bool = False) -> Request:
    """The request with ``ID`` in place of its resource's id."""
    resource, properties = request.resource, request.resource.properties
    if repeats_id:
        properties = {name: ID if value == resource.id else value for name, value in properties.items()}
    who, on = (request.id, request.system, request.subject), Resource(resource.type, ID, properties)
    # Each first sight comes here: a copy with another field would take three times as long.
    moments = request.time, request.deadline
    return Request(*who, request.action, on, request.context, *moments, request.max_claimed_groups)


def _basis(system: str, policy_sets: PolicySets, reads: Reads, at: int | None, first: int) -> Basis:
    lookups, policy_set, principals = (*reads.lookups, BOUND), policy_sets.get(system), tuple(reads.principals)
    if at is None:
        return Basis(system, lookups, LAST, FIRST, principals)
    since, until = policy_set.interval(at, reads.edges) if policy_set else (None, None)
    since, until = first if since is None else max(first, since), LAST if until is None else until
    return Basis(system, lookups, since, until, principals)


def _objects_of(system: System, request: Request, repeats_id: bool) -> ObjectOf | None:
    if repeats_id:
        return system.object_of(request)
    return ObjectOf(system.name_of_resource) if system.name_of_resource else None


def _shared_check(resolved: ResolvedQuery, objects: ObjectOf) -> PermissionCheck | None:
    """The permission check for any id, where that is all that is needed, of the subject itself."""
    check, query = resolved.query.expression, resolved.query
    if type(check) is not PermissionCheck or check.principals or query.notes:
        return None
    if ID in f"{check.permission_text}{check.because}{objects.before}{objects.after}":
        return None
    return msgspec.structs.replace(check, object_text=objects.text(ID))
