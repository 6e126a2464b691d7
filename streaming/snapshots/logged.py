"""The changes topic read back: which changes there were, and the documents in force around each."""

import re

import msgspec
import structlog

from policy import to_ms
from streaming.kafka.clients import admin_client, first_offsets, last_stable_offsets, partitions_of
from streaming.kafka.committed import committed_records, records_between
from streaming.records.avro import Undecodable
from streaming.records.change import ChangeWidens, DocumentChange, PolicyChange, read_change
from streaming.records.registry import Deserializer
from streaming.settings import Settings

log = structlog.get_logger()

SHORTEST_PREFIX = 4
HEAD = re.compile(r"HEAD(?:~(\d{1,9}))?")  # as in git: the newest change, and that so many before it


class NoSuchChange(Exception):
    """No change has this id, or several have; the message says so."""


class LoggedChange(msgspec.Struct):
    """A change, with its part for each system, and what each part widens. Author, commit and reason are claims."""

    id: str
    parts: list[PolicyChange]
    widens: list[ChangeWidens] = []

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


class ChangeHistory(msgspec.Struct):
    """All changes that the topic holds, oldest first. `is_cut`: whether retention has taken older ones."""

    changes: list[LoggedChange]
    is_cut: bool = False

    def find(self, text: str) -> LoggedChange:
        """The change with an id, or with the only one that begins so; `HEAD`, `HEAD~1`. Raises NoSuchChange."""
        if (head := HEAD.fullmatch(text)) is not None and int(head[1] or 0) < len(self.changes):
            return self.changes[-1 - int(head[1] or 0)]
        exact = [one for one in self.changes if one.id == text]
        found = exact or [one for one in self.changes if len(text) >= SHORTEST_PREFIX and one.id.startswith(text)]
        if len(found) != 1:
            taken = "; retention has taken older changes" if self.is_cut else ""
            why = f"it begins {len(found)} changes; write more of its id" if found else f"no such change{taken}"
            raise NoSuchChange(f"{text}: {why}. `lockkeeper policy log` lists them")
        return found[0]

    def newest_offset(self, topic: str) -> int:
        """The newest offset of a policy topic that was in force after any of the changes; -1: there is none."""
        after = (part.after.policy_offsets.get(topic, {}) for one in self.changes for part in one.parts)
        return max((offset for offsets in after for offset in offsets.values()), default=-1)

    def at_version(self, version: str) -> PolicyChange | None:
        """The newest part after which a policy version, or one that begins so, was in force."""
        parts = (part for one in reversed(self.changes) for part in reversed(one.parts))
        return next((part for part in parts if (part.after.policy_version or "").startswith(version)), None)


def read_changes(settings: Settings) -> ChangeHistory:
    """What the changes topic holds. Raises as `committed_records`; what cannot be read is logged and left out."""
    topic, deserializer = settings.topics.changes, Deserializer(settings.schema_registry)
    found: dict[str, LoggedChange] = {}
    widens: list[ChangeWidens] = []
    for message in committed_records(settings, [topic]):
        try:
            record = read_change(deserializer.json("change", message.value() or b""))
        except Undecodable as error:
            record = None
            log.warning("a record of the changes topic cannot be read", offset=message.offset(), error=str(error))
        if isinstance(record, PolicyChange):
            found.setdefault(record.id, LoggedChange(record.id, [])).parts.append(record)
        elif record is not None:
            widens.append(record)
    for one in widens:
        for id_ in one.changes:
            if id_ in found:
                found[id_].widens.append(one)
    is_cut = first_offsets(admin_client(settings), [(topic, 0)])[topic, 0] > 0
    return ChangeHistory(list(found.values()), is_cut)


def unread_topics(settings: Settings, history: ChangeHistory) -> list[str]:
    """The policy topics with documents that are in no change yet, as the job has not read them.

    Raises as `records_between`.
    """
    admin = admin_client(settings)
    partitions = partitions_of(admin, settings.topics.policy_topics().values())
    first, ends = first_offsets(admin, partitions), last_stable_offsets(admin, partitions)
    starts = {partition: max(first[partition], history.newest_offset(partition[0]) + 1) for partition in partitions}
    return sorted({str(message.topic()) for message in records_between(settings, starts, ends)})
