"""The demo's two ends of the stream: a sender of requests at a steady rate, and a reader of decisions."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any, Self

import msgspec
from confluent_kafka import Consumer, Producer, TopicPartition

from streaming.demo.ledger import Ledger

Endless = Iterator[dict[str, Any]]


class Worker:
    """A thread that calls ``step`` until it is told to stop; what it raises comes out at ``stop``."""

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


class Reader:
    """Reads decisions as their consumers do: committed transactions alone."""

    def __init__(self, kafka: Mapping[str, Any], topic: str, ledger: Ledger) -> None:
        self._consumer = Consumer({**kafka, "group.id": "demo-reader", "isolation.level": "read_committed"})
        self._topic = topic
        self._ledger = ledger
        partitions = self._consumer.list_topics(topic, timeout=30).topics[topic].partitions
        self._consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])

    def step(self) -> None:
        """Book the decisions that have come."""
        for message in self._consumer.consume(1000, timeout=0.05):
            value = message.value()
            if message.error() is None and value is not None:
                self._ledger.read(msgspec.json.decode(value))

    def read_to_end(self) -> None:
        """Book everything up to the present end of the topic, the last stable offset of each partition."""
        deadline = time.monotonic() + 30
        while not self._at_end():
            if time.monotonic() > deadline:
                raise TimeoutError("the end of the decisions was not reached within 30 seconds")
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
