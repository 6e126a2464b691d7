"""Idempotent producers that failed for good and were replaced: their last delivery reports are still to come."""

from confluent_kafka import Producer


class FailedProducers:
    """Polled until each has given its reports. `add` from any thread, `poll` from one."""

    def __init__(self) -> None:
        self._producers: list[Producer] = []

    def add(self, producer: Producer) -> None:
        """Have what it has queued reported as not sent: it sends nothing any more, and callers wait for the reports."""
        self._producers.append(producer)
        producer.purge(blocking=False)

    def poll(self) -> None:
        """Give the reports that have come."""
        for producer in tuple(self._producers):
            producer.poll(0)
            if not len(producer):
                self._producers.remove(producer)
