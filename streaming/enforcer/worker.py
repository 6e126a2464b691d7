"""The part of a request's path that runs in Spark's Python workers: filter, decode, decide, encode, pack."""

import gc
from collections.abc import Iterator, Mapping

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.core.broadcast import Broadcast

from policy.snapshot import Snapshot
from streaming.enforcer.judge import Basis, Judge, Source
from streaming.enforcer.kafka import Partition
from streaming.enforcer.records import Records
from streaming.enforcer.wire import pack
from streaming.settings import Limits

# Headers come as JSON, their values in base64: as the nested Arrow column they cost five times the rest together.
COLUMNS = ("topic", "partition", "offset", "timestamp", "key", "value", "to_json(headers) AS headers")
SCHEMA = "packed binary"
ALLOCATIONS_BETWEEN_COLLECTIONS = 100_000


class Task(msgspec.Struct, frozen=True):
    """What the workers of one batch need beside the snapshot. Plain data, the same for every worker.

    `dead_letters`: by request topic, the number of the output for its dead letters. `read`: the newest offset read of
    every documents' topic; `policy_offsets`: the same without the facts.
    `snapshot_number`: which of this run's snapshots the broadcast holds. `now`: the driver's clock, ms.
    """

    committed: Mapping[Partition, int]
    topic_ids: Mapping[str, str]
    trust: Mapping[str, frozenset[str]]
    dead_letters: Mapping[str, int]
    read: Mapping[str, Mapping[str, int]]
    policy_offsets: Mapping[str, Mapping[str, int]]
    facts_offset: int
    snapshot_number: int
    now: int
    limits: Limits


class Worker:
    """Called by Spark with the Arrow batches of one task, which all come from one partition of one topic."""

    def __init__(self, task: Task, snapshot: "Broadcast[Snapshot]") -> None:
        self._task = task
        self._snapshot = snapshot

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield one cell with many packed records for each Arrow batch that has any to decide."""
        for batch in batches:
            undecided = self._undecided(batch)
            if undecided.num_rows:
                yield pa.RecordBatch.from_pydict({"packed": pa.array([self._judge(undecided)], pa.binary())})

    def _undecided(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Exactly once, rule 2: a record is decided if and only if its offset is at or above the committed one."""
        if not batch.num_rows:
            return batch
        committed = self._task.committed.get(_place(batch), 0)
        offsets = batch.column("offset")
        return batch if offsets[0].as_py() >= committed else batch.filter(pc.greater_equal(offsets, committed))

    def _judge(self, batch: pa.RecordBatch) -> bytes:
        task, (topic, partition) = self._task, _place(batch)
        source = Source(topic, partition, task.topic_ids[topic], task.trust[topic], task.dead_letters[topic])
        judge = _judge_of(task.snapshot_number, self._snapshot, task.limits)
        basis = Basis(judge.snapshot.version, task.policy_offsets, task.facts_offset, task.read, task.now)
        sitting = judge.sit(source, basis)
        return pack(sitting.decide_all(Records(batch, task.limits)))


def _place(batch: pa.RecordBatch) -> Partition:
    """The topic and partition that all records of a batch share: a Kafka task reads exactly one."""
    topics, partitions = pc.unique(batch.column("topic")), pc.unique(batch.column("partition"))
    if len(topics) != 1 or len(partitions) != 1:
        raise RuntimeError(f"one Spark task holds records of {topics} {partitions}; unset `minPartitions`")
    return topics[0].as_py(), partitions[0].as_py()


_judges: dict[int, Judge] = {}
"""The judge of the newest snapshot that this process has seen, with its caches. At most one: older batches are over."""


def _judge_of(number: int, snapshot: "Broadcast[Snapshot]", limits: Limits) -> Judge:
    judge = _judges.get(number)
    if judge is None:
        _judges.clear()
        judge = _judges[number] = Judge(snapshot.value, limits)
        # Snapshot and caches hold no cycles: to search them for some again and again takes half of the time.
        gc.freeze()
        gc.set_threshold(ALLOCATIONS_BETWEEN_COLLECTIONS)
    return judge
