"""Alerts summed up: by kind and severity, and the newest with their evidence."""

from collections.abc import Iterable
from typing import Any

import msgspec

from streaming.report.records import Alert, Record, read_alert
from streaming.report.span import Span
from streaming.report.untrusted import Newest, shortened

SEVERITIES = ("critical", "high", "medium", "low", "info")
GRAVE = SEVERITIES[:2]
OTHER = "other"
MOST_KINDS = 50
NEWEST = 25
LONGEST_EVIDENCE = 1500


class KindTotals(msgspec.Struct, frozen=True):
    """Alerts of one kind, by severity in the order of `SEVERITIES`, then other ones."""

    kind: str
    counts: tuple[int, ...]

    @property
    def total(self) -> int:
        """Of all severities."""
        return sum(self.counts)


class ShownAlert(msgspec.Struct, frozen=True):
    """An alert as it is shown: long texts shortened. ``at``: Kafka's timestamp of its record, ms."""

    at: int
    kind: str
    severity: str
    time: str
    subject: str
    message: str
    evidence: tuple[str, ...]


class AlertTotals(msgspec.Struct, frozen=True):
    """Alerts written in the range. ``grave``: critical and high ones; the newest of both sorts are listed apart.

    ``unreadable``: records of the topic that are no alert in JSON.
    """

    total: int
    grave: int
    unreadable: int
    kinds: tuple[KindTotals, ...]
    newest_grave: tuple[ShownAlert, ...]
    newest_other: tuple[ShownAlert, ...]


def sum_up_alerts(records: Iterable[Record], span: Span) -> AlertTotals:
    """Count the alerts whose records lie in the range."""
    counts: dict[str, list[int]] = {}
    graver, others, unreadable = Newest[ShownAlert](NEWEST), Newest[ShownAlert](NEWEST), 0
    for record in records:
        if not span.holds(record.at):
            continue
        alert = read_alert(record.value)
        if alert is None:
            unreadable += 1
            continue
        by_severity = counts.setdefault(_kind(alert, counts), [0] * (len(SEVERITIES) + 1))
        by_severity[_severity(alert)] += 1
        newest = graver if alert.severity in GRAVE else others
        newest.add((record.at, record.topic, record.offset), _shown(record, alert))
    kinds = tuple(sorted((KindTotals(kind, tuple(found)) for kind, found in counts.items()), key=_gravest_first))
    grave = sum(sum(kind.counts[: len(GRAVE)]) for kind in kinds)
    total = sum(kind.total for kind in kinds)
    return AlertTotals(total, grave, unreadable, kinds, graver.listed(), others.listed())


def _gravest_first(kind: KindTotals) -> tuple[list[int], str]:
    return [-count for count in kind.counts], kind.kind


def _kind(alert: Alert, counts: dict[str, list[int]]) -> str:
    """The kind; past a bound of different ones, `other`: a defective writer must not fill the memory."""
    kind = shortened(alert.kind)
    return kind if kind in counts or len(counts) < MOST_KINDS else OTHER


def _severity(alert: Alert) -> int:
    return SEVERITIES.index(alert.severity) if alert.severity in SEVERITIES else len(SEVERITIES)


def _shown(record: Record, alert: Alert) -> ShownAlert:
    severity = alert.severity if alert.severity in SEVERITIES else shortened(alert.severity)
    listed = alert.evidence if isinstance(alert.evidence, list) else [alert.evidence]
    evidence = tuple(_text(item, LONGEST_EVIDENCE) for item in listed[:5] if item is not None)
    more = (f"… and {len(listed) - 5} more",) if len(listed) > 5 else ()
    subject, message = _text(alert.subject), shortened(alert.message, LONGEST_EVIDENCE)
    return ShownAlert(
        record.at, shortened(alert.kind), severity, _text(alert.time), subject, message, (*evidence, *more)
    )


def _text(value: Any, longest: int = 300) -> str:
    """Text as it is, anything else as JSON."""
    if value is None:
        return ""
    return shortened(value if isinstance(value, str) else msgspec.json.encode(value).decode(), longest)
