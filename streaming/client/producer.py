"""Sending records, each with one report of what became of it."""

import threading
from collections.abc import Callable

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from streaming.client.connection import Connection, describe
from streaming.client.decision import Place
from streaming.client.records import Record
from streaming.kafka.permissions import is_not_authorized, topic_permissions

USUAL = {
    "linger.ms": "1",
    "message.timeout.ms": "30000",  # a request that old has long been given up
    "partitioner": "murmur2_random",  # a key goes to the partition where Java's clients would put it
}
FIXED = {"enable.idempotence": "true"}

Report = Callable[[Place | None, str], None]
"""Called once with the record's place, or with None and why it was not sent."""


class Outbox:
    """An idempotent producer; re-created after a fatal error. `poll` from one thread, `send` from any."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._renewing = threading.Lock()
        self._producer = self._make()

    def _make(self) -> Producer:
        return self._connection.make(Producer, USUAL, FIXED)

    def send(self, record: Record, report: Report) -> None:
        """Begin to send. The report comes from `poll`, or at once for what cannot be sent."""

        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is None:
                report(Place(record.topic, message.partition() or 0, _offset(message)), "")
            else:
                report(None, self._why(KafkaException(error), producer, record.topic))

        producer = self._producer
        try:
            producer.produce(record.topic, record.value, record.key, headers=record.headers, on_delivery=delivered)
        except (KafkaException, BufferError, TypeError, ValueError) as error:
            report(None, self._why(error, producer, record.topic))

    def _why(self, error: Exception, failed: Producer, topic: str) -> str:
        inner = error.args[0] if error.args else None
        if isinstance(inner, KafkaError) and inner.fatal():
            self._renew(failed)
        denied = is_not_authorized(inner, "topic")
        why = self._connection.denied(topic_permissions("Write", [topic])) if denied else describe(error)
        return self._connection.scrub(f"not sent: {why}")

    def _renew(self, failed: Producer) -> None:
        """An idempotent producer that has lost count refuses everything from then on."""
        with self._renewing:
            if self._producer is failed:
                self._producer = self._make()

    def poll(self, seconds: float) -> None:
        """Give the reports that have come; wait for the first of them."""
        self._producer.poll(seconds)

    def close(self, seconds: float) -> None:
        """Wait for what is on its way, and give its reports."""
        self._producer.flush(seconds)


def _offset(message: Message) -> int:
    offset = message.offset()
    return -1 if offset is None else offset
