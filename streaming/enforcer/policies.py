"""The policies and facts as the job knows them: read from their topics, snapshotted, and what is to be told of them."""

import time
from collections.abc import Mapping

import structlog
from confluent_kafka import Message

from policy.library import Library
from policy.snapshot import Snapshot
from policy.systems import all_systems
from streaming.enforcer.alerts import policy_rejected
from streaming.enforcer.documents import Record, Refused, Shelving
from streaming.enforcer.history import History
from streaming.enforcer.kafka import Partition
from streaming.enforcer.reader import TopicReader
from streaming.enforcer.transaction import Result
from streaming.settings import Settings

log = structlog.get_logger()


class Policies:
    """Follows the documents' topics. `snapshot`: what they said at `positions`, a new object when that changed.

    `changed_at`: the broker's timestamp of the newest policy document read, ms.
    `told`: the offsets below which alerts were written before this run, by partition; see `untold`.
    """

    def __init__(self, settings: Settings, told: Mapping[Partition, int]) -> None:
        topics, limit = settings.topics, settings.limits.document
        self._policies, self._facts = Library(), Library(facts_only=True)
        by_system = topics.policy_topics()
        self._shelvings = {topic: Shelving(self._policies, system, limit) for system, topic in by_system.items()}
        self._shelvings[topics.facts] = Shelving(self._facts, None, limit)
        self._history = History(topics.history, by_system, limit)
        self._told, self._untold = told, list[Refused]()
        self._alerts_topic, self._facts_topic = topics.alerts, topics.facts
        self._read_history(settings)
        self._reader = TopicReader(settings, self._shelvings)
        self._complete = False
        self.changed_at = 0
        self.snapshot = Snapshot(self._policies, self._facts)

    def _read_history(self, settings: Settings) -> None:
        reader = TopicReader(settings, [settings.topics.history])
        kept: dict[bytes, Record | None] = {}
        for message in reader.read_to_end():
            key = message.key() or b""
            kept[key] = self._history.read_back(key, message.value(), message.headers() or ())
        reader.close()
        for record in kept.values():
            if record is not None:
                self._shelve(record)

    def catch_up(self, seconds: float) -> None:
        """Read up to the ends fetched now, and take a new snapshot if anything was read.

        Raises KafkaException when Kafka does not answer; TimeoutError when it takes longer than `seconds`. The
        snapshot stays as it was then, and must not be used.
        """
        before = dict(self.positions)
        for message in self._reader.read_to_end(seconds):
            record = _record(message)
            if record.topic != self._facts_topic:
                self.changed_at = max(self.changed_at, record.at)
            refused = self._shelve(record)
            if refused is not None and refused.offset >= self._told.get((refused.topic, 0), 0):
                self._untold.append(refused)
        if not self._complete:
            self._history.close_gaps(self._policies, time.time_ns() // 1_000_000)
        if self.positions != before or not self._complete:
            self.snapshot = self._compile()
        self._complete = True

    def _shelve(self, record: Record) -> Refused | None:
        shelving = self._shelvings[record.topic]
        key = shelving.key_of(record)
        if key is not None and shelving.system is not None:
            self._history.note(key, record)
        return shelving.take(record)

    def _compile(self) -> Snapshot:
        snapshot = Snapshot(self._policies, self._facts)
        horizons = {name: system.horizon(snapshot.realms[name].facts) for name, system in all_systems().items()}
        for library in (self._policies, self._facts):
            library.forget_before(horizons)
        self._history.settle(self._policies)
        if snapshot.version != self.snapshot.version:
            refused, held = len(snapshot.rejected), self._policies.history_held
            log.info("policies in force", version=snapshot.version, refused=refused, superseded_versions_held=held)
        return snapshot

    @property
    def positions(self) -> dict[Partition, int]:
        """The ends of the last complete reading, by partition: where the next one goes on."""
        return self._reader.positions

    def policy_offsets(self) -> dict[str, dict[str, int]]:
        """The newest offset read, by policy topic and partition; -1 for an empty one."""
        offsets = self.all_offsets()
        return {topic: partitions for topic, partitions in offsets.items() if topic != self._facts_topic}

    def all_offsets(self) -> dict[str, dict[str, int]]:
        """The same with the facts topic."""
        return {topic: {str(number): end - 1} for (topic, number), end in self.positions.items()}

    def facts_offset(self) -> int:
        """The newest offset read of the facts topic; -1: it is empty."""
        return self.positions[self._facts_topic, 0] - 1

    def untold(self) -> list[Result]:
        """What the next transaction must say of the documents: alerts of refused ones, and changes of the history."""
        alerts = [policy_rejected(self._alerts_topic, refused) for refused in self._untold]
        return alerts + self._history.changes(self._policies)

    def told(self) -> None:
        """Note that a transaction with all of `untold` was committed."""
        self._untold.clear()
        self._history.written(self._policies)

    def close(self) -> None:
        """Leave Kafka."""
        self._reader.close()


def _record(message: Message) -> Record:
    topic, offset, (_, at) = message.topic(), message.offset(), message.timestamp()
    assert topic is not None
    assert offset is not None
    return Record(topic, message.key() or b"", message.value() or b"", offset, at)
