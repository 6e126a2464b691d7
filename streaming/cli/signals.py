"""SIGTERM and Ctrl-C: how a command stops, and when it ends all the same."""

import contextlib
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator

from streaming.cli.output import echo_err

SIGNALS = (signal.SIGTERM, signal.SIGINT)
DEADLINE_SECONDS = 8.0
# A supervisor may signal all processes of a group, and Java below spark-submit passes its signal on: these are one.
TOGETHER_SECONDS = 1.0
END = 0  # no signal has this number
KILLED = 128
"""Exit code of a process that a signal ended, with the signal's number added, as shells count it."""


@contextlib.contextmanager
def stop_on_signals(on_deadline: Callable[[], None] | None = None) -> Iterator[threading.Event]:
    """Yield an event that SIGTERM and Ctrl-C set; a second one, after a second, ends the process at once.

    A thread of its own sets it: the main thread may be in a call of librdkafka's or of Java's, in which Python
    runs no handler. `on_deadline`: ends the process when that has not happened `DEADLINE_SECONDS` after the signal.
    """
    stop = threading.Event()
    reader, writer = socket.socketpair()
    writer.setblocking(False)

    def listen() -> None:
        if not _await_signal(reader):
            return
        stop.set()
        if on_deadline is not None:
            deadline = threading.Timer(DEADLINE_SECONDS, on_deadline)
            deadline.daemon = True
            deadline.start()
        together = time.monotonic() + TOGETHER_SECONDS
        while again := _await_signal(reader):
            if time.monotonic() > together:
                end_at_once(KILLED + again)

    thread = threading.Thread(target=listen, name="signals", daemon=True)
    before = {number: signal.signal(number, lambda *_: None) for number in SIGNALS}
    woken = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    thread.start()
    try:
        yield stop
    finally:
        signal.set_wakeup_fd(woken)
        for number, handler in before.items():
            signal.signal(number, handler)
        writer.send(bytes([END]))
        thread.join()
        reader.close()
        writer.close()


def _await_signal(reader: socket.socket) -> int:
    """The number of the next signal; `END` when there is no more waiting for one."""
    while (number := reader.recv(1)[0]) not in (*SIGNALS, END):
        pass  # of another signal that Python handles
    return number


def give_up() -> None:
    """End without order, as by a kill: what was not committed is done by the next start."""
    echo_err(f"stopped, after {DEADLINE_SECONDS:g} s of waiting for what was under way: the next start goes on with it")
    end_at_once(0)


def end_at_once(code: int) -> None:
    """End this process, without waiting for anything. Java ends with it."""
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)
