"""What tasks need to answer by what is known, as `KnownTask.java` reads it; on the driver."""

import collections
from collections.abc import Iterable
from typing import Any

import msgspec

from policy import Snapshot
from policy.evaluation import Lookup, PolicySets
from streaming.enforcer.answers import context_fields
from streaming.enforcer.evaluator import EvaluationContext, Source, envelope_of
from streaming.enforcer.lessons import number_of, principal_lookup
from streaming.enforcer.worker import Task
from streaming.kafka.clients import Partition
from streaming.records.packing import DECISIONS

LOOKUPS = 2_000  # that have changed last; executors that are further behind forget all
# That a change of policies affects. More end all answers of the system: they would push out other changes.
PRINCIPALS = LOOKUPS // 4


class Versions:
    """Which policies and facts answers rest on, and what of these has changed."""

    def __init__(self) -> None:
        self._policy_sets: PolicySets = {}
        self._epochs: dict[str, int] = {}
        self._tries: dict[str, int] = {}
        self._lookups: collections.deque[int] = collections.deque(maxlen=LOOKUPS)
        self._changes = self._number = 0

    def follow(self, snapshot: Snapshot, changed: Iterable[tuple[str, Lookup]]) -> None:
        """Note the policies in force, and the lookups of facts, by system, that may have other answers than before."""
        before, self._policy_sets = self._policy_sets, snapshot.policy_sets
        lookups = [number_of(system, looked_up) for system, looked_up in changed]
        other = [
            name
            for name, policy_set in self._policy_sets.items()
            if name not in before or not policy_set.says_the_same(before[name])
        ]
        for name in other:
            self._tries[name] = self._tries.get(name, 0) + 1
            affected = before[name].affected_principals(self._policy_sets[name]) if name in before else None
            if affected is None or len(affected) > PRINCIPALS:
                self._epochs[name] = self._epochs.get(name, 0) + 1
            else:
                lookups += [number_of(name, principal_lookup(principal)) for principal in affected]
        self._lookups += lookups
        self._changes += len(lookups)
        self._number += bool(other or lookups)

    def to_java(self) -> dict[str, Any]:
        """As Java reads them."""
        first = self._changes - len(self._lookups)
        systems = {"epochs": self._epochs, "tries": self._tries}
        return {"number": self._number, **systems, "first": first, "lookups": list(self._lookups)}


def encode_task(task: Task, version: str, versions: Versions, partitions: Iterable[Partition]) -> bytes | None:
    """As Java reads it; None: each record is for Python. `version`: of the policies.

    So it is where decisions are Avro.
    """
    if task.formats.output != "json":
        return None
    limits, offsets = task.limits, task.policy_offsets
    context = EvaluationContext(version, offsets, task.facts_offset, task.read, task.now, task.enforced)
    encoded = [_partition(task, context, partition) for partition in partitions if _may_be_known(task, partition)]
    sizes = {"recordIn": limits.record_in, "recordOut": limits.record_out}
    shared = {"now": task.now, **sizes, "contextFields": context_fields()}
    return msgspec.json.encode({"versions": versions.to_java(), **shared, "partitions": encoded})


def _may_be_known(task: Task, partition: Partition) -> bool:
    """Whether its records are requests, and not answered elsewhere."""
    outputs = task.outputs[partition[0]]
    return outputs.verdicts is None and not outputs.answered and partition in task.budgets


def _partition(task: Task, context: EvaluationContext, partition: Partition) -> dict[str, Any]:
    topic, number = partition
    trust, budget, outputs = task.trust[topic], task.budgets[partition], task.outputs[topic]
    envelope = envelope_of(Source(topic, number, task.topic_ids[topic], trust, outputs.dead_letters), context)
    return {
        "topic": topic,
        "number": number,
        "trust": " ".join(sorted(trust)),
        "trustsTime": "time" in trust,
        "head": envelope.head,
        "tail": envelope.tail,
        "decisions": task.topics[DECISIONS],
        "bytes": budget.bytes,
        "exceeds": budget.exceeds,
    }
