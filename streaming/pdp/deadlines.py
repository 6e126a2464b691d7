"""The deadline of a request (contracts, "Access request"): after it no answer allows."""

from collections.abc import Mapping
from typing import Any

from policy import to_ms


def lateness(request: Mapping[str, Any], now: int) -> str | None:
    """Why a request comes too late at a moment (ms); None: it does not, or its deadline is none, as its answer says."""
    deadline = request.get("deadline")
    try:
        is_late = deadline is not None and now > to_ms(deadline)
    except ValueError:
        return None
    return "the answer came after the request's deadline" if is_late else None
