"""Work counted rather than timed: how much more a call does for an input that is ten times as large."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

AT_MOST = 15  # times the work for ten times the input: linear, with room for a logarithm


def work(call: Callable[[], object]) -> int:
    """Calls made and lines run in Python by a call, each turn of a loop included; what C code does counts for nothing.

    Where C code may do the work, let the input count its comparisons instead (`Compared`).
    """
    steps = 0

    def trace(_frame: FrameType, _event: str, _arg: Any) -> Any:
        nonlocal steps
        steps += 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return steps


class Compared(str):
    """Text that counts how often any of its kind is compared."""

    times = 0
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        Compared.times += 1
        return str.__eq__(self, other)


def comparisons(call: Callable[[], object]) -> int:
    """Comparisons that a call makes of texts that count them."""
    before = Compared.times
    call()
    return Compared.times - before


def grows_with_its_input(measure: Callable[[int], int], size: int) -> bool:
    """Whether ten times the size takes at most fifteen times the work, as `measure` counts it for a size."""
    return measure(10 * size) <= AT_MOST * max(measure(size), 1)
