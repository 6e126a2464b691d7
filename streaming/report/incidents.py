"""Alerts, dead letters and policy changes, summed up: by kind, and the newest with what they say."""

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

import msgspec

import policy
from policy import Document, DocumentStore, Key, Version
from policy.analysis import document_contents
from streaming.history.records import ConsumerRecord
from streaming.history.span import Span
from streaming.records.alert import Alert
from streaming.records.dead_letter_headers import read_headers
from streaming.report import read_alert
from streaming.report.untrusted import BoundedCounter, Newest, Ranking, shortened
from streaming.snapshots.documents import DocumentRecord, Loader, policy_key

SEVERITIES = policy.SEVERITIES[::-1]  # the most severe first
GRAVE = SEVERITIES[:2]
OTHER = "other"
MOST_KINDS = 50
NEWEST_ALERTS = 25
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
    """An alert as it is shown: long texts shortened. ``at``: Kafka's timestamp of its record, ms. ``id``: as it is."""

    at: int
    kind: str
    severity: str
    time: str
    subject: str
    message: str
    evidence: tuple[str, ...]
    sentences: tuple[str, ...] = ()
    id: str = ""


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
        self.severe, self.others = Newest[ShownAlert](NEWEST_ALERTS), Newest[ShownAlert](NEWEST_ALERTS)
        self.updates = 0

    def take(self, record: ConsumerRecord, alert: Alert) -> None:
        """Count an alert, in place of an older one of its episode."""
        episode = _episode(record, alert)
        kind, is_known = _kind(alert, self._counts), alert.severity in SEVERITIES
        severity = SEVERITIES.index(alert.severity) if is_known else len(SEVERITIES)
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
        totals = (KindTotals(kind, tuple(counts)) for kind, counts in self._counts.items() if any(counts))
        return tuple(sorted(totals, key=lambda kind: ([-count for count in kind.counts], kind.kind)))


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


def _kind(alert: Alert, counts: dict[str, list[int]]) -> str:
    """The kind; past a bound of different ones, `other`: a defective writer must not fill the memory."""
    kind = shortened(alert.kind)
    return kind if kind in counts or len(counts) < MOST_KINDS else OTHER


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
        tuple(shortened(sentence) for item in listed[:5] if (sentence := evidence_text(item))),
        alert.id,
    )


def evidence_text(item: Any) -> str:
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
            fields = read_headers(record.headers)
            topics.add(fields.get("topic") or record.topic)
            reasons.add(_reason(fields))
    return DeadLetterTotals(total, topics.top(TOP), reasons.top(TOP))


def _reason(fields: Mapping[str, str]) -> str:
    """The message, so that two which differ in a size or a position count as one."""
    message = fields.get("exception.message") or fields.get("exception.class.name", "")
    return NUMBERS.sub("#", message) or "no reason in the headers"


Manner = Literal["added", "changed", "deleted", "refused"]
MANNERS: tuple[Manner, ...] = ("added", "changed", "deleted", "refused")
NEWEST_CHANGES = 100
DETAILS = 6


class Change(msgspec.Struct, frozen=True):
    """One record of a policy topic that changed something, or was refused. ``details``: what, line by line.

    ``at``: the broker's timestamp, ms. ``more``: how many further lines there would be.
    """

    at: int
    topic: str
    offset: int
    document: str
    manner: Manner
    details: tuple[str, ...]
    more: int


class SystemChanges(msgspec.Struct, frozen=True):
    """How many documents of one system changed in which manner. ``same``: published again as they were."""

    system: str
    added: int
    changed: int
    deleted: int
    refused: int
    same: int


class ChangeTotals(msgspec.Struct, frozen=True):
    """Changes in the range, and the newest of them."""

    total: int
    refused: int
    systems: tuple[SystemChanges, ...]
    newest: tuple[Change, ...]


def sum_up_changes(
    records: Iterable[ConsumerRecord], by_topic: Mapping[str, str], max_bytes: int, span: Span
) -> ChangeTotals:
    """Follow the policy topics from their beginning, and count what changed in the range.

    ``by_topic``: the system of each topic. Memory: the documents in force, one version each.
    """
    store = DocumentStore()
    loaders = {topic: Loader(store, system, max_bytes) for topic, system in by_topic.items()}
    counts = Counter[tuple[str, str]]()
    newest = Newest[Change](NEWEST_CHANGES)
    for record in records:
        key = policy_key(record.key, by_topic[record.topic])
        change = _follow(loaders[record.topic], key, record)
        if span.holds(record.at):
            counts[by_topic[record.topic], "same" if change is None else change.manner] += 1
            if change is not None:
                newest.add((record.at, record.topic, record.offset), change)
        if key in store.histories:
            store.histories[key].forget_before(None)
    return _totals(counts, newest)


def _totals(counts: Counter[tuple[str, str]], newest: Newest[Change]) -> ChangeTotals:
    named = sorted({system for system, _ in counts})
    systems = tuple(SystemChanges(system, *(counts[system, name] for name in (*MANNERS, "same"))) for system in named)
    total = sum(count for (_, name), count in counts.items() if name != "same")
    return ChangeTotals(total, sum(system.refused for system in systems), systems, newest.listed())


def _follow(loader: Loader, key: Key, record: ConsumerRecord) -> Change | None:
    """Put one record into the document store. None: the document stays as it was."""
    before, was_refused = _version_in_force(loader.store, key), _is_refused(loader.store, key)
    refused = loader.take(DocumentRecord(record.topic, record.key, record.value, record.offset, record.at))
    if refused is not None:
        return _change(record, key, "refused", list(refused.errors))
    after = _version_in_force(loader.store, key)
    if (before and before.digest) == (after and after.digest) and not (after is None and was_refused):
        return None
    manner: Manner = "deleted" if after is None else "added" if before is None else "changed"
    return _change(record, key, manner, list(_differences(key.system, before, after)))


def _version_in_force(store: DocumentStore, key: Key) -> Version | None:
    """The version in force; None when there is none, or a deletion."""
    version = store.histories[key].in_force if key in store.histories else None
    return None if version is None or version.deleted else version


def _is_refused(store: DocumentStore, key: Key) -> bool:
    """Whether the newest version is refused: its deletion ends the errors of the principals that it names."""
    return key in store.histories and not store.histories[key].newest.good


def _change(record: ConsumerRecord, key: Key, manner: Manner, lines: list[str]) -> Change:
    shown = tuple(shortened(line) for line in lines[:DETAILS])
    more = max(0, len(lines) - DETAILS)
    return Change(record.at, record.topic, record.offset, shortened(str(key)), manner, shown, more)


def _differences(system: str, before: Version | None, after: Version | None) -> Iterator[str]:
    """Grants and memberships that went and came; where these are the same, the fields that differ."""
    old, new = (document_contents(system, version.compiled) if version else {} for version in (before, after))
    yield from (f"− {line}" for line in sorted(old[content] for content in old.keys() - new.keys()))
    yield from (f"+ {line}" for line in sorted(new[content] for content in new.keys() - old.keys()))
    if old.keys() == new.keys() and before and after and before.document and after.document:
        yield from _fields(before.document, after.document)


def _fields(before: Document, after: Document) -> Iterator[str]:
    old, new = before.spec or {}, after.spec or {}
    for name in sorted(old.keys() | new.keys()):
        if old.get(name) != new.get(name):
            yield f"{name}: {_plain(old.get(name))} → {_plain(new.get(name))}"


def _plain(value: Any) -> str:
    return "nothing" if value is None else shortened(msgspec.json.encode(value, enc_hook=repr).decode(), 120)
