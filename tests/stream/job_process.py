"""Runs the job in a process of its own, which may kill itself at a step: the real job, watched from outside.

    python -m tests.stream.job_process ORDER_JSON [STEP]
    python -m tests.stream.job_process

Prints each step as a line of JSON. With STEP it dies by SIGKILL when the first batch gets there. Without arguments
it runs one job after the other on one JVM: each line of standard input has the order of a job, an empty line
stops the job that is running, and `{"ended": CODE}` is printed when a job has ended.
"""

import json
import os
import queue
import signal
import sys
import threading
from typing import Any

import msgspec

from streaming.application import run
from streaming.commit.offsets import IDLE_COMMIT_SECONDS
from streaming.errors import JobStopped
from streaming.settings import Settings


class Order(msgspec.Struct):
    """What a job is run with."""

    settings: Settings
    idle_commit_seconds: float = IDLE_COMMIT_SECONDS


def _report(report: dict[str, Any]) -> None:
    """One line, written at once: two queries report their steps."""
    os.write(sys.stdout.fileno(), json.dumps(report).encode() + b"\n")


def main(order: Order, deadly: str | None, stop: threading.Event) -> int:
    """Run until `stop` is set; 1 when the job stopped by itself, which it explains on standard output."""

    def on_step(step: str, batch: int) -> None:
        _report({"step": step, "batch": batch})
        if step == deadly and batch >= 0:
            os.kill(os.getpid(), signal.SIGKILL)

    try:
        run(order.settings, stop, on_step, idle_commit_seconds=order.idle_commit_seconds)
    except JobStopped as stopped:
        _report({"stopped": type(stopped).__name__, "why": str(stopped)})
        return 1
    return 0


def serve() -> None:
    """Run the jobs that standard input names, until it is closed."""
    jobs: queue.SimpleQueue[tuple[Order, threading.Event] | None] = queue.SimpleQueue()

    def listen() -> None:
        stop = threading.Event()
        for line in sys.stdin:
            if line.strip():
                stop = threading.Event()
                jobs.put((msgspec.json.decode(line, type=Order), stop))
            else:
                stop.set()
        stop.set()
        jobs.put(None)

    threading.Thread(target=listen, daemon=True).start()
    while (job := jobs.get()) is not None:
        _report({"ended": main(job[0], None, job[1])})


def _until_sigterm() -> threading.Event:
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda _number, _frame: stop.set())
    return stop


if __name__ == "__main__":
    if len(sys.argv) == 1:
        serve()
    else:
        order = msgspec.json.decode(sys.argv[1], type=Order)
        sys.exit(main(order, next(iter(sys.argv[2:]), None), _until_sigterm()))
