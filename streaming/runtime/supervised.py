"""A command that ends when this process ends, even by `kill -9`."""

import json
import select
import subprocess
import sys

from streaming.runtime import supervisor

_EXIT_SECONDS = 30.0


class Supervised:
    """Commands run one after the other under a supervisor process, which ends them when this process is gone.

    The supervisor has a session of its own, so Ctrl-C in a terminal reaches only this process, which can
    then stop things in its own order.
    """

    def __init__(self, order: supervisor.Order) -> None:
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
        stdin.write(json.dumps(order).encode() + b"\n")
        stdin.flush()

    @property
    def ended(self) -> bool:
        """Whether the last command has ended, or one of them failed."""
        readable, _, _ = select.select([self._open_while_running], [], [], 0)
        return bool(readable)

    def stop(self) -> None:
        """End the command that runs, and wait until it is gone and the folder is removed."""
        self._held_open.close()
        self._process.wait(_EXIT_SECONDS)
        self._open_while_running.close()
