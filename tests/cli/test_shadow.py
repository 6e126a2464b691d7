"""Decisions of a job in shadow mode are shown as what they are: they allow nothing."""

from typing import Any

import msgspec
import pytest

from streaming.cli.decisions import _line
from streaming.cli.request import _decision_line, _show
from streaming.client.decision import read_decision
from streaming.decision_log.search import Found
from streaming.history.records import ConsumerRecord

ALLOW: dict[str, Any] = {
    "id": "d-1",
    "request_id": "r-1",
    "system": "lenses6",
    "time": "2026-11-21T10:00:00.000Z",
    "decision": True,
    "context": {
        "outcome": "allow",
        "reasons": [
            {"code": "allowed", "message": "a role allows it", "rule": None, "document": None, "statement": None}
        ],
        "missing": [],
        "claims": [],
        "policy_version": "sha256:0",
        "policy_offsets": {},
        "facts_offset": -1,
        "source": {"topic": "requests", "partition": 0, "offset": 7},
    },
}


@pytest.mark.parametrize("mark", [{}, {"enforced": False}], ids=["enforced", "shadow"])
def test_a_decision_that_is_not_enforced_is_shown_as_such(
    mark: dict[str, bool], capsys: pytest.CaptureFixture[str]
) -> None:
    record = {**ALLOW, "context": {**ALLOW["context"], **mark}}
    _show(read_decision(msgspec.json.encode(record)), as_json=False)
    found = Found(ConsumerRecord("decisions", 0, 7, 0, b"", b""), record)
    lines = [capsys.readouterr().out, _decision_line(record), _line(found)]
    assert ["not enforced" in line for line in lines] == [bool(mark)] * 3
    assert all("ALLOW" in line and "a role allows it" in line for line in lines)
