"""Policy documents as they were: with the statement that decided, and what a change made of them."""

import difflib
from collections.abc import Iterator, Sequence

import msgspec

from policy import Positions, Reason, Unreadable, dump_yaml, read_document_text, read_value
from streaming.records.change import DocumentChange, PolicyChange
from streaming.records.formats import SHORTENED
from streaming.snapshots.at_offsets import DocumentLog
from streaming.snapshots.change_log import document_text
from streaming.snapshots.documents import DocumentRecord
from streaming.topics import newest_offset

FILE = "document.yaml"
AROUND = 40  # lines of a document that are shown before and after a statement
MOST_DOCUMENTS, MOST_DIFF_LINES = 20, 400  # of a change that are compared, and lines of each that are shown
MOST_LINES = 2000  # of a document: comparing longer ones takes too long for a page


class Statement(msgspec.Struct, frozen=True):
    """A reason, and its document as it was: numbered lines. ``line``: of the statement; None: the whole document."""

    reason: Reason
    lines: tuple[tuple[int, str], ...] = ()
    line: int | None = None


class DocumentDiff(msgspec.Struct, frozen=True):
    """A document of a change. ``lines``: with signs, ``@`` where some are left out. ``why``: there are no more."""

    document: DocumentChange
    lines: tuple[tuple[str, str], ...] = ()
    why: str = ""


def text_at(log: DocumentLog, topic: str, key: bytes, offset: int) -> str | None:
    """The newest version up to an offset as YAML; None where there is none, or it cannot be read."""
    records = [record for record in log.records(topic) if record.offset <= offset and record.key == key]
    return _yaml(records[-1]) if records else None


def key_of_shown_document(log: DocumentLog, topic: str, system: str, document: str) -> bytes:
    """The key of the records that are named `SYSTEM/KIND/NAME`, or are shown so where their name is shortened."""
    key = document.partition("/")[2].encode("utf-8", "replace")
    if SHORTENED not in document:
        return key
    keys = {record.key for record in log.records(topic)}
    return key if key in keys else next((other for other in keys if document_text(system, other) == document), key)


def _yaml(record: DocumentRecord) -> str | None:
    try:
        return dump_yaml(read_value(record.value)) if record.value else None
    except Unreadable:
        return None


def statement_in(reason: Reason, text: str) -> Statement:
    """A reason with the part of its document around the statement."""
    line = _line_of(reason, text)
    numbered: Sequence[tuple[int, str]] = list(enumerate(text.rstrip("\n").split("\n"), 1))
    at = line or 1
    return Statement(reason, tuple(numbered[max(at - 1 - AROUND, 0) : at + AROUND]), line)


def _line_of(reason: Reason, text: str) -> int | None:
    if reason.statement is None:
        return None
    system = (reason.document or "").partition("/")[0]
    for located in read_document_text(text, FILE)[:1]:
        value = located.value if isinstance(located.value, dict) else {}
        with_system = located._replace(value={"system": system, **value})
        return Positions({FILE: text}).find(with_system, "", reason.statement).line
    return None


def diffs_of(log: DocumentLog, topic: str, part: PolicyChange) -> Iterator[DocumentDiff]:
    """The first `MOST_DOCUMENTS` of a part of a change, compared with what was there before it."""
    before = newest_offset(part.before.policy_offsets, topic)
    versions: dict[str, list[DocumentRecord]] = {}
    for record in log.records(topic):
        versions.setdefault(document_text(part.system, record.key), []).append(record)
    for document in part.documents[:MOST_DOCUMENTS]:
        yield _diff(document, versions.get(document.key, []), before)


def _diff(document: DocumentChange, versions: list[DocumentRecord], before: int) -> DocumentDiff:
    new = next((record for record in versions if record.offset == document.offset), None)
    if new is None:
        return DocumentDiff(document, why="compaction has taken its record")
    if new.value and _yaml(new) is None:
        return DocumentDiff(document, why="its record cannot be read")
    same = [record for record in versions if record.key == new.key and record.offset <= before]
    if not same and document.change in ("changed", "removed"):  # else all that it has would be shown as added
        return DocumentDiff(document, why="compaction has taken the version before it")
    if same and same[-1].value and _yaml(same[-1]) is None:
        return DocumentDiff(document, why="the version before it cannot be read")
    texts = [(_yaml(record) or "").splitlines() for record in (*same[-1:], new)]
    old, now = texts if same else ([], texts[0])
    if max(len(old), len(now)) > MOST_LINES:
        return DocumentDiff(document, why=f"longer than {MOST_LINES} lines: compare it with `lockkeeper policy show`")
    compared = list(difflib.unified_diff(old, now, lineterm=""))[2:]  # without the names of files
    lines = [("@", "…") if line.startswith("@@") else (line[0], line[1:]) for line in compared]
    why = f"and {len(lines) - MOST_DIFF_LINES} more lines" if len(lines) > MOST_DIFF_LINES else ""
    return DocumentDiff(document, tuple(lines[:MOST_DIFF_LINES]), why)
