"""Evaluates drafts in processes of their own, which are ended when they take too long or die.

A draft is written by anybody who reaches the playground: a pattern on which an evaluator works for minutes, or a text
with which a native parser dies, must cost its author alone. A process is used again, since a start takes half a second.
"""

import contextlib
import os
import queue
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import msgspec

SECONDS = 3.0  # for one draft
WAIT_SECONDS = 2.0  # for a process that is free
PROCESSES = 2
DRAFT_PROGRAM = "streaming.console.draft_program"
MOST_BYTES = 16 << 20  # of an answer


class DraftFailed(Exception):
    """A draft was not evaluated; the message says why, and what to try."""


class DraftRefused(Exception):
    """A draft is none; `problem` says what is wrong with it, and in which line."""

    def __init__(self, problem: dict[str, Any]) -> None:
        super().__init__(problem["message"])
        self.problem = problem


class Sandbox:
    """Some processes that evaluate drafts, one each at a time. For several threads.

    `seconds`: for a draft; `SECONDS` where it is None. `program`: the module that they run. `is_eager`: they start now.
    """

    def __init__(
        self,
        processes: int = PROCESSES,
        seconds: float | None = None,
        program: str = DRAFT_PROGRAM,
        is_eager: bool = True,
    ) -> None:
        self._seconds = SECONDS if seconds is None else seconds
        self._free: queue.Queue[_Process] = queue.Queue()
        for _ in range(processes):
            process = _Process(program)
            if is_eager:
                process.start()
            self._free.put(process)

    def ask(self, job: Any, seconds: float | None = None) -> dict[str, Any]:
        """The result of a job of the program. `seconds`: for this one. Raises DraftRefused and DraftFailed."""
        with self._process() as process:
            line = process.call(msgspec.json.encode(job), self._seconds if seconds is None else seconds)
        answer: dict[str, Any] = msgspec.json.decode(line)
        if "problem" in answer:
            raise DraftRefused(answer["problem"])
        result: dict[str, Any] = answer["result"]
        return result

    @contextlib.contextmanager
    def _process(self) -> Iterator["_Process"]:
        try:
            process = self._free.get(timeout=WAIT_SECONDS)
        except queue.Empty:
            raise DraftFailed("busy with the drafts of others; try again in a moment") from None
        try:
            yield process
        finally:
            self._free.put(process)

    def close(self) -> None:
        """End the processes that are free; those that are not end with this one, as their input does."""
        with contextlib.suppress(queue.Empty):
            while True:
                self._free.get_nowait().end()


class _Process:
    """A process that is started when it is first needed, and again after it ended."""

    def __init__(self, program: str) -> None:
        self._program = program
        self._running: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """In a group of its own, so that what it starts itself ends with it."""
        command = [sys.executable, "-m", self._program]
        self._socket, theirs = socket.socketpair()
        with theirs:
            pipe, none = theirs.fileno(), subprocess.DEVNULL
            self._running = subprocess.Popen(
                command, stdin=pipe, stdout=pipe, stderr=none, start_new_session=True, env=_environment()
            )

    def call(self, job: bytes, seconds: float) -> bytes:
        """The answer to a job. Raises DraftFailed."""
        if self._running is None or self._running.poll() is not None:
            self.start()
        try:
            self._socket.settimeout(seconds)
            self._socket.sendall(job + b"\n")
            with self._socket.makefile("rb") as lines:
                answer = lines.readline(MOST_BYTES)
            if not answer.endswith(b"\n"):
                raise OSError("it ended, or does not end")
            return answer
        except TimeoutError:
            self.end()
            raise DraftFailed(f"this takes more than {seconds:g} s: make the documents or patterns smaller") from None
        except OSError:
            self.end()
            raise DraftFailed("the evaluator ends with it: make the documents or patterns smaller") from None

    def end(self) -> None:
        """Kill it and what it has started."""
        running, self._running = self._running, None
        if running is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGKILL)
        self._socket.close()
        running.wait()


def _environment() -> dict[str, str]:
    """Without settings: a process that evaluates what anybody writes needs no secret."""
    return {name: value for name, value in os.environ.items() if not name.startswith("LOCKKEEPER_")}
