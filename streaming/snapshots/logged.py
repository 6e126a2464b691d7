"""The changes topic read back: which changes there were, and the documents in force around each."""

import re
from collections.abc import Iterable

import msgspec
import structlog
from confluent_kafka import Message

from policy import Snapshot, to_ms
from streaming.kafka.clients import admin_client, first_offsets, last_stable_offsets, partitions_of
from streaming.kafka.committed import committed_records, records_between
from streaming.records.avro import Undecodable
from streaming.records.change import ChangeRecord, ChangeWidens, DocumentChange, PolicyChange, is_job_id, read_change
from streaming.records.registry import Deserializer
from streaming.settings import Settings
from streaming.snapshots.at_offsets import DocumentLog, of_topics
from streaming.snapshots.record_log import APART_MS

log = structlog.get_logger()

SHORTEST_PREFIX, SHORT_ID = 4, 12
HEAD = re.compile(r"HEAD(?:~(\d{1,9}))?")  # as in git: the newest change, and that so many before it
LISTED = 5


class NoSuchChange(Exception):
    """No change has this id, or several have; the message says so."""


class LoggedChange(msgspec.Struct):
    """A change, with its part for each system, and what each part widens. Author, commit and reason are claims.

    `id`: the publisher's, where it chose one: others may choose the same. `name`: the job's, by the topic and offset
    of its first record on the changes topic, where the job alone writes.
    """

    id: str
    parts: list[PolicyChange]
    widens: list[ChangeWidens] = []
    name: str = ""

    @property
    def first(self) -> PolicyChange:
        """The part that was read first; all have the same claims."""
        return self.parts[0]

    @property
    def at(self) -> int:
        """When its first record came, ms."""
        return to_ms(self.first.time)

    @property
    def documents(self) -> list[DocumentChange]:
        """The documents that it changed, of all systems."""
        return [document for part in self.parts for document in part.documents]

    @property
    def documents_count(self) -> int:
        """How many there are; `documents` may have the first alone."""
        return sum(part.documents_count for part in self.parts)

    @property
    def systems_not_analyzed(self) -> list[str]:
        """The systems of which it is not known (yet) what it opens."""
        analyzed = {widens.system for widens in self.widens}
        return [part.system for part in self.parts if part.system not in analyzed]

    def is_part(self, record: PolicyChange) -> bool:
        """Whether a record with the same id is about another system's documents of this change.

        Anybody who may publish can take the id of another's change: what comes later, or says something else of
        itself, is a change of its own, so that a rollback of one never undoes the other.
        """
        said = (self.first.author, self.first.commit, self.first.reason) == (
            record.author,
            record.commit,
            record.reason,
        )
        is_near = abs(to_ms(record.time) - self.at) <= APART_MS
        return said and is_near and all(part.system != record.system for part in self.parts)


class ChangeHistory(msgspec.Struct):
    """All changes that the topic holds, oldest first. `is_cut`: whether retention has taken older ones.

    `job_ids`: what the ids begin with that the job makes itself, for changes whose publisher names none.
    """

    changes: list[LoggedChange]
    is_cut: bool = False
    job_ids: tuple[str, ...] = ()

    def find(self, text: str) -> LoggedChange:
        """The only change with an id, or whose id begins so; `HEAD`, `HEAD~1`; a change's `name`. Raises NoSuchChange.

        A publisher chooses its id, perhaps the beginning of another's: so a whole id does not win over a beginning,
        unless it is the job's own.
        """
        if (head := HEAD.fullmatch(text)) is not None and int(head[1] or 0) < len(self.changes):
            return self.changes[-1 - int(head[1] or 0)]
        if (
            named := next((change for change in self.changes if change.name and change.name == text), None)
        ) is not None:
            return named
        changes = self._with_id(text)
        if len(changes) != 1:
            raise NoSuchChange(f"{text}: {self._why_not(changes)}. `lockkeeper policy log` lists them")
        return changes[0]

    def _with_id(self, text: str) -> list[LoggedChange]:
        whole = [change for change in self.changes if change.id == text]
        if whole and self._is_of_job(text):
            return whole
        return [
            change
            for change in self.changes
            if change.id == text or (len(text) >= SHORTEST_PREFIX and change.id.startswith(text))
        ]

    def _is_of_job(self, id_: str) -> bool:
        return is_job_id(id_, self.job_ids)

    def _why_not(self, changes: list[LoggedChange]) -> str:
        if not changes:
            return f"no such change{'; retention has taken older changes' if self.is_cut else ''}"
        listed = "; ".join(
            f"{change.name} ({change.id}, {change.first.time}, {change.first.author})" for change in changes[:LISTED]
        )
        more = f"; and {len(changes) - LISTED} more" if len(changes) > LISTED else ""
        return f"it may be one of {len(changes)} changes; name one of them by its first word: {listed}{more}"

    def short(self, change: LoggedChange) -> str:
        """The shortest text, of 12 characters or more, that names a change and no other."""
        lengths = (
            ()
            if self._is_of_job(change.id)
            else range(min(SHORT_ID, len(change.id)), min(len(change.id), 2 * SHORT_ID))
        )
        for text in (*(change.id[:length] for length in lengths), change.id):
            try:
                if self.find(text) is change:
                    return text
            except NoSuchChange:
                continue
        return change.name

    def newest_offset(self, topic: str) -> int:
        """The newest offset of a policy topic that was in force after any of the changes; -1: there is none."""
        after = (part.after.policy_offsets.get(topic, {}) for change in self.changes for part in change.parts)
        return max((offset for offsets in after for offset in offsets.values()), default=-1)

    def at_version(self, version: str) -> PolicyChange | None:
        """The newest part after which a policy version, or the only one that begins so, was in force.

        Raises NoSuchChange where several begin so.
        """
        parts = {part.after.policy_version or "": part for change in self.changes for part in change.parts}
        versions = [name for name in parts if name.startswith(version)]
        if len(versions) > 1 and version not in parts:
            raise NoSuchChange(f"{version}: several versions begin so: {', '.join(versions[:LISTED])}")
        return parts[version if version in parts else versions[0]] if versions else None


class ChangeRecords:
    """The records of the changes topic in their order, put together to changes. `job_ids`: see `ChangeHistory`.

    `unreadable`: how many that were taken are none of changes.
    """

    def __init__(self, topic: str, job_ids: Iterable[str] = ()) -> None:
        self._topic, self._job_ids = topic, tuple(job_ids)
        self._changes: list[LoggedChange] = []
        self._newest: dict[str, LoggedChange] = {}  # by id
        self.unreadable = 0

    def add(self, offset: int, record: ChangeRecord) -> None:
        """Take the record at an offset."""
        if isinstance(record, PolicyChange):
            self._add_change(offset, record)
            return
        for id_ in record.changes:  # the newest with this id: what is read later was not compared yet
            if id_ in self._newest:
                self._newest[id_].widens.append(record)

    def _add_change(self, offset: int, record: PolicyChange) -> None:
        change = self._newest.get(record.id)
        if change is None or not change.is_part(record):
            change = LoggedChange(record.id, [], name=f"{self._topic}-{offset}")
            self._newest[record.id] = change
            self._changes.append(change)
        change.parts.append(record)

    def take(self, message: Message, deserializer: Deserializer) -> None:
        """Take a consumed record; one that cannot be read is logged and left out."""
        try:
            record = read_change(deserializer.json("change", message.value() or b""))
        except (Undecodable, ValueError, RecursionError) as error:
            self.unreadable += 1
            log.warning("a record of the changes topic cannot be read", offset=message.offset(), error=str(error))
        else:
            self.add(message.offset() or 0, record)

    def history(self, is_cut: bool) -> ChangeHistory:
        """The changes of all that was added until now."""
        return ChangeHistory(list(self._changes), is_cut, self._job_ids)


def read_changes(settings: Settings) -> ChangeHistory:
    """What the changes topic holds. Raises as `committed_records`; what cannot be read is logged and left out."""
    topic, deserializer = settings.topics.changes, Deserializer(settings.schema_registry)
    records = ChangeRecords(topic, settings.topics.policy_topics().values())
    for message in committed_records(settings, [topic]):
        records.take(message, deserializer)
    return records.history(first_offsets(admin_client(settings), [(topic, 0)])[topic, 0] > 0)


def snapshots_around(documents: DocumentLog, part: PolicyChange) -> tuple[Snapshot, Snapshot]:
    """The policies in force before and after a part of a change, without facts. Raises NoLongerKnown."""
    states = (part.before.policy_offsets, part.after.policy_offsets)
    before, after = (documents.snapshot_at(of_topics(documents, offsets), None) for offsets in states)
    return before, after


def unread_topics(settings: Settings, history: ChangeHistory) -> list[str]:
    """The policy topics with documents that are in no change yet, as the job has not read them.

    Raises as `records_between`.
    """
    admin = admin_client(settings)
    partitions = partitions_of(admin, settings.topics.policy_topics().values())
    first, ends = first_offsets(admin, partitions), last_stable_offsets(admin, partitions)
    starts = {partition: max(first[partition], history.newest_offset(partition[0]) + 1) for partition in partitions}
    return sorted({str(message.topic()) for message in records_between(settings, starts, ends)})
