"""Requests as Python callers may pass them: of whatever they are made, there is a decision, or MalformedRequest."""

from array import array
from collections import UserList
from typing import Any

import pytest

import policy
from policy.core.request import MalformedRequest, parse_request
from policy.evaluation import reference

REQUEST: dict[str, Any] = {
    "id": "r-1",
    "system": "lenses6",
    "subject": {"type": "user", "id": "user:dana", "properties": {}},
    "action": {"name": "kafka:GetTopicDetails"},
    "resource": {"type": "lrn", "id": "kafka:topic:prod/main/orders", "properties": {}},
    "context": {},
}
SEQUENCES = [array("i", [1]), range(3), UserList([1])]


def _with(place: str, value: object) -> dict[str, Any]:
    part, _, field = place.partition(".")
    return {**REQUEST, part: {**REQUEST[part], field: value} if field else value}


@pytest.mark.parametrize("value", SEQUENCES, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("place", ["subject.properties", "resource.properties", "context"])
def test_a_sequence_in_place_of_a_mapping_is_malformed(place: str, value: object) -> None:
    """msgspec takes each of them for a mapping, and raises AttributeError."""
    snapshot = policy.compile_documents([])
    decision = policy.decide(snapshot, _with(place, value))
    assert (decision.outcome, decision.reasons[0].code) == ("error", "malformed-request")
    with pytest.raises(MalformedRequest):
        parse_request(_with(place, value))
    batch = {"id": "r-1", "system": "lenses6", "evaluations": [_with(place, value), REQUEST]}
    items = policy.decide(snapshot, batch).evaluations
    assert [(item.outcome, item.reasons[0].code) for item in items] == [
        ("error", "incomplete-evaluation"),
        ("deny", "no-grant"),
    ]


ALLOWED: list[dict[str, Any]] = [
    {
        "system": "lenses6",
        "kind": "Role",
        "name": "all",
        "spec": {"statements": [{"effect": "allow", "action": "*", "resource": "*"}]},
    },
    {"system": "lenses6", "kind": "Group", "name": "all", "spec": {"roles": ["all"], "members": ["user:dana"]}},
]


@pytest.mark.parametrize(
    "item",
    [
        {"system": "cdap"},
        {"deadline": 1},
        {"deadline": "2026-11-21T10:00:00Z"},
        {"evaluations": [{"action": {"name": "iam:DeleteUser"}}]},
    ],
    ids=str,
)
def test_an_item_that_asks_for_more_than_a_batch_reads_of_it_is_no_evaluation(item: dict[str, Any]) -> None:
    """It would be allowed by the policies of another system, too late, or in place of the questions within it."""
    snapshot = policy.compile_documents(ALLOWED)
    batch = {**REQUEST, "time": 1, "deadline": 2, "evaluations": [item, {}]}
    items = policy.decide(snapshot, batch).evaluations
    assert [answer.outcome for answer in items] == ["error", "allow"]
    assert items[0].reasons[0].code == "incomplete-evaluation"
    assert next(iter(item)) in items[0].reasons[0].message
    assert reference.decide(snapshot, batch) == ["error", "allow"]


def test_an_item_may_say_again_what_its_batch_says() -> None:
    """As where whole requests are put into a batch."""
    whole = {**REQUEST, "time": 1, "deadline": 2, "evaluations": [], "options": {}}
    unsaid = {"system": None, "deadline": None, "evaluations": None}
    batch = {**whole, "evaluations": [{**whole, "id": "r-2"}, unsaid]}
    items = policy.decide(policy.compile_documents(ALLOWED), batch).evaluations
    assert [answer.outcome for answer in items] == ["allow", "allow"]


@pytest.mark.parametrize(
    "record",
    [
        rb'{"\ud800":1}',
        rb'{"a":"\uDC00"}',
        rb'{"a":"\ud800\u0041"}',
        rb'{"a":["\\\ud83d"]}',
        rb'{"a":"\ud800"',
        rb'{"\ud800',
    ],
)
def test_half_of_a_surrogate_pair_is_named_where_the_record_is_whole(record: bytes) -> None:
    """The decoder's message was "Input data was truncated" where the text ended soon after it."""
    whole = record.endswith(b"}")
    with pytest.raises(MalformedRequest) as raised:
        policy.decode_request(record)
    assert ("half of a surrogate pair" in str(raised.value)) is whole
