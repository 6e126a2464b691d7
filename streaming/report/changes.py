"""What changed in the policy topics within the range: which document, how, and what it says otherwise now."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

import msgspec

from policy import Document, DocumentStore, Key, Version
from policy.analysis import document_lines
from streaming.report import ConsumerRecord, Span
from streaming.report.untrusted import Newest, shortened
from streaming.snapshots.documents import DocumentRecord, Loader

Manner = Literal["added", "changed", "deleted", "refused"]
MANNERS: tuple[Manner, ...] = ("added", "changed", "deleted", "refused")
NEWEST = 100
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
    counts: dict[tuple[str, str], int] = {}
    newest = Newest[Change](NEWEST)
    for record in records:
        change, key = _follow(loaders[record.topic], record)
        if span.holds(record.at):
            system = by_topic[record.topic]
            name = "same" if change is None else change.manner
            counts[system, name] = counts.get((system, name), 0) + 1
            if change is not None:
                newest.add((record.at, record.topic, record.offset), change)
        if key is not None and key in store.histories:
            store.histories[key].forget_before(None)
    return _totals(counts, newest)


def _totals(counts: Mapping[tuple[str, str], int], newest: Newest[Change]) -> ChangeTotals:
    named = sorted({system for system, _ in counts})
    systems = tuple(
        SystemChanges(system, *(counts.get((system, name), 0) for name in (*MANNERS, "same"))) for system in named
    )
    total = sum(count for (_, name), count in counts.items() if name != "same")
    return ChangeTotals(total, sum(system.refused for system in systems), systems, newest.listed())


def _follow(loader: Loader, record: ConsumerRecord) -> tuple[Change | None, Key | None]:
    """Put one record into the document store. None for the change: the document stays as it was."""
    document = DocumentRecord(record.topic, record.key, record.value, record.offset, record.at)
    key = loader.key_of(document)
    before = _effective_principals(loader.store, key)
    refused = loader.take(document)
    if refused is not None:
        return _change(record, refused.document, "refused", list(refused.errors)), key
    assert key is not None
    after = _effective_principals(loader.store, key)
    if (before and before.digest) == (after and after.digest):
        return None, key
    manner: Manner = "added" if before is None else "deleted" if after is None else "changed"
    return _change(record, str(key), manner, list(_differences(key.system, before, after))), key


def _effective_principals(store: DocumentStore, key: Key | None) -> Version | None:
    """The version in force; None when there is none, or a deletion."""
    document_history = store.histories.get(key) if key is not None else None
    version = document_history.in_force if document_history is not None else None
    return None if version is None or version.deleted else version


def _change(record: ConsumerRecord, document: str, manner: Manner, lines: list[str]) -> Change:
    shown = tuple(shortened(line) for line in lines[:DETAILS])
    more = max(0, len(lines) - DETAILS)
    return Change(record.at, record.topic, record.offset, shortened(document), manner, shown, more)


def _differences(system: str, before: Version | None, after: Version | None) -> Iterator[str]:
    """Grants and memberships that went and came; where these are the same, the fields that differ."""
    old, new = (document_lines(system, version.compiled) if version else set() for version in (before, after))
    yield from (f"− {line}" for line in sorted(old - new))
    yield from (f"+ {line}" for line in sorted(new - old))
    if old == new and before and after and before.document and after.document:
        yield from _fields(before.document, after.document)


def _fields(before: Document, after: Document) -> Iterator[str]:
    old, new = before.spec or {}, after.spec or {}
    for name in sorted(old.keys() | new.keys()):
        if old.get(name) != new.get(name):
            yield f"{name}: {_plain(old.get(name))} → {_plain(new.get(name))}"


def _plain(value: Any) -> str:
    return "nothing" if value is None else shortened(msgspec.json.encode(value, enc_hook=repr).decode(), 120)
