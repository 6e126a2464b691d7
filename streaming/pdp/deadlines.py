"""The deadline of a request (contracts, "Access request"): after it no answer allows."""

from typing import Any

from policy import to_ms


def is_late(deadline: Any, now: int) -> bool:
    """Whether a deadline is over at a moment (ms). What is none makes the request malformed, as its answer says."""
    try:
        return deadline is not None and now > to_ms(deadline)
    except ValueError:
        return False
