"""What the first page that needs it would wait for, done beforehand: once policies were read, and when they change.

It is done one thing after the other in a thread of its own, and nothing waits for it: a page that is asked for earlier
does itself what it needs.
"""

import contextlib
import gc
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError

import structlog
from confluent_kafka import KafkaException

from streaming.console.sandbox import DraftFailed, DraftRefused
from streaming.errors import JobStopped
from streaming.snapshots.at_offsets import NoLongerKnown

log = structlog.get_logger()

LOOK_SECONDS = 0.5
RETRY_SECONDS = 10.0  # after a step failed: as a rule Kafka does not answer
NOT_PREPARED = (KafkaException, TimeoutError, JobStopped, NoLongerKnown, DraftFailed, DraftRefused)
"""What a page says where it is told the same."""

CLOSED = (CancelledError, RuntimeError)


class Preparation:
    """Until `stop` is set. `steps`: each is done after each change of the policies."""

    def __init__(self, steps: Sequence[Callable[[], None]], stop: threading.Event) -> None:
        self._steps, self._stop, self._changed = steps, stop, threading.Event()
        self._thread = threading.Thread(target=self._run, name="preparation", daemon=True)

    def start(self) -> None:
        """Begin to wait for the policies."""
        self._thread.start()

    def begin(self) -> None:
        """Have all of it done, soon."""
        self._changed.set()

    def _run(self) -> None:
        is_first = True
        while not self._stop.is_set():
            if self._changed.wait(LOOK_SECONDS):
                self._changed.clear()
                if not self._prepare():
                    self._stop.wait(RETRY_SECONDS)
                    self._changed.set()
                if is_first:
                    gc.freeze()  # documents and snapshots hold no cycles: the collector need not go through them again
                    is_first = False

    def _prepare(self) -> bool:
        """Whether each step is done; one that fails keeps no other from being done."""
        is_done = True
        with contextlib.suppress(*CLOSED):
            for step in self._steps:
                try:
                    step()
                except NOT_PREPARED as error:
                    is_done = False
                    log.info("a first page will take longer", error=str(error))
        return is_done
