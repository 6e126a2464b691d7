"""Records of the documents' topics put into a library: good versions, deletions, and what is refused."""

from typing import Any

import msgspec
import yaml

from policy.documents import Key
from policy.library import Library, Rejected


class Record(msgspec.Struct, frozen=True):
    """A record of a policy or facts topic. `at`: the broker's timestamp, ms."""

    topic: str
    key: bytes | None
    value: bytes | None
    offset: int
    at: int


class Shelving(msgspec.Struct, frozen=True):
    """How a topic's records become documents: `system` of a policy topic, None for the facts topic."""

    library: Library
    system: str | None
    max_bytes: int

    def take(self, record: Record) -> Rejected | None:
        """Add the record to the library. Returns why it was refused, or None."""
        key, at, offset = self._key(record.key), record.at, record.offset
        if key is None:
            return self._nameless(record)
        if not record.value:
            self.library.delete(key, at, offset)
            return None
        if len(record.value) > self.max_bytes:
            errors = [f"{len(record.value)} bytes; at most {self.max_bytes}"]
            return self.library.refuse(key, errors, at, offset)
        try:
            value = parse_document(record.value)
        except ValueError as error:
            return self.library.refuse(key, [f"neither JSON nor YAML: {error}"], at, offset)
        if (wrong := _disagreement(value, key)) is not None:
            return self.library.refuse(key, [wrong], at, offset)
        return self.library.put(value, at, offset)

    def _key(self, key: bytes | None) -> Key | None:
        try:
            text = (key or b"").decode()
        except UnicodeDecodeError:
            return None
        parts = (text if self.system is None else f"{self.system}/{text}").split("/", 2)
        return Key(*parts) if len(parts) == 3 and all(parts) else None

    def _nameless(self, record: Record) -> Rejected:
        form = "<kind>/<name>" if self.system else "<system>/<kind>/<name>"
        rejected = Rejected(f"{record.topic}/?", (f"offset {record.offset}: key {record.key!r} is not {form}",))
        self.library.nameless.add(rejected)
        return rejected


def parse_document(data: bytes) -> Any:
    """JSON or YAML as plain data; raises ValueError."""
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError):
        pass
    try:
        return yaml.load(data, yaml.CSafeLoader)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(str(error)) from error


def _disagreement(value: Any, key: Key) -> str | None:
    """What in the document does not fit the topic and key it came with."""
    if not isinstance(value, dict):
        return f"a document is a mapping, not {type(value).__name__}"
    said = tuple(value.get(field) for field in ("system", "kind", "name"))
    if said != (key.system, key.kind, key.name):
        return f"says it is {'/'.join(map(str, said))}, but stands under {key}: topic and key must agree with it"
    return None
