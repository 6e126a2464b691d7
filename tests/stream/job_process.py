"""Runs the job in a process of its own, which may kill itself at a step: the real job, watched from outside.

    python -m tests.stream.job_process SETTINGS_JSON [STEP]

Prints each step as a line of JSON. With STEP it dies by SIGKILL when the first batch gets there.
"""

import json
import os
import signal
import sys
import threading
from typing import Any

import msgspec

from streaming.application import run
from streaming.enforcer.errors import JobStopped
from streaming.settings import Settings


def _tell(told: dict[str, Any]) -> None:
    """One line, written at once: two queries tell of their steps."""
    os.write(sys.stdout.fileno(), json.dumps(told).encode() + b"\n")


def main(settings: Settings, deadly: str | None) -> int:
    """Run until SIGTERM; 1 when the job stopped by itself, which it explains on standard output."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda _number, _frame: stop.set())

    def on_step(step: str, batch: int) -> None:
        _tell({"step": step, "batch": batch})
        if step == deadly and batch >= 0:
            os.kill(os.getpid(), signal.SIGKILL)

    try:
        run(settings, stop, on_step)
    except JobStopped as stopped:
        _tell({"stopped": type(stopped).__name__, "why": str(stopped)})
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(msgspec.json.decode(sys.argv[1], type=Settings), next(iter(sys.argv[2:]), None)))
