"""Several processes that answer on one port. Each follows the topics and decides by itself; they share the socket.

They are forked before anything else runs: librdkafka's threads would not be in the children. So they share the memory
of the code, and each has policies of its own.
"""

import contextlib
import mmap
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator

from streaming.serve.metrics import ServeHealth

FAILED = 1
KILLED = 128  # and the signal's number, as shells count it
MOMENT = 8  # bytes
SILENT_SECONDS = 3.0  # without a sign of a worker

Work = Callable[[int, "Readiness"], int]


class Readiness:
    """Whether all workers are ready, in memory that they share: a moment each, at which it last was.

    One that was not lately is not: it may be stopped, or too busy to say so. The clock is that of the machine, s.
    """

    def __init__(self, workers: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._moments = memoryview(mmap.mmap(-1, MOMENT * workers)).cast("d")  # 8 aligned bytes are written at once

    def set(self, worker: int, ready: bool) -> None:
        """Note whether one is."""
        self._moments[worker] = self._clock() if ready else 0.0

    def waiting(self) -> int:
        """How many are not."""
        since = self._clock() - SILENT_SECONDS
        return sum(not moment or moment < since for moment in self._moments.tolist())


class WorkerHealth(ServeHealth):
    """The health of one worker, that is ready when all are: they share a port, so a client may meet any."""

    def __init__(self, bound: float, worker: int, readiness: Readiness) -> None:
        super().__init__(bound)
        self._worker, self._readiness = worker, readiness

    def _problems(self) -> Iterator[str]:
        own = list(super()._problems())
        yield from own
        if not own and self._readiness.waiting():
            yield f"{self._readiness.waiting()} other workers are not ready"

    def note(self) -> None:
        """Let the others know."""
        self._readiness.set(self._worker, not list(super()._problems()))


def run_workers(workers: int, work: Work) -> int:
    """Fork so many processes that `work`, and wait for them. Returns an exit code: that of the first that failed.

    They end together: with SIGTERM or Ctrl-C here, when one ends, and when this process is gone. A second signal ends
    them at once.
    """
    readiness, alive = Readiness(workers), os.pipe()
    children = {_fork(worker, work, readiness, alive) for worker in range(workers)}
    os.close(alive[0])
    stopping = threading.Event()

    def stop(*_signal: object) -> None:
        stopping.set()
        for child in tuple(children):
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGTERM)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    code = 0
    while children:
        child, status = os.wait()
        children.discard(child)
        ended = os.waitstatus_to_exitcode(status)
        if not stopping.is_set():
            code = ended if ended > 0 else FAILED
            stop()
        code = code or (ended if ended >= 0 else KILLED - ended)
    return code


def _fork(worker: int, work: Work, readiness: Readiness, alive: tuple[int, int]) -> int:
    child = os.fork()
    if child:
        return child
    code = FAILED
    try:
        os.setpgid(0, 0)  # Ctrl-C of a terminal is for the first process alone, which signals the others
        os.close(alive[1])
        threading.Thread(target=_end_with_parent, args=(alive[0],), name="parent", daemon=True).start()
        code = work(worker, readiness)
    finally:
        os._exit(code)


def _end_with_parent(alive: int) -> None:
    os.read(alive, 1)  # returns when the last writer is gone
    os.kill(os.getpid(), signal.SIGTERM)
