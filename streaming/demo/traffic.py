"""The demo's two ends of the stream: a sender of requests at a steady rate, and a reader of decisions."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any, Self

import msgspec
from confluent_kafka import Consumer, Producer, TopicPartition

from streaming.demo import scenario
from streaming.demo.ledger import Ledger

REPORTED = 5  # of so many accesses one is reported

Endless = Iterator[dict[str, Any]]


class Worker:
    """A thread that calls ``step`` until ``stop``, which raises what it raised."""

    def __init__(self, step: Callable[[], None]) -> None:
        self._step = step
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self._step()
        except BaseException as error:
            self._error = error

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop and wait; raises what the thread raised."""
        self._stop.set()
        self._thread.join()
        if self._error is not None:
            raise self._error


class Sender:
    """Produces requests, booking each; ``rate`` a second."""

    def __init__(self, kafka: Mapping[str, Any], topic: str, requests: Endless, rate: float, ledger: Ledger) -> None:
        self._producer = Producer({**kafka, "linger.ms": 2, "enable.idempotence": True})
        self._topic = topic
        self._requests = requests
        self._pause = 1 / rate
        self._due: float | None = None
        self._ledger = ledger

    def step(self) -> None:
        """Send one request when it is due."""
        now = time.monotonic()
        due = now if self._due is None else self._due
        if due > now:
            self._producer.poll(due - now)
            return
        self.send(next(self._requests))
        self._due = due + self._pause

    def send(self, request: dict[str, Any]) -> None:
        """Send one request now."""
        self._ledger.send(request)
        value = msgspec.json.encode(request)
        self._producer.produce(self._topic, value, key=request["subject"]["id"].encode())
        self._producer.poll(0)

    def flush(self) -> None:
        """Wait until all that was sent is acknowledged."""
        if self._producer.flush(30):
            raise TimeoutError("the broker did not acknowledge the demo's requests within 30 seconds")


class Performer:
    """The services: they do what they were allowed, and report some of it as audit events."""

    def __init__(self, kafka: Mapping[str, Any], topic: str, ledger: Ledger) -> None:
        self._producer = Producer({**kafka, "linger.ms": 2, "enable.idempotence": True})
        self._topic, self._ledger, self._allowed = topic, ledger, 0

    def answered(self, decision: Mapping[str, Any]) -> None:
        """Book a decision, and do what it allows."""
        request = self._ledger.read(dict(decision))
        if decision["decision"] and request is not None:
            self._allowed += 1
            if self._allowed % REPORTED == 0:
                self.report(scenario.done(request, decision))

    def flush(self) -> None:
        """Wait until all that was reported is acknowledged."""
        if self._producer.flush(30):
            raise TimeoutError("the broker did not acknowledge the demo's audit events within 30 seconds")

    def report(self, event: Mapping[str, Any]) -> None:
        """Send one audit event."""
        self._producer.produce(self._topic, msgspec.json.encode(event), key=event["subject"]["id"].encode())
        self._producer.poll(0)


class Reader:
    """Reads a topic as its consumers do, committed transactions alone; `book` is called with each record."""

    def __init__(self, kafka: Mapping[str, Any], topic: str, book: Callable[[dict[str, Any]], None]) -> None:
        self._consumer = Consumer({**kafka, "group.id": "demo-reader", "isolation.level": "read_committed"})
        self._topic = topic
        self._book = book
        partitions = self._consumer.list_topics(topic, timeout=30).topics[topic].partitions
        self._consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])

    def step(self) -> None:
        """Book the records that have come."""
        for message in self._consumer.consume(1000, timeout=0.05):
            value = message.value()
            if message.error() is None and value is not None:
                self._book(msgspec.json.decode(value))

    def read_to_end(self) -> None:
        """Book everything up to the present end of the topic, the last stable offset of each partition."""
        deadline = time.monotonic() + 30
        while not self._at_end():
            if time.monotonic() > deadline:
                raise TimeoutError(f"the end of {self._topic} was not reached within 30 seconds")
            self.step()

    def _at_end(self) -> bool:
        for position in self._consumer.position(self._consumer.assignment()):
            low, end = self._consumer.get_watermark_offsets(position, timeout=10)
            if max(position.offset, low) < end:
                return False
        return True

    def close(self) -> None:
        """Leave the topic."""
        self._consumer.close()
