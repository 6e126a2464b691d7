"""Moments: RFC 3339 text or whole milliseconds since the epoch, and windows between two of them."""

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LAST_MS = 253_402_300_799_999  # 9999-12-31T23:59:59.999Z, the last moment RFC 3339 can write


class Window(msgspec.Struct, frozen=True):
    """From ``start`` (inclusive) to ``end`` (exclusive), ms since the epoch; None leaves a side open."""

    start: int | None = None
    end: int | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled, the unbounded window stays the one object that is compared by identity."""
        return (_window, (self.start, self.end))

    def holds(self, moment: int) -> bool:
        """Whether ``moment`` (ms since the epoch) lies inside."""
        return (self.start is None or self.start <= moment) and (self.end is None or moment < self.end)

    def covers(self, other: "Window") -> bool:
        """Whether it holds whenever ``other`` does."""
        starts = self.start is None or (other.start is not None and self.start <= other.start)
        ends = self.end is None or (other.end is not None and other.end <= self.end)
        return starts and ends

    def meet(self, other: "Window") -> "Window | None":
        """When both hold; None: never."""
        if self is ALWAYS or other is ALWAYS:
            return other if self is ALWAYS else self
        start = max((s for s in (self.start, other.start) if s is not None), default=None)
        end = min((e for e in (self.end, other.end) if e is not None), default=None)
        return None if start is not None and end is not None and start >= end else _window(start, end)


ALWAYS = Window()


def _window(start: int | None, end: int | None) -> Window:
    return ALWAYS if start is None and end is None else Window(start, end)


def to_ms(value: object) -> int:
    """Milliseconds since the epoch from RFC 3339 text with a zone, or from a whole number of ms.

    Raises ValueError naming what was wrong.
    """
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError(f"{value!r} is not a moment: write RFC 3339 such as 2026-11-21T10:00:00Z, or ms")
    if isinstance(value, int):
        if not 0 <= value <= LAST_MS:
            raise ValueError(f"{value} ms is not between 1970 and 9999")
        return value
    return to_ms((_parse(value) - EPOCH) // timedelta(milliseconds=1))


def _parse(text: str) -> datetime:
    wrong = f"{text!r} is not RFC 3339 with a zone, such as 2026-11-21T10:00:00Z"
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(wrong) from None
    if moment.tzinfo is None or "T" not in text.upper():
        raise ValueError(wrong)
    return moment


def to_text(moment: int) -> str:
    """RFC 3339 in UTC, with milliseconds."""
    return (EPOCH + timedelta(milliseconds=moment)).isoformat(timespec="milliseconds").replace("+00:00", "Z")
