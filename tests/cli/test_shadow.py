"""Decisions are shown as what they are: in shadow mode they allow nothing, and callers may have got other answers."""

from typing import Any

import msgspec
import pytest

from streaming.cli.decisions import _line
from streaming.cli.explaining import _show_stored
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
DENY = {
    **ALLOW,
    "decision": False,
    "context": {**ALLOW["context"], "outcome": "deny", "reasons": [{"code": "no", "message": "no role"}]},
}


@pytest.mark.parametrize("mark", [{}, {"enforced": False}], ids=["enforced", "shadow"])
def test_a_decision_that_is_not_enforced_is_shown_as_such(
    mark: dict[str, bool], capsys: pytest.CaptureFixture[str]
) -> None:
    record = {**ALLOW, "context": {**ALLOW["context"], **mark}}
    _show(read_decision(msgspec.json.encode(record)), as_json=False)
    found = Found(ConsumerRecord("decisions", 0, 7, 0, b"", b""), record)
    lines = [capsys.readouterr().out, _decision_line(msgspec.json.encode(record))[1], _line(found)]
    assert ["not enforced" in line for line in lines] == [bool(mark)] * 3
    assert all("ALLOW" in line and "a role allows it" in line for line in lines)


ANSWERED = {"by": "pdp-7f", "outcome": "allow", "time": "2026-11-21T10:00:00Z"}


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ({"verified": True, "agrees": False}, "pdp-7f answered allow: contradicted by the job"),
        ({"verified": False}, "pdp-7f answered allow: not verified"),
        ({"verified": True, "agrees": True}, ""),
    ],
)
def test_another_answer_that_the_caller_got_is_shown(found: dict[str, bool], said: str) -> None:
    record = {**DENY, "answered": {**ANSWERED, **found}}
    lines = [
        _decision_line(msgspec.json.encode(record))[1],
        _line(Found(ConsumerRecord("decisions", 0, 7, 0, b"", b""), record)),
    ]
    assert all("DENY" in line for line in lines)
    assert [said in line for line in lines] == [True] * 2
    assert ["answered" in line for line in lines] == [bool(said)] * 2


def test_a_past_decision_that_cannot_be_evaluated_again_is_shown_with_each_outcome(
    capsys: pytest.CaptureFixture[str],
) -> None:
    items = [{"decision": False, "context": DENY["context"]}, {"decision": True, "context": ALLOW["context"]}]
    for record, lines in (
        (
            {**DENY, "answered": {**ANSWERED, "verified": False}},
            ["pdp-7f answered allow: not verified", "  DENY  no role"],
        ),
        ({**DENY, "evaluations": items}, ["  evaluation 0: DENY  no role", "  evaluation 1: ALLOW  a role allows it"]),
    ):
        _show_stored(Found(ConsumerRecord("decisions", 0, 7, 0, b"", b""), record), as_json=False)
        shown = capsys.readouterr().out.splitlines()
        assert shown[1:] == lines
