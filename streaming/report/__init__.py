"""The report of a time range, as one page: read from the topics, summed up, rendered.

`gather` reads Kafka and puts the parts together; the parts are pure functions over iterators of records, with bounded
memory; `page` renders the HTML. All text in a record was written by untrusted clients: it is bounded where it is
counted and escaped where it is shown. Here: the time range (`Span`), and the records as the report reads them.
"""

import re
from typing import Any

import msgspec

from policy import Outcome, to_ms, to_text
from streaming.client.decision import Place

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
    start = end - _length(last or USUAL) if since is None else _moment("--from", since)
    if start < 0:
        raise SpanError(f"--last {last}: that is before 1970")
    if start >= end:
        raise SpanError(f"the range is empty: --from {to_text(start)} is not before --until {to_text(end)}")
    return Span(start, end)


def _moment(option: str, text: str) -> int:
    try:
        return to_ms(int(text) if text.isdecimal() else text)
    except ValueError as error:
        raise SpanError(f"{option}: {error}") from error


def _length(text: str) -> int:
    found = LENGTH.fullmatch(text)
    if found is None or int(found[1]) == 0:
        raise SpanError(f"--last {text}: write a number and a unit: s, m, h, d or w, such as 90m, 24h or 7d")
    return int(found[1]) * UNITS[found[2]]


OUTCOMES: tuple[Outcome, ...] = ("allow", "deny", "error")


class ConsumerRecord(msgspec.Struct, frozen=True):
    """A record of a topic. ``at``: Kafka's timestamp of it, ms."""

    topic: str
    partition: int
    offset: int
    at: int
    key: bytes
    value: bytes
    headers: tuple[tuple[str, bytes], ...] = ()


class Reason(msgspec.Struct, frozen=True):
    """Why; ``document`` and ``statement`` where a statement decided."""

    code: str
    document: str | None = None
    statement: int | None = None


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """An answer and why: to a request, or to one evaluation of a batch."""

    outcome: Outcome
    reasons: tuple[Reason, ...] = ()


class Evaluation(msgspec.Struct, frozen=True):
    """One item of a batch's decision."""

    context: Answer


class Context(Answer, frozen=True, kw_only=True):
    """The answer of a decision record, by which policies, and to which request record."""

    source: Place
    policy_offsets: dict[str, dict[str, int]] = {}


class DecisionSummary(msgspec.Struct, frozen=True):
    """A decision record, as far as the report needs it."""

    id: str
    system: str
    context: Context
    evaluations: tuple[Evaluation, ...] = ()
    time: str | None = None


class Alert(msgspec.Struct, frozen=True):
    """An alert record, read by its shape: a new kind needs no change of the report.

    ``id``: all alerts of one episode have the same.
    """

    kind: str
    id: str = ""
    severity: str = "?"
    time: str | int = "?"
    subject: Any = None
    message: str = ""
    evidence: Any = None


_decision = msgspec.json.Decoder(DecisionSummary).decode
_alert = msgspec.json.Decoder(Alert).decode


def read_decision(value: bytes) -> DecisionSummary | None:
    """The decision; None when it is not one in JSON."""
    try:
        return _decision(value)
    except (ValueError, RecursionError):
        return None


def read_alert(value: bytes) -> Alert | None:
    """The alert; None when it is not one in JSON."""
    try:
        return _alert(value)
    except (ValueError, RecursionError):
        return None
