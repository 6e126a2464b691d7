"""Policy documents: the envelope that all systems share (contracts, "Policy document")."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from policy.core.model import DocumentRefused
from policy.core.names import fault
from policy.core.request import check_nesting
from policy.core.times import ALWAYS, Window, to_ms, window_between

SINCE_EVER = -1  # `effective_at` of a document that does not say
FIELDS = frozenset({"system", "kind", "name", "spec", "effective_at", "valid_from", "valid_until"})
MAX_BYTES = 1 << 20  # what a broker takes by default (message.max.bytes)

_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":"), default=repr).encode


class Key(msgspec.Struct, frozen=True, order=True):
    """What identifies a document; written ``system/kind/name``, with ``?`` for the kind of a record that names none."""

    system: str
    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.system}/{self.kind or '?'}/{self.name}"


class Document(msgspec.Struct, frozen=True):
    """One version of a document. ``spec`` None: deleted. ``at``: in force from then, ms.

    ``logged``: ``at`` is the moment of a log, whose order says what is in force; else it is the document's own.
    ``history``: its older good versions, oldest first, where the kind looks back; else empty.
    ``known_from``: before that moment (ms) versions may have been in force that are not known any more.
    """

    key: Key
    spec: dict[str, Any] | None
    at: int = SINCE_EVER
    window: Window = ALWAYS
    history: tuple["Document", ...] = ()
    known_from: int = SINCE_EVER
    logged: bool = False

    @property
    def effective_from(self) -> int:
        """See the function of this name."""
        return effective_from(self.at, self.logged)


def effective_from(at: int, logged: bool) -> int:
    """From when on a version of a moment counts, ms: one of a log as soon as it is there.

    No request is of a moment before 0.
    """
    return at if at > 0 and not logged else SINCE_EVER


def identify(value: object) -> Key:
    """The key of a document; raises DocumentRefused when it has none."""
    if type(value) is not dict and not isinstance(value, Mapping):
        raise DocumentRefused([f"a document is a mapping, not {type(value).__name__}"])
    wrong = [field for field in ("system", "kind", "name") if not _is_text(value.get(field))]
    if wrong:
        raise DocumentRefused([f"{field}: required; must be text that is not empty" for field in wrong])
    return Key(value["system"], value["kind"], value["name"])


def _is_text(value: object) -> bool:
    return isinstance(value, str) and value != ""


def parse_document(value: Mapping[str, Any], at: int | None = None) -> Document:
    """Check the envelope; ``at`` is the log's time, where there is one. Raises DocumentRefused."""
    key, errors = identify(value), list[str]()
    unknown, known = sorted(str(name) for name in value.keys() - FIELDS), ", ".join(sorted(FIELDS))
    if wrong := fault(key.name):
        errors.append(f"name: {key.name!r} {wrong}")
    if value.get("spec") is None and "spec" in value and unknown:
        errors += [f"{field}: unknown field: indent it under `spec`" for field in unknown]
    else:
        errors += [f"{field}: unknown field (known: {known})" for field in unknown]
    if not isinstance(value.get("spec"), Mapping):
        errors.append("spec: required; must be a mapping")
    try:
        check_nesting(value)
    except ValueError as error:
        errors.append(str(error))
    if at is not None and "effective_at" in value:
        errors.append("effective_at: not on Kafka, where the log dates the versions; leave it out")
    moments = {field: _moment(value, field, errors) for field in ("effective_at", "valid_from", "valid_until")}
    window = window_between(moments["valid_from"], moments["valid_until"])
    if window.start is not None and window.end is not None and window.start >= window.end:
        errors.append("valid_until: must be later than valid_from")
    if errors:
        raise DocumentRefused(errors)
    effective_at = moments["effective_at"] if at is None else at
    moment = SINCE_EVER if effective_at is None else effective_at
    return Document(key, dict(value["spec"]), moment, window, logged=at is not None)


def _moment(value: Mapping[str, Any], field: str, errors: list[str]) -> int | None:
    if field not in value:
        return None
    try:
        return to_ms(value[field])
    except ValueError as error:
        errors.append(f"{field}: {error}")
        return None


def digest(value: object) -> str:
    """SHA-256 of a document's content, the order of its keys and its ``effective_at`` left out.

    Raises TypeError, ValueError or RecursionError for what JSON cannot hold.
    """
    if isinstance(value, Mapping):
        value = {str(name): part for name, part in value.items() if name != "effective_at"}
    text = _encode(value)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def texts_within(value: object) -> Iterator[str]:
    """Every text in plain data, keys too, however it is nested; for data that may be anything.

    A whole number is a text without quotes.
    """
    todo, seen = [value], set[int]()
    while todo:
        part = todo.pop()
        if isinstance(part, str):
            yield part
        elif isinstance(part, int) and not isinstance(part, bool):
            yield str(part)
        elif isinstance(part, Mapping | list | tuple | set) and id(part) not in seen:
            seen.add(id(part))
            todo += (*part.keys(), *part.values()) if isinstance(part, Mapping) else part
