"""Questions that were decided lately, and which of them a change of policies or facts answers otherwise.

A question is a request without its id and time. It is remembered once, however often it is asked, with its answer, the
effective principals of its subject and what it has read of the facts. So a change is compared with the questions that
it may concern alone: those of a principal that a grant, a membership or a refusal that differs names, those that have
read a fact that differs, and those for which something begins or ends by itself.

Each change is a *state* of its own, with a number. A decision may be read after the states that came next: so the last
states are held too, and what a late question would have reported is reported then, at the state where it turned.

The memory is bounded: of too many questions those go that were asked the longest time ago (``forgotten``).
"""

import bisect
import heapq
import itertools
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from typing import TypeVar

import msgspec

from policy.analysis.affected import Affected
from policy.analysis.named_in_documents import leaves
from policy.core.decision import Decision, Outcome
from policy.core.fact_table import Lookup
from policy.core.facts import BOUND, Reads
from policy.core.model import PermissionCheck, StatementId
from policy.core.request import Request
from policy.evaluation.evaluate import ResolvedQuery, conclude, failed, resolve
from policy.store.policy_set import PolicySet
from policy.store.snapshot import Snapshot
from policy.systems import all_systems
from policy.systems.kit.query import with_context_fields

MOST = 100_000  # questions: the process takes 0.6 GB with so many of five systems (docs, access changes)
KEPT_MS = 24 * 3600 * 1000
STATES, FEWEST_STATES = 256, 8  # that are held for decisions which are read late …
STATE_PRINCIPALS = 2_000_000  # … and the principals with grants in all of them, beyond which they are fewer
TIME = frozenset({"time"})  # a question is asked again at a moment that is no claim

Key = bytes
Named = TypeVar("Named")
Value = TypeVar("Value")


class Question(msgspec.Struct, frozen=True):
    """A request, its id and time left out, from producers with this trust."""

    request: Request
    trust: frozenset[str]

    @property
    def key(self) -> Key:
        """Equal for the same question."""
        request = self.request
        parts = (request.system, request.subject, request.action, request.resource, request.context)
        return msgspec.msgpack.encode((*parts, sorted(self.trust)), order="deterministic")

    def at(self, moment: int) -> Request:
        """The request, asked at a moment (ms)."""
        return msgspec.structs.replace(self.request, time=moment)


def question_of(request: Request, trust: frozenset[str]) -> Question:
    """The question that a request asks: from many addresses it is the same, unless its system goes by these."""
    system = all_systems().get(request.system)
    shown = request if system is None else with_context_fields(request, system)
    context = {name: value for name, value in shown.context.items() if name != "min_policy_offsets"}
    return Question(msgspec.structs.replace(request, id="?", time=None, deadline=None, context=context), trust)


class Answer(msgspec.Struct, frozen=True):
    """An outcome, and the statements that determine it."""

    outcome: Outcome
    statements: tuple[StatementId, ...] = ()


def answer_of(decision: Decision) -> Answer:
    """Of a decision as much as is compared and reported."""
    placed = [reason for reason in decision.reasons if reason.document is not None]
    return Answer(
        decision.outcome,
        tuple(dict.fromkeys(StatementId(reason.document or "", reason.statement) for reason in placed)),
    )


class Turned(msgspec.Struct, frozen=True):
    """A question whose outcome is another one from a moment (``at``, ms) in a state on."""

    question: Question
    before: Answer
    after: Answer
    state: int = 0
    at: int = 0


class _State(msgspec.Struct, frozen=True):
    """What was followed from a moment (ms) on, and whom it may concern that it differs from the state before."""

    number: int
    snapshot: Snapshot
    at: int
    affected: tuple[Affected, ...] = ()


class _Remembered(msgspec.Struct):
    """``principals`` None: they could not be determined. ``until``: when a fact begins or ends to count, ms.

    ``since``: the number of the state from which on it is reported when it turns.
    """

    question: Question
    answer: Answer
    asked_at: int
    since: int
    principals: frozenset[str] | None = None
    lookups: frozenset[Lookup] = frozenset()
    until: int | None = None

    def is_concerned(self, change: Affected) -> bool:
        """Whether its answer may rest on what a change concerns."""
        if change.system != self.question.request.system or not (change.principals or change.lookups):
            return False
        if self.principals is None:
            return True
        return not (self.principals.isdisjoint(change.principals) and self.lookups.isdisjoint(change.lookups))


class _Index:
    """The questions of one system, by the principals of their subjects and by the facts that they have read.

    Questions of one subject share a set of principals, which is held and indexed once.
    """

    def __init__(self) -> None:
        self._of_set: dict[frozenset[str], set[Key]] = {}
        self._sets: dict[str, set[frozenset[str]]] = {}
        self._readers: dict[Lookup, set[Key]] = {}
        self._undetermined: set[Key] = set()

    def add(self, key: Key, remembered: _Remembered) -> None:
        for lookup in remembered.lookups:
            self._readers.setdefault(lookup, set()).add(key)
        if remembered.principals is None:
            self._undetermined.add(key)
            return
        if remembered.principals not in self._of_set:
            self._of_set[remembered.principals] = set()
            for principal in remembered.principals:
                self._sets.setdefault(principal, set()).add(remembered.principals)
        self._of_set[remembered.principals].add(key)

    def discard(self, key: Key, remembered: _Remembered) -> None:
        for lookup in remembered.lookups:
            _discard(self._readers, lookup, key)
        self._undetermined.discard(key)
        if remembered.principals is not None:
            _discard(self._of_set, remembered.principals, key)
            if remembered.principals not in self._of_set:
                for principal in remembered.principals:
                    _discard(self._sets, principal, remembered.principals)

    def find(self, affected: Affected) -> set[Key]:
        """The questions that a change may concern."""
        if not (affected.principals or affected.lookups):
            return set()
        sets = {principals for principal in affected.principals for principals in self._sets.get(principal, ())}
        concerned = set(self._undetermined).union(*(self._of_set[principals] for principals in sets))
        return concerned.union(*(self._readers.get(lookup, ()) for lookup in affected.lookups))


def _discard(sets: dict[Named, set[Value]], name: Named, value: Value) -> None:
    """Take a value out of the set of a name, which goes with its last one."""
    values = sets.get(name)
    if values is not None:
        values.discard(value)
        if not values:
            del sets[name]


class Questions:
    """Remembers questions under one snapshot after the other. ``forgotten``: how many there was no room for.

    ``most``: how many are remembered; ``kept_ms``: for how long after they were asked.
    """

    def __init__(self, snapshot: Snapshot, at: int, most: int = MOST, kept_ms: int = KEPT_MS) -> None:
        self._most, self._kept_ms = most, kept_ms
        self._known: OrderedDict[Key, _Remembered] = OrderedDict()  # that which was asked the longest time ago first
        self._indexes: dict[str, _Index] = {}
        self._ends: list[tuple[int, Key]] = []
        self._dated = _Dated(snapshot)
        self._states = deque([_State(0, snapshot, at)])
        self.forgotten = 0

    def __len__(self) -> int:
        return len(self._known)

    @property
    def state(self) -> int:
        """The number of the newest state."""
        return self._states[-1].number

    @property
    def oldest_state(self) -> int:
        """The number of the oldest state that is held."""
        return self._states[0].number

    @property
    def at(self) -> int:
        """Up to when time was followed, ms."""
        return self._states[-1].at

    @property
    def _snapshot(self) -> Snapshot:
        return self._states[-1].snapshot

    def next_edge(self) -> int | None:
        """The next moment (ms) at which something begins or ends by itself: `follow` is to be called with each."""
        while self._ends and self._is_over(*self._ends[0]):
            heapq.heappop(self._ends)
        ends = (self._ends[0][0] if self._ends else None, self._dated.next_after(self.at))
        return min((end for end in ends if end is not None), default=None)

    def _is_over(self, until: int, key: Key) -> bool:
        """Whether an end is of a question that is forgotten, or that was evaluated again since."""
        remembered = self._known.get(key)
        return remembered is None or remembered.until != until

    def remember(
        self, question: Question, at: int, state: int | None = None, decided: Answer | None = None
    ) -> list[Turned]:
        """Note that a question was decided at a moment (ms). Returns how it has turned since, if that is not reported.

        ``state``: the newest state that the decision has seen; None: the present one. ``decided``: the answer that was
        given, where the decision has not seen all of what came up to that state; None: it is what the state answers.
        """
        key, newest = question.key, self.state
        first = newest if state is None else min(max(state, self.oldest_state), newest)
        remembered, turned = self._known.get(key), list[Turned]()
        if remembered is None:
            remembered, turned = self._walk(question, at, (first, newest), decided)
            self._known[key] = remembered
            self._add(key, remembered)
            while len(self._known) > self._most:
                self._forget(next(iter(self._known)))
                self.forgotten += 1
        elif first < remembered.since:
            _, turned = self._walk(question, at, (first, remembered.since), decided)
            remembered.since = first
        if key in self._known:
            self._known.move_to_end(key)
        remembered.asked_at = max(remembered.asked_at, at)
        return turned

    def _walk(
        self, question: Question, at: int, numbers: tuple[int, int], decided: Answer | None
    ) -> tuple[_Remembered, list[Turned]]:
        """What a question is answered in the last of some states, and how it has turned on the way there."""
        first, last = (number - self.oldest_state for number in numbers)
        before, *states = itertools.islice(self._states, first, last + 1)
        moment, turned = max(before.at, at), list[Turned]()
        current = self._evaluated(question, before.snapshot, moment, at, before.number)

        def turn(after: _Remembered, was: Answer, state: _State, since: int) -> _Remembered:
            if was.outcome != after.answer.outcome:
                turned.append(Turned(question, was, after.answer, state.number, since))
            return after

        turn(current, decided or current.answer, before, before.at)
        for state in states:
            while current.until is not None and current.until <= state.at:
                moment = current.until
                after = self._evaluated(question, before.snapshot, moment, at, current.since)
                current = turn(after, current.answer, before, moment)
            moment = max(moment, state.at)
            if any(map(current.is_concerned, state.affected)):
                after = self._evaluated(question, state.snapshot, moment, at, current.since)
                current = turn(after, current.answer, state, state.at)
            before = state
        return current, turned

    def follow(self, snapshot: Snapshot, affected: Iterable[Affected], at: int) -> list[Turned]:
        """Go on with another snapshot, or to a later moment (ms): the questions whose outcome is another one now.

        It is a new state. What begins or ends by itself on the way there is reported for the last moment.
        """
        after, at = self._dated.of(snapshot), max(at, self.at)
        dated = [*self._dated.between(self.at, at), *(after.between(self.at, at) if after is not self._dated else ())]
        concerned = (*affected, *dated)
        keys: set[Key] = set()
        for change in concerned:
            index = self._indexes.get(change.system)
            keys |= index.find(change) if index is not None else set()
        keys |= self._ended(at)
        self._forget_before(at - self._kept_ms)
        self._dated = after
        self._hold(_State(self.state + 1, snapshot, at, concerned))
        return [turned for key in sorted(keys) if (turned := self._again(key)) is not None]

    def _hold(self, state: _State) -> None:
        self._states.append(state)
        principals = sum(len(policy_set.grants) for policy_set in state.snapshot.policy_sets.values())
        most = min(STATES, max(FEWEST_STATES, STATE_PRINCIPALS // max(principals, 1)))
        while len(self._states) > most:
            self._states.popleft()

    def _again(self, key: Key) -> Turned | None:
        before = self._known.get(key)
        if before is None:
            return None
        after = self._evaluated(before.question, self._snapshot, self.at, before.asked_at, before.since)
        self._index(before).discard(key, before)
        self._known[key] = after
        self._add(key, after)
        if before.answer.outcome == after.answer.outcome:
            return None
        return Turned(before.question, before.answer, after.answer, self.state, self.at)

    def _evaluated(self, question: Question, snapshot: Snapshot, at: int, asked_at: int, since: int) -> _Remembered:
        reads, request, trust = Reads(), question.at(at), question.trust | TIME
        principals: frozenset[str] | None = None
        try:
            resolved = resolve(snapshot.policy_sets, request, trust, reads)
            principals = _principals(resolved, at)
            decision = conclude(resolved.evaluate())
        except Exception as failure:  # as `policy.decide` does: a question that fails is an error, and ends nothing
            decision = failed(failure)
        until = min((edge for edge in reads.edges if edge > at), default=None)
        # Each query looks up BOUND, whatever it needs: with it each change of a fact would concern every question.
        lookups = frozenset(reads.lookups) - {BOUND}
        return _Remembered(question, answer_of(decision), asked_at, since, principals, lookups, until)

    def _add(self, key: Key, remembered: _Remembered) -> None:
        self._index(remembered).add(key, remembered)
        if remembered.until is not None:
            heapq.heappush(self._ends, (remembered.until, key))
        if len(self._ends) > 2 * len(self._known):  # each change of an answer leaves one behind
            ends = ((entry.until, key) for key, entry in self._known.items() if entry.until is not None)
            self._ends = sorted(ends)

    def _index(self, remembered: _Remembered) -> _Index:
        return self._indexes.setdefault(remembered.question.request.system, _Index())

    def _ended(self, at: int) -> set[Key]:
        """The questions that have read a fact which has begun or ceased to count by a moment."""
        ended: set[Key] = set()
        while self._ends and self._ends[0][0] <= at:
            until, key = heapq.heappop(self._ends)
            if not self._is_over(until, key):
                ended.add(key)
        return ended

    def _forget_before(self, moment: int) -> None:
        while self._known and next(iter(self._known.values())).asked_at < moment:
            self._forget(next(iter(self._known)))

    def _forget(self, key: Key) -> None:
        remembered = self._known.pop(key)
        self._index(remembered).discard(key, remembered)


def _principals(resolved: ResolvedQuery, at: int) -> frozenset[str]:
    """Every principal whose grants and memberships the answer may rest on."""
    principals = set(resolved.effective_principals.via)
    for leaf in leaves(resolved.query.expression):
        if isinstance(leaf, PermissionCheck) and leaf.principals:
            principals |= resolved.policy_set.effective_principals(leaf.principals, at).via.keys()
    return frozenset(principals)


class _Dated:
    """The principals for whom something begins or ends by itself, by system, each with that moment, rising."""

    def __init__(self, snapshot: Snapshot, before: "_Dated | None" = None) -> None:
        parts = before._parts if before is not None else {}
        self._parts: dict[str, tuple[PolicySet, list[tuple[int, str]]]] = {}
        for system, policy_set in snapshot.policy_sets.items():
            part = parts.get(system)
            same = part is not None and part[0].says_the_same(policy_set)
            edges = part[1] if part is not None and same else sorted(set(_edges(policy_set)))
            self._parts[system] = policy_set, edges

    def of(self, snapshot: Snapshot) -> "_Dated":
        """The same of another snapshot: where its policies are the same, nothing is looked through again."""
        same = all(
            self._parts[system][0].says_the_same(policy_set) for system, policy_set in snapshot.policy_sets.items()
        )
        return self if same else _Dated(snapshot, self)

    def next_after(self, moment: int) -> int | None:
        """The first of the moments (ms) after one."""
        firsts = (edges[bisect.bisect_left(edges, (moment + 1, "")) :][:1] for _, edges in self._parts.values())
        return min((edge for first in firsts for edge, _ in first), default=None)

    def between(self, after: int, upto: int) -> Iterator[Affected]:
        """Whom what begins or ends after a moment (ms), up to another one, concerns."""
        for system, (_, edges) in self._parts.items():
            first, last = (bisect.bisect_left(edges, (moment + 1, "")) for moment in (after, upto))
            if first < last:
                yield Affected(system, frozenset(principal for _, principal in edges[first:last]))


def _edges(policy_set: PolicySet) -> Iterator[tuple[int, str]]:
    if policy_set.interval(-1)[1] is None:
        return  # nothing ever begins or ends
    for grants in policy_set.grants.values():
        yield from ((edge, grant.principal) for grant in grants for edge in grant.window.edges)
    for memberships in policy_set.memberships.values():
        yield from ((edge, membership.member) for membership in memberships for edge in membership.window.edges)
