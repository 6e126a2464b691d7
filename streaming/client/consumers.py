"""Following decisions, alerts and dead letters: each is handled at least once, by one member of a group."""

import contextlib
import functools
import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, Self, TypeVar

import msgspec
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient

from streaming.client.connection import Connection, connection_to
from streaming.client.decision import ClientError, Decision, Unreadable, read_decision
from streaming.kafka.clients import FETCHING, Partition, first_offsets
from streaming.kafka.permissions import Permission, is_not_authorized, topic_permissions
from streaming.kafka.stalled import SECONDS, Progress
from streaming.records.alert import Alert, read_alert
from streaming.records.avro import Undecodable
from streaming.records.dead_letter_headers import read_headers, source_of
from streaming.records.decision import Place
from streaming.records.registry import Deserializer, RegistryDown
from streaming.records.schemas import Kind
from streaming.topics import dead_letters_of


class DeadLetter(msgspec.Struct, frozen=True):
    """A request record that became no decision. `key`, `value`: as they came, secrets masked."""

    source: Place
    message: str
    key: bytes | None
    value: bytes | None


def read_dead_letter(message: Message) -> DeadLetter | None:
    """The dead letter in a record; None when its headers name no source."""
    fields = read_headers(dict(message.headers() or ()).items())
    if (source := source_of(fields)) is None:
        return None
    return DeadLetter(source, fields.get("exception.message", ""), _bytes(message.key()), _bytes(message.value()))


def _bytes(value: str | bytes | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value


T = TypeVar("T")

log = logging.getLogger("lockkeeper.client")

FORKED = "the consumer was made in the process that this one was forked from: make one in each process"
POLL_SECONDS = 0.2
RETRY_SECONDS = 1.0
USUAL = {"auto.offset.reset": "earliest", "auto.commit.interval.ms": "1000", **FETCHING}
FIXED = {
    "isolation.level": "read_committed",
    "enable.auto.commit": "true",  # of what is stored, and that is done here
    "enable.auto.offset.store": "false",
    "enable.partition.eof": "false",
}


class RecordConsumer(Generic[T]):
    """Iterates what topics hold, typed, from where its group has come to; a new group begins with the oldest.

    What the loop's body was given counts as handled when the loop comes back for more: only then is its offset
    committed. After leaving the loop that item is delivered again, unless `handled` was called. For one thread; `stop`
    may come from any, or from a signal handler. Raises ClientError for settings that librdkafka refuses. In a process
    that is forked from that which made it, it hands out nothing.
    """

    def __init__(self, connection: Connection | str, group: str, topics: Sequence[str]) -> None:
        connection = connection_to(connection)
        self._connection, self._group, self._process = connection, group, os.getpid()
        self._deserializer = Deserializer(connection.schema_registry)
        self._stopped = threading.Event()
        self._at_hand: Message | None = None
        self._topics = list(topics)
        self._consumer = self._joined()

    def _joined(self) -> Consumer:
        consumer: Consumer = self._connection.make(Consumer, USUAL, {**FIXED, "group.id": self._group})
        consumer.subscribe(self._topics)
        return consumer

    def _read(self, message: Message) -> T | None:
        """The item in a record; None: there is none to hand out. Raises Unreadable."""
        raise NotImplementedError

    def _decoded(self, kind: Kind, message: Message, decode: Callable[[bytes], T]) -> T:
        """The item in a record of whatever encoding. Waits for a schema registry that does not answer."""
        while True:
            try:
                return decode(self._deserializer.json(kind, message.value() or b""))
            except RegistryDown as error:
                log.warning("%s waits: %s", _place(message), error)
                if self._stopped.wait(RETRY_SECONDS):
                    raise StopIteration from error
            except (Unreadable, Undecodable) as error:
                raise Unreadable(f"{_place(message)}: {error}") from error
            except (ValueError, RecursionError) as error:
                raise Unreadable(f"{_place(message)}: not an {kind.replace('-', ' ')}: {error}") from error

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        """The next item. Ends when stopped.

        Raises Unreadable for a record that is not what the topic should hold, which the next call skips; and
        ClientError when Kafka refuses, such as for a topic that is not there, and in a forked process.
        """
        if self._is_forked():
            raise ClientError(FORKED)
        self.handled()
        while not self._stopped.is_set():
            message = self._consumer.poll(POLL_SECONDS)
            if message is None:
                self._replace_stalled_consumer()
                continue
            if (error := message.error()) is not None:
                raise ClientError(self._connection.scrub(f"cannot read: {self._why(error, message.topic())}"))
            self._at_hand = message
            if (item := self._read(message)) is not None:
                return item
            self.handled()
        raise StopIteration

    def _replace_stalled_consumer(self) -> None:
        """Join the group again where records wait and none comes; from where items are handled, so none is lost."""
        if not self._progress.is_due():
            return
        with contextlib.suppress(KafkaException, TimeoutError):  # then the next look says so
            if self._progress.is_stalled(self._positions()):
                log.warning("no record comes from Kafka, though there are some; reading on with a new consumer")
                self._consumer.close()
                self._consumer = self._joined()
                self._progress.begin()

    @functools.cached_property
    def _progress(self) -> Progress:
        """Once nothing comes."""
        return Progress(self._connection.make(AdminClient, {}, {}))

    def _positions(self) -> dict[Partition, int]:
        """Of the partitions this member has. Before its first record librdkafka does not say: it is what the group
        has committed, else the first offset.
        """
        positions = {(tp.topic, tp.partition): tp.offset for tp in self._consumer.position(self._consumer.assignment())}
        if new := [partition for partition, offset in positions.items() if offset < 0]:
            first = first_offsets(self._progress.admin, new)
            for tp in self._consumer.committed([TopicPartition(*partition) for partition in new], SECONDS):
                positions[tp.topic, tp.partition] = max(tp.offset, first[tp.topic, tp.partition])
        return positions

    def _why(self, error: KafkaError, topic: str | None) -> str:
        if is_not_authorized(error, "topic"):
            return self._connection.denied(topic_permissions("Read", [topic or ""]))
        if is_not_authorized(error, "group"):
            return self._connection.denied([Permission("group", self._group, "Read")])
        return str(error.str())

    def handled(self) -> None:
        """The item that was handed out last is done with: its offset may be committed."""
        message, self._at_hand = self._at_hand, None
        if message is not None and not self._is_forked():
            with contextlib.suppress(KafkaException):  # the partition went to another member, which gets it again
                self._consumer.store_offsets(message)

    def stop(self) -> None:
        """End the iteration before its next item."""
        self._stopped.set()

    def close(self) -> None:
        """Commit what was handled and leave the group; in a forked process nothing, for the member is another one's."""
        self._stopped.set()
        if not self._is_forked():
            self._consumer.close()

    def _is_forked(self) -> bool:
        return os.getpid() != self._process

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class DecisionConsumer(RecordConsumer[Decision]):
    """Iterates the decisions on all requests.

    `on_dead_letter` is called with requests that became no decision, in between; left out, they are not read.
    """

    def __init__(
        self,
        connection: Connection | str,
        group: str,
        on_dead_letter: Callable[[DeadLetter], None] | None = None,
    ) -> None:
        topics = connection_to(connection).topics
        dead_letter_topics = [] if on_dead_letter is None else [dead_letters_of(topic) for topic in topics.requests]
        self._decisions, self._on_dead_letter = topics.decisions, on_dead_letter
        super().__init__(connection, group, [topics.decisions, *dead_letter_topics])

    def _read(self, message: Message) -> Decision | None:
        if message.topic() == self._decisions:
            return self._decoded("decision", message, read_decision)
        dead_letter = read_dead_letter(message)
        if dead_letter is None:
            raise Unreadable(f"{_place(message)}: not a dead letter: its headers name no record")
        if self._on_dead_letter is not None:
            self._on_dead_letter(dead_letter)
        return None


class AlertConsumer(RecordConsumer[Alert]):
    """Iterates the alerts."""

    def __init__(self, connection: Connection | str, group: str) -> None:
        super().__init__(connection, group, [connection_to(connection).topics.alerts])

    def _read(self, message: Message) -> Alert:
        return self._decoded("alert", message, read_alert)


class _State(msgspec.Struct, frozen=True):
    outcome: str
    statements: list[Any] = []


class AccessChange(msgspec.Struct, frozen=True):
    """Whose access a change turns (contracts, "Access change"). `change`: of policies, None for facts and ends."""

    id: str
    time: str
    system: str
    subject: dict[str, Any]
    action: dict[str, Any]
    resource: dict[str, Any]
    before: _State
    after: _State
    policy_offsets: dict[str, dict[str, int]]
    facts_offset: int
    context: dict[str, Any] = {}
    change: dict[str, Any] | None = None

    @property
    def is_lost(self) -> bool:
        """Whether what was allowed no longer is."""
        return self.before.outcome == "allow" != self.after.outcome


class AccessChangeConsumer(RecordConsumer[AccessChange]):
    """Iterates the access changes, of each subject in order."""

    def __init__(self, connection: Connection | str, group: str) -> None:
        super().__init__(connection, group, [connection_to(connection).topics.access_changes])

    def _read(self, message: Message) -> AccessChange:
        return self._decoded("access-change", message, _decode_access_change)


_decode_access_change = msgspec.json.Decoder(AccessChange).decode


def _place(message: Message) -> Place:
    return Place(message.topic() or "", message.partition() or 0, message.offset() or 0)
