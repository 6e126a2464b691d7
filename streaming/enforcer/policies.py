"""Reads the documents' topics up to their end, and makes snapshots of what they say."""

from collections.abc import Callable, Mapping

import msgspec
import structlog
from confluent_kafka import KafkaException, Message, TopicPartition

from policy.library import Library
from policy.snapshot import Snapshot
from streaming.enforcer.documents import Record, Shelving
from streaming.enforcer.kafka import Partition, admin_client, log_reader, partitions_of, stable_ends
from streaming.settings import Settings

log = structlog.get_logger()

POLL_SECONDS = 0.005
FETCH = 1000


class Refused(msgspec.Struct, frozen=True):
    """A refused record: where it stands, which document, and why."""

    topic: str
    offset: int
    at: int
    document: str
    errors: tuple[str, ...]


class PolicyReader:
    """Follows the policy topics and the facts topic; its libraries hold what they say up to `positions`."""

    def __init__(self, settings: Settings) -> None:
        self.policies, self.facts = Library(), Library(facts_only=True)
        self._shelvings = self._shelve_by_topic(settings)
        self._admin = admin_client(settings)
        self._consumer = log_reader(settings)
        self._partitions = partitions_of(self._admin, self._shelvings)
        self._facts_topic = settings.topics.facts
        self.positions: dict[Partition, int] = dict.fromkeys(self._partitions, 0)
        self._consumer.assign([TopicPartition(topic, number, 0) for topic, number in self._partitions])

    def _shelve_by_topic(self, settings: Settings) -> dict[str, Shelving]:
        limit = settings.limits.document
        of_policies = {
            topic: Shelving(self.policies, system, limit) for system, topic in settings.topics.policy_topics().items()
        }
        return {**of_policies, settings.topics.facts: Shelving(self.facts, None, limit)}

    def catch_up(self, give_up: Callable[[], bool]) -> list[Refused] | None:
        """Read up to the ends fetched now. Returns what was refused on the way; None when `give_up` said so.

        As far as one can read is the last stable offset; how far one is, the consumer's position: it moves past
        markers and aborted records too, where waiting for a record with the last offset would hang.
        """
        ends = self._ends(give_up)
        refused: list[Refused] = []
        while ends is not None and any(self.positions[partition] < end for partition, end in ends.items()):
            for message in self._consumer.consume(FETCH, POLL_SECONDS):
                refused += self._take(message)
            self._note_positions()
            if give_up():
                return None
        return None if ends is None else refused

    def _ends(self, give_up: Callable[[], bool]) -> Mapping[Partition, int] | None:
        while True:
            try:
                return stable_ends(self._admin, self._partitions)
            except KafkaException as error:
                log.warning("the ends of the policy topics are not known", error=str(error))
                if give_up():
                    return None

    def _take(self, message: Message) -> list[Refused]:
        if message.error() is not None:
            raise KafkaException(message.error())
        topic, offset, (_, at) = message.topic(), message.offset(), message.timestamp()
        assert topic is not None
        assert offset is not None
        rejected = self._shelvings[topic].take(Record(topic, message.key(), message.value(), offset, at))
        return [Refused(topic, offset, at, rejected.key, rejected.errors)] if rejected else []

    def _note_positions(self) -> None:
        for tp in self._consumer.position([TopicPartition(*partition) for partition in self._partitions]):
            self.positions[tp.topic, tp.partition] = max(tp.offset, 0)

    def policy_offsets(self) -> dict[str, dict[str, int]]:
        """The newest offset read, by policy topic and partition; -1 for an empty one."""
        read = (partition for partition in self._partitions if partition[0] != self._facts_topic)
        return {topic: {str(number): self.positions[topic, number] - 1} for topic, number in read}

    def facts_offset(self) -> int:
        """The newest offset read of the facts topic."""
        return self.positions[self._facts_topic, 0] - 1

    def snapshot(self) -> Snapshot:
        """What the documents read so far say."""
        return Snapshot(self.policies, self.facts)

    def close(self) -> None:
        """Leave Kafka."""
        self._consumer.close()
