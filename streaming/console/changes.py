"""Changes of policies: which there were, what each gave and took, and which of the newest requests it turns."""

import contextlib
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
from confluent_kafka.admin import AdminClient

from policy import Snapshot, decode_json, to_text
from policy.analysis import Concerned, effects, replay, widening_text
from streaming.console.addresses import address
from streaming.console.documents import DocumentDiff, diffs_of
from streaming.console.reading import Locked, Tail
from streaming.console.viewer import Viewer
from streaming.history.records import ConsumerRecord, record_of
from streaming.kafka.committed import committed_records
from streaming.records.avro import Undecodable
from streaming.records.change import PolicyChange
from streaming.records.formats import shorten_id
from streaming.records.registry import Deserializer
from streaming.settings import Settings
from streaming.snapshots.at_offsets import DocumentLog, NoLongerKnown
from streaming.snapshots.logged import ChangeHistory, ChangeRecords, LoggedChange, snapshots_around

MOST_CHANGES = 20_000  # records of the topic that are read at first, the newest
REQUESTS, REQUEST_SECONDS = 500, 1.0  # that are decided before and after a change, and for how long
MOST_SHOWN = 200  # differences, and what is opened

Rows = list[dict[str, Any]]


class ChangeLog:
    """The changes on their topic. For several threads. Raises KafkaException and TimeoutError."""

    def __init__(self, settings: Settings, admin: AdminClient) -> None:
        topic = settings.topics.changes
        self._tail, self._lock = Tail(settings, admin, topic, MOST_CHANGES), Locked()
        self._records = ChangeRecords(topic, settings.topics.policy_topics().values())
        self._deserializer = Deserializer(settings.schema_registry)

    def history(self) -> ChangeHistory:
        """All of them until now."""
        with self._lock:
            for message in self._tail.records():
                self._records.take(message, self._deserializer)
            return self._records.history(self._tail.is_cut)


def seen_by(viewer: Viewer, change: LoggedChange) -> LoggedChange | None:
    """As much of a change as a viewer may see; None: nothing."""
    parts = [part for part in change.parts if viewer.may_see(part.system)]
    widens = [one for one in change.widens if viewer.may_see(one.system)]
    return LoggedChange(change.id, parts, widens, change.name) if parts else None


def has_document(change: LoggedChange, document: str) -> bool:
    """Whether a change is of `SYSTEM/KIND/NAME`, or of `KIND/NAME`; long ones are shortened in its record."""
    named = shorten_id(document)
    return any(named in (one.key, one.key.partition("/")[2]) for one in change.documents)


def change_at(history: ChangeHistory, topics: Mapping[str, str], topic: str, offset: int) -> LoggedChange | None:
    """The change that a record of a policy topic is of. `topics`: by system."""
    for change in reversed(history.changes):
        for part in change.parts:
            if topics.get(part.system) == topic and any(one.offset == offset for one in part.documents):
                return change
    return None


def rollback_command(change: LoggedChange) -> str:
    """What undoes it, for a shell."""
    return f"lockkeeper policy rollback {shlex.quote(change.name or change.id)}"


class Side(msgspec.Struct, frozen=True):
    """The policies of a system before and after a change; `why`: they are no longer known."""

    part: PolicyChange
    before: Snapshot | None = None
    after: Snapshot | None = None
    why: str = ""


class Changed(msgspec.Struct, frozen=True):
    """What a change did. `unknown`: why that is not known in part. `opens`: in words; None: not worked out (yet)."""

    change: LoggedChange
    diffs: tuple[DocumentDiff, ...] = ()
    effects: tuple[Concerned, ...] = ()
    unknown: tuple[str, ...] = ()
    opens: tuple[str, ...] | None = None
    is_complete: bool = True
    sides: tuple[Side, ...] = ()


def describe(change: LoggedChange, log: DocumentLog, topics: Mapping[str, str]) -> Changed:
    """Compare the documents and the grants before and after a change. `topics`: by system."""
    known = [part for part in change.parts if part.system in topics]
    sides = tuple(_side(log, part) for part in known)
    differences = [
        one
        for side in sides
        if side.before is not None and side.after is not None
        for one in effects(side.before, side.after)
        if one.difference.system == side.part.system
    ]
    opens = [widening_text(one) for widens in change.widens for one in widens.widens]
    return Changed(
        change,
        tuple(diff for part in known for diff in diffs_of(log, topics[part.system], part)),
        tuple(differences[:MOST_SHOWN]),
        tuple(f"{side.part.system}: {side.why}" for side in sides if side.why),
        tuple(opens[:MOST_SHOWN]) if change.widens else None,
        all(one.complete for one in change.widens) and len(differences) <= MOST_SHOWN and len(opens) <= MOST_SHOWN,
        sides,
    )


def _side(log: DocumentLog, part: PolicyChange) -> Side:
    try:
        return Side(part, *snapshots_around(log, part))
    except NoLongerKnown as error:
        return Side(part, why=str(error))


class Turned(msgspec.Struct, frozen=True):
    """Of so many of the newest requests of the changed systems, those that are answered otherwise by a change."""

    count: int
    rows: Rows
    is_cut: bool = False


def turned_requests(settings: Settings, sides: Sequence[Side]) -> Turned:
    """Decide the newest requests by the policies before and after. Raises KafkaException and TimeoutError."""
    by_system = {side.part.system: side for side in sides if side.before is not None}
    rows: Rows = []
    count, deadline = 0, time.monotonic() + REQUEST_SECONDS
    for record, asked in _newest_requests(settings):
        if time.monotonic() > deadline:
            return Turned(count, rows, True)
        side = by_system.get(str(asked.get("system")))
        if side is None or side.before is None or side.after is None:
            continue
        count += 1
        trust = settings.trust_of(record.topic) | {"time"}
        found = replay(side.before, side.after, [asked], trust)
        rows += [_turned(one.request, one.before.outcome, one.after.outcome, record.at) for one in found]
    return Turned(count, rows)


def _newest_requests(settings: Settings) -> Iterator[tuple[ConsumerRecord, dict[str, Any]]]:
    """The newest requests, newest first, each to be decided at its record's timestamp."""
    deserializer = Deserializer(settings.schema_registry)
    records = map(record_of, committed_records(settings, settings.topics.requests, REQUESTS))
    for record in sorted(records, key=lambda one: (one.at, one.offset), reverse=True)[:REQUESTS]:
        with contextlib.suppress(Undecodable, ValueError, RecursionError):
            asked = msgspec.convert(decode_json(deserializer.json("request", record.value)), dict[str, Any])
            asked.pop("deadline", None)
            yield record, {**asked, "time": record.at}


def _turned(asked: Mapping[str, Any], before: str, after: str, at: int) -> dict[str, Any]:
    def name(part: str, field: str) -> str:
        value = asked.get(part)
        return str(value.get(field, "")) if isinstance(value, Mapping) else ""

    id_ = str(asked.get("id", ""))
    return {
        "before": before,
        "after": after,
        "time": to_text(at),
        "subject": name("subject", "id"),
        "action": name("action", "name"),
        "resource": name("resource", "id"),
        "id": id_,
        "address": address("/decisions", {"request_id": id_}),
    }
