"""The report of a time range, as one page: read from the topics, summed up, rendered.

`gather` reads Kafka and puts the parts together; the parts are pure functions over iterators of records, with bounded
memory; `page` renders the HTML. All text in a record was written by untrusted clients: it is bounded where it is
counted and escaped where it is shown. Here: the records as the report reads them.
"""

from streaming.records import alert, decision
from streaming.records.alert import Alert
from streaming.records.decision import DecisionRecord


def read_decision(value: bytes) -> DecisionRecord | None:
    """The decision of the job; None when it is not one in JSON."""
    try:
        record = decision.read_decision(value)
        return record if record.source else None
    except (ValueError, RecursionError):
        return None


def read_alert(value: bytes) -> Alert | None:
    """The alert; None when it is not one in JSON."""
    try:
        return alert.read_alert(value)
    except (ValueError, RecursionError):
        return None
