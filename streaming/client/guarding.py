"""Guarding functions and blocks: what is asked for a call, and which usage is refused before it can do harm."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypedDict

from streaming.client.acting import Subject
from streaming.client.decision import Offsets

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
    """Raise TypeError for a guard that asks no whole question."""
    if unknown := sorted(guard.keys() - Guard.__annotations__.keys()):
        raise TypeError(f"requires: unknown {', '.join(unknown)}; known are {', '.join(Guard.__annotations__)}")
    if lacking := [name for name in ("system", "action", "resource") if not guard.get(name)]:
        raise TypeError(f"requires: {', '.join(lacking)}: needed")


class Call:
    """Puts the question for a call of one function."""

    def __init__(self, function: Callable[..., Any], guard: Mapping[str, Any]) -> None:
        self._signature, self._guard = inspect.signature(function), dict(guard)

    def question(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
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
    return any(is_one(one) for is_one in kinds for one in (function, getattr(function, "__call__", None)))  # noqa: B004


class Unread:
    """Something that is no answer yet, and so neither true nor false."""

    what = ""

    def __bool__(self) -> bool:
        raise TypeError(f"this is no answer yet: {self.what}")
