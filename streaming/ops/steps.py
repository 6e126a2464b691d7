"""The steps of a batch, by which it is timed, traced and tested."""

from collections.abc import Callable
from typing import Literal, get_args

Step = Literal["range-fixed", "policies-read", "evaluated", "written", "committed"]
"""The steps of a batch, in order. `written`: inside the transaction; `committed`: not yet in Spark's commit log."""

STEPS: tuple[Step, ...] = get_args(Step)

StepObserver = Callable[[Step, int], None]
