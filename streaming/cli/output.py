"""Printing: results to standard output, all else to standard error, with no control character in either."""

import contextlib
import json
import sys
import threading
from collections.abc import Iterable, Iterator
from typing import Any

from streaming.terminal import escape, one_line, raw


def echo(text: str) -> None:
    """Print a line of the result."""
    sys.stdout.write(f"{one_line(text)}\n")


def echo_text(text: str) -> None:
    """Print lines of the result that this program has made: no name in them may have a line break."""
    sys.stdout.write(f"{escape(text)}\n")


def echo_exactly(text: str) -> None:
    """Print lines for another program, which must have every name as it is; on a terminal as `echo_text` does."""
    if sys.stdout.isatty():
        echo_text(text)
    else:
        raw(sys.stdout).write(f"{text}\n")


def echo_now(text: str) -> None:
    """Print a line of the result at once: a reader may wait for it."""
    echo(text)
    sys.stdout.flush()


def echo_lines(lines: Iterable[str]) -> None:
    """Print lines of the result, each as `echo` does."""
    for line in lines:
        echo(line)


def echo_json(value: Any) -> None:
    """Print a value as one line of JSON, at once. Structs in it are objects, as msgspec encodes them."""
    import msgspec

    sys.stdout.write(escape(json.dumps(value, ensure_ascii=False, default=msgspec.to_builtins)) + "\n")
    sys.stdout.flush()


def echo_err(text: str) -> None:
    """Print a line that is not part of the result."""
    sys.stderr.write(f"{one_line(text)}\n")


@contextlib.contextmanager
def echo_err_after(seconds: float, text: str) -> Iterator[None]:
    """Print a line that is not part of the result when the block takes longer than that."""
    timer = threading.Timer(seconds, echo_err, (text,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
