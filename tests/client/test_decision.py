"""Decisions as records hold them: read whole, and never an allow that the record does not plainly say."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policy import compile_documents, decide
from streaming.client import AccessDenied, Decision, NotDecided, Place, Unreadable
from streaming.client.decision import complete, read_decision, undecided
from streaming.records.decision import glance
from tests.stream.world import group, request, role

SOURCE = {"topic": "t", "partition": 1, "offset": 17}
ALLOW: dict[str, Any] = {
    "id": "x-1-17",
    "request_id": "r-1",
    "system": "lenses6",
    "time": "2026-11-21T10:00:00.000Z",
    "decision": True,
    "context": {
        "outcome": "allow",
        "reasons": [{"code": "granted", "message": "because", "rule": None, "document": "d", "statement": 0}],
        "missing": [],
        "claims": ["groups"],
        "policy_version": "sha256:1",
        "policy_offsets": {"p": {"0": 41}},
        "facts_offset": 7,
        "source": SOURCE,
    },
}


def _encoded(**changes: Any) -> bytes:
    return json.dumps({**ALLOW, **changes}).encode()


def test_a_record_is_read_whole() -> None:
    decision = read_decision(_encoded())
    assert (decision.outcome, decision.allowed, bool(decision)) == ("allow", True, True)
    assert (decision.request_id, decision.id, decision.system) == ("r-1", "x-1-17", "lenses6")
    assert (decision.reasons[0].document, decision.code, decision.claims) == ("d", "granted", ("groups",))
    assert (decision.policy_offsets, decision.facts_offset) == ({"p": {"0": 41}}, 7)
    assert decision.source == Place("t", 1, 17)
    assert decision.to_record() == ALLOW
    assert decision.or_raise() is decision


def test_what_the_engine_answers_is_read_as_it_is_meant() -> None:
    snapshot = compile_documents([role("r", "kafka:topic:prod/*"), group("r", "user:dana")])
    for user, allowed in (("dana", True), ("eve", False)):
        record = decide(snapshot, request("r-1", user, "orders")).to_record()
        decision = read_decision(json.dumps(record).encode())
        assert decision.allowed is allowed
        assert decision.missing == decide(snapshot, request("r-1", user, "orders")).missing


@pytest.mark.parametrize(
    "wrong",
    [
        {"decision": False},
        {"decision": "true"},
        {"decision": 1},
        {"decision": None},
        {"context": {**ALLOW["context"], "outcome": "deny"}},
        {"context": {**ALLOW["context"], "outcome": "Allow"}},
        {"context": {}},
        {"evaluations": [{"decision": True, "context": {"outcome": "deny"}}]},
    ],
)
def test_a_record_that_contradicts_itself_or_is_none_is_unreadable(wrong: dict[str, Any]) -> None:
    with pytest.raises(Unreadable, match="not a decision"):
        read_decision(_encoded(**wrong))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.sampled_from(["allow", "deny"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["decision", "context", "outcome", "source", "evaluations"]), inner)
    ),
    max_leaves=12,
)


@settings(deadline=None)
@given(st.binary() | JSON.map(lambda value: json.dumps(value).encode()))
def test_whatever_the_bytes_only_a_plain_allow_is_one(value: bytes) -> None:
    try:
        decision = read_decision(value)
    except Unreadable:
        return
    record = json.loads(value)
    assert decision.allowed == (record["decision"] is True and record["context"]["outcome"] == "allow")


def test_a_glance_finds_the_requests_place_and_no_more_is_needed() -> None:
    assert glance(_encoded(decision="?", evaluations=3)) == (Place("t", 1, 17), "r-1")
    for none in (b"", b"{}", b"\xc3\x01", b"[" * 100_000, json.dumps({"context": {"source": {"topic": 1}}}).encode()):
        assert glance(none) is None


def test_what_is_no_allow_is_false_and_raises_what_it_is() -> None:
    error = undecided("r-1", "timeout", "no decision within 1 s")
    assert not error
    assert error.to_record()["decision"] is False
    assert (error.code, error.to_record()["context"]["outcome"]) == ("timeout", "error")
    with pytest.raises(NotDecided, match="no decision within 1 s") as raised:
        error.or_raise()
    assert raised.value.decision is error
    deny = Decision("deny", ())
    with pytest.raises(AccessDenied) as denied:
        deny.or_raise()
    assert not isinstance(denied.value, NotDecided)


@pytest.mark.parametrize("answered", [0, 1, 3])
def test_every_item_of_a_batch_has_an_answer_and_what_was_not_answered_is_no_allow(answered: int) -> None:
    """`all(…)` over no answers would be true."""
    items = tuple(Decision("allow", ()) for _ in range(answered))
    whole = complete(Decision("allow", (), evaluations=items), 3)
    assert [item.allowed for item in whole.evaluations] == [True] * answered + [False] * (3 - answered)
    late = complete(undecided("r", "timeout", "late"), 3)
    assert [item.code for item in late.evaluations] == ["timeout"] * 3


def test_what_is_not_enforced_is_no_allow_whatever_its_outcome() -> None:
    """In shadow mode; the outcome stays, so that it can be compared. Items of a batch are as enforced as the record."""
    record = {**ALLOW, "context": {**ALLOW["context"], "enforced": False}}
    decision = read_decision(json.dumps({**record, "evaluations": [ALLOW]}).encode())
    assert (decision.outcome, decision.enforced, decision.allowed, bool(decision)) == ("allow", False, False, False)
    assert not any(item.allowed for item in decision.evaluations)
    with pytest.raises(AccessDenied):
        decision.or_raise()
