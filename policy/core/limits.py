"""Limits on the work of one decision, and work that is counted in steps, as time is not the same on every machine."""

import math
from collections.abc import Callable

MAX_RELATED = 10_000  # objects of one request …
BESIDE = 2  # … beside the resource itself, and what it belongs to
MAX_PARTS = 20 * MAX_RELATED  # of a requirement: what is needed of each object, and the ways to have it


STEPS_BETWEEN_PAUSES = 50


class WorkExceeded(Exception):
    """More steps would be needed than may be made."""


class Work:
    """Counts steps. ``most``: how many may be made; ``pause``: called now and then, so that others get their turn."""

    def __init__(self, most: float = math.inf, pause: Callable[[], None] = lambda: None) -> None:
        self._most = self._left = most
        self._pause, self._until_pause = pause, STEPS_BETWEEN_PAUSES

    def again(self) -> "Work":
        """As much once more."""
        return Work(self._most, self._pause)

    def take(self, steps: int = 1) -> None:
        """Make some steps; raises WorkExceeded when there are not so many left, from then on each time."""
        self._left -= steps
        if self._left < 0:
            raise WorkExceeded
        self._until_pause -= steps
        if self._until_pause < 0:
            self._until_pause = STEPS_BETWEEN_PAUSES
            self._pause()

    @property
    def exceeded(self) -> bool:
        """Whether there was not enough."""
        return self._left < 0
