"""Past requests are decided again as the job decided them, wherever they were answered first."""

import json
from typing import Any

import pytest

from policy import to_text
from streaming.decision_log.past_requests import NO_REQUEST, as_decided
from streaming.history.records import ConsumerRecord
from streaming.records.answered import ANSWER_SKEW_MS
from streaming.records.registry import Deserializer
from streaming.settings import SchemaRegistry, Settings
from streaming.topics import TopicNames

AT = 1_795_258_800_000
NAMES = TopicNames(requests=("requests", "dated"), answered=("answered",))
SETTINGS = Settings(
    topics=NAMES, trust={"dated": frozenset({"time", "roles"}), "answered": frozenset({"groups", "roles"})}
)
REQUEST = {
    "id": "r",
    "system": "lenses6",
    "subject": {"type": "user", "id": "user:dana"},
    "action": {"name": "kafka:ListTopic"},
    "resource": {"type": "lrn", "id": "kafka:topic:a/b/c"},
    "deadline": AT + 1,
    "time": AT - 3_600_000,
}


def _answered(**more: Any) -> dict[str, Any]:
    given = {"by": "pdp", "time": to_text(AT - 1000), "decision": False, "outcome": "deny", "policy_version": "sha256:"}
    given |= {"policy_offsets": {}, "facts_offset": -1, "freshness": {"kind": "bounded", "age_ms": 0, "max_ms": 9}}
    return {"answered": given | more}


def _as_decided(topic: str, **more: Any) -> tuple[dict[str, Any], frozenset[str]]:
    record = ConsumerRecord(topic, 0, 7, AT, b"", json.dumps(REQUEST | more).encode())
    return as_decided(SETTINGS, record, Deserializer(SchemaRegistry()))


@pytest.mark.parametrize(
    ("topic", "more", "at", "trust"),
    [
        ("requests", {}, AT, {"groups", "roles", "token", "facts", "time"}),
        ("dated", {}, AT - 3_600_000, {"roles", "time"}),
        ("dated", {"time": None}, AT, {"roles", "time"}),
        ("answered", _answered(), AT - 1000, {"groups", "roles", "time"}),
        ("answered", _answered(trust=["groups", "token"]), AT - 1000, {"groups", "time"}),
        ("answered", _answered(trust=[]), AT - 1000, {"time"}),
        ("answered", _answered(time=AT + ANSWER_SKEW_MS), AT + ANSWER_SKEW_MS, {"groups", "roles", "time"}),
        ("answered", _answered(time=AT + ANSWER_SKEW_MS + 1), AT, {"groups", "roles", "time"}),
    ],
)
def test_a_request_has_the_moment_and_the_claims_of_its_decision(
    topic: str, more: dict[str, Any], at: int, trust: set[str]
) -> None:
    asked, counts = _as_decided(topic, **more)
    assert (asked["time"], counts) == (at, trust)
    assert asked.keys() == REQUEST.keys() - {"deadline"}


@pytest.mark.parametrize("more", [{}, _answered(outcome="allow"), {"answered": None}])
def test_what_is_no_answer_on_a_topic_of_answers_is_no_request(more: dict[str, Any]) -> None:
    """The job writes it to the dead letters."""
    with pytest.raises(NO_REQUEST):
        _as_decided("answered", **more)
