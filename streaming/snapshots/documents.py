"""Records of the documents' topics put into a document store: good versions, deletions, and what is refused."""

from typing import Any

import msgspec

from policy import DocumentStore, Key, Unreadable, read_value

NO_KIND = ""  # of a policy record whose key names none: no document has it


class Record(msgspec.Struct, frozen=True):
    """A record of a policy or facts topic. `at`: the broker's timestamp, ms. An empty value deletes."""

    topic: str
    key: bytes
    value: bytes
    offset: int
    at: int


class Refused(msgspec.Struct, frozen=True):
    """A record that did not come into force: where it stands, which document it is, and why."""

    topic: str
    offset: int
    at: int
    document: str
    errors: tuple[str, ...]


class Loader(msgspec.Struct, frozen=True):
    """How a topic's records become documents: `system` of a policy topic, None for the facts topic."""

    store: DocumentStore
    system: str | None
    max_bytes: int

    def key_of(self, record: Record) -> Key | None:
        """The document that a record is a version of; None when its key is none."""
        try:
            text = record.key.decode()
        except UnicodeDecodeError:
            return None
        parts = (text if self.system is None else f"{self.system}/{text}").split("/", 2)
        return Key(*parts) if len(parts) == 3 and all(parts) else None

    def take(self, record: Record) -> Refused | None:
        """Add a record to the document store. Returns why it was refused, or None."""
        key = self.key_of(record)
        errors = self._shelve(key, record) if key is not None else self._without_key(record)
        return Refused(record.topic, record.offset, record.at, str(key or "?"), errors) if errors else None

    def _shelve(self, key: Key, record: Record) -> tuple[str, ...]:
        if not record.value:
            self.store.delete(key, record.at, record.offset)
            return ()
        try:
            value = self._read(record)
        except Unreadable as error:
            return self.store.refuse(key, [str(error)], record.at, record.offset).errors
        if wrong := _misplaced(key, value):
            return self.store.refuse(key, [wrong], record.at, record.offset, value).errors
        rejected = self.store.put(value, record.at, record.offset)
        return rejected.errors if rejected else ()

    def _read(self, record: Record) -> Any:
        """What the record says; raises Unreadable when it cannot be a document."""
        if len(record.value) > self.max_bytes:
            raise Unreadable(f"{len(record.value)} bytes; at most {self.max_bytes}")
        return read_value(record.value)

    def _without_key(self, record: Record) -> tuple[str, ...]:
        """Of a policy topic it may be any document: refused until a record with the same key has an empty value."""
        if self.system is not None:
            key = Key(self.system, NO_KIND, record.key.decode(errors="backslashreplace"))
            if not record.value:
                self.store.delete(key, record.at, record.offset)
                return ()
            self.store.refuse(key, [self._no_key(record)], record.at, record.offset)
        return (self._no_key(record),)

    def _no_key(self, record: Record) -> str:
        form = "<kind>/<name>" if self.system else "<system>/<kind>/<name>"
        return f"the record's key {record.key!r} is not {form}; nothing is in force by it"


def _misplaced(key: Key, value: Any) -> str:
    """Why a value is not the document that its topic and key say; "" when it is."""
    if not isinstance(value, dict):
        return f"a document is a mapping, not {type(value).__name__}"
    said = tuple(value.get(field) for field in ("system", "kind", "name"))
    if said == (key.system, key.kind, key.name):
        return ""
    return f"it says {'/'.join(map(str, said))}, but its topic and key say {key}"
