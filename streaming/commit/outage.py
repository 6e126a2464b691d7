"""Waits while Kafka is unavailable: with pauses that grow, one line when the wait begins, and one when it has ended."""

import threading
import time
from collections.abc import Callable
from typing import TypeVar

import structlog
from confluent_kafka import KafkaException

from streaming.errors import CannotWrite, Stopping
from streaming.ops.watch import Watch

log = structlog.get_logger()

FIRST_PAUSE, LONGEST_PAUSE = 0.2, 5.0

Found = TypeVar("Found")


def is_unavailable(error: BaseException) -> bool:
    """Whether Kafka did not answer, or not in time: the same may succeed later."""
    return isinstance(error, KafkaException | TimeoutError | CannotWrite)


class Outage:
    """The time in which Kafka does not do what the job needs. One thread at a time waits.

    `since`: when the outage under way began (Unix time, s); None: there is none. `cause`: its first error.
    `reported`: whether an alert says that policies could not be read meanwhile.
    """

    def __init__(self, stop: threading.Event, watch: Watch) -> None:
        self._stop, self._watch = stop, watch
        self._pause = FIRST_PAUSE
        self.since: float | None = None
        self.cause = ""
        self.reported = False

    def retry(
        self,
        awaited: str,
        attempt: Callable[[], Found],
        unavailable: Callable[[BaseException], bool] = is_unavailable,
    ) -> Found:
        """What `attempt` returns once Kafka lets it. Raises Stopping when asked to stop, and other errors at once."""
        while True:
            try:
                return attempt()
            except Exception as error:
                if not unavailable(error):
                    raise
                self.wait(awaited, error)

    def wait(self, awaited: str, error: BaseException) -> None:
        """Pause before the next attempt; raises Stopping when asked to stop."""
        if self.since is None:
            self.since, self.cause = time.time(), str(error)
            log.warning("waiting for Kafka", awaited=awaited, error=self.cause)
        else:
            log.debug("still waiting for Kafka", awaited=awaited, error=str(error))
        self._watch.waits_for_kafka(self.since)
        if self._stop.wait(self._pause):
            raise Stopping("asked to stop while it waited for Kafka") from error
        self._pause = min(2 * self._pause, LONGEST_PAUSE)

    def end(self) -> None:
        """Note that Kafka has done all that was needed."""
        if self.since is not None:
            log.info("Kafka is available again", waited_seconds=round(time.time() - self.since, 1))
        self.since, self.cause, self.reported, self._pause = None, "", False, FIRST_PAUSE
        self._watch.waits_for_kafka(None)
