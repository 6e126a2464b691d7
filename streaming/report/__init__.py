"""The report of a time range, as one page: read from the topics, summed up, rendered.

`gather` reads Kafka and puts the parts together; the parts are pure functions over iterators of records, with bounded
memory; `page` renders the HTML. All text in a record was written by untrusted clients: it is bounded where it is
counted and escaped where it is shown. Here: the records as the report reads them.
"""

from typing import Any

import msgspec

from policy import Outcome
from streaming.client.decision import Place

OUTCOMES: tuple[Outcome, ...] = ("allow", "deny", "error")


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
