"""What a change made of documents, line by line; what is too long to be compared says so."""

import json
from typing import Any

import pytest

from streaming.console import documents
from streaming.console.documents import (
    MOST_DIFF_LINES,
    MOST_DOCUMENTS,
    MOST_LINES,
    DocumentDiff,
    diffs_of,
    key_of_shown_document,
)
from streaming.records.change import DocumentChange, Manner, PolicyChange, PolicyState
from streaming.records.formats import shorten_id
from streaming.settings import Settings
from streaming.snapshots.at_offsets import DocumentLog
from streaming.snapshots.documents import DocumentRecord

SYSTEM = "lenses6"
SETTINGS = Settings()
TOPIC = SETTINGS.topics.policy_topics()[SYSTEM]


def _log(*values: Any) -> DocumentLog:
    """A log with a version of one document at each offset; None deletes it."""
    log = DocumentLog(SETTINGS.topics, 1 << 20, 0)
    for offset, value in enumerate(values):
        text = value if isinstance(value, bytes) else b"" if value is None else json.dumps(value).encode()
        log.add(DocumentRecord(TOPIC, b"Role/r", text, offset, offset))
    log.read_to({(TOPIC, 0): len(values)})
    return log


def _role(*actions: str) -> dict[str, Any]:
    statement = {"effect": "allow", "action": list(actions), "resource": "*"}
    return {"kind": "Role", "name": "r", "spec": {"statements": [statement]}}


def _change(before: int, *documents: DocumentChange) -> PolicyChange:
    states = (PolicyState({TOPIC: {"0": offset}}) for offset in (before, 9))
    named = dict(zip(("before", "after"), states, strict=True))
    count = len(documents)
    return PolicyChange(id="x", system=SYSTEM, time="", documents=documents, documents_count=count, **named)


def _diff(log: DocumentLog, before: int, offset: int, manner: Manner = "changed") -> DocumentDiff:
    [found] = diffs_of(log, TOPIC, _change(before, DocumentChange(f"{SYSTEM}/Role/r", manner, offset)))
    return found


def _signed(found: DocumentDiff, sign: str) -> list[str]:
    return [line.strip() for mark, line in found.lines if mark == sign]


def test_lines_that_came_and_went_are_signed() -> None:
    log = _log(_role("a", "b"), _role("a", "c"), _role("a", "c", "d"))
    changed = _diff(log, 0, 1)
    assert (_signed(changed, "+"), _signed(changed, "-")) == (["- c"], ["- b"])
    over_both = _diff(log, 0, 2)
    assert (_signed(over_both, "+"), _signed(over_both, "-")) == (["- c", "- d"], ["- b"])


def test_a_document_that_is_new_or_deleted_is_signed_as_a_whole() -> None:
    log = _log(_role("a"), None)
    assert {sign for sign, _ in _diff(log, -1, 0, "added").lines} == {"+", "@"}
    assert {sign for sign, _ in _diff(log, 0, 1, "removed").lines} == {"-", "@"}


@pytest.mark.parametrize("manner", ["changed", "removed"])
def test_a_document_whose_former_version_is_gone_is_not_shown_as_new(manner: Manner) -> None:
    gone = _diff(_log(_role("a"), _role("b")), -1, 1, manner)
    assert gone == DocumentDiff(gone.document, why="compaction has taken the version before it")
    unread = _diff(_log(b"\xff", _role("b")), 0, 1, manner)
    assert unread == DocumentDiff(unread.document, why="the version before it cannot be read")


def test_what_cannot_be_compared_says_why() -> None:
    log = _log(_role("a"), _role(*(f"a{number}" for number in range(MOST_LINES))), b"\xff")
    assert "longer than" in _diff(log, 0, 1).why
    assert "compaction" in _diff(log, 0, 7).why
    assert "cannot be read" in _diff(log, 0, 2).why
    long = _log(_role("a"), _role(*(f"a{number}" for number in range(MOST_DIFF_LINES + 50))))
    found = _diff(long, 0, 1)
    assert (len(found.lines), found.why.endswith("more lines")) == (MOST_DIFF_LINES, True)
    several = [DocumentChange(f"{SYSTEM}/Role/{number}", "changed", number) for number in range(MOST_DOCUMENTS + 1)]
    assert [one.document for one in diffs_of(log, TOPIC, _change(0, *several))] == several[:MOST_DOCUMENTS]


def test_comparing_is_bounded_whatever_the_lines_are() -> None:
    """Lines that repeat are the slow ones of difflib."""
    same = [f"a{number % 3}" for number in range(MOST_LINES - 10)]
    found = _diff(_log(_role(*same), _role(*reversed(same))), 0, 1)
    assert documents.MOST_LINES <= 2000
    assert found.lines


def test_a_document_is_had_by_its_name_and_by_what_changes_show_of_it() -> None:
    """Also where another document has for its name what is shown of a long one."""
    long, log = "n" * 3000, DocumentLog(SETTINGS.topics, 1 << 20, 0)
    shown = shorten_id(f"{SYSTEM}/Role/{long}")
    for offset, name in enumerate((long, "r")):
        log.add(DocumentRecord(TOPIC, f"Role/{name}".encode(), b"{}", offset, offset))
    keys = [
        key_of_shown_document(log, TOPIC, SYSTEM, text) for text in (f"{SYSTEM}/Role/{long}", shown, f"{SYSTEM}/Role/r")
    ]
    assert keys == [f"Role/{long}".encode(), f"Role/{long}".encode(), b"Role/r"]
    alike = shown.removeprefix(f"{SYSTEM}/").encode()
    log.add(DocumentRecord(TOPIC, alike, b"{}", 2, 2))
    assert key_of_shown_document(log, TOPIC, SYSTEM, shown) == alike
