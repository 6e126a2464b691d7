"""Runs commands for a parent process, and never outlives it: a process of its own, started by `Supervised`.

The parent writes one line of JSON (`Order`) to this process's standard input and keeps the pipe open. When
the pipe ends, because the parent closed it or died of whatever cause, the running command is ended and the
folder removed. When the commands end before that, standard output is closed, which the parent notices.

Run as a file, it uses nothing but the standard library: it has to be there before anything else.
"""

import json
import os
import select
import shutil
import subprocess
import sys
from collections.abc import Sequence
from typing import TypedDict


class Order(TypedDict):
    """What to run: commands one after the other, up to the first that fails."""

    commands: list[list[str]]
    log: str
    folder: str
    grace_seconds: float


def main() -> int:
    """Read the order and carry it out; return the last command's exit code when the parent has gone."""
    order: Order = json.loads(sys.stdin.buffer.readline())
    try:
        code = _run_in_turn(order)
        os.close(sys.stdout.fileno())
        select.select([sys.stdin], [], [])  # until the parent has gone
    finally:
        shutil.rmtree(order["folder"], ignore_errors=True)
    return code if code >= 0 else _KILLED - code


_KILLED = 128  # and the signal's number, as shells count it


def _run_in_turn(order: Order) -> int:
    with open(order["log"], "ab") as log:
        for command in order["commands"]:
            if code := _run(command, log.fileno(), order["grace_seconds"]):
                return code
    return 0


def _run(command: Sequence[str], log: int, grace_seconds: float) -> int:
    """Run a command until it ends or the parent goes; return its exit code."""
    alive, held_by_command = os.pipe()
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=[held_by_command])
    os.close(held_by_command)
    ended, _, _ = select.select([alive, sys.stdin], [], [])
    os.close(alive)
    if alive not in ended:
        _end(child, grace_seconds)
    return child.wait()


def _end(child: subprocess.Popen[bytes], grace_seconds: float) -> None:
    if grace_seconds > 0:
        child.terminate()
        try:
            child.wait(grace_seconds)
        except subprocess.TimeoutExpired:
            child.kill()
    else:
        child.kill()


_EXIT_SECONDS = 30.0


class Supervised:
    """Commands run one after the other under a supervisor process, which ends them when this process is gone.

    The supervisor has a session of its own, so Ctrl-C in a terminal reaches only this process, which can
    then stop things in its own order.
    """

    def __init__(self, order: Order) -> None:
        """Start the supervisor and give it its order."""
        self._process = subprocess.Popen(
            [sys.executable, "-I", __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        self._held_open, self._open_while_running = stdin, stdout
        self._grace_seconds = order["grace_seconds"]
        stdin.write(json.dumps(order).encode() + b"\n")
        stdin.flush()

    @property
    def ended(self) -> bool:
        """Whether the last command has ended, or one of them failed."""
        readable, _, _ = select.select([self._open_while_running], [], [], 0)
        return bool(readable)

    def stop(self) -> int:
        """End the command that runs, wait until it is gone and the folder is removed, and return its exit code."""
        self._held_open.close()
        code = self._process.wait(self._grace_seconds + _EXIT_SECONDS)
        self._open_while_running.close()
        return code


if __name__ == "__main__":
    sys.exit(main())
