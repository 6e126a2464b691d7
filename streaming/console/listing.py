"""A page of a list, newest first, between two moments of its address; a link leads to what is older."""

import re
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from policy import to_text
from streaming.console.addresses import address
from streaming.history.span import LENGTH, Span, SpanError, span_of

ROWS = 50
NEVER = 1 << 62
EVER = "1970-01-01T00:00:00Z"
OPTIONS = {"--from": "since", "--last": "since", "--until": "until"}
NAMED_OPTION = re.compile("|".join(OPTIONS))


class Dated(Protocol):
    """Something that came at a moment, ms."""

    @property
    def at(self) -> int:
        """When."""


Shown = TypeVar("Shown")
Entry = TypeVar("Entry", bound=Dated)


class Listing(msgspec.Struct, Generic[Shown], frozen=True):
    """`older`: the moment before which there is more, and `older_address` of that; "": there is none.

    `problem`: what is wrong with the address. `kept_from`: the moment before which some may have been deleted; "": none
    were. `unreadable`: records that cannot be shown. `left_out`: entries of the moment `older` that it has no room for.
    """

    rows: list[Shown]
    older: str = ""
    older_address: str = ""
    problem: str = ""
    kept_from: str = ""
    unreadable: int = 0
    left_out: int = 0

    def values(
        self, fields: Mapping[str, str], row_of: Callable[[Shown], Any] = lambda entry: entry, is_cut: bool = False
    ) -> dict[str, Any]:
        """What `list.html.j2` shows of it. `is_cut`: whether what is older than all of the list is not known."""
        return {
            "fields": fields,
            "shown": self,
            "rows": [row_of(entry) for entry in self.rows],
            "is_cut": is_cut,
            "is_filtered": any(fields.values()),
        }


def listed(
    path: str, fields: Mapping[str, str], entries: Iterable[Entry], fits: Callable[[Entry], bool], unreadable: int
) -> Listing[Entry]:
    """Of entries, newest first, those that fit and lie between `since` and `until` of the fields."""
    try:
        span = span_in(fields, NEVER)
    except SpanError as error:
        return Listing([], problem=str(error), unreadable=unreadable)
    fitting = [entry for entry in entries if span.holds(entry.at) and fits(entry)]
    if len(fitting) <= ROWS:
        return Listing(fitting, unreadable=unreadable)
    last = fitting[ROWS - 1].at  # the next page begins before this moment, so all of it is on this one
    shown = [entry for entry in fitting if entry.at >= last]
    return Listing(shown, to_text(last), older_address(path, fields, span, last), unreadable=unreadable)


def span_in(fields: Mapping[str, str], end: int) -> Span:
    """The range of an address: `since` a moment, or a length before `until` or now; `until` a moment.

    `end`: of one that has no `until`, ms. Raises SpanError in the words of the form.
    """
    since, until = fields["since"], fields["until"] or None
    length = since if LENGTH.fullmatch(since) else None
    try:
        span = span_of(None if length else since or EVER, until, length, _now() if length else end)
    except SpanError as error:
        raise SpanError(NAMED_OPTION.sub(lambda option: OPTIONS[option[0]], str(error))) from error
    return span if until else Span(span.start, end)


def _now() -> int:
    return time.time_ns() // 1_000_000


def older_address(path: str, fields: Mapping[str, str], span: Span, last: int) -> str:
    """What is before a moment (ms), of the same range: a length would begin earlier with it."""
    since = to_text(span.start) if LENGTH.fullmatch(fields["since"]) else fields["since"]
    return address(path, {**fields, "since": since, "until": to_text(last)})
