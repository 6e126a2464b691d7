"""Answers that take longer than a page may: worked out in the background, and kept, for the past does not change."""

import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Generic, TypeVar

Answer = TypeVar("Answer")

WAIT_SECONDS = 0.8  # that a page waits
MOST_KEPT, MOST_WAITING = 50, 8
LATER_SECONDS = 10.0  # after which who asks the same is somebody else: the page itself asks again each 1.5 s


class BackgroundBusy(Exception):
    """So many answers are being worked out that none is begun."""


class _Pending(Generic[Answer]):
    """An answer that is being worked out, or was. `done_at`: when it was there, monotonic, s."""

    def __init__(self, future: Future[Answer]) -> None:
        self.future, self.done_at = future, math.inf
        future.add_done_callback(self._note)

    def _note(self, _future: Future[Answer]) -> None:
        self.done_at = time.monotonic()


class Background(Generic[Answer]):
    """One thread that works answers out, one after the other, and the newest of them by key. For several threads."""

    def __init__(self, name: str) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._lock = threading.Lock()
        self._answers: OrderedDict[Hashable, _Pending[Answer]] = OrderedDict()

    def get(self, key: Hashable, work_out: Callable[[], Answer], keep: bool = True) -> Answer | None:
        """The answer; None while it is worked out. Raises what `work_out` raises, and BackgroundBusy.

        `keep`: whether it is the answer the next time, too. One that is not, and that nobody came back for, is not the
        answer to who asks the same later.
        """
        with self._lock:
            pending = self._answers.get(key)
            if pending is None or (not keep and time.monotonic() > pending.done_at + LATER_SECONDS):
                pending = self._answers[key] = self._begin(work_out)
                while len(self._answers) > MOST_KEPT:
                    self._answers.popitem(last=False)
            self._answers.move_to_end(key)
        future = pending.future
        wait([future], WAIT_SECONDS)
        if not future.done():
            return None
        if not keep or future.exception() is not None:  # Kafka may answer the next time
            with self._lock:
                self._answers.pop(key, None)
        return future.result()

    def _begin(self, work_out: Callable[[], Answer]) -> _Pending[Answer]:
        if sum(not other.future.done() for other in self._answers.values()) >= MOST_WAITING:
            raise BackgroundBusy
        return _Pending(self._pool.submit(work_out))

    def do(self, work: Callable[[], None]) -> "Future[None]":
        """Have something done in the thread of the answers. Raises RuntimeError once it is closed."""
        return self._pool.submit(work)

    def close(self) -> None:
        """Begin nothing more."""
        self._pool.shutdown(wait=False, cancel_futures=True)
