"""Moments: RFC 3339 text or whole milliseconds since the epoch, and windows between two of them."""

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LAST_MS = 253_402_300_799_999  # 9999-12-31T23:59:59.999Z, the last moment RFC 3339 can write
MILLISECOND = timedelta(milliseconds=1)
LIKE_SECONDS = range(10**9, 10**11 + 1)  # as ms from January 1970 to March 1973, as seconds from 2001 to 5138
RFC_3339 = re.compile(  # its date-time: ISO 8601, of which `datetime` reads far more, has many other forms
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt](?:[01][0-9]|2[0-3]):[0-5][0-9]:(?:[0-5][0-9]|60)(?:[.][0-9]+)?"
    r"(?:[Zz]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
)
SECONDS = slice(17, 19)  # where RFC 3339 has them


class Window(msgspec.Struct, frozen=True, gc=False):
    """From ``start`` (inclusive) to ``end`` (exclusive), ms since the epoch; None leaves a side open."""

    start: int | None = None
    end: int | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled, the unbounded window stays the one object that is compared by identity."""
        return (window_between, (self.start, self.end))

    def holds(self, moment: int) -> bool:
        """Whether ``moment`` (ms since the epoch) lies inside."""
        return (self.start is None or self.start <= moment) and (self.end is None or moment < self.end)

    def known_to_hold(self, at: int | None) -> bool:
        """Whether it holds at ``at`` (ms); the time not known, whether it always does."""
        return self == ALWAYS if at is None else self.holds(at)

    def covers(self, other: "Window") -> bool:
        """Whether it holds whenever ``other`` does."""
        starts = self.start is None or (other.start is not None and self.start <= other.start)
        ends = self.end is None or (other.end is not None and other.end <= self.end)
        return starts and ends

    @property
    def edges(self) -> set[int]:
        """The moments at which it begins and ends."""
        return {edge for edge in (self.start, self.end) if edge is not None}

    def meet(self, other: "Window") -> "Window | None":
        """When both hold; None: never."""
        if self is ALWAYS or other is ALWAYS:
            return other if self is ALWAYS else self
        start = max((s for s in (self.start, other.start) if s is not None), default=None)
        end = min((e for e in (self.end, other.end) if e is not None), default=None)
        return None if start is not None and end is not None and start >= end else window_between(start, end)


ALWAYS = Window()


def window_between(start: int | None, end: int | None) -> Window:
    """From ``start`` to ``end``; the unbounded one is always the same object."""
    return ALWAYS if start is None and end is None else Window(start, end)


def to_ms(value: object) -> int:
    """Milliseconds since the epoch from RFC 3339 text with a zone, or from a whole number of ms.

    Raises ValueError naming what was wrong; also for a number that is a moment of our time in seconds, as by it a deny
    would have ended in 1970.
    """
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError(f"{value!r} is not a moment: write RFC 3339 such as 2026-11-21T10:00:00Z, or ms")
    if isinstance(value, str):
        return _checked((_parse(value) - EPOCH) // MILLISECOND)
    number = int(value)  # a range goes through all of its numbers for a subclass of int, which takes an hour
    if number in LIKE_SECONDS:
        moments = f"{to_text(number)} in milliseconds, {to_text(number * 1000)} in seconds"
        raise ValueError(f"{number} may be {moments}: write milliseconds ({number * 1000}?) or RFC 3339")
    return _checked(number)


def _checked(moment: int) -> int:
    if not 0 <= moment <= LAST_MS:
        raise ValueError(f"{moment} ms is not between 1970 and 9999")
    return moment


def _parse(text: str) -> datetime:
    if RFC_3339.fullmatch(text) is None:
        raise ValueError(_wrong(text))
    try:
        return _after_leap_second(text) if text[SECONDS] == "60" else datetime.fromisoformat(text.upper())
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{_wrong(text)}: {error}") from None


def _wrong(text: str) -> str:
    return f"{text!r} is not RFC 3339 with a zone, such as 2026-11-21T10:00:00Z"


def _after_leap_second(text: str) -> datetime:
    """The start of the next second, for `datetime` knows no leap seconds: the last of a month in UTC, and no others."""
    before = f"{text[: SECONDS.start]}59{text[SECONDS.stop :]}"
    last = datetime.fromisoformat(before.upper()).astimezone(UTC).replace(microsecond=0)
    after = last + timedelta(seconds=1)
    if (after.day, after.hour, after.minute) != (1, 0, 0):
        raise ValueError("only the last minute of a month in UTC has a second 60")
    return after


def to_text(moment: int) -> str:
    """RFC 3339 in UTC, with milliseconds."""
    return (EPOCH + timedelta(milliseconds=moment)).isoformat(timespec="milliseconds").replace("+00:00", "Z")
