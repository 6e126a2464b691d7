"""Which changes the policy topics hold, for the changes topic: one record for each change and system.

The committed offset of a policy topic says up to where changes are written, so what is read from there on is written in
the transaction that commits the offset beyond it: once, whatever ends the job. On the first start, when nothing is
committed, what the topics hold are the first changes.

Records with one `lockkeeper-change` header are one change, wherever they stand in one reading. Records without it are
one change as long as each has the offset after the one before: the marker that ends a transaction takes an offset, so
transactions differ, and what a producer without transactions writes at once is one change. On the first start
all of them that follow each other are one, for there compaction has left gaps. Either way all records of a change name
the same author, commit and reason: an id that others take does not make their documents those of its first publisher.

Of several changes read together only the first has a version before it, and only the last one after it: between them
nothing was in force for any request. Their offsets are exact.
"""

from collections.abc import Iterable, Mapping

import msgspec

from policy import DocumentStore, Key, Version, to_text
from streaming.kafka.authorship import Authorship
from streaming.kafka.clients import Partition
from streaming.records.change import (
    DocumentChange,
    Manner,
    PolicyChange,
    PolicyState,
    change_record,
    is_job_id,
    job_id,
)
from streaming.records.formats import Result, shorten_id
from streaming.settings import Settings
from streaming.snapshots.documents import DocumentRecord, policy_key
from streaming.topics import NOTHING_READ, Offsets

MOST_AT_START = 1000  # changes of before the first start that are written, the newest


class _Document(msgspec.Struct):
    """A document of a change: its version in force before it, and its newest record in it."""

    text: str
    before: Version | None
    was_refused: bool
    offset: int
    now: Manner | None = None  # None: as before

    def follow(self, newest: Version | None, refused: bool) -> None:
        """Note what its newest record made of it."""
        existed = self.before is not None and not self.before.deleted
        if refused:
            self.now = "refused"
        elif newest is None or newest.deleted:
            self.now = "removed" if existed or self.was_refused else None
        elif self.before is None or self.before.deleted:
            self.now = "added"
        else:
            same = self.before.digest == newest.digest and not self.was_refused
            self.now = None if same else "changed"


def document_text(system: str, key: bytes) -> str:
    """A document as the records of changes show it, by its record's key: `system/kind/name`, shortened where long."""
    return shorten_id(str(policy_key(key, system)))


class _Change(msgspec.Struct):
    """A change that is being read."""

    id: str
    topic: str
    authorship: Authorship
    at: int
    first: int  # offset
    last: int
    documents: dict[bytes, _Document] = {}  # by the record's key: what is shown of it may be the same for two


def _before(change: _Change, state: PolicyState) -> PolicyState:
    """The state before a change, which begins before the one ahead of it ends where their records alternate.

    Else what it changed would seem to have been in force before it, and a rollback would leave that.
    """
    if change.first > state.policy_offsets[change.topic]["0"]:
        return state
    return PolicyState({**state.policy_offsets, change.topic: {"0": change.first - 1}}, None)


class ChangeLog:
    """Notes the records of the policy topics as they are read, and makes records of the changes once all is read.

    `published`: the committed offsets; of a topic that is not among them all is new. `version`: of no policies.
    """

    def __init__(self, settings: Settings, published: Mapping[Partition, int], version: str) -> None:
        names = settings.topics
        self._topic, self._most_bytes = names.changes, settings.limits.record_out
        self._systems = {topic: system for system, topic in names.policy_topics().items()}
        self._published = {topic: published.get((topic, 0)) for topic in self._systems}
        self._open: dict[tuple[str, str, Authorship], _Change] = {}
        self._current: _Document | None = None
        # By topic, of its newest record: offset, id, and what it claims where the id is not a header's.
        self._last: dict[str, tuple[int, str, Authorship | None]] = {}
        started = any(offset is not None for offset in self._published.values())
        read = {topic: {"0": (offset or 0) - 1} for topic, offset in self._published.items()}
        self._state = PolicyState(read, None if started else version)
        self._pending: list[Result] = []

    def note(self, key: Key, record: DocumentRecord, authorship: Authorship, store: DocumentStore) -> str:
        """Note a record that is about to be put into the document store. Returns the id of its change.

        `key`: see `policy_key`.
        """
        id_, published = self._id_of(record, authorship), self._published[record.topic]
        self._current = None
        if published is not None and record.offset < published:
            return id_
        new = _Change(id_, record.topic, authorship, record.at, record.offset, record.offset)
        change = self._open.setdefault((record.topic, id_, authorship), new)
        change.last = record.offset
        name = document_text(self._systems[record.topic], record.key)
        document_history = store.histories.get(key)
        before = document_history.in_force if document_history is not None else None
        refused = document_history is not None and not document_history.newest.good
        self._current = change.documents.setdefault(record.key, _Document(name, before, refused, record.offset))
        self._current.offset = record.offset
        return id_

    def _id_of(self, record: DocumentRecord, authorship: Authorship) -> str:
        """What its header says, else what identifies records without one: topic and first offset.

        A header that says what only the job says counts as none: it would stand for a change of others.
        """
        offset, id_, nameless = self._last.get(record.topic, (NOTHING_READ, "", None))
        if authorship.change and not is_job_id(authorship.change, self._systems):
            id_, nameless = authorship.change, None
        elif nameless != authorship or (self._published[record.topic] is not None and record.offset != offset + 1):
            id_, nameless = job_id(record.topic, record.offset), authorship
        self._last[record.topic] = record.offset, id_, nameless
        return id_

    def noted(self, key: Key, refused: bool, store: DocumentStore) -> None:
        """Note what the document store made of the record."""
        if self._current is not None:
            document_history = store.histories.get(key)
            newest = document_history.newest if document_history is not None else None
            self._current.follow(newest, refused)

    def close(self, version: str, offsets: Offsets) -> None:
        """All is read up to `offsets`, which amounts to `version`: the changes are complete."""
        changes = [*self._open.values()]
        at_start = [change for change in changes if self._published[change.topic] is None]
        left_out = {id(change) for change in at_start[:-MOST_AT_START]}
        changes = [change for change in changes if id(change) not in left_out]
        self._open.clear()
        self._last.clear()  # what is read later was published later
        for number, change in enumerate(changes, 1):
            is_last = number == len(changes)
            read = offsets if is_last else {**self._state.policy_offsets, change.topic: {"0": change.last}}
            before, self._state = _before(change, self._state), PolicyState(read, version if is_last else None)
            self._pending.append(self._record(change, before))
        self._state = PolicyState(offsets, version)
        self._published = {topic: offset or 0 for topic, offset in self._published.items()}

    def _record(self, change: _Change, before: PolicyState) -> Result:
        documents = [
            DocumentChange(document.text, document.now, document.offset)
            for document in change.documents.values()
            if document.now is not None
        ]
        claims = change.authorship
        policy_change = PolicyChange(
            id=change.id,
            system=self._systems[change.topic],
            time=to_text(change.at),
            author=claims.author,
            commit=claims.commit,
            reason=claims.reason,
            before=before,
            after=self._state,
            documents=tuple(documents),
            documents_count=len(documents),
        )
        return change_record(self._topic, policy_change, self._most_bytes)

    def pending(self) -> Iterable[Result]:
        """The records that the next transaction must write."""
        return tuple(self._pending)

    def published(self) -> None:
        """Note that a transaction with all of `pending` was committed."""
        self._pending.clear()
