"""Changes of policies: which there were, what each gave and took, and which of the newest requests it turns."""

import shlex
import time
from collections.abc import Iterable, Mapping, Sequence

import msgspec
from confluent_kafka.admin import AdminClient

from policy import FactOverlay, Snapshot
from policy.analysis import Concerned, effects, replay, widening_text
from streaming.console.comparison_program import turned_evaluations
from streaming.console.documents import MOST_DOCUMENTS, DocumentDiff, diffs_of
from streaming.console.past_requests import PastRequest
from streaming.console.reading import Locked, Tail
from streaming.console.viewer import Viewer
from streaming.records.change import DocumentChange, PolicyChange
from streaming.records.registry import Deserializer
from streaming.settings import Settings
from streaming.snapshots.at_offsets import DocumentLog, NoLongerKnown
from streaming.snapshots.logged import ChangeHistory, ChangeRecords, LoggedChange, snapshots_around
from streaming.snapshots.record_log import APART_MS

MOST_CHANGES = 20_000  # records of the topic that are read at first, the newest
REQUEST_SECONDS = 1.0  # in which requests are decided before and after a change; each is finished
MOST_SHOWN = 200  # differences, and what is opened

Rows = list[dict[str, str]]


class ChangeLog:
    """The changes on their topic. For several threads. Raises KafkaException and TimeoutError."""

    def __init__(self, settings: Settings, admin: AdminClient) -> None:
        self._topic, self._policies = settings.topics.changes, settings.topics.policy_topics().values()
        self._tail = Tail(settings, admin, self._topic, MOST_CHANGES, MOST_CHANGES, self._forget)
        self._lock = Locked()
        self._deserializer = Deserializer(settings.schema_registry)
        self._forget()

    def _forget(self) -> None:
        self._records = ChangeRecords(self._topic, self._policies)

    @property
    def unreadable(self) -> int:
        """How many records were read that are none of changes."""
        return self._records.unreadable

    def history(self) -> ChangeHistory:
        """All of them until now."""
        with self._lock:
            for message in self._tail.records():
                self._records.take(message, self._deserializer)
            return self._records.history(self._tail.is_cut)


def seen_by(viewer: Viewer, change: LoggedChange) -> LoggedChange | None:
    """As much of a change as a viewer may see; None: nothing."""
    parts = [part for part in change.parts if viewer.may_see(part.system)]
    widens = [widens for widens in change.widens if viewer.may_see(widens.system)]
    return LoggedChange(change.id, parts, widens, change.name) if parts else None


def history_seen_by(viewer: Viewer, history: ChangeHistory) -> ChangeHistory:
    """The changes that a viewer may see: one is named by its place, as HEAD~1, and by a prefix among these alone."""
    seen = [part for change in history.changes if (part := seen_by(viewer, change)) is not None]
    return ChangeHistory(seen, history.is_cut, history.job_ids)


def change_at(
    history: ChangeHistory, topics: Mapping[str, str], topic: str, offset: int, at: int
) -> LoggedChange | None:
    """The change that a record of a policy topic is of, the newest before `at` (ms). `topics`: by system.

    Where the topic was re-created later, the newest of all is of another record.
    """
    changes = (
        change
        for change in reversed(history.changes)
        for part in change.parts
        if topics.get(part.system) == topic and any(document.offset == offset for document in part.documents)
    )
    return max(changes, key=lambda change: change.at <= at + APART_MS, default=None)


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
    """What a change did. `unknown`: why that is not known in part. `opens`: in words; None: not worked out (yet).

    `others`: documents that are not compared. `differences_count`: how many there are; the first are shown.
    """

    change: LoggedChange
    diffs: tuple[DocumentDiff, ...] = ()
    others: tuple[DocumentChange, ...] = ()
    differences: tuple[Concerned, ...] = ()
    differences_count: int = 0
    unknown: tuple[str, ...] = ()
    opens: tuple[str, ...] | None = None
    is_complete: bool = True


def describe(change: LoggedChange, log: DocumentLog, topics: Mapping[str, str]) -> Changed:
    """Compare the documents and the grants before and after a change. `topics`: by system."""
    sides = sides_of(change, log, topics)
    differences = [
        entry
        for side in sides
        if side.before is not None and side.after is not None
        for entry in effects(side.before, side.after)
        if entry.difference.system == side.part.system
    ]
    opens = [widening_text(widening) for widens in change.widens for widening in widens.widens]
    return Changed(
        change,
        tuple(diff for side in sides for diff in diffs_of(log, topics[side.part.system], side.part)),
        tuple(document for side in sides for document in side.part.documents[MOST_DOCUMENTS:]),
        tuple(differences[:MOST_SHOWN]),
        len(differences),
        tuple(f"{side.part.system}: {side.why}" for side in sides if side.why),
        tuple(opens[:MOST_SHOWN]) if change.widens else None,
        is_worked_out(change) and len(opens) <= MOST_SHOWN,
    )


def is_worked_out(change: LoggedChange) -> bool:
    """Whether what a change opens is known whole, in all of its systems."""
    return not change.systems_not_analyzed and all(widens.complete for widens in change.widens)


def compared_with(change: LoggedChange) -> list[str]:
    """The ids of other changes with which it was compared as one: each of them may have opened what is said of it."""
    return list(dict.fromkeys(id_ for widens in change.widens for id_ in widens.changes if id_ != change.id))


def sides_of(change: LoggedChange, log: DocumentLog, topics: Mapping[str, str]) -> tuple[Side, ...]:
    """The policies before and after a change, of each of its systems. `topics`: by system."""
    return tuple(_side(log, part) for part in change.parts if part.system in topics)


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


def turned_requests(requests: Iterable[PastRequest], sides: Sequence[Side], facts: FactOverlay) -> Turned:
    """Decide requests, the newest first, by the policies before and after, each with the facts of its time."""
    by_system = {side.part.system: side for side in sides}
    rows: Rows = []
    count, deadline = 0, time.monotonic() + REQUEST_SECONDS
    for past in requests:
        if time.monotonic() > deadline:
            return Turned(count, rows, True)
        side = by_system[str(past.asked["system"])]
        if side.before is None or side.after is None:
            continue
        count += 1
        before, after = (policies.with_facts(facts, past.at) for policies in (side.before, side.after))
        for turned in replay(before, after, [past.asked], past.trust):
            which = turned_evaluations(turned.before, turned.after)
            was, now = (side.evaluations[which[0]] if which else side for side in (turned.before, turned.after))
            rows.append({**past.row(which), "before": was.outcome, "after": now.outcome})
    return Turned(count, rows)
