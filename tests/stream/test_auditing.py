"""Audit events become verdicts by the policies in force at their time; what is no event becomes a dead letter."""

import json
from typing import Any

import pytest

from policy import Snapshot, compile_documents
from streaming.enforcer.auditing import AuditAnswers, AuditEvaluator
from streaming.enforcer.evaluator import Source
from streaming.records.audit import Lifecycle, Verdict, decode_verdict
from streaming.settings import DEFAULT_TRUST, Limits
from tests.stream.world import group, request, role

AT = 1_795_000_000_000
VERDICTS, LETTERS = 1, 2
GRANTED = compile_documents([role("readers", "kafka:topic:prod/main/orders"), group("readers", "user:dana")])
REVOKED = compile_documents([group("readers", "user:dana")])


def _for_partition(snapshot: Snapshot | None = GRANTED, **limits: int) -> AuditEvaluator:
    source = Source("audit", 3, "topic-id", DEFAULT_TRUST, LETTERS)
    answers = AuditAnswers(snapshot, DEFAULT_TRUST, 9) if snapshot else None
    return AuditEvaluator(source, VERDICTS, lambda _at: answers, Limits(**limits))


def _event(**changes: Any) -> dict[str, Any]:
    return {**request("e-1", "dana", "orders"), "outcome": "success", **changes}


def _evaluate(event: dict[str, Any], partition_evaluator: AuditEvaluator | None = None, at: int = AT) -> Any:
    number, key, value, _ = (partition_evaluator or _for_partition()).decide(
        b"key", json.dumps(event).encode(), None, 17, at
    )
    assert (number, key) == (VERDICTS, b"key"), value
    return decode_verdict(value or b"")


def test_a_verdict_says_who_did_what_when_and_what_the_policy_says() -> None:
    verdict = _evaluate(_event(decision_id="d-1"))
    assert isinstance(verdict, Verdict)
    assert (verdict.id, verdict.event_id, verdict.decision_id) == ("topic-id-3-17", "e-1", "d-1")
    assert (verdict.subject.id, verdict.action.name) == ("user:dana", "kafka:GetTopicDetails")
    assert (verdict.time, verdict.result, verdict.outcome) == (AT, "success", "allow")
    assert verdict.policy_version == GRANTED.version
    denied = _evaluate(_event(), _for_partition(REVOKED))
    assert (denied.outcome, denied.reasons[0].code) == ("deny", "no-grant")


def test_without_the_policies_of_its_time_a_verdict_is_unknown_and_counted_as_such() -> None:
    partition_evaluator = _for_partition(None)
    verdict = _evaluate(_event(), partition_evaluator)
    assert (verdict.outcome, verdict.policy_version) == ("unknown", "")
    assert [reason.code for reason in verdict.reasons] == ["no-longer-known"]
    assert partition_evaluator.counts["lenses6 unknown"] == 1


def test_its_time_is_the_earlier_of_what_it_says_and_the_broker_s() -> None:
    asked: list[int] = []
    source = Source("audit", 3, "topic-id", DEFAULT_TRUST, LETTERS)
    answers = AuditAnswers(GRANTED, DEFAULT_TRUST, 9)
    partition_evaluator = AuditEvaluator(source, VERDICTS, lambda at: asked.append(at) or answers, Limits())
    for claimed in (AT - 5, AT + 5, "2026-11-18T11:06:39.995Z"):
        assert _evaluate(_event(time=claimed), partition_evaluator).time == min(AT, AT - 5 if claimed != AT + 5 else AT)
    assert asked == [AT - 5, AT, AT - 5]


def test_claims_that_are_not_trusted_are_not_used() -> None:
    source = Source("audit", 3, "topic-id", frozenset(), LETTERS)
    documents = [role("readers", "kafka:topic:prod/main/orders"), group("readers")]
    answers = AuditAnswers(compile_documents(documents), frozenset(), 9)
    partition_evaluator = AuditEvaluator(source, VERDICTS, lambda _at: answers, Limits())
    event = _event()
    event["subject"]["properties"] = {"groups": ["readers"]}
    assert _evaluate(event, partition_evaluator).outcome == "error"


def test_a_secret_of_the_subject_does_not_go_on() -> None:
    event = _event()
    event["subject"]["properties"] = {"token": {"sub": "secret"}}
    _, _, value, _ = _for_partition().decide(None, json.dumps(event).encode(), None, 17, AT)
    assert b"secret" not in (value or b"")


def test_life_cycles_are_passed_on() -> None:
    subject = {"type": "user", "id": "dana", "properties": {"groups": ["b", "a"]}}
    login = _evaluate({"id": "1", "system": "streamsets", "event": "login", "subject": subject})
    assert login == Lifecycle(
        id="topic-id-3-17",
        event_id="1",
        system="streamsets",
        event="login",
        time=AT,
        subject="dana",
        groups=("a", "b"),
    )
    job = {"type": "job", "id": "job:j"}
    started = _evaluate({"id": "2", "system": "streamsets", "event": "job.started", "resource": job})
    assert (started.event, started.resource, started.subject) == ("job.started", "job:j", None)


@pytest.mark.parametrize(
    ("event", "why"),
    [
        (b"{", "not an audit event"),
        (b"[]", "Expected `object`"),
        ({"id": ""}, "id and system must not be empty"),
        ({"outcome": None}, "either `outcome`"),
        ({"outcome": "maybe"}, "maybe"),
        ({"subject": None}, "missing required field `subject`"),
        ({"action": {"name": ""}}, "must not be empty"),
        ({"resource": {"type": "lrn"}}, "`id`"),
        ({"time": "yesterday"}, "RFC 3339"),
        ({"event": "restart"}, "restart"),
        ({"event": "job.started", "resource": None}, "missing required field `resource`"),
        ({"event": "login", "subject": {"type": "u", "id": "x", "properties": {"groups": "a"}}}, "lists of texts"),
        ({"context": json.loads("[" * 40 + "]" * 40)}, "nested deeper"),
        (
            {"system": "streamsets", "event": "job.started", "resource": {"type": "job", "id": "j"}},
            "'j' is not job:NAME",
        ),
        ({"system": "streamsets", "event": "job.stopped", "resource": {"type": "job", "id": "pipeline:j"}}, "job:NAME"),
        ({"system": "streamsets", "event": "job.started", "resource": {"type": "job", "id": "job:j "}}, "name"),
        ({"system": "streamsets", "event": "login", "subject": {"type": "user", "id": "user:dana"}}, "his bare name"),
    ],
)
def test_what_is_no_event_becomes_a_dead_letter_that_says_why(event: Any, why: str) -> None:
    value = event if isinstance(event, bytes) else json.dumps(_event(**event)).encode()
    number, _, kept, headers = _for_partition().decide(b"key", value, None, 17, AT)
    assert number == LETTERS
    assert why in dict(headers or [])["__connect.errors.exception.message"].decode()
    assert kept == value


@pytest.mark.parametrize("event", [{"system": "lenses6"}, {"outcome": "failure"}])
def test_an_event_of_which_no_fact_is_derived_may_be_about_anything(event: dict[str, Any]) -> None:
    resource = {"type": "job", "id": "j"}
    passed_on = _evaluate({"id": "1", "system": "streamsets", "event": "job.started", "resource": resource, **event})
    assert (passed_on.event, passed_on.resource) == ("job.started", "j")


def test_records_without_a_value_and_too_large_ones_are_dead_letters() -> None:
    assert _for_partition().decide(None, None, None, 17, AT)[:3] == (LETTERS, None, None), "as it came"
    assert _for_partition(record_in=10).decide(None, json.dumps(_event()).encode(), None, 17, AT)[0] == LETTERS
