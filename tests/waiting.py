"""Waiting for a condition, never for a time."""

import time
from collections.abc import Callable


def wait_until(condition: Callable[[], bool], what: str, seconds: float = 30.0) -> None:
    """Return as soon as the condition holds; fail, naming `what`, when it does not within `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds} s: {what}")
        time.sleep(0.02)
