"""Where Kafka is, what the topics are called, and how to be let in."""

import contextlib
import ctypes
import os
import re
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from streaming.client.decision import ClientError
from streaming.client.records import ProducerRecord
from streaming.kafka.clients import FETCHING, Partition, first_offsets, last_stable_offsets, partition_numbers
from streaming.kafka.idempotent import RenewedProducer
from streaming.kafka.permissions import (
    CLIENT_GROUP,
    Permission,
    explain_missing,
    is_not_authorized,
    missing_permissions,
    principal_of,
    topic_permissions,
)
from streaming.kafka.stalled import Progress, positions_of
from streaming.records.decision import Place
from streaming.settings import MASK, Limits, SchemaRegistry, Settings, load_settings
from streaming.topics import TopicNames

T = TypeVar("T")

Setting = Any  # text, number, bool, or a function such as `oauth_cb`

SECRET = re.compile(r"password|secret|token|credential|jaas|oauthbearer|\.pem$|\.key$", re.IGNORECASE)
"""The settings whose values are taken out of what Kafka's clients say."""


@dataclass(frozen=True, repr=False)
class Connection:
    """How to reach a cluster. `kafka`: librdkafka's settings, as they are, security among them.

    `schema_registry`: needed where the job writes Avro in Confluent's wire format. `limits`, `trust`, `mode`: those
    of the job, which hold for what a local client answers, too.

    What the client promises goes before `kafka`: it reads committed records alone, whatever is set there.
    """

    bootstrap_servers: str = "localhost:9092"
    topics: TopicNames = field(default_factory=TopicNames)
    kafka: Mapping[str, Setting] = field(default_factory=dict)
    schema_registry: SchemaRegistry = SchemaRegistry()  # noqa: RUF009 (it is frozen)
    limits: Limits = Limits()  # noqa: RUF009
    trust: Mapping[str, frozenset[str]] = field(default_factory=dict)
    mode: Literal["enforce", "shadow"] = "enforce"

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """The connection that settings of the job describe."""
        return cls(**{own.name: getattr(settings, own.name) for own in fields(cls)})

    @classmethod
    def from_environment(cls) -> Self:
        """The connection that `LOCKKEEPER_…` variables describe, and the file that LOCKKEEPER_CONFIG names, if any.

        Raises SettingsError.
        """
        path = os.environ.get("LOCKKEEPER_CONFIG")
        return cls.of(load_settings(Path(path) if path else None))

    def __repr__(self) -> str:
        """With the names of the settings alone: there is no complete list of the secret ones."""
        return f"Connection({self.bootstrap_servers!r}, kafka={dict.fromkeys(self.kafka, MASK)})"

    def settings(self, **more: Any) -> Settings:
        """The same as settings of the job, for what takes those."""
        return Settings(**{own.name: getattr(self, own.name) for own in fields(self)} | more)

    def make(self, kind: type[T], usual: Mapping[str, Any], fixed: Mapping[str, Any]) -> T:
        """One of Kafka's clients. `usual` gives way to the user's settings, and those to `fixed`.

        Raises ClientError for settings that librdkafka refuses.
        """
        servers = {"bootstrap.servers": self.bootstrap_servers}
        try:
            handle: T = _with_weak_references(kind)({"log_level": "2", **usual, **self.kafka, **fixed, **servers})
        except (KafkaException, TypeError, ValueError) as error:
            raise ClientError(f"kafka settings: {self.scrub(describe(error))}") from None  # its cause may hold a secret
        _handles.add(handle)
        return handle

    def denied(self, missing: Iterable[Permission]) -> str:
        """Which permissions the principal lacks, and the ACLs that grant them."""
        return explain_missing(principal_of(self.kafka), self.bootstrap_servers, missing)

    def scrub(self, text: str) -> str:
        """The text without the values of secret settings."""
        secrets = (str(value) for name, value in self.kafka.items() if SECRET.search(name))
        for secret in sorted(filter(None, secrets), key=len, reverse=True):
            text = text.replace(secret, MASK)
        return text


_handles = weakref.WeakSet[Any]()


def _with_weak_references(kind: type[Any]) -> type[Any]:
    """The same class for objects that a WeakSet may have; those of a class in C alone have no room for it."""
    return type(kind.__name__, (kind,), {})


def _never_free() -> None:
    """librdkafka ends a forked process when that frees a handle from before, whose threads it has not."""
    for handle in _handles:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(handle))


os.register_at_fork(after_in_child=_never_free)


def connection_to(address: Connection | str) -> Connection:
    """A connection from itself, or from HOST:PORT alone."""
    return Connection(address) if isinstance(address, str) else address


def describe(error: Exception) -> str:
    """What an error of Kafka's clients says, for people."""
    inner = error.args[0] if error.args else error
    if isinstance(error, TimeoutError) and not str(error):
        return "Kafka did not answer in time"
    return str(inner.str()) if hasattr(inner, "str") else str(error) or type(error).__name__


USUAL = {
    "linger.ms": "1",
    "message.timeout.ms": "30000",  # a request that old has long been given up
    "partitioner": "murmur2_random",  # a key goes to the partition where Java's clients would put it
}
FIXED = {"enable.idempotence": "true"}

Report = Callable[[Place | None, str], None]
"""Called once with the record's place, or with None and why it was not sent."""


class IdempotentProducer:
    """An idempotent producer; re-created after a fatal error. `poll` from one thread, `send` from any."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._producer = RenewedProducer(lambda: connection.make(Producer, USUAL, FIXED))

    def send(self, record: ProducerRecord, report: Report) -> None:
        """Begin to send. The report comes from `poll`, or at once for what cannot be sent."""

        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is None:
                report(Place(record.topic, message.partition() or 0, _offset(message)), "")
            else:
                report(None, self._why(KafkaException(error), producer, record.topic))

        producer = self._producer.current
        try:
            producer.produce(record.topic, record.value, record.key, headers=record.headers, on_delivery=delivered)
        except (KafkaException, BufferError, TypeError, ValueError) as error:
            report(None, self._why(error, producer, record.topic))

    def _why(self, error: Exception, failed: Producer, topic: str) -> str:
        inner = error.args[0] if error.args else None
        self._producer.renew_after(inner, failed)
        denied = is_not_authorized(inner, "topic")
        why = self._connection.denied(topic_permissions("Write", [topic])) if denied else describe(error)
        return self._connection.scrub(f"not sent: {why}")

    def poll(self, seconds: float) -> None:
        """Give the reports that have come; wait for the first of them."""
        self._producer.poll(seconds)

    def close(self, seconds: float) -> None:
        """Wait for what is on its way, and give its reports."""
        self._producer.flush(seconds)


def _offset(message: Message) -> int:
    offset = message.offset()
    return -1 if offset is None else offset


SECONDS = 3.0  # for one question to the cluster, up to four times that after failures; `close` may have to wait as long
POLL_SECONDS = 0.1
FETCH = 1000
GROUP = Permission("group", CLIENT_GROUP, "Describe")  # librdkafka looks for its coordinator
READING = {
    "group.id": CLIENT_GROUP,
    "isolation.level": "read_committed",
    "enable.auto.commit": "false",
    "auto.offset.reset": "error",
    "enable.partition.eof": "false",
}


class Lost(Exception):
    """The place in the topics is not known, or not any more: answers may be missed. The message says why."""


class TopicConsumer:
    """A consumer of whole topics, for one thread. First `seek_to_end`, then `receive`."""

    def __init__(self, connection: Connection, topics: Sequence[str], beside: Sequence[str]) -> None:
        """`beside`: topics that must exist as well, and let themselves be written."""
        self._connection, self._topics, self._beside = connection, topics, beside
        self._trouble, self._seconds = "", SECONDS
        self._consumer = self._make()
        self._admin = connection.make(AdminClient, {}, {})
        self._starts: dict[Partition, int] = {}  # of what is assigned
        self._progress = Progress(self._admin)

    def _make(self) -> Consumer:
        return self._connection.make(Consumer, FETCHING, {**READING, "error_cb": self._note})

    def seek_to_end(self) -> None:
        """Read from the ends, so that no answer to a later request is missed. Raises Lost, and may be tried again."""
        try:
            partitions = self._partitions()
            self._check_permissions()
            ends = last_stable_offsets(self._admin, partitions)
            self._consumer.assign([TopicPartition(*partition, end) for partition, end in ends.items()])
        except (KafkaException, TimeoutError) as error:
            self._seconds = min(2 * self._seconds, 4 * SECONDS)  # an overloaded broker takes seconds
            raise Lost(self._why(error)) from None
        self._starts, self._trouble = ends, ""
        self._progress.begin()

    def receive(self) -> list[Message]:
        """The records that have come; waits a moment for the first. Raises Lost."""
        first = self._consumer.poll(POLL_SECONDS)  # `consume` would wait for more than one
        messages = [] if first is None else [first, *self._consumer.consume(FETCH, 0)]
        for message in messages:
            if (error := message.error()) is not None:
                raise Lost(self._why(KafkaException(error)))
        if self._progress.is_due():
            self._look_for_more()
        return messages

    def _look_for_more(self) -> None:
        """A partition added since is read from its first record: nothing in it is older than our place.

        Raises Lost for a topic that was deleted, which librdkafka reports only much later.
        """
        with contextlib.suppress(KafkaException, TimeoutError):  # then the next look finds them
            added = [partition for partition in self._partitions() if partition not in self._starts]
            if added:
                starts = first_offsets(self._admin, added)
                self._consumer.incremental_assign([TopicPartition(*new, at) for new, at in starts.items()])
                self._starts.update(starts)
            self._replace_stalled_consumer()

    def _replace_stalled_consumer(self) -> None:
        """A new consumer reads on from there, so that no answer is missed."""
        positions = positions_of(self._consumer, self._starts)
        if self._progress.is_stalled(positions):
            self._consumer.close()
            self._consumer = self._make()
            self._consumer.assign([TopicPartition(*partition, at) for partition, at in positions.items()])
            self._starts = positions

    def _partitions(self) -> list[Partition]:
        there = partition_numbers(self._admin, (*self._topics, *self._beside), self._seconds)
        for topic in (*self._topics, *self._beside):
            if topic not in there:
                self._check_permissions()  # Kafka hides topics from those who may not describe them
                raise Lost(f"topic {topic} does not exist: run `lockkeeper topics create`, or name another")
        return [(topic, number) for topic in self._topics for number in there[topic]]

    def _check_permissions(self) -> None:
        """Kafka's own refusals come one by one, and that of the group only some time after the topics are read."""
        topics = [*topic_permissions("Read", self._topics), *topic_permissions("Write", self._beside)]
        if missing := missing_permissions(self._admin, [*topics, GROUP], self._seconds):
            raise Lost(self._connection.denied(missing))

    def _note(self, error: KafkaError) -> None:
        self._trouble = error.str()

    def _why(self, error: Exception) -> str:
        """With what librdkafka reports in addition, such as that the password is wrong."""
        if error.args and is_not_authorized(error.args[0], "group"):
            return self._connection.denied([GROUP])
        with contextlib.suppress(KafkaException):
            self._consumer.poll(0)  # which calls `_note`
        return self._connection.scrub("; ".join(dict.fromkeys(filter(None, (describe(error), self._trouble)))))

    def close(self) -> None:
        """Stop reading, for good: what is left ends with its last reference."""
        self._consumer.close()
        del self._consumer  # it holds `_note`: its threads and files would stay until the garbage collector comes
