"""Records of the changes topic: a change of policies, and what it widens (contracts, "Change of policies").

A record is about one system's documents: of a change of several systems there is one for each, with the same id.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from policy import matches, to_ms
from policy.analysis import Widening
from streaming.records.formats import JSON_HEADERS, Result, shorten_id
from streaming.topics import ALWAYS_FITS

Manner = Literal["added", "changed", "removed", "refused"]
MOST_DOCUMENTS, MOST_WIDENINGS = 1000, 500  # that a record lists; what is beyond is counted
ROOM = 4096 + 4 * 4 * 1024  # of a record's bytes, for what the publisher says and what is always there


class PolicyState(msgspec.Struct, frozen=True, omit_defaults=True):
    """What was in force. `policy_version`: None where it was in force for no request, or before the job started."""

    policy_offsets: Mapping[str, Mapping[str, int]]
    policy_version: str | None = None


class DocumentChange(msgspec.Struct, frozen=True):
    """How a document changed. `key`: `system/kind/name`; `offset`: of its newest record in the change."""

    key: str
    change: Manner
    offset: int


class PolicyChange(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A change of one system's documents. `author`, `commit`, `reason`: claims of the publisher, "" where it says none.

    `documents_count`: how many documents it changed, of which `documents` may list the first.
    """

    id: str
    system: str
    time: str
    author: str = ""
    commit: str = ""
    reason: str = ""
    before: PolicyState
    after: PolicyState
    documents: tuple[DocumentChange, ...]
    documents_count: int


def has_document(parts: Sequence[PolicyChange], document: str) -> bool:
    """Whether a change is of `KIND/NAME` or `SYSTEM/KIND/NAME`, whole or shortened as its records have long ones.

    A `*` at the end stands for any characters.

    It may be where it has more documents than are listed: what is said to have no change must have none.
    """
    if any(part.documents_count > len(part.documents) for part in parts):
        return True
    pattern = document if document.endswith("*") else None
    return any(
        entry.key in (document, shorten_id(document), shorten_id(f"{part.system}/{document}"))
        or document == (name := entry.key.partition("/")[2])
        or (pattern is not None and (matches(pattern, entry.key) or matches(pattern, name)))
        for part in parts
        for entry in part.documents
    )


class ChangeWidens(msgspec.Struct, frozen=True, kw_only=True):
    """What a change widens. `changes`: the ids of all that were compared as one, `id` the last of them.

    `complete`: whether `widens` has all. `widens_count`: how many were found.
    """

    id: str
    system: str
    time: str
    changes: tuple[str, ...]
    widens: tuple[Widening, ...]
    widens_count: int
    complete: bool


ChangeRecord = PolicyChange | ChangeWidens

# Pages of the console read them in several threads: see policy/core/conversion.py.
for _type in (PolicyChange, ChangeWidens):
    msgspec.json.Decoder(_type)


def change_record(topic: str, change: PolicyChange, most_bytes: int) -> Result:
    """The record, with as many of its documents as fit into `most_bytes`."""

    def with_documents(count: int) -> PolicyChange:
        return msgspec.structs.replace(change, documents=change.documents[:count])

    return _record(
        topic, change.system, _fitting(with_documents, min(len(change.documents), MOST_DOCUMENTS), most_bytes)
    )


def widens_record(topic: str, widens: ChangeWidens, most_bytes: int) -> Result:
    """The record, with as much of what it widens as fits."""

    def with_widenings(count: int) -> ChangeWidens:
        complete = widens.complete and count == len(widens.widens)
        return msgspec.structs.replace(widens, widens=widens.widens[:count], complete=complete)

    most = min(len(widens.widens), MOST_WIDENINGS)
    return _record(topic, widens.system, _fitting(with_widenings, most, most_bytes))


def _fitting(cut: Callable[[int], ChangeRecord], count: int, most_bytes: int) -> bytes:
    most = max(most_bytes, ALWAYS_FITS) - ROOM
    while len(value := msgspec.json.encode(cut(count))) > most and count:
        count //= 2
    return value


def _record(topic: str, system: str, value: bytes) -> Result:
    return topic, system.encode(), value, JSON_HEADERS


def job_id(topic: str, offset: int) -> str:
    """The id of a change whose publisher names none: the topic and the offset of its first record."""
    return f"{topic}-{offset}"


def is_job_id(text: str, topics: Iterable[str]) -> bool:
    """Whether a text reads like such an id, which no publisher may choose: it would stand for another change."""
    topic, dash, offset = text.rpartition("-")
    return bool(dash) and topic in topics and offset.isascii() and offset.isdecimal()


def read_change(value: bytes) -> ChangeRecord:
    """A record in JSON. Fields that are not known are ignored. Raises ValueError, and RecursionError."""
    fields: dict[str, Any] = msgspec.json.decode(value, type=dict[str, Any])
    if "widens" in fields:
        return msgspec.convert(fields, ChangeWidens)
    change = msgspec.convert(fields, PolicyChange)
    to_ms(change.time)  # by which changes are ordered
    return change
