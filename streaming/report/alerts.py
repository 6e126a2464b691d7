"""Alerts summed up: by kind and severity, and the newest with their evidence."""

import hashlib
import re
from collections.abc import Iterable
from typing import Any

import msgspec

from streaming.report import Alert, ConsumerRecord, Span, read_alert
from streaming.report.untrusted import BoundedCounter, Newest, Ranking, shortened

SEVERITIES = ("critical", "high", "medium", "low", "info")
GRAVE = SEVERITIES[:2]
OTHER = "other"
MOST_KINDS = 50
NEWEST = 25
LONGEST_EVIDENCE = 1500
MOST_EPISODES = 100_000


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
    sentences: tuple[str, ...] = ()


class AlertTotals(msgspec.Struct, frozen=True):
    """Episodes with an alert in the range; of one with several alerts, its newest counts, which is the most complete.

    ``grave``: critical and high ones; the newest of both sorts are listed apart. ``updates``: alerts about an episode
    that was reported before. ``unreadable``: records of the topic that are no alert in JSON.
    """

    total: int
    grave: int
    unreadable: int
    kinds: tuple[KindTotals, ...]
    newest_grave: tuple[ShownAlert, ...]
    newest_other: tuple[ShownAlert, ...]
    updates: int = 0


class Episodes:
    """Counts episodes by kind and severity. Beyond `MOST_EPISODES`, each alert of a new one counts as an episode."""

    def __init__(self) -> None:
        self._counts: dict[str, list[int]] = {}
        self._seen: dict[bytes, tuple[str, int]] = {}
        self.severe, self.others = Newest[ShownAlert](NEWEST), Newest[ShownAlert](NEWEST)
        self.updates = 0

    def take(self, record: ConsumerRecord, alert: Alert) -> None:
        """Count an alert, in place of an older one of its episode."""
        episode = _episode(record, alert)
        kind, severity = _kind(alert, self._counts), _severity(alert)
        before = self._seen.get(episode)
        if before is not None:
            self._counts[before[0]][before[1]] -= 1
            self.updates += 1
        if before is not None or len(self._seen) < MOST_EPISODES:
            self._seen[episode] = (kind, severity)
        self._counts.setdefault(kind, [0] * (len(SEVERITIES) + 1))[severity] += 1
        newest, other = self.severe, self.others
        if alert.severity not in GRAVE:
            newest, other = other, newest
        other.drop(episode)
        newest.add((record.at, record.topic, record.offset), _shown(record, alert), episode)

    def kinds(self) -> tuple[KindTotals, ...]:
        """The counts, the most severe kind first."""
        found = (KindTotals(kind, tuple(counts)) for kind, counts in self._counts.items() if any(counts))
        return tuple(sorted(found, key=_gravest_first))


def _episode(record: ConsumerRecord, alert: Alert) -> bytes:
    """The alert's id; for an alert without one, its topic, partition and offset."""
    text = alert.id or f"{record.topic}\0{record.partition}\0{record.offset}"
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def sum_up_alerts(records: Iterable[ConsumerRecord], span: Span) -> AlertTotals:
    """Count the episodes of the alerts whose records lie in the range."""
    episodes, unreadable = Episodes(), 0
    for record in records:
        if not span.holds(record.at):
            continue
        alert = read_alert(record.value)
        if alert is None:
            unreadable += 1
        else:
            episodes.take(record, alert)
    kinds = episodes.kinds()
    grave = sum(sum(kind.counts[: len(GRAVE)]) for kind in kinds)
    total = sum(kind.total for kind in kinds)
    shown = (episodes.severe.listed(), episodes.others.listed())
    return AlertTotals(total, grave, unreadable, kinds, *shown, episodes.updates)


def _gravest_first(kind: KindTotals) -> tuple[list[int], str]:
    return [-count for count in kind.counts], kind.kind


def _kind(alert: Alert, counts: dict[str, list[int]]) -> str:
    """The kind; past a bound of different ones, `other`: a defective writer must not fill the memory."""
    kind = shortened(alert.kind)
    return kind if kind in counts or len(counts) < MOST_KINDS else OTHER


def _severity(alert: Alert) -> int:
    return SEVERITIES.index(alert.severity) if alert.severity in SEVERITIES else len(SEVERITIES)


def _shown(record: ConsumerRecord, alert: Alert) -> ShownAlert:
    severity = alert.severity if alert.severity in SEVERITIES else shortened(alert.severity)
    listed = alert.evidence if isinstance(alert.evidence, list) else [alert.evidence]
    evidence = tuple(_text(item, LONGEST_EVIDENCE) for item in listed[:5] if item is not None)
    more = (f"… and {len(listed) - 5} more",) if len(listed) > 5 else ()
    subject, message = _text(alert.subject), shortened(alert.message, LONGEST_EVIDENCE)
    return ShownAlert(
        record.at,
        shortened(alert.kind),
        severity,
        _text(alert.time),
        subject,
        message,
        (*evidence, *more),
        tuple(shortened(sentence) for item in listed[:5] if (sentence := _sentence(item))),
    )


def _sentence(item: Any) -> str:
    """A piece of evidence in words: what the monitor and the enforcer write, else fields that hold texts or numbers."""
    if not isinstance(item, dict):
        return "" if item is None else _text(item)
    match item:
        case {"count": count, "first": first, "last": last}:
            times = "1 time" if count == 1 else f"{_text(count)} times"
            when = f"at {_text(first)}" if first == last else f"from {_text(first)} to {_text(last)}"
            return f"{times}, {when}" + (f", in {_text(item['system'])}" if "system" in item else "")
        case {"time": time, "what": what}:
            return f"{_text(time)}: {_text(what)}"
        case {"errors": [*errors], "topic": topic, "offset": offset}:
            return f"{'; '.join(map(_text, errors))} (offset {_text(offset)} of {_text(topic)})"
        case {"document": document, "topic": topic, "offset": offset}:
            return f"{_text(document)}, published at offset {_text(offset)} of {_text(topic)}"
    plain = {name: value for name, value in item.items() if isinstance(value, str | int | float | list)}
    return "; ".join(f"{name.replace('_', ' ')}: {_listed(value)}" for name, value in plain.items())


def _listed(value: Any) -> str:
    if not isinstance(value, list):
        return _text(value)
    return ", ".join(map(_text, value[:3])) + (" …" if len(value) > 3 else "")


def _text(value: Any, longest: int = 300) -> str:
    """Text as it is, anything else as JSON."""
    if value is None:
        return ""
    return shortened(value if isinstance(value, str) else msgspec.json.encode(value).decode(), longest)


HEADERS = "__connect.errors."
NUMBERS = re.compile(r"\d+")
TOP = 20


class DeadLetterTotals(msgspec.Struct, frozen=True):
    """Dead letters in the range: by input topic, and by reason with numbers written as #."""

    total: int
    topics: Ranking
    reasons: Ranking


def sum_up_dead_letters(records: Iterable[ConsumerRecord], span: Span) -> DeadLetterTotals:
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
    """The message, so that two which differ in a size or a position count as one."""
    message = _header(headers, "exception.message") or _header(headers, "exception.class.name")
    return NUMBERS.sub("#", message) or "no reason in the headers"


def _header(headers: dict[str, bytes], name: str) -> str:
    return headers.get(HEADERS + name, b"").decode("utf-8", "replace")
