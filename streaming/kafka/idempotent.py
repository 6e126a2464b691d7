"""Idempotent producers, of which librdkafka's may fail for good."""

import threading
from collections.abc import Callable

from confluent_kafka import KafkaError, Producer

from streaming.kafka.clients import is_fatal


class RenewedProducer:
    """A producer that is replaced once it has failed for good. `poll` and `flush` from one thread, the rest from any.

    `current`: what records are produced with.
    """

    def __init__(self, make: Callable[[], Producer]) -> None:
        self._make, self._renewing = make, threading.Lock()
        self.current, self._failed = make(), list[Producer]()

    def renew_after(self, error: object, failed: Producer) -> None:
        """An idempotent producer that has lost count refuses everything from then on."""
        if not isinstance(error, KafkaError) or not is_fatal(error):
            return
        with self._renewing:
            if self.current is failed:
                self.current = self._make()
                self._failed.append(failed)
                failed.purge(blocking=False)  # callers wait for the reports of what it has queued

    def poll(self, seconds: float) -> None:
        """Give the reports that have come, of those that failed, too; wait for the first of them."""
        self.current.poll(seconds)
        for producer in tuple(self._failed):
            producer.poll(0)
            if not len(producer):
                self._failed.remove(producer)

    def flush(self, seconds: float) -> int:
        """Wait for what is on its way, and give its reports; how many records are left."""
        left = self.current.flush(seconds)
        self.poll(0)
        return left
