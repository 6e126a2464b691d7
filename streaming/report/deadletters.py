"""Dead letters counted by their reasons: Kafka Connect's headers name them."""

import re
from collections.abc import Iterable

import msgspec

from streaming.report.records import Record
from streaming.report.span import Span
from streaming.report.untrusted import BoundedCounter, Ranking

HEADERS = "__connect.errors."
NUMBERS = re.compile(r"\d+")
TOP = 20


class DeadLetterTotals(msgspec.Struct, frozen=True):
    """Dead letters in the range: by input topic, and by reason with numbers written as #."""

    total: int
    topics: Ranking
    reasons: Ranking


def sum_up_dead_letters(records: Iterable[Record], span: Span) -> DeadLetterTotals:
    """Count the dead letters whose records lie in the range."""
    total, topics, reasons = 0, BoundedCounter(), BoundedCounter()
    for record in records:
        if span.holds(record.at):
            total += 1
            headers = dict(record.headers)
            topics.add(_header(headers, "topic") or record.topic)
            reasons.add(_reason(headers))
    return DeadLetterTotals(total, topics.top(TOP), reasons.top(TOP))


def _reason(headers: dict[str, bytes]) -> str:
    """The message, so that two which differ in a size or a place count as one."""
    message = _header(headers, "exception.message") or _header(headers, "exception.class.name")
    return NUMBERS.sub("#", message) or "no reason in the headers"


def _header(headers: dict[str, bytes], name: str) -> str:
    return headers.get(HEADERS + name, b"").decode("utf-8", "replace")
