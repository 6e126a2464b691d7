"""On whose behalf the code at hand runs."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

Subject = str | Mapping[str, Any]
"""A subject's id, or the whole subject with `type`, `id` and `properties`."""

_subject: ContextVar[Subject | None] = ContextVar("lockkeeper-subject", default=None)


@contextmanager
def acting_as(subject: Subject) -> Iterator[None]:
    """Within it, questions that name no subject are asked about this one: `with acting_as("user:dana"): …`.

    It holds for this thread, or this asyncio task and those begun within it. A new thread begins without a subject.
    Raises ValueError for an empty one.
    """
    if not subject:
        raise ValueError("acting_as: the subject must not be empty")
    before = _subject.set(subject)
    try:
        yield
    finally:
        _subject.reset(before)


def acting_subject() -> Subject | None:
    """The subject of the innermost `acting_as`; None outside of any."""
    return _subject.get()
