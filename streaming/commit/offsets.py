"""The offset tracker: which records are decided, by the committed offsets, and whether a batch follows on them."""

import contextlib
import secrets
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING

import msgspec
from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from streaming.errors import CannotStart, OffsetsDisagree
from streaming.kafka.clients import SECONDS, Partition, group_members, group_observer, once_coordinated
from streaming.kafka.reader import ACCEPT
from streaming.runtime.checkpoints import ARCHIVE
from streaming.settings import Settings

if TYPE_CHECKING:  # Spark, which a follower does without
    from streaming.commit.checkpoint import Checkpoint

FORMAT = 1
"""Of the metadata of committed offsets, and of the history topic's records."""

WITH_OWNER = 2
"""Of metadata that names an owner, which a version that does not look at it must not take over."""


IDLE_COMMIT_SECONDS = 30.0
"""How often offsets are committed again while there are no records. Kafka forgets those of a group without members
after offsets.retention.minutes, seven days by default and never less than a minute; and by its next commit, at the
latest, an instance notices that another one fenced it."""


class _Form(msgspec.Struct):
    format: int = 1


_decode_form = msgspec.json.Decoder(_Form).decode


def check_format(written: int, location: str, newest: int = FORMAT) -> None:
    """Raise CannotStart when what stands at `location` was written in a form that this version does not know."""
    if written > newest:
        raise CannotStart(
            f"{location} is of form {written}, written by a newer lockkeeper; this version reads forms up to {newest}. "
            "Start that newer version, or one after it. To go back for good, see docs/pages/upgrading.md"
        )


def form_of(metadata: str | None) -> int:
    """The format of commit metadata; 1 for metadata that lockkeeper did not write."""
    try:
        return _decode_form(metadata or "").format
    except msgspec.DecodeError:
        return 1


def check_committed_formats(settings: Settings, partitions: Iterable[Partition]) -> None:
    """Before any instance is fenced: raise CannotStart when a newer version has committed offsets of the job's group.

    By a consumer: librdkafka's admin client dies (SIGSEGV) where the group's coordinator is not ready yet.
    """
    group, request = settings.job_name, [TopicPartition(*partition) for partition in partitions]
    with contextlib.closing(group_observer(settings)) as consumer:
        for tp in once_coordinated(lambda: consumer.committed(request, timeout=SECONDS)):
            location = f"the committed offset of {tp.topic}-{tp.partition} in group {group!r}"
            check_format(form_of(tp.metadata), location, WITH_OWNER)


ANY = ""  # the checkpoint of a first commit, made before there is one


NOTHING_COMMITTED = (
    "there is a checkpoint, but the consumer group has no committed offsets (Kafka forgets those of a group that was "
    "away for offsets.retention.minutes). What was decided is no longer known. Set the group's offsets with "
    f"kafka-consumer-groups.sh --reset-offsets to where the decisions end, and move the checkpoint away with "
    f"`{ARCHIVE}`. If it is the checkpoint of another Kafka cluster, that alone is enough: the job starts from the "
    "first offsets here"
)


class CommitMetadata(msgspec.Struct, frozen=True):
    """Written beside each committed offset, to be compared at the next start. `format`: see `formats`.

    `read_until`: of the monitor, up to when (ms) its batch had read every partition; None: each to its end.
    `unanalysed`: of a policy topic, see `changes`.
    `transaction`: an id of the transaction that committed it. `owner`: of an input partition that is in a set, the
    transactional id that alone may commit its offset, see `Ownership.java`.
    """

    checkpoint: str
    batch: int
    topic_id: str
    format: int = FORMAT
    read_until: int | None = None
    unanalysed: tuple[int, ...] | msgspec.UnsetType = msgspec.UNSET
    transaction: str = ""
    owner: str | msgspec.UnsetType = msgspec.UNSET


_decode_commit = msgspec.json.Decoder(CommitMetadata).decode


class Committed(msgspec.Struct, frozen=True):
    """A committed offset and its commit metadata; None: another program committed it."""

    offset: int
    metadata: CommitMetadata | None


def check_group(settings: Settings, admin: AdminClient, partitions: Iterable[Partition]) -> None:
    """Before fencing: raise CannotStart when others write the group's offsets, or a newer version did."""
    check_committed_formats(settings, partitions)
    members = group_members(admin, settings.job_name)
    if members:
        raise CannotStart(
            f"the consumer group {settings.job_name!r} has members ({', '.join(members)}), who would commit offsets "
            "of their own. Give them another group.id, or the job another job_name"
        )


def read_committed(
    consumer: Consumer, partitions: Iterable[Partition], seconds: float = SECONDS
) -> dict[Partition, Committed]:
    """What the group has committed; partitions without an offset are left out.

    Raises KafkaException when Kafka does not answer, or cannot yet; CannotStart when it refuses.
    """
    offsets = consumer.committed([TopicPartition(*partition) for partition in partitions], timeout=seconds)
    for tp in offsets:
        if tp.error is not None:
            if tp.error.retriable():
                raise KafkaException(tp.error)
            raise CannotStart(f"committed offset of {tp.topic}-{tp.partition}: {tp.error}")
    return {
        (tp.topic, tp.partition): Committed(tp.offset, _decode_metadata(tp.metadata))
        for tp in offsets
        if tp.offset >= 0
    }


def _decode_metadata(metadata: str | None) -> CommitMetadata | None:
    try:
        return _decode_commit(metadata or "")
    except msgspec.DecodeError:
        return None


class OffsetTracker:
    """Committed offsets by partition, as the last transaction left them; `last`: the metadata of the newest batch.

    `unanalysed`: by policy topic, what is committed beside its offset, see `changes`. `replaced`: the offsets that
    count records of deleted topics, whose successors are accepted. `checkpoint`: the query id of the one there is.
    `owner_of`: see `PartitionSets.owner`.
    """

    def __init__(
        self,
        committed: Mapping[Partition, Committed],
        topic_ids: Mapping[str, str],
        replaced: Mapping[Partition, Committed] | None = None,
        checkpoint: str | None = None,
        owner_of: Callable[[Partition], str] = lambda _partition: "",
    ) -> None:
        self.replaced = replaced or {}
        self.committed = {partition: entry.offset for partition, entry in committed.items()}
        self._topic_ids = topic_ids
        by_topic = {topic: entry.metadata for (topic, _), entry in committed.items() if entry.metadata}
        self.unanalysed: Mapping[str, tuple[int, ...]] = {t: m.unanalysed for t, m in by_topic.items() if m.unanalysed}
        metadata = [entry.metadata for entry in committed.values() if entry.metadata]
        self._committed_batches = {
            (one.checkpoint, one.batch) for one in metadata
        }  # input partitions are committed one by one
        self.last = max(
            metadata, key=lambda one: (one.checkpoint == checkpoint, one.batch), default=CommitMetadata(ANY, -1, "")
        )
        self._transaction = ""  # of the offsets that were to be committed last
        self._owner_of = owner_of

    def check_range(self, batch: int, starts: Mapping[Partition, int]) -> None:
        """Raise OffsetsDisagree when the batch starts beyond what is decided: what lies between would be lost."""
        for partition in self.beyond_committed(starts):
            topic, number = partition
            raise OffsetsDisagree(
                f"batch {batch} of the checkpoint starts at offset {starts[partition]} of {topic}-{number}, but only "
                f"what is below {self.committed.get(partition, 0)} is decided. Were the offsets of the group reset? "
                f"Then move the checkpoint away with `{ARCHIVE}`; the job will start from the committed offsets"
            )

    def beyond_committed(self, starts: Mapping[Partition, int]) -> list[Partition]:
        """The partitions of which less is known to be decided than what is below these offsets."""
        return [partition for partition, start in starts.items() if start > self.committed.get(partition, 0)]

    def to_commit(
        self,
        ends: Mapping[Partition, int],
        checkpoint: str | None = None,
        batch: int = -1,
        read_until: int | None = None,
    ) -> list[TopicPartition]:
        """The offsets to commit of these partitions, none moved back.

        `checkpoint`, `batch`: of the micro-batch; without a checkpoint those of the last one stay.
        """
        if checkpoint is not None:
            self.last = CommitMetadata(checkpoint, batch, "", read_until=read_until)
        self._transaction = secrets.token_hex(8)
        offsets = {partition: max(end, self.committed.get(partition, 0)) for partition, end in ends.items()}
        return [TopicPartition(t, n, offset, self._metadata((t, n))) for (t, n), offset in sorted(offsets.items())]

    def _metadata(self, partition: Partition) -> str:
        topic, owner = partition[0], self._owner_of(partition)
        own = {
            "topic_id": self._topic_ids.get(topic, ""),
            "format": WITH_OWNER if owner else FORMAT,
            "transaction": self._transaction,
            "unanalysed": self.unanalysed.get(topic) or msgspec.UNSET,
            "owner": owner or msgspec.UNSET,
        }
        return msgspec.json.encode(msgspec.structs.replace(self.last, **own)).decode()

    def resume(self, committed: Mapping[Partition, Committed], asked: Iterable[Partition]) -> bool:
        """Take over what is committed, after a transaction of which that is not known: whether it is among it.

        `asked`: the partitions of that transaction. Raises OffsetsDisagree when committed offsets are gone or lie
        before what was known.
        """
        for topic, number in asked:
            self.move((topic, number), committed[topic, number].offset if (topic, number) in committed else None)
        return any(entry.metadata and entry.metadata.transaction == self._transaction for entry in committed.values())

    def move(self, partition: Partition, offset: int | None) -> None:
        """Take over what is committed of a partition; None: nothing.

        Raises OffsetsDisagree when that is before what was known.
        """
        topic, number = partition
        before = self.committed.get(partition)
        if before is not None and (offset is None or offset < before):
            raise OffsetsDisagree(
                f"offset {before} of {topic}-{number} was committed, and since Kafka was unavailable "
                f"{'none' if offset is None else offset} is. Is it the same cluster, with all of its data? Then set "
                "the group's offsets to where the decisions end, and move the checkpoint away"
            )
        if offset is not None:
            self.committed = {**self.committed, partition: offset}

    def is_of(self, checkpoint: str | None, batch: int) -> bool:
        """Whether something of this batch of this checkpoint is committed."""
        return (checkpoint, batch) in self._committed_batches or (checkpoint, batch) == (
            self.last.checkpoint,
            self.last.batch,
        )

    def lacks(self, positions: Mapping[Partition, int]) -> bool:
        """Whether some position is not committed yet."""
        return any(self.committed.get(partition, -1) < position for partition, position in positions.items())

    def advance(self, committed: Iterable[TopicPartition]) -> None:
        """Note what a transaction has committed."""
        self.committed = {**self.committed, **{(tp.topic, tp.partition): tp.offset for tp in committed}}


def open_offset_tracker(
    group: Consumer,
    partitions: Iterable[Partition],
    requests: Iterable[str],
    topic_ids: Mapping[str, str],
    checkpoint: "Checkpoint",
    cluster_id: str,
    accepted: Collection[str] = (),
    owner_of: Callable[[Partition], str] = lambda _partition: "",
) -> OffsetTracker:
    """The tracker as the last instance left it; raises CannotStart when offsets and checkpoint do not fit together.

    `cluster_id`: of the Kafka cluster that all of this is of. `accepted`: ids of re-created topics that are read from
    their beginning. `owner_of`: see `PartitionSets.owner`.
    """
    checkpoint.check_cluster(cluster_id)  # before anything else: no other difference would name the cause
    committed_before = read_committed(group, partitions)
    committed = without_replaced(committed_before, topic_ids, accepted)
    query_id = checkpoint.query_id()
    topics = set(requests)
    if query_id is not None and not any(topic in topics for topic, _ in committed):
        raise CannotStart(NOTHING_COMMITTED)
    checkpoint.check_readable()
    check_commit_metadata(committed, topic_ids, query_id, checkpoint.completed() if query_id else -1)
    checkpoint.clear_unfinished()
    checkpoint.write_cluster(cluster_id)
    replaced = {partition: entry for partition, entry in committed_before.items() if partition not in committed}
    return OffsetTracker(committed, topic_ids, replaced, query_id, owner_of)


def without_replaced(
    committed: Mapping[Partition, Committed], topic_ids: Mapping[str, str], accepted: Collection[str]
) -> dict[Partition, Committed]:
    """The committed offsets but those that count records of a deleted topic whose successor is accepted."""
    return {
        (topic, number): entry
        for (topic, number), entry in committed.items()
        if topic_ids.get(topic) not in accepted or entry.metadata is None or entry.metadata.topic_id == topic_ids[topic]
    }


def check_commit_metadata(
    committed: Mapping[Partition, Committed],
    topic_ids: Mapping[str, str],
    checkpoint: str | None,
    completed: int,
) -> None:
    """Raise CannotStart when commit metadata, topics and checkpoint do not match.

    `checkpoint`: the query id of the checkpoint there is; `completed`: the newest batch that it completed, or -1.
    """
    for (topic, number), entry in committed.items():
        _check_metadata(f"{topic}-{number}", entry.metadata, topic_ids.get(topic, ""), checkpoint, completed)


def _check_metadata(
    place: str, metadata: CommitMetadata | None, topic_id: str, checkpoint: str | None, completed: int
) -> None:
    if metadata is None:
        return
    if metadata.topic_id and metadata.topic_id != topic_id:
        raise CannotStart(
            f"the topic of {place} was deleted and re-created: the committed offset counts records of topic id "
            f"{metadata.topic_id}, and its id is {topic_id}. To read the new topic from its beginning, move the "
            f"checkpoint away with `{ARCHIVE}`, unless it is a topic of policies or facts, and start the job with "
            f"{ACCEPT}='[\"{topic_id}\"]'"
        )
    if metadata.checkpoint != ANY and checkpoint not in (None, metadata.checkpoint) and completed >= 0:
        raise CannotStart(
            f"the offset of {place} was committed with checkpoint {metadata.checkpoint}, but the configured one is "
            f"{checkpoint} and has completed batch {completed}. Is `checkpoint` that of another job? If not, move it "
            f"away with `{ARCHIVE}`; the job will start from the committed offsets"
        )
