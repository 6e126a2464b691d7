"""Questions that were decided lately, and which of them a change of policies or facts answers otherwise.

A question is a request without its id and time. It is remembered once, however often it is asked, with its answer, the
effective principals of its subject and what it has read of the facts. So a change is compared with the questions that
it may concern alone: those of a principal that a grant, a membership or a refusal that differs names, those that have
read a fact that differs, and those for which something begins or ends by itself.

The memory is bounded: of too many questions those go that were asked the longest time ago (``forgotten``).
"""

import heapq
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import TypeVar

import msgspec

from policy.analysis.affected import Affected
from policy.analysis.named_in_documents import leaves
from policy.core.decision import Decision, Outcome
from policy.core.facts import BOUND, Lookup, Reads
from policy.core.model import PermissionCheck, StatementId
from policy.core.request import Request
from policy.evaluation.evaluate import ResolvedQuery, conclude, failed, resolve
from policy.store.snapshot import PolicySet, Snapshot

MOST = 100_000
KEPT_MS = 24 * 3600 * 1000
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
    """The question that a request asks."""
    context = {name: value for name, value in request.context.items() if name != "min_policy_offsets"}
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
    """A question whose outcome is another one now."""

    question: Question
    before: Answer
    after: Answer


class _Remembered(msgspec.Struct):
    """``principals`` None: they could not be determined. ``until``: when a fact begins or ends to count, ms."""

    question: Question
    answer: Answer
    asked_at: int
    principals: frozenset[str] | None = None
    lookups: frozenset[Lookup] = frozenset()
    until: int | None = None


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
        self._snapshot, self._at, self._most, self._kept_ms = snapshot, at, most, kept_ms
        self._known: OrderedDict[Key, _Remembered] = OrderedDict()  # that which was asked the longest time ago first
        self._indexes: dict[str, _Index] = {}
        self._ends: list[tuple[int, Key]] = []
        self._dated = _Dated(snapshot)
        self.forgotten = 0

    def __len__(self) -> int:
        return len(self._known)

    def remember(self, question: Question, at: int, decided: Answer | None = None) -> Turned | None:
        """Note that a question was decided at a moment (ms). Returns what has turned since by then, if anything has.

        ``decided``: the answer that was given; None: that of the snapshot which is followed.
        """
        key = question.key
        remembered = self._known.get(key)
        if remembered is None:
            remembered = self._known[key] = self._evaluated(question, max(at, self._at), at)
            self._add(key, remembered)
            while len(self._known) > self._most:
                self._forget(next(iter(self._known)))
                self.forgotten += 1
        self._known.move_to_end(key)
        remembered.asked_at = max(remembered.asked_at, at)
        if decided is None or decided.outcome == remembered.answer.outcome:
            return None
        return Turned(question, decided, remembered.answer)

    def follow(self, snapshot: Snapshot, affected: Sequence[Affected], at: int) -> list[Turned]:
        """Go on with another snapshot, or to a later moment (ms): the questions whose outcome is another one now."""
        keys: set[Key] = set()
        for change in (*affected, *self._dated.between(self._at, at), *_Dated(snapshot).between(self._at, at)):
            index = self._indexes.get(change.system)
            keys |= index.find(change) if index is not None else set()
        keys |= self._ended(at)
        self._forget_before(at - self._kept_ms)
        if snapshot is not self._snapshot:
            self._dated = _Dated(snapshot)
        self._snapshot, self._at = snapshot, max(at, self._at)
        return [turned for key in sorted(keys) if (turned := self._again(key)) is not None]

    def _again(self, key: Key) -> Turned | None:
        before = self._known.get(key)
        if before is None:
            return None
        after = self._evaluated(before.question, self._at, before.asked_at)
        self._index(before).discard(key, before)
        self._known[key] = after
        self._add(key, after)
        if before.answer.outcome == after.answer.outcome:
            return None
        return Turned(before.question, before.answer, after.answer)

    def _evaluated(self, question: Question, at: int, asked_at: int) -> _Remembered:
        reads, request, trust = Reads(), question.at(at), question.trust | TIME
        principals: frozenset[str] | None = None
        try:
            resolved = resolve(self._snapshot.policy_sets, request, trust, reads)
            principals = _principals(resolved, at)
            decision = conclude(resolved.evaluate())
        except Exception as failure:
            decision = failed(failure)
        until = min((edge for edge in reads.edges if edge > at), default=None)
        lookups = frozenset(reads.lookups) - {BOUND}
        return _Remembered(question, answer_of(decision), asked_at, principals, lookups, until)

    def _add(self, key: Key, remembered: _Remembered) -> None:
        self._index(remembered).add(key, remembered)
        if remembered.until is not None:
            heapq.heappush(self._ends, (remembered.until, key))

    def _index(self, remembered: _Remembered) -> _Index:
        return self._indexes.setdefault(remembered.question.request.system, _Index())

    def _ended(self, at: int) -> set[Key]:
        """The questions that have read a fact which has begun or ceased to count by a moment."""
        ended: set[Key] = set()
        while self._ends and self._ends[0][0] <= at:
            until, key = heapq.heappop(self._ends)
            remembered = self._known.get(key)
            if remembered is not None and remembered.until == until:
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
    """The principals for whom something begins or ends by itself, by system, each with that moment."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._edges = {name: sorted(set(_edges(policy_set))) for name, policy_set in snapshot.policy_sets.items()}

    def between(self, after: int, upto: int) -> Iterator[Affected]:
        """Whom what begins or ends after a moment (ms), up to another one, concerns."""
        for system, edges in self._edges.items():
            principals = frozenset(principal for edge, principal in edges if after < edge <= upto)
            if principals:
                yield Affected(system, principals)


def _edges(policy_set: PolicySet) -> Iterator[tuple[int, str]]:
    for grants in policy_set.grants.values():
        yield from ((edge, grant.principal) for grant in grants for edge in grant.window.edges)
    for ways in policy_set.memberships.values():
        yield from ((edge, way.member) for way in ways for edge in way.window.edges)
