"""A decision and its request become questions, each with its answer; what policies did not determine has none."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from policy.analysis import Answer
from streaming.access_changes.decisions import UNDETERMINED, DecisionReader, Joined
from streaming.access_changes.following import Decided
from streaming.history.ranges import Range
from streaming.history.records import ConsumerRecord
from streaming.kafka.clients import topic_ids
from streaming.records.decision import read_decision
from streaming.settings import Settings
from streaming.topics import TopicNames
from tests.brokers import TestBroker
from tests.cli.documents import request
from tests.stream.world import World

ANSWERED, TRUSTED = "answered", "trusted"
SETTINGS = Settings(
    topics=TopicNames(requests=("requests", TRUSTED), answered=(ANSWERED,)),
    trust={TRUSTED: frozenset({"groups", "time"}), ANSWERED: frozenset({"groups", "facts"})},
)
AT = 1_795_687_200_000
OFFSETS = {"authz.policies.lenses6.v1": {"0": 4}}


def decision(outcome: str = "allow", *codes: str, **fields: Any) -> dict[str, Any]:
    """A decision record."""
    reasons = [{"code": code, "message": "m", "document": "lenses6/Role/r", "statement": 0} for code in codes]
    source = {"topic": "requests", "partition": 0, "offset": 7}
    context = {
        "outcome": outcome,
        "reasons": reasons,
        "policy_offsets": OFFSETS,
        "facts_offset": 3,
        "source": source,
    }
    named = {"id": "d", "time": "2026-11-26T10:00:00.000Z", "decision": outcome == "allow"}
    return {**named, "context": context, **fields}


def joined(made: dict[str, Any], asked: dict[str, Any], topic: str = "requests") -> tuple[list[Decided], Joined]:
    """What becomes of a decision and its request."""
    record, counts = ConsumerRecord(topic, 0, 7, AT, b"", json.dumps(asked).encode()), Joined([])
    # Which it does not ask here. One that outlived the test would go on looking for its broker, and log that.
    admin = AdminClient({"bootstrap.servers": "127.0.0.1:1"})
    return DecisionReader(SETTINGS, admin)._join(read_decision(json.dumps(made).encode()), record, counts), counts


def test_a_decision_has_its_offsets_its_time_and_its_statements() -> None:
    [one], _ = joined(decision("allow", "granted"), request())
    assert (one.policy_offsets, one.facts_offset, one.at) == (OFFSETS, 3, AT)
    assert one.answer is not None
    assert (one.answer.outcome, [str(each) for each in one.answer.statements]) == (
        "allow",
        ["lenses6/Role/r statement 0"],
    )


def test_a_decision_that_is_dated_ahead_of_its_request_is_none_of_the_jobs() -> None:
    """It would move the time of all questions on, for good."""
    with pytest.raises(ValueError, match="later than the request"):
        joined(decision(time="2100-01-01T00:00:00Z"), request())


@pytest.mark.parametrize("code", sorted(UNDETERMINED))
def test_an_error_that_policies_did_not_determine_is_no_answer(code: str) -> None:
    [one], _ = joined(decision("error", code), request())
    assert one.answer is None


def test_each_request_of_a_batch_that_was_answered_is_a_question() -> None:
    items = [{"resource": {"type": "lrn", "id": f"kafka:topic:prod/main/{topic}"}} for topic in ("a", "b", "c")]
    answers = [{"context": {"outcome": outcome}} for outcome in ("allow", "deny")]
    found, _ = joined(decision("deny", evaluations=answers), request(evaluations=items))
    assert [one.question.request.resource.id[-1] for one in found] == ["a", "b"]
    assert [one.answer for one in found] == [Answer("allow"), Answer("deny")]


def test_a_question_about_a_time_of_its_own_is_left_out_and_counted() -> None:
    found, counts = joined(decision(), request(time=5), TRUSTED)
    assert (found, counts.dated) == ([], 1)
    [one], counts = joined(decision(), request(time=5))  # which this topic may not claim
    assert counts.dated == 0
    assert one.question.request.time is None


def test_an_answered_request_has_the_trust_of_its_caller() -> None:
    answered = {
        "by": "s",
        "time": 5,
        "decision": True,
        "outcome": "allow",
        "policy_version": "v",
        "policy_offsets": OFFSETS,
        "facts_offset": 3,
        "freshness": {"kind": "bounded", "age_ms": 1, "max_ms": 2},
        "trust": ["groups"],
    }
    verified = {"by": "s", "outcome": "allow", "verified": True}
    [one], _ = joined(decision(answered=verified), request(answered=answered), ANSWERED)
    assert one.question.trust == {"groups"}


@pytest.mark.stream
def test_a_decision_of_a_request_topic_that_was_re_created_is_of_no_request_of_the_new_one(
    broker: TestBroker, fresh_name: Callable[[str], str]
) -> None:
    """At the place of dana's request stands one of eve: she has not asked what was decided then."""
    world = World(broker, fresh_name("again"), "unused")
    topic, decisions = world.names.requests[0], world.names.decisions
    for user in ("user:dana", "user:eve"):
        world.producer.produce(topic, json.dumps(request(user)).encode(), partition=0)
        record = decision(id=f"{topic_ids(world.admin, [topic])[topic]}-0-0")
        record["context"]["source"] = {"topic": topic, "partition": 0, "offset": 0}
        world.producer.produce(decisions, json.dumps(record).encode(), partition=0)
        assert world.producer.flush(30) == 0
        if user == "user:dana":
            world.recreate(topic)
    counts = DecisionReader(world.settings, world.admin).read({(decisions, 0): Range(0, 2)})
    assert [decided.question.request.subject.id for decided in counts.decided] == ["user:eve"]
    assert counts.lost == 1
