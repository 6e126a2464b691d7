"""Parses what is large in a process of its own, which may die of it.

The bounds of `text` are for what is known to be deep. This is for what is not: a native library that recurses over what
untrusted clients wrote ends the whole process when its stack is used up, and takes every other document with it. So a
text beyond `SMALL` is parsed elsewhere first. When that process dies, takes too long or too much memory, the text is
refused, and the next one has a process of its own.

A process for each call, and none that stays: nothing has to be shared by threads, be cleaned up after a fork (the
workers of Spark are forked) or be waited for at the end. It is started as a program, since a fork of a process with
threads may hang. Small texts are parsed at once: a start takes 0.1 s, and hardly any document is large.
"""

import functools
import hashlib
import inspect
import json
import signal
import subprocess
import sys
import threading
from typing import Any

from policy.systems.cedar import parse_program

SMALL = 16 << 10  # characters; in so many no construct that `text` does not bound takes a tenth of a stack
SMALL_SCHEMA = 4 << 10  # the same of schemas: a chain of action groups takes the square of its length
SECONDS = 20.0  # of the processor; the largest document that is taken needs 5
PATIENCE = 600.0  # seconds by the clock, for a process that does not run at all
MOST_REMEMBERED = 1000  # hashes of texts: a writer of ever new ones must not fill the memory


class ParserDied(Exception):
    """The process ended without an answer."""


class ParserRefused(Exception):
    """The library refuses the text; the message is its own."""


_fatal: dict[bytes, str] = {}  # the calls with which a process died, by digest: none is tried twice
_lock = threading.Lock()


def call(function: str, *arguments: Any) -> Any:
    """What a function of `parse_program` returns; raises ParserRefused, or ParserDied, at once for a call that did."""
    job = {"path": sys.path, "seconds": SECONDS, "function": function, "arguments": arguments}
    written = json.dumps(job).encode()
    digest = hashlib.sha256(json.dumps([function, arguments]).encode()).digest()
    if digest in _fatal:
        raise ParserDied(_fatal[digest])
    try:
        return _answer(written)
    except ParserDied as error:
        with _lock:
            while len(_fatal) >= MOST_REMEMBERED:
                del _fatal[next(iter(_fatal))]
            _fatal[digest] = str(error)
        raise


def _answer(job: bytes) -> Any:
    # Isolated (-I) and without site (-S): the path comes with the job, and Spark's workers may have it from an archive.
    command = [sys.executable, "-I", "-S", "-c", _program()]
    try:
        done = subprocess.run(command, input=job, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        raise ParserDied(f"Cedar's parser did not answer within {PATIENCE:.0f} s") from None
    except OSError as error:
        raise ParserRefused(f"the process that parses large Cedar texts cannot be started: {error}") from None
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        raise ParserDied(f"Cedar's parser ends with it ({_ended(done.returncode)}): make it smaller") from None
    if "error" in answer:
        raise ParserRefused(answer["error"])
    return answer["result"]


def _ended(returncode: int) -> str:
    if returncode == -signal.SIGPROF:
        return f"more than {SECONDS:g} s of the processor"
    return f"signal {-returncode}" if returncode < 0 else f"exit code {returncode}"


@functools.cache
def _program() -> str:
    return inspect.getsource(parse_program)
