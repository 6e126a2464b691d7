"""Starts, watches and ends jobs: each in a process of its own, or one after the other in a process that serves many."""

import contextlib
import functools
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from streaming.commit.offsets import IDLE_COMMIT_SECONDS
from streaming.settings import Settings
from tests.stream.world import SHORT_LIVED
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]
START_SECONDS = 120.0
PROCESS = [sys.executable, "-m", "tests.stream.job_process"]


def _order(settings: Settings, idle_commit_seconds: float) -> str:
    return msgspec.json.encode({"settings": settings, "idle_commit_seconds": idle_commit_seconds}).decode()


class Job:
    """A job process and what it has reported so far."""

    def __init__(
        self, settings: Settings, kill_at: str | None = None, idle_commit_seconds: float = IDLE_COMMIT_SECONDS
    ) -> None:
        command = [*PROCESS, _order(settings, idle_commit_seconds)]
        self.reported: list[dict[str, Any]] = []
        self.logged: list[str] = []
        self.process = subprocess.Popen(
            [*command, *([kill_at] if kill_at else [])], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                self.reported.append(json.loads(line))
            else:
                self.logged.append(line)

    @property
    def pid(self) -> int:
        """Of its process, below which Java and its Python workers run."""
        return self.process.pid

    def await_start(self) -> None:
        """Return when its first transaction is written: it holds the policies and knows where to begin."""
        wait_until(lambda: bool(self.reported) or self.process.poll() is not None, "the job has begun", START_SECONDS)

    @property
    def ended(self) -> bool:
        """Whether its process has."""
        return self.process.poll() is not None

    @property
    def why(self) -> str:
        """What it said as it stopped by itself."""
        return why(self.reported)

    def await_end(self) -> int:
        """Its exit code; -9 when it was killed."""
        code = self.process.wait(START_SECONDS)
        self._listener.join(START_SECONDS)
        return code

    def end(self) -> int:
        """Ask it to stop and return its exit code."""
        self.process.terminate()
        return self.await_end()

    def kill(self) -> None:
        """End its process, if it has not ended."""
        self.process.kill()
        self.process.wait()


def why(reported: list[dict[str, Any]]) -> str:
    """What a job said as it stopped by itself."""
    [stopped] = [one for one in reported if "stopped" in one]
    return str(stopped["why"])


class JobServer:
    """A process that runs one job after the other: Java and Spark's classes are loaded once for all of them."""

    def __init__(self) -> None:
        self.reported: list[dict[str, Any]] = []
        self.logged: list[str] = []
        self.busy = False
        self._process = subprocess.Popen(PROCESS, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                self.reported.append(json.loads(line))
            else:
                self.logged.append(line)

    @property
    def alive(self) -> bool:
        """Whether it can run another job."""
        return self._process.poll() is None

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def write(self, line: str) -> None:
        """Settings of a job, or an empty line to stop the one that is running."""
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def kill(self) -> None:
        """End the process with whatever job it runs."""
        self._process.kill()
        self._process.wait()


class ServedJob:
    """A job in a `JobServer`, and what it has reported so far."""

    def __init__(self, server: JobServer, settings: Settings, idle_commit_seconds: float) -> None:
        self._server = server
        self.reported: list[dict[str, Any]] = []
        self.logged: list[str] = []
        server.reported, server.logged, server.busy = self.reported, self.logged, True
        server.write(_order(settings, idle_commit_seconds))

    @property
    def pid(self) -> int:
        """Of the server, below which Java and its Python workers run."""
        return self._server.pid

    @property
    def ended(self) -> bool:
        """Whether it has."""
        return self._code() is not None

    @property
    def why(self) -> str:
        """What it said as it stopped by itself."""
        return why(self.reported)

    def await_start(self) -> None:
        """Return when its first transaction is written, or it has ended."""
        wait_until(lambda: bool(self.reported) or not self._server.alive, "the job has begun", START_SECONDS)

    def end(self) -> int:
        """Ask it to stop and return its exit code."""
        self._server.write("")
        return self.await_end()

    def await_end(self) -> int:
        """Its exit code; -1 when its process ended."""
        wait_until(lambda: self._code() is not None or not self._server.alive, "the job has ended", START_SECONDS)
        code = self._code()
        return -1 if code is None else code

    def _code(self) -> int | None:
        return next((one["ended"] for one in self.reported if "ended" in one), None)

    def kill(self) -> None:
        """Leave the server to the next job, or end it when this job has not ended."""
        if self._code() is None:
            self._server.kill()
        self._server.busy = False


@functools.cache
def _servers() -> list[JobServer]:
    """The server of this test process, once there is one; it ends with this process, when its input is closed."""
    return []


def _started(settings: Settings, idle_commit_seconds: float = IDLE_COMMIT_SECONDS) -> Job | ServedJob:
    """A job in the server, if it has time and runs Spark with these settings, else in a process of its own."""
    servers = _servers()
    if not servers or not servers[0].alive:
        servers[:] = [JobServer()]
    alone = servers[0].busy or settings.spark != SHORT_LIVED
    if alone:
        return Job(settings, idle_commit_seconds=idle_commit_seconds)
    return ServedJob(servers[0], settings, idle_commit_seconds)


@contextlib.contextmanager
def running(settings: Settings, idle_commit_seconds: float = IDLE_COMMIT_SECONDS) -> Iterator[Job | ServedJob]:
    """A job that runs; afterwards it must end cleanly when asked to."""
    job = _started(settings, idle_commit_seconds)
    try:
        job.await_start()
        yield job
        assert job.end() == 0, f"the job ended by itself: {job.reported[-2:]}"
    finally:
        job.kill()


@contextlib.contextmanager
def stopping(settings: Settings, error: str, why: str) -> Iterator[Job | ServedJob]:
    """A job that runs; afterwards it must end by itself, with an error of this name and `why` in its message."""
    job = _started(settings)
    try:
        job.await_start()
        yield job
        assert job.await_end() == 1
        [stopped] = [one for one in job.reported if "stopped" in one]
        assert stopped["stopped"] == error, stopped
        assert why in stopped["why"]
    finally:
        job.kill()
