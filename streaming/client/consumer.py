"""Reading answers: every partition, committed records alone, from now on."""

import contextlib
import time
from collections.abc import Sequence

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient

from streaming.client.connection import Connection, describe
from streaming.kafka.clients import Partition, first_offsets, last_stable_offsets
from streaming.kafka.permissions import (
    CLIENT_GROUP,
    Permission,
    is_not_authorized,
    missing_permissions,
    topic_permissions,
)

SECONDS = 3.0  # for one question to the cluster; `close` may have to wait as long
LOOK_SECONDS = 30.0  # how often new partitions are looked for
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


class Inbox:
    """A consumer of whole topics, for one thread. First `take_place`, then `receive`."""

    def __init__(self, connection: Connection, topics: Sequence[str], beside: Sequence[str]) -> None:
        """`beside`: topics that must exist as well, and let themselves be written."""
        self._connection, self._topics, self._beside = connection, topics, beside
        self._trouble = ""
        fixed = {**READING, "error_cb": self._note}
        self._consumer = connection.make(Consumer, {"fetch.wait.max.ms": "100"}, fixed)
        self._admin = connection.make(AdminClient, {}, {})
        self._assigned: set[Partition] = set()
        self._look_at = 0.0

    def take_place(self) -> None:
        """Be where every answer to what is asked from now on will come. Raises Lost, and may be tried again."""
        try:
            partitions = self._partitions()
            self._check_permissions()
            ends = last_stable_offsets(self._admin, partitions)
            self._consumer.assign([TopicPartition(*partition, end) for partition, end in ends.items()])
        except (KafkaException, TimeoutError) as error:
            raise Lost(self._why(error)) from None
        self._assigned, self._look_at, self._trouble = set(partitions), time.monotonic() + LOOK_SECONDS, ""

    def receive(self) -> list[Message]:
        """The records that have come; waits a moment for the first. Raises Lost."""
        first = self._consumer.poll(POLL_SECONDS)  # `consume` would wait for more than one
        messages = [] if first is None else [first, *self._consumer.consume(FETCH, 0)]
        for message in messages:
            if (error := message.error()) is not None:
                raise Lost(self._why(KafkaException(error)))
        if time.monotonic() > self._look_at:
            self._look_for_more()
        return messages

    def _look_for_more(self) -> None:
        """A partition added since is read from its first record: nothing in it is older than our place.

        Raises Lost for a topic that was deleted, which librdkafka reports only much later.
        """
        self._look_at = time.monotonic() + LOOK_SECONDS
        with contextlib.suppress(KafkaException, TimeoutError):  # then the next look finds them
            added = [partition for partition in self._partitions() if partition not in self._assigned]
            if added:
                starts = first_offsets(self._admin, added)
                self._consumer.incremental_assign([TopicPartition(*new, at) for new, at in starts.items()])
                self._assigned.update(added)

    def _partitions(self) -> list[Partition]:
        there = self._admin.list_topics(timeout=SECONDS).topics
        for topic in (*self._topics, *self._beside):
            if topic not in there:
                self._check_permissions()  # Kafka hides topics from those who may not describe them
                raise Lost(f"topic {topic} does not exist: run `lockkeeper topics create`, or name another")
            if there[topic].error is not None:
                raise KafkaException(there[topic].error)
        return [(topic, number) for topic in self._topics for number in there[topic].partitions]

    def _check_permissions(self) -> None:
        """Kafka's own refusals come one by one, and that of the group only some time after the topics are read."""
        topics = [*topic_permissions("Read", self._topics), *topic_permissions("Write", self._beside)]
        if missing := missing_permissions(self._admin, [*topics, GROUP], SECONDS):
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
        """Stop reading."""
        self._consumer.close()
