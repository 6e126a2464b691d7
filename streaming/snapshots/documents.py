"""Records of the documents' topics put into a document store: good versions, deletions, and what is refused."""

import contextlib
import itertools
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from typing import Any

import msgspec

from policy import LAST_MS, DocumentHistory, DocumentStore, Key, Unreadable, Version, read_value
from streaming.commit.offsets import FORMAT, check_format
from streaming.kafka.committed import find_key
from streaming.kafka.reader import TopicLog, parse_log
from streaming.records.formats import Headers, Result
from streaming.topics import DAY_MS

SINCE = "lockkeeper-since"  # the header of a deletion by which the job says when a run ended, ms
NO_KIND = ""  # of a policy record whose key names none: no document has it


class DocumentRecord(msgspec.Struct, frozen=True):
    """A record of a policy or facts topic. `at`: the broker's timestamp, ms. An empty value deletes.

    `since`: of a deletion whose header `lockkeeper-since` says when the fact ceased to be, that moment (ms).
    `change`: of a policy, the id of the change that its publisher names; "": none. `by_producer`: the timestamp is the
    producer's, as before the topic had LogAppendTime.
    """

    topic: str
    key: bytes
    value: bytes
    offset: int
    at: int
    since: int | None = None
    change: str = ""
    by_producer: bool = False


def said_since(headers: Iterable[Any]) -> int | None:
    """When a fact ceased to be, as the headers of its deletion say (ms); None: they say nothing that is a moment."""
    try:
        since = int(dict(headers).get(SINCE) or b"")
    except ValueError:
        return None
    return since if 0 <= since <= LAST_MS else None


class PublishedDocument(msgspec.Struct, frozen=True):
    """A record of a documents' topic: which document it is of, and where and when (ms) it was published."""

    document: str
    topic: str
    offset: int
    at: int


class Refused(PublishedDocument, frozen=True):
    """One that did not come into force, and why."""

    errors: tuple[str, ...]


class Loader(msgspec.Struct, frozen=True):
    """How a topic's records become documents: `system` of a policy topic, None for the facts topic.

    `read_elsewhere`: the version that a record is, where another store of the same log has read it already.
    """

    store: DocumentStore
    system: str | None
    max_bytes: int
    read_elsewhere: Callable[[Key, DocumentRecord], Version | None] = lambda _key, _record: None

    def key_of(self, record: DocumentRecord) -> Key | None:
        """The document that a record is a version of; None when its key is none."""
        return key_of(record.key, self.system)

    def take(self, record: DocumentRecord) -> Refused | None:
        """Add a record to the document store. Returns why it was refused, or None."""
        key = self.key_of(record)
        errors = self._put(key, record) if key is not None else self._without_key(record)
        named = key or (policy_key(record.key, self.system) if self.system else "?")
        return Refused(str(named), record.topic, record.offset, record.at, errors) if errors else None

    def _put(self, key: Key, record: DocumentRecord) -> tuple[str, ...]:
        if not record.value:
            self.store.delete(key, record.at, record.offset, record.since)
            return ()
        if (version := self.read_elsewhere(key, record)) is not None:
            self.store.take(key, version)
            return ()
        try:
            value = self._read(record)
        except Unreadable as error:
            return self.store.refuse(key, [str(error)], record.at, record.offset).errors
        if wrong := _misplaced(key, value):
            return self.store.refuse(key, [wrong], record.at, record.offset, value).errors
        rejected = self.store.put(value, record.at, record.offset)
        return rejected.errors if rejected else ()

    def _read(self, record: DocumentRecord) -> Any:
        """What the record says; raises Unreadable when it cannot be a document."""
        if len(record.value) > self.max_bytes:
            raise Unreadable(f"{len(record.value)} bytes; at most {self.max_bytes}")
        return read_value(record.value)

    def _without_key(self, record: DocumentRecord) -> tuple[str, ...]:
        """Of a policy topic it may be any document: refused until a record with the same key has an empty value."""
        if self.system is not None:
            key = policy_key(record.key, self.system)
            if not record.value:
                self.store.delete(key, record.at, record.offset)
                return ()
            self.store.refuse(key, [self._no_key(record)], record.at, record.offset)
        return (self._no_key(record),)

    def _no_key(self, record: DocumentRecord) -> str:
        expected = "<kind>/<name>" if self.system else "<system>/<kind>/<name>"
        return f"the record's key {record.key!r} is not {expected}; nothing is in force by it"


def key_of(record_key: bytes, system: str | None) -> Key | None:
    """The document that a record's key names; None when it names none. `system` None: the key says it, too."""
    try:
        text = record_key.decode()
    except UnicodeDecodeError:
        return None
    return find_key(text if system is None else f"{system}/{text}")


def policy_key(record_key: bytes, system: str) -> Key:
    """The same of a policy topic; where a key names no document, one without a kind."""
    return key_of(record_key, system) or Key(system, NO_KIND, decode_key(record_key))


def decode_key(key: bytes) -> str:
    """A record's key that names no document, as text: with backslashes for what is not UTF-8, and for backslashes.

    Two keys never read the same: a deletion of one would lift the refusal of the other.
    """
    return key.replace(b"\\", b"\\\\").decode(errors="backslashreplace")


def _misplaced(key: Key, value: Any) -> str:
    """Why a value is not the document that its topic and key say; "" when it is."""
    if not isinstance(value, dict):
        return f"a document is a mapping, not {type(value).__name__}"
    said = tuple(value.get(field) for field in ("system", "kind", "name"))
    if said == (key.system, key.kind, key.name):
        return ""
    return f"it says {'/'.join(map(str, said))}, but its topic and key say {key}"


AT, NEXT, FORM, TOPIC_ID = "at", "next", "format", "topic-id"
LOG = b"topic/"  # begins the key of a record that names the log of a topic
READ = b"read/"  # begins the key of a record that says up to which offset a topic was read
KEPT_BY_TOPIC_MS = 7 * DAY_MS  # what was superseded since then, every policy topic still holds (topic_specs)
CLOCKS_DIFFER_MS = 60 * 60 * 1000
# By the facts topic, also one that was not created by us: Kafka keeps a tombstone for `delete.retention.ms`, a day by
# default, after the log was cleaned up to it (KIP-534).
DELETIONS_HELD_MS = DAY_MS - CLOCKS_DIFFER_MS
LOST = "compaction may have removed a good version before it was read"
NO_DOCUMENT = b"?"  # stands for one too large to be kept: refused again when it is read back
VersionId = tuple[Key, int]  # a version of a document: the document, and the version's offset


class History:
    """Knows what is on the history topic, and what must be added and taken away.

    `names`: the policy topic of each system. `logs`: of the topics that the job reads, as they are now.
    `known_logs`: as they were when a job last wrote here.

    `kept_until`: the offset up to which a job has read each policy topic: what was superseded before it is here, if it
    is needed. Versions before 0.2 did not write it. `lost_versions`: of documents that are refused, those that may have
    been good and were removed before a job had read what follows them; each with its offset and a time, ms.

    Every commit asks for the changes: they cost as much as there are documents that changed since the one before, not
    as there are documents.
    """

    def __init__(self, topic: str, names: Mapping[str, str], max_bytes: int, logs: Mapping[str, TopicLog]) -> None:
        self._topic, self._names, self._max_bytes, self._logs = topic, names, max_bytes, logs
        self._topics = frozenset(names.values())
        self.known_logs: dict[str, TopicLog] = {}
        self.kept_until: dict[str, int] = {}
        self.lost_versions: list[tuple[Key, int, int]] = []
        self._read_until: dict[str, int] = {}  # as the next commit says
        self._versions: dict[Key, dict[int, DocumentRecord]] = {}  # by offset
        self._written: dict[Key, set[int]] = {}  # offsets
        self._void: set[VersionId] = set()  # on the history topic, but of a topic that is no more
        self._successors: dict[VersionId, int] = {}
        self._changed: set[Key] = set()  # documents whose versions are others than at the last commit

    def note(self, key: Key, record: DocumentRecord) -> None:
        """Hold a version that was read, until it is known whether it is needed."""
        self._versions.setdefault(key, {})[record.offset] = record
        self._changed.add(key)

    def read_back(
        self, key: bytes, value: bytes | None, headers: Iterable[Any], trusted: Container[str] = ()
    ) -> "KeptVersion | None":
        """The version that a record of the history topic keeps; None for a deletion or what is not ours.

        `trusted`: topics whose id is the one of before, also for records of lockkeeper 0.1.0, which name none.
        Raises CannotStart for one of a newer lockkeeper: read amiss, it could bring back what was revoked.
        """
        if key.startswith(LOG):
            self._read_log(key, value)
            return None
        if (position := read_position(key, value, headers)) is not None:
            topic, offset, topic_id = position
            if topic in self._logs and topic_id == self._logs[topic].id.encode():
                self.kept_until[topic] = offset
            return None
        version = _version_id(key)
        if version is None or version[0].system not in self._names:
            return None
        kept = kept_version(self._names, key, value, headers, self._topic)
        self._forget(version)
        if kept is None:
            return None
        if not self._is_of(kept.record.topic, kept.topic_id, trusted):
            self._void.add(version)
            return None
        self._written.setdefault(version[0], set()).add(version[1])
        self._successors[version] = kept.successor
        return kept

    def _forget(self, version: VersionId) -> None:
        key, offset = version
        self._changed.add(key)
        self._written.get(key, set()).discard(offset)
        self._void.discard(version)
        self._successors.pop(version, None)

    def _is_of(self, topic: str, topic_id: bytes | None, trusted: Container[str]) -> bool:
        return topic in trusted if topic_id is None else topic_id == self._logs[topic].id.encode()

    def _read_log(self, key: bytes, value: bytes | None) -> None:
        with contextlib.suppress(ValueError):
            self.known_logs[key.removeprefix(LOG).decode()] = parse_log((value or b"").decode())

    def close_gaps(
        self, store: DocumentStore, now: int, is_to_come: Callable[[str, int], bool] = lambda _topic, _offset: False
    ) -> None:
        """Once all topics are read: end kept versions whose successor is lost, and say from when all is known.

        `now`: ms. `is_to_come`: of a topic and offset, whether that record is there and will yet be read.
        """
        for (key, offset), successor in self._successors.items():
            document_history = store.histories.get(key)
            at = {version.order: version.at for version in document_history.versions} if document_history else {}
            if offset in at and successor not in at and not is_to_come(self._names[key.system], successor):
                store.delete(key, at[offset], successor)
                self._changed.add(key)
                following = min((order for order in at if order > successor), default=offset)
                store.lost_before(at[following], key)
                if document_history is not None and _ends_refused(document_history, successor):
                    self.lost_versions.append((key, successor, max(document_history.newest.at, at[offset] + 1)))
        self._successors.clear()
        for key, document_history in store.histories.items():
            if document_history.versions[0].at < now - KEPT_BY_TOPIC_MS + CLOCKS_DIFFER_MS:
                store.lost_before(document_history.versions[0].at, key)

    def settle(self, store: DocumentStore, dropped: Iterable[Key]) -> None:
        """Let go of versions that the document store no longer holds. `dropped`: the documents that it took some of."""
        self._changed.update(dropped)
        for key in self._changed:
            in_store = {version.order for version in _versions_of(store, key)}
            kept = {offset: record for offset, record in self._versions.pop(key, {}).items() if offset in in_store}
            if kept:
                self._versions[key] = kept

    def changes(self, store: DocumentStore, positions: Mapping[tuple[str, int], int] | None = None) -> list[Result]:
        """What to write so that the topic holds what is needed, and nothing else; see `written`.

        `positions`: by topic and partition, the ends up to which the topics are read.
        """
        self._read_until = {topic: end for (topic, _), end in (positions or {}).items() if topic in self._topics}
        needed = {(key, older): newer for key in self._changed for older, newer in self._needed(store, key)}
        written = {(key, offset) for key in self._changed for offset in self._written.get(key, ())}
        added = [self._to_keep(version, needed[version]) for version in sorted(needed.keys() - written)]
        gone = sorted((written | self._void) - needed.keys())
        deleted: list[Result] = [(self._topic, _key(version), None, []) for version in gone]
        return [*self._new_logs(), *self._new_positions(), *added, *deleted]

    def written(self, store: DocumentStore) -> None:
        """Note that the transaction with these changes was committed."""
        for key in self._changed:
            self._written.pop(key, None)
            if needed := {older for older, _ in self._needed(store, key)}:
                self._written[key] = needed
        self._changed.clear()
        self._void.clear()
        self.known_logs.update(self._logs)
        self.kept_until.update(self._read_until)

    def _new_positions(self) -> list[Result]:
        new = [(topic, end) for topic, end in self._read_until.items() if end > self.kept_until.get(topic, -1)]
        return [
            (self._topic, READ + topic.encode(), b"%d" % end, [(TOPIC_ID, self._logs[topic].id.encode())])
            for topic, end in sorted(new)
        ]

    def _new_logs(self) -> list[Result]:
        new = ((topic, log) for topic, log in self._logs.items() if self.known_logs.get(topic) != log)
        return [(self._topic, LOG + topic.encode(), str(log).encode(), []) for topic, log in sorted(new)]

    def _needed(self, store: DocumentStore, key: Key) -> Iterator[tuple[int, int]]:
        """The versions of a document to keep, each with the offset of its successor."""
        noted = self._versions.get(key, {})
        pairs = itertools.pairwise(version.order for version in _versions_of(store, key))
        return ((older, newer) for older, newer in pairs if older in noted)

    def _to_keep(self, version: VersionId, successor: int) -> Result:
        key, offset = version
        record = self._versions[key][offset]
        value = record.value if len(record.value) <= self._max_bytes else NO_DOCUMENT
        headers: Headers = [(AT, b"%d" % record.at), (NEXT, b"%d" % successor), (FORM, b"%d" % FORMAT)]
        headers.append((TOPIC_ID, self._logs[record.topic].id.encode()))
        return self._topic, _key(version), value, headers


def _ends_refused(document_history: DocumentHistory, deletion: int) -> bool:
    """Whether only refused versions follow a deletion at this offset."""
    in_force = document_history.in_force
    return not document_history.newest.good and in_force is not None and in_force.order == deletion


def _versions_of(store: DocumentStore, key: Key) -> list[Version]:
    document_history = store.histories.get(key)
    return [] if document_history is None else document_history.versions


class KeptVersion(msgspec.Struct, frozen=True):
    """A version on the history topic. `successor`: the offset of the next one. `topic_id`: None before 0.2."""

    record: DocumentRecord
    successor: int
    topic_id: bytes | None


def kept_version(
    names: Mapping[str, str], key: bytes, value: bytes | None, headers: Iterable[Any], topic: str
) -> KeptVersion | None:
    """The version that a record of the history `topic` keeps; None for any other record.

    `names`: the policy topic of each system. Raises CannotStart for a record of a newer format. A record whose headers
    are not numbers was written by no release: it must not stop every start.
    """
    version, fields = _version_id(key), dict(headers)
    if version is None or version[0].system not in names:
        return None
    try:
        format_, at, successor = (int(fields.get(name, default)) for name, default in ((FORM, 1), (AT, -1), (NEXT, -1)))
    except (TypeError, ValueError):
        return None
    check_format(format_, f"the record {key!r} of {topic}")
    if value is None or min(at, successor) < 0 or at > LAST_MS:
        return None
    document, offset = version
    short = f"{document.kind}/{document.name}".encode()
    record = DocumentRecord(names[document.system], short, value, offset, at)
    return KeptVersion(record, successor, fields.get(TOPIC_ID))


def read_position(key: bytes, value: bytes | None, headers: Iterable[Any]) -> tuple[str, int, bytes | None] | None:
    """The topic, the offset up to which a job has read it, and the topic's id; None for any other record."""
    if not key.startswith(READ):
        return None
    try:
        return key.removeprefix(READ).decode(), int(value or b""), dict(headers).get(TOPIC_ID)
    except ValueError:
        return None


def _key(version: VersionId) -> bytes:
    return f"{version[0]}/{version[1]}".encode()


def _version_id(key: bytes) -> VersionId | None:
    try:
        path, _, offset = key.decode().rpartition("/")
        return Key(*path.split("/", 2)), int(offset)
    except (UnicodeDecodeError, ValueError, TypeError):
        return None
