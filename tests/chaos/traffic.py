"""The checker's own traffic, over faults: what cannot be published now is tried again."""

import contextlib
import threading
from collections.abc import Callable

from confluent_kafka import KafkaException

from streaming.kafka.publish import PublishFailed
from streaming.verify.cluster import Sent, Traffic

RATE = 50.0
CHANGE_EVERY = 1.0
FOREVER = 24 * 3600.0
UNREACHABLE = (KafkaException, PublishFailed, TimeoutError)


class LastingTraffic(Traffic):
    """Requests and a policy change each second while the cluster fails and comes back.

    Requests wait in the producer. A change that was not acknowledged counts as unknown: the decisions may know it.
    """

    def _change(self, every: float, over: threading.Event) -> None:
        while not over.wait(every):
            with contextlib.suppress(*UNREACHABLE):
                self.sent.changes += 1
                self.publish(self.role(self.sent.changes))


class Sending:
    """Traffic that is sent by a thread until it is stopped."""

    def __init__(self, traffic: LastingTraffic, change_every: float = CHANGE_EVERY) -> None:
        self._traffic, self._over = traffic, threading.Event()
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._send, args=(change_every,), daemon=True)
        self._thread.start()

    def _send(self, change_every: float) -> None:
        try:
            self._traffic.send(FOREVER, change_every, self._over.is_set)
        except Exception as failure:  # raised by `stop`
            self._failure = failure

    def stop(self) -> Sent:
        """What was sent, once the broker has acknowledged all of it."""
        self._over.set()
        self._thread.join()
        if self._failure is not None:
            raise self._failure
        return self._traffic.sent


def retried(publish: Callable[[], None], attempts: int = 5) -> None:
    """Publish, and again where the cluster does not answer."""
    for left in reversed(range(attempts)):
        try:
            return publish()
        except UNREACHABLE:
            if not left:
                raise
    return None
