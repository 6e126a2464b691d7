"""A range of time: what is read of the topics is that of one."""

import re

import msgspec

from policy import to_ms, to_text

SECOND = 1000
MINUTE, HOUR, DAY = 60 * SECOND, 3600 * SECOND, 24 * 3600 * SECOND
UNITS = {"s": SECOND, "m": MINUTE, "h": HOUR, "d": DAY, "w": 7 * DAY}
LENGTH = re.compile(r"(\d{1,9})([smhdw])")
MOST_STEPS = 60
STEPS = tuple(
    count * unit
    for unit, counts in ((SECOND, (1, 2, 5, 10, 30)), (MINUTE, (1, 2, 5, 10, 15, 30)), (HOUR, (1, 2, 3, 6, 12)))
    for count in counts
) + tuple(count * DAY for count in (1, 2, 7, 30, 90, 365))
USUAL = "24h"


class SpanError(ValueError):
    """The range is none; the message names the option and what would fix it."""


class Span(msgspec.Struct, frozen=True):
    """From ``start`` (inclusive) to ``end`` (exclusive), ms since the epoch."""

    start: int
    end: int

    def holds(self, moment: int) -> bool:
        """Whether ``moment`` lies inside."""
        return self.start <= moment < self.end

    @property
    def step(self) -> int:
        """The length of a step, ms: the shortest of the round ones that gives at most `MOST_STEPS`."""
        return next((step for step in STEPS if (self.end - self.start) <= step * MOST_STEPS), STEPS[-1])

    @property
    def first(self) -> int:
        """Where the first step begins: at or before ``start``, at a round moment."""
        return self.start // self.step * self.step

    @property
    def steps(self) -> int:
        """How many steps there are."""
        return (self.end - 1 - self.first) // self.step + 1


def span_of(since: str | None, until: str | None, last: str | None, now: int) -> Span:
    """The range that the command's options name; ``now``: ms. Without any the last 24 hours. Raises SpanError."""
    if since is not None and last is not None:
        raise SpanError("--from and --last both say where the range begins: give one of them")
    end = now if until is None else _moment("--until", until)
    last = USUAL if last is None else last
    start = end - _length(last) if since is None else _moment("--from", since)
    if start < 0:
        raise SpanError(f"--last {last}: that is before 1970")
    if start >= end:
        limit = "now" if until is None else f"--until {to_text(end)}"
        raise SpanError(f"the range is empty: --from {to_text(start)} is not before {limit}")
    return Span(start, end)


def _moment(option: str, text: str) -> int:
    try:
        return to_ms(int(text) if text.isdecimal() else text)
    except ValueError as error:
        raise SpanError(f"{option}: {error}") from error


def _length(text: str) -> int:
    match = LENGTH.fullmatch(text)
    if match is None or int(match[1]) == 0:
        raise SpanError(f"--last {text}: write a number and a unit: s, m, h, d or w, such as 90m, 24h or 7d")
    return int(match[1]) * UNITS[match[2]]
