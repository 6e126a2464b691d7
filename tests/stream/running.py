"""Starts, watches and ends job processes."""

import contextlib
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from streaming.settings import Settings
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]
START_SECONDS = 120.0


class Job:
    """A job process and what it has told so far."""

    def __init__(self, settings: Settings, kill_at: str | None = None) -> None:
        command = [sys.executable, "-m", "tests.stream.job_process", msgspec.json.encode(settings).decode()]
        self.told: list[dict[str, Any]] = []
        self.process = subprocess.Popen(
            [*command, *([kill_at] if kill_at else [])], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                self.told.append(json.loads(line))

    def await_start(self) -> None:
        """Return when its first transaction is written: it holds the policies and knows where to begin."""
        wait_until(lambda: bool(self.told) or self.process.poll() is not None, "the job has begun", START_SECONDS)

    def await_end(self) -> int:
        """Its exit code; -9 when it was killed."""
        code = self.process.wait(START_SECONDS)
        self._listener.join(START_SECONDS)
        return code

    def end(self) -> int:
        """Ask it to stop and return its exit code."""
        self.process.terminate()
        return self.await_end()


@contextlib.contextmanager
def running(settings: Settings) -> Iterator[Job]:
    """A job that runs; afterwards it must end cleanly when asked to."""
    job = Job(settings)
    try:
        job.await_start()
        yield job
        assert job.end() == 0, f"the job ended by itself: {job.told[-1:]}"
    finally:
        job.process.kill()
        job.process.wait()
