"""Guarding functions and blocks of code, and the subject on whose behalf they run."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypedDict

from streaming.topics import Offsets

Subject = str | Mapping[str, Any]
"""A subject's id, or the whole subject with `type`, `id` and `properties`."""

_subject: ContextVar[Subject | None] = ContextVar("lockkeeper-subject", default=None)


@contextmanager
def acting_as(subject: Subject) -> Iterator[None]:
    """Within it, requests without a subject are about this one: `with acting_as("user:dana"): …`.

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


Arguments = Mapping[str, Any]
"""A call's arguments by the names of the function's parameters, defaults filled in."""

GIVEN = frozenset({"subject", "action", "resource", "context", "properties", "groups", "min_policy_offsets"})


class Guard(TypedDict, total=False):
    """What a function is guarded by. A function stands for what it makes of the call's arguments.

    The subject is that of `acting_as` unless it is given here. `timeout`: seconds.
    """

    system: str
    subject: Subject | Callable[[Arguments], Subject]
    action: str | Mapping[str, Any] | Callable[[Arguments], str | Mapping[str, Any]]
    resource: str | Mapping[str, Any] | Callable[[Arguments], str | Mapping[str, Any]]
    context: Mapping[str, Any] | Callable[[Arguments], Mapping[str, Any]]
    properties: Mapping[str, Any] | Callable[[Arguments], Mapping[str, Any]]
    groups: list[str] | Callable[[Arguments], list[str]]
    min_policy_offsets: Offsets | Callable[[Arguments], Offsets]
    timeout: float


def check_guard(guard: Mapping[str, Any]) -> None:
    """Raise TypeError for a guard without a complete request."""
    if unknown := sorted(guard.keys() - Guard.__annotations__.keys()):
        raise TypeError(f"requires: unknown {', '.join(unknown)}; known are {', '.join(Guard.__annotations__)}")
    if lacking := [name for name in ("system", "action", "resource") if not guard.get(name)]:
        raise TypeError(f"requires: {', '.join(lacking)}: required")


class Call:
    """Puts the question for a call of one function."""

    def __init__(self, function: Callable[..., Any], guard: Mapping[str, Any]) -> None:
        self._signature, self._guard = inspect.signature(function), dict(guard)

    def query(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The request in short. Raises TypeError for arguments that the function does not take."""
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return {
            name: value(bound.arguments) if name in GIVEN and callable(value) else value
            for name, value in self._guard.items()
            if name != "timeout"
        }


def refuse_what_is_no_function(function: object) -> None:
    """Raise TypeError for what cannot be guarded as a plain function."""
    if isinstance(function, staticmethod | classmethod):
        raise TypeError(f"requires: put it below @{type(function).__name__}, next to the function")
    if inspect.isclass(function) or not callable(function):
        raise TypeError(f"requires: {function!r} is not a function; guard its methods")


def runs_later(function: Callable[..., Any]) -> bool:
    """Whether a call only begins what an event loop runs."""
    kinds = (inspect.iscoroutinefunction, inspect.isasyncgenfunction)
    return any(is_kind(target) for is_kind in kinds for target in (function, getattr(function, "__call__", None)))  # noqa: B004


class Unread:
    """Something that is no answer yet, and so neither true nor false."""

    what = ""

    def __bool__(self) -> bool:
        raise TypeError(f"this is no answer yet: {self.what}")
