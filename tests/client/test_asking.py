"""Requests as services put them become records in the form of the contracts."""

import json
import math
import time
from typing import Any

import pytest

from policy import parse_request
from policy.core.request import Request
from streaming.client import acting_as
from streaming.client.records import InvalidRequest, ProducerRecord, event_record, request_record

SHORT: dict[str, Any] = {"system": "lenses6", "action": "kafka:ListTopic", "resource": "kafka:topic:a/b/c"}


def _record(request: dict[str, Any] | None = None, timeout: float = 5.0, **fields: Any) -> ProducerRecord:
    return request_record("requests", request, timeout, fields)


def _value(record: ProducerRecord) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(record.value)
    return value


def test_a_request_in_short_is_written_out_keyed_by_its_subject_and_dated() -> None:
    before = time.time() * 1000
    record = _record(**SHORT, subject="user:dana", groups=["readers"], timeout=2.0)
    asked = parse_request(_value(record))
    assert isinstance(asked, Request)
    assert (asked.subject.id, asked.subject.properties) == ("user:dana", {"groups": ["readers"]})
    assert (asked.action.name, asked.resource.type, asked.resource.id) == (
        "kafka:ListTopic",
        "lrn",
        "kafka:topic:a/b/c",
    )
    assert record.key == b"user:dana"
    assert (asked.id, record.topic) == (record.id, "requests")
    assert asked.deadline is not None
    assert before + 1990 <= asked.deadline <= time.time() * 1000 + 2000


def test_two_requests_have_two_ids_and_given_ones_are_kept() -> None:
    assert _record(**SHORT, subject="a").id != _record(**SHORT, subject="a").id
    kept = _record(**SHORT, subject="a", id="mine", deadline=5)
    assert (kept.id, _value(kept)["deadline"]) == ("mine", 5)


def test_a_whole_request_is_taken_as_it_is() -> None:
    whole = {"id": "r", "deadline": 1, "system": "cdap", "subject": {"type": "user", "id": "eve"}, "else": [1]}
    assert _value(_record(whole)) == whole
    assert _record(whole).key == b"eve"
    assert "subject" in whole
    assert len(whole) == 5


def test_the_subject_is_the_one_acted_for_unless_it_is_given() -> None:
    with acting_as("user:dana"):
        assert _record(**SHORT).key == b"user:dana"
        with acting_as({"type": "user", "id": "user:imani", "properties": {"groups": ["x"]}}):
            assert _value(_record(**SHORT))["subject"]["properties"] == {"groups": ["x"]}
        assert _record(**SHORT).key == b"user:dana"
        assert _record(**SHORT, subject="user:eve").key == b"user:eve"


@pytest.mark.parametrize("subject", [None, "", {}])
def test_a_subject_that_turns_out_to_be_none_is_not_replaced_by_the_one_acted_for(subject: object) -> None:
    """A session without a user must not become the user that runs the service."""
    with acting_as("user:admin"), pytest.raises(InvalidRequest, match="no subject"):
        _record(**SHORT, subject=subject)


def test_without_any_subject_there_is_nothing_to_ask() -> None:
    with pytest.raises(InvalidRequest, match="no subject: call within"):
        _record(**SHORT)
    with pytest.raises(ValueError, match="must not be empty"), acting_as(""):
        pass


def test_demanded_offsets_stand_in_the_context_and_in_those_of_items() -> None:
    offsets = {"policies": {"0": 7}}
    items = [{"resource": "a:b"}, {"resource": "a:c", "context": {"x": 1}}]
    record = _record(**SHORT, subject="u", context={"y": 2}, evaluations=items, min_policy_offsets=offsets)
    value = _value(record)
    assert value["context"] == {"y": 2, "min_policy_offsets": offsets}
    assert "context" not in value["evaluations"][0]
    assert value["evaluations"][1]["context"] == {"x": 1, "min_policy_offsets": offsets}
    assert record.items == 2
    with pytest.raises(TypeError, match="stands in the context too"):
        _record(**SHORT, subject="u", context={"min_policy_offsets": {}}, min_policy_offsets=offsets)
    older = {"context": {"min_policy_offsets": {"policies": {"0": 6}}}}
    with pytest.raises(TypeError, match="stands in the context too"):
        _record(**SHORT, subject="u", evaluations=[older, older], min_policy_offsets=offsets)


@pytest.mark.parametrize(
    ("request_", "fields", "message"),
    [
        (None, {"subject": "u"}, "system: required"),
        (None, {**SHORT, "subject": "u", "resorce": "x"}, "unknown field resorce"),
        ({"id": "r"}, {"subject": "u"}, "give one or the other"),
    ],
)
def test_wrong_usage_raises_at_once(request_: dict[str, Any] | None, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        request_record("requests", request_, 5.0, fields)


@pytest.mark.parametrize("value", [object(), {1: {2, 3}, "a": object()}, "\ud800"])
def test_what_cannot_be_written_cannot_be_asked(value: object) -> None:
    with pytest.raises(InvalidRequest, match="cannot be written") as raised:
        _record(**SHORT, subject="u", context={"x": value}, evaluations=[{}, {}])
    assert (raised.value.code, raised.value.record.items) == ("malformed-request", 2)


def test_a_lone_surrogate_in_the_subject_cannot_be_asked_either() -> None:
    with pytest.raises(InvalidRequest):
        _record(**SHORT, subject="\ud800")


def test_an_event_gets_an_id_a_time_and_the_subject_acted_for() -> None:
    done = {"system": "lenses6", "action": {"name": "a"}, "resource": {"type": "t", "id": "x"}, "outcome": "success"}
    with acting_as("user:dana"):
        record = event_record("audit", done, "decision-7")
    value = _value(record)
    assert (record.topic, record.key) == ("audit", b"user:dana")
    assert value["subject"] == {"type": "user", "id": "user:dana"}
    assert (value["decision_id"], value["outcome"], value["id"]) == ("decision-7", "success", record.id)
    assert math.isclose(value["time"], time.time() * 1000, abs_tol=60_000)


@pytest.mark.parametrize(
    ("event", "message"),
    [
        ({"system": "s", "event": "job.started", "resource": {"type": "job", "id": "job:x"}}, None),
        ({"system": "s", "event": "login", "subject": {"type": "user", "id": "dana"}}, None),
        ({"system": "s", "event": "login"}, "required field `subject`"),
        ({"system": "s", "event": "lunch"}, "Invalid enum value 'lunch'"),
        ({"system": "s", "outcome": "won"}, "Invalid enum value 'won'"),
        ({"system": "s", "time": "noon", "outcome": "success"}, "'noon' is not RFC 3339"),
        ({"system": "s", "decision": object()}, "Encoding objects"),
        ({"system": "s", "outcome": "success"}, "required field `subject`"),
        (
            {"system": "s", "outcome": "success", "subject": "u", "action": {"name": "a"}, "resource": {"id": 1}},
            "subject",
        ),
    ],
)
def test_what_is_no_audit_event_is_refused_and_says_why(event: dict[str, Any], message: str | None) -> None:
    if message is None:
        assert event_record("audit", event, None).key in (b"job:x", b"dana")
    else:
        with pytest.raises(ValueError, match=message):
            event_record("audit", event, None)
