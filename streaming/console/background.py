"""Answers that take longer than a page may: worked out in the background, and kept, for the past does not change."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Generic, TypeVar

Answer = TypeVar("Answer")

WAIT_SECONDS = 0.8  # that a page waits
MOST_KEPT, MOST_WAITING = 50, 8


class BackgroundBusy(Exception):
    """So many answers are being worked out that none is begun."""


class Background(Generic[Answer]):
    """One thread that works answers out, one after the other, and the newest of them by key. For several threads."""

    def __init__(self, name: str) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._lock = threading.Lock()
        self._answers: OrderedDict[Hashable, Future[Answer]] = OrderedDict()

    def get(self, key: Hashable, work_out: Callable[[], Answer], keep: bool = True) -> Answer | None:
        """The answer; None while it is worked out. Raises what `work_out` raises, and BackgroundBusy.

        `keep`: whether it is the answer the next time, too.
        """
        with self._lock:
            future = self._answers.get(key)
            if future is None:
                if sum(not other.done() for other in self._answers.values()) >= MOST_WAITING:
                    raise BackgroundBusy
                future = self._answers[key] = self._pool.submit(work_out)
                while len(self._answers) > MOST_KEPT:
                    self._answers.popitem(last=False)
            self._answers.move_to_end(key)
        wait([future], WAIT_SECONDS)
        if not future.done():
            return None
        if not keep or future.exception() is not None:  # Kafka may answer the next time
            with self._lock:
                self._answers.pop(key, None)
        return future.result()

    def close(self) -> None:
        """Begin nothing more."""
        self._pool.shutdown(wait=False, cancel_futures=True)
