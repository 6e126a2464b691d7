"""Ending in order when told to."""

import contextlib
import signal
import threading
from collections.abc import Iterator

SIGNALS = (signal.SIGTERM, signal.SIGINT)


@contextlib.contextmanager
def stop_on_signals() -> Iterator[threading.Event]:
    """Yield an event that SIGTERM and Ctrl-C set; a second one ends the process as ever."""
    stop = threading.Event()
    before = {number: signal.getsignal(number) for number in SIGNALS}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def take(*_: object) -> None:
        stop.set()
        restore()

    for number in SIGNALS:
        signal.signal(number, take)
    try:
        yield stop
    finally:
        restore()
