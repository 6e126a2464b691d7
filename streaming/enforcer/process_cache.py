"""What a Python worker process of Spark's keeps from one task to the next: facts, snapshots and evaluators."""

import collections
import gc
import itertools
import pickle
from collections.abc import Callable, Container, Sequence
from typing import Any

import msgspec
from pyspark.core.broadcast import Broadcast

from policy import FactChange, FactOverlay, Snapshot, together
from policy.evaluation import Lookup
from streaming.enforcer.auditing import AuditAnswers
from streaming.enforcer.evaluator import Evaluator
from streaming.enforcer.facts_at import FactsAt
from streaming.settings import Limits
from streaming.snapshots.broadcasts import Facts, Segment

ALLOCATIONS_BETWEEN_COLLECTIONS = 100_000  # Python's 700 took half of the time of a batch
TASKS_BETWEEN_COLLECTIONS = 100
LOOKUPS_HELD = 50_000  # of facts that have changed; an evaluator that is further behind starts with empty caches
EVALUATORS_HELD = 8  # of policies and facts that are not the newest


class HeldFacts:
    """The facts in this process: an overlay, and how many changes of it are applied.

    `changes`: the lookups whose answer they may change, the newest last, by system: see `changed_since`.
    `past`: the same facts at earlier offsets; None: no record names any.
    """

    def __init__(self, base: int, overlay: FactOverlay, past: FactsAt | None = None) -> None:
        self.base, self.overlay, self.applied, self.past = base, overlay, 0, past
        self._changes: collections.deque[tuple[int, str, Lookup]] = collections.deque()
        self._known_since = 0

    def follow(self, facts: Facts, parts: "Sequence[Broadcast[Any]]") -> None:
        """Apply the changes that are not applied yet; never back: an older batch is over."""
        for start, part in zip(facts.starts, parts[1:], strict=True):
            if start + len(part.value) > self.applied:
                self._apply(start, part.value)
        self._apply(facts.tail_start, facts.tail)

    def _apply(self, start: int, changes: Sequence[FactChange]) -> None:
        if self.past is not None:
            self.past.follow(start, changes)
        for number, change in enumerate(changes[max(self.applied - start, 0) :], max(self.applied, start)):
            self._changes.extend((number, change.key.system, lookup) for lookup in self.overlay.apply(change))
        self.applied = max(self.applied, start + len(changes))
        while len(self._changes) > LOOKUPS_HELD:
            self._known_since = self._changes.popleft()[0] + 1

    def changed_since(self, applied: int) -> list[tuple[str, Lookup]] | None:
        """The lookups that may have other answers than after so many changes; None: that is not known any more."""
        if applied < self._known_since:
            return None
        newer = itertools.takewhile(lambda change: change[0] >= applied, reversed(self._changes))
        return [(system, lookup) for _, system, lookup in newer]


class HeldSnapshots:
    """The snapshots of one run that this process has, by number."""

    def __init__(self) -> None:
        self._run = -1
        self._held: dict[int, Snapshot] = {}

    def keep(self, numbers: Container[int]) -> None:
        """Drop all but these, once the newest is there, which may be built from one that is no longer needed."""
        self._held = {number: snapshot for number, snapshot in self._held.items() if number in numbers}

    def get(
        self,
        number: int,
        segment: Segment,
        base: "Broadcast[Snapshot]",
        changes: "Broadcast[tuple[bytes, ...]] | None",
    ) -> Snapshot:
        """A snapshot of a segment. It is built from the nearest one before it that this process has."""
        if segment.run != self._run:
            self._run, self._held = segment.run, {}
        first = segment.first - (segment.bridge is not None)
        nearest = max((other for other in self._held if first <= other <= number), default=None)
        start, snapshot = (segment.first, base.value) if nearest is None else (nearest, self._held[nearest])
        if start < number:
            between = map(pickle.loads, _changes_between(segment, changes, start, number))
            snapshot = snapshot.with_change(together(list(between)))
        self._held[number] = snapshot
        return snapshot


def _changes_between(
    segment: Segment, changes: "Broadcast[tuple[bytes, ...]] | None", start: int, last: int
) -> Sequence[bytes]:
    """The changes after the snapshot with the number `start` up to the one with the number `last`."""
    bridge = () if segment.bridge is None else (segment.bridge,)
    sent = () if changes is None else changes.value
    first = segment.first - len(bridge)
    return (*bridge, *sent, *segment.tail)[start - first : last - first]


class NewestEvaluator:
    """The evaluator of the newest policies that this process has seen, with its caches.

    By the numbers of the snapshot and of the layer of facts, and how many changes of that it has applied.
    """

    def __init__(self) -> None:
        self._evaluator: Evaluator | None = None
        self._of = -1, -1, 0

    def get(self, number: int, facts: HeldFacts, policies: Callable[[], Snapshot], limits: Limits) -> Evaluator:
        """That of a snapshot with the current facts. It keeps the answers that no change of them affects."""
        newest, (_, base, applied) = (number, facts.base, facts.applied), self._of
        if self._evaluator is not None and self._of == newest:
            return self._evaluator
        now = policies().with_facts(facts.overlay)
        evaluator, self._evaluator = self._evaluator, None  # one that fails while it follows is not used again
        changed = facts.changed_since(applied) if base == facts.base else None
        if evaluator is not None and changed is not None:
            evaluator.follow(now, changed)
        else:
            evaluator = Evaluator(now, limits)
            # Snapshot and caches hold no cycles: to search them for some again and again takes half of the time.
            gc.freeze()
            gc.set_threshold(ALLOCATIONS_BETWEEN_COLLECTIONS)
        self._evaluator, self._of = evaluator, newest
        return evaluator


class HeldAuditAnswers(msgspec.Struct):
    """Answers to audit events by these policies, and how many changes of which facts they have seen."""

    answers: AuditAnswers
    policies: Snapshot
    base: int
    applied: int


class ProcessCache:
    """All that one process keeps."""

    def __init__(self) -> None:
        self.snapshots, self.evaluator = HeldSnapshots(), NewestEvaluator()
        self._facts: HeldFacts | None = None
        # By the JSON of policy offsets, the system, and the offset of the newest of its facts.
        self._at_offsets: dict[tuple[bytes, str, int], Evaluator] = {}
        # By since when their policies were in force, and by the trust of the producers.
        self._audited: dict[tuple[int, frozenset[str]], HeldAuditAnswers] = {}

    def facts_of(self, facts: Facts, broadcasts: "Sequence[Broadcast[Any]]", keep: bool) -> HeldFacts:
        """The facts of a task. `keep`: also what they were at earlier offsets of this layer."""
        if self._facts is None or self._facts.base != facts.base:
            layer: FactOverlay = broadcasts[0].value
            self._facts = HeldFacts(facts.base, layer, FactsAt(layer.copy(), facts.since) if keep else None)
        self._facts.follow(facts, broadcasts)
        return self._facts

    def evaluator_at(self, key: tuple[bytes, str, int], make: Callable[[], Evaluator]) -> Evaluator:
        """That of policies and facts which are not the newest, by their offsets; those go that were used the longest
        ago.
        """
        evaluator = self._at_offsets.pop(key, None) or make()
        self._at_offsets[key] = evaluator
        while len(self._at_offsets) > EVALUATORS_HELD:
            del self._at_offsets[next(iter(self._at_offsets))]
        return evaluator

    def audit_answers(
        self, since: Sequence[int], index: int, trust: frozenset[str], policies: Snapshot, facts: HeldFacts
    ) -> AuditAnswers:
        """Answers by the policies of a span of time. `since`: when each that is still needed came into force, ms."""
        for gone in [key for key in self._audited if key[0] not in since]:
            del self._audited[gone]
        key = since[index], trust
        entry = self._audited.get(key)
        changed = facts.changed_since(entry.applied) if entry and entry.base == facts.base else None
        if entry is None or changed is None or entry.policies is not policies:
            answers = AuditAnswers(policies, trust, facts=facts.overlay)
            entry = self._audited[key] = HeldAuditAnswers(answers, policies, facts.base, facts.applied)
        elif entry.applied != facts.applied:
            entry.answers.follow_facts(changed)
            entry.applied = facts.applied
        return entry.answers


CACHE = ProcessCache()
"""Of this process."""

_tasks = itertools.count(1)


def freeze_caches() -> None:
    """Spark collects garbage after each task, a quarter of the time, and the caches hold no cycles.

    What is there by then is left out of the search, but for one task of many: others may have left cycles.
    """
    if next(_tasks) % TASKS_BETWEEN_COLLECTIONS:
        gc.freeze()
    else:
        gc.unfreeze()
