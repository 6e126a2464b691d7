"""What the workers are sent for a range: the task, and the broadcasts that it refers to; on the driver."""

import contextlib
import itertools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from pyspark.sql import SparkSession

from streaming.commit.offsets import OffsetTracker
from streaming.commit.partitions import Evaluated
from streaming.enforcer.known_task import Versions, encode_task
from streaming.enforcer.pending_facts import PendingFacts
from streaming.enforcer.ranges import Budget
from streaming.enforcer.worker import Outputs, Task, Worker
from streaming.kafka.clients import Partition
from streaming.records.answered import ANSWER_SKEW_MS
from streaming.records.encodings import Encodings
from streaming.records.packing import VERDICTS
from streaming.settings import Settings
from streaming.snapshots.broadcasts import (
    SNAPSHOTS_KEPT,
    Broadcasts,
    FactBroadcasts,
    Facts,
    PublishedSnapshot,
)
from streaming.snapshots.named_offsets import NamedOffsets
from streaming.snapshots.policies import Policies
from streaming.snapshots.rebuilt import PastSnapshots
from streaming.topics import Offsets, dead_letters_of

During = Callable[[str], contextlib.AbstractContextManager[None]]


class Tasks:
    """Makes them, by the policies and facts as they were read last.

    `topic_ids`: of the inputs. `during`: see `Watchdog`. `on_broadcast`: called with each snapshot that is sent.
    """

    def __init__(
        self,
        settings: Settings,
        spark: SparkSession,
        policies: Policies,
        tracker: OffsetTracker,
        topic_ids: Mapping[str, str],
        encodings: Encodings,
        during: During,
        on_broadcast: Callable[[], None],
    ) -> None:
        self._settings, self._policies, self._tracker = settings, policies, tracker
        self._topic_ids, self._encodings, self._during = topic_ids, encodings, during
        self._inputs, topics = settings.topics.inputs, settings.topics
        self._output_topics = topics.decisions, topics.verdicts, *map(dead_letters_of, self._inputs)
        send = spark.sparkContext.broadcast
        self._broadcasts, self._facts = Broadcasts(send, SNAPSHOTS_KEPT, on_broadcast), FactBroadcasts(send)
        self._sent_offsets: Offsets = {}  # of the newest snapshot that was sent
        self._versions = Versions()
        self._past = PastSnapshots(policies.documents, send, SNAPSHOTS_KEPT)
        # What decides again what was answered elsewhere; None: there are no such topics.
        self._named = NamedOffsets(policies.documents, send) if topics.answered else None

    def current_snapshots(self) -> tuple[PublishedSnapshot, ...]:
        """The snapshots of the present, oldest first; the newest is sent if it is not yet."""
        policies, until = self._policies, self._policies.documents.next_change(self._sent_offsets)
        with self._during("send the snapshot to the workers"):
            sent = self._broadcasts.current(policies.snapshot, policies.changed_at, policies.changes_since, until)
        self._sent_offsets = policies.policy_offsets()
        return sent

    def current_facts(self) -> Facts:
        """How the workers get the facts that are known now.

        Also while there are no requests: else all changes of that time would be held one by one. What they end of the
        known answers is noted first: changes are taken once, and sending them may fail.
        """
        policies = self._policies
        changes, older = policies.take_fact_changes(), policies.take_older_facts()
        self._versions.follow(policies.snapshot, policies.changed_lookups)
        with self._during("send the facts to the workers"):
            return self._facts.current(policies.overlay, changes, policies.facts_offset(), older)

    def task(
        self,
        snapshots: tuple[PublishedSnapshot, ...],
        budgets: Mapping[Partition, Budget],
        pending: PendingFacts | None,
    ) -> tuple[Worker, Task]:
        """What decides by these snapshots. `budgets`, `pending`: see `Task`."""
        if self._named is not None:
            self._named.follow(snapshots, self._policies.policy_offsets())
        published = sorted((*self._past.held(), *snapshots), key=lambda snapshot: snapshot.since)
        facts = self.current_facts()
        task = Task(
            topics=self._output_topics,
            committed=self._tracker.committed,
            topic_ids=self._topic_ids,
            trust={topic: self._settings.trust_of(topic) for topic in self._inputs},
            outputs={topic: self._outputs_of(topic) for topic in self._inputs},
            read=self._policies.all_offsets(),
            policy_offsets=self._policies.policy_offsets(),
            facts_offset=self._policies.facts_offset(),
            snapshots=tuple((snapshot.since, snapshot.until, snapshot.number) for snapshot in published),
            segments=self._broadcasts.segments,
            facts=facts,
            now=time.time_ns() // 1_000_000,
            limits=self._settings.limits,
            formats=self._encodings.formats(),
            enforced=self._settings.mode == "enforce",
            budgets=budgets,
            pending=pending,
            **({} if self._named is None else self._answered(self._named)),
        )
        broadcasts = [snapshot.broadcast for snapshot in published]
        rebuilt = self._named.broadcasts() if self._named is not None else []
        return Worker(task, broadcasts, self._facts.broadcasts, self._broadcasts.changes, rebuilt), task

    def _answered(self, named: NamedOffsets) -> dict[str, Any]:
        """What the workers need of a task to decide answered records."""
        topics = self._settings.topics
        return {
            "named": named.named(),
            "policy_topics": topics.policy_topics(),
            "facts_topic": topics.facts,
            "answer_skew": ANSWER_SKEW_MS,
        }

    def _outputs_of(self, topic: str) -> Outputs:
        dead_letters = self._output_topics.index(dead_letters_of(topic))
        topics = self._settings.topics
        return Outputs(dead_letters, VERDICTS if topic in topics.audit else None, topic in topics.answered)

    def by_known_answers(
        self, task: Task, snapshots: Sequence[PublishedSnapshot], partitions: Iterable[Partition]
    ) -> bytes | None:
        """How tasks decide by what is known; None: they do not."""
        return encode_task(task, snapshots[-1].version, self._versions, partitions)

    def rebuild(self, moments: Iterable[int]) -> bool:
        """Rebuild the snapshots in force at these moments (ms), see `PastSnapshots`; whether there is any new one."""
        return self._past.rebuild(moments)

    def resolve(self, evaluated: Evaluated) -> bool:
        """Look for the snapshots that answers name and that are not held; whether any was found."""
        if self._named is None:
            return False
        return self._named.resolve(itertools.chain.from_iterable(side.offsets for side in evaluated.side_outputs))

    def tidy(self) -> None:
        """Drop what only batches before the one that is committed have used."""
        self._broadcasts.tidy()
        self._facts.tidy()
        self._past.tidy()
        if self._named is not None:
            self._named.tidy()
