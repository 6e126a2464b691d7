"""What compaction takes from a policy topic and a restart needs: kept as it came, on the history topic.

Needed are all versions that the document store holds of a document but the newest, which the policy topic itself keeps:
the last good one below a refused one, and those that logins and active jobs look back to. The facts topic has no
history: after compaction a refused fact without a good version is `error`, never an allow.

A kept version was superseded by another, whose offset is written beside it. Where that one is known no more (the
job was away while both topics were compacted), the kept version must not come back into force: see `close_gaps`.

A kept version is of one topic id. Once the policy topic was re-created, its offsets mean nothing and it must not come
back into force. Kafka forgets committed offsets together with their topic, so the history topic keeps, too, which logs
the job has read: a start with other ones is refused until they are accepted.
"""

import contextlib
import itertools
from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Any

import msgspec

from policy import LAST_MS, DocumentStore, Key, Version
from streaming.commit.offsets import FORMAT, check_format
from streaming.kafka.reader import TopicLog, parse_log
from streaming.records.packing import Result
from streaming.snapshots.documents import Record
from streaming.topics import DAY_MS

AT, NEXT, FORM, TOPIC_ID = "at", "next", "format", "topic-id"
LOG = b"topic/"  # begins the key of a record that names the log of a topic
KEPT_BY_TOPIC_MS = 7 * DAY_MS  # what was superseded since then, every policy topic still holds (topic_specs)
CLOCKS_DIFFER_MS = 60 * 60 * 1000
NO_DOCUMENT = b"?"  # stands for one too large to be kept: refused again when it is read back
Place = tuple[Key, int]  # a version of a document: the document, and the version's offset


class History:
    """Knows what is on the history topic, and what must be added and taken away.

    `names`: the policy topic of each system. `logs`: of the topics that the job reads, as they are now.
    `known_logs`: as they were when a job last wrote here.

    Every commit asks for the changes: they cost as much as there are documents that changed since the one before, not
    as there are documents.
    """

    def __init__(self, topic: str, names: Mapping[str, str], max_bytes: int, logs: Mapping[str, TopicLog]) -> None:
        self._topic, self._names, self._max_bytes, self._logs = topic, names, max_bytes, logs
        self.known_logs: dict[str, TopicLog] = {}
        self._versions: dict[Key, dict[int, Record]] = {}  # by offset
        self._written: dict[Key, set[int]] = {}  # offsets
        self._void: set[Place] = set()  # on the history topic, but of a topic that is no more
        self._successors: dict[Place, int] = {}
        self._changed: set[Key] = set()  # documents whose versions are others than at the last commit

    def note(self, key: Key, record: Record) -> None:
        """Hold a version that was read, until it is known whether it is needed."""
        self._versions.setdefault(key, {})[record.offset] = record
        self._changed.add(key)

    def read_back(
        self, key: bytes, value: bytes | None, headers: Iterable[Any], trusted: Container[str] = ()
    ) -> Record | None:
        """The version that a record of the history topic keeps; None for a deletion or what is not ours.

        `trusted`: topics whose id is the one of before, also for records of lockkeeper 0.1.0, which name none.
        Raises CannotStart for one of a newer lockkeeper: read amiss, it could bring back what was revoked.
        """
        if key.startswith(LOG):
            self._read_log(key, value)
            return None
        place = _place(key)
        if place is None or place[0].system not in self._names:
            return None
        kept = kept_version(self._names, key, value, headers, self._topic)
        self._forget(place)
        if kept is None:
            return None
        if not self._is_of(kept.record.topic, kept.topic_id, trusted):
            self._void.add(place)
            return None
        self._written.setdefault(place[0], set()).add(place[1])
        self._successors[place] = kept.successor
        return kept.record

    def _forget(self, place: Place) -> None:
        key, offset = place
        self._changed.add(key)
        self._written.get(key, set()).discard(offset)
        self._void.discard(place)
        self._successors.pop(place, None)

    def _is_of(self, topic: str, topic_id: bytes | None, trusted: Container[str]) -> bool:
        return topic in trusted if topic_id is None else topic_id == self._logs[topic].id.encode()

    def _read_log(self, key: bytes, value: bytes | None) -> None:
        with contextlib.suppress(ValueError):
            self.known_logs[key.removeprefix(LOG).decode()] = parse_log((value or b"").decode())

    def close_gaps(self, store: DocumentStore, now: int) -> None:
        """Once all topics are read: end kept versions whose successor is lost, and say from when all is known.

        `now`: ms.
        """
        for (key, offset), successor in self._successors.items():
            document_history = store.histories.get(key)
            at = {version.order: version.at for version in document_history.versions} if document_history else {}
            if offset in at and successor not in at:
                store.delete(key, at[offset], successor)
                self._changed.add(key)
                following = min((order for order in at if order > successor), default=offset)
                store.lost_before(at[following], key)
        self._successors.clear()
        for key, document_history in store.histories.items():
            if document_history.versions[0].at < now - KEPT_BY_TOPIC_MS + CLOCKS_DIFFER_MS:
                store.lost_before(document_history.versions[0].at, key)

    def settle(self, store: DocumentStore, dropped: Iterable[Key]) -> None:
        """Let go of versions that the document store no longer holds. `dropped`: the documents that it took some of."""
        self._changed.update(dropped)
        for key in self._changed:
            held = {version.order for version in _versions_of(store, key)}
            kept = {offset: record for offset, record in self._versions.pop(key, {}).items() if offset in held}
            if kept:
                self._versions[key] = kept

    def changes(self, store: DocumentStore) -> list[Result]:
        """What to write so that the topic holds what is needed, and nothing else; see `written`."""
        needed = {(key, older): newer for key in self._changed for older, newer in self._needed(store, key)}
        written = {(key, offset) for key in self._changed for offset in self._written.get(key, ())}
        added = [self._to_keep(place, needed[place]) for place in sorted(needed.keys() - written)]
        gone = sorted((written | self._void) - needed.keys())
        return self._new_logs() + added + [(self._topic, _key(place), None, []) for place in gone]

    def written(self, store: DocumentStore) -> None:
        """Note that the transaction with these changes was committed."""
        for key in self._changed:
            self._written.pop(key, None)
            if needed := {older for older, _ in self._needed(store, key)}:
                self._written[key] = needed
        self._changed.clear()
        self._void.clear()
        self.known_logs.update(self._logs)

    def _new_logs(self) -> list[Result]:
        new = ((topic, log) for topic, log in self._logs.items() if self.known_logs.get(topic) != log)
        return [(self._topic, LOG + topic.encode(), str(log).encode(), []) for topic, log in sorted(new)]

    def _needed(self, store: DocumentStore, key: Key) -> Iterator[tuple[int, int]]:
        """The versions of a document to keep, each with the offset of its successor."""
        noted = self._versions.get(key, {})
        pairs = itertools.pairwise(version.order for version in _versions_of(store, key))
        return ((older, newer) for older, newer in pairs if older in noted)

    def _to_keep(self, place: Place, successor: int) -> Result:
        key, offset = place
        record = self._versions[key][offset]
        value = record.value if len(record.value) <= self._max_bytes else NO_DOCUMENT
        headers = [(AT, b"%d" % record.at), (NEXT, b"%d" % successor), (FORM, b"%d" % FORMAT)]
        headers.append((TOPIC_ID, self._logs[record.topic].id.encode()))
        return self._topic, _key(place), value, headers


def _versions_of(store: DocumentStore, key: Key) -> list[Version]:
    document_history = store.histories.get(key)
    return [] if document_history is None else document_history.versions


class Kept(msgspec.Struct, frozen=True):
    """A version on the history topic. `successor`: the offset of the next one. `topic_id`: None before 0.2."""

    record: Record
    successor: int
    topic_id: bytes | None


def kept_version(
    names: Mapping[str, str], key: bytes, value: bytes | None, headers: Iterable[Any], topic: str
) -> Kept | None:
    """The version that a record of the history `topic` keeps; None for any other record.

    `names`: the policy topic of each system. Raises CannotStart for a record of a newer format. A record whose headers
    are not numbers was written by no release: it must not stop every start.
    """
    place, fields = _place(key), dict(headers)
    if place is None or place[0].system not in names:
        return None
    try:
        form, at, successor = (int(fields.get(name, default)) for name, default in ((FORM, 1), (AT, -1), (NEXT, -1)))
    except (TypeError, ValueError):
        return None
    check_format(form, f"the record {key!r} of {topic}")
    if value is None or min(at, successor) < 0 or at > LAST_MS:
        return None
    document, offset = place
    short = f"{document.kind}/{document.name}".encode()
    record = Record(names[document.system], short, value, offset, at)
    return Kept(record, successor, fields.get(TOPIC_ID))


def _key(place: Place) -> bytes:
    return f"{place[0]}/{place[1]}".encode()


def _place(key: bytes) -> Place | None:
    try:
        path, _, offset = key.decode().rpartition("/")
        return Key(*path.split("/", 2)), int(offset)
    except (UnicodeDecodeError, ValueError, TypeError):
        return None
