"""What workers count: every decision by system and outcome, dead letters, ages, and a few traces."""

import json
from typing import Any

import numpy as np
import pytest

from policy import compile_documents
from policy.systems import all_systems
from streaming.enforcer.auditing import AuditAnswers, AuditEvaluator
from streaming.enforcer.evaluator import EvaluationContext, Evaluator, PartitionEvaluator, Source
from streaming.ops.tally import LOOKED_AT, OTHER, TRACES, Tally, no_counts, tally
from streaming.settings import DEFAULT_TRUST, Limits
from tests.bench import workload

NOW = 1_795_000_000_000
DOCUMENTS = workload.documents(100)
SNAPSHOT = compile_documents(DOCUMENTS)


def _for_partition(**limits: int) -> PartitionEvaluator:
    source = Source("requests", 0, "topic-id", DEFAULT_TRUST, 1)
    return Evaluator(SNAPSHOT, Limits(**limits)).for_partition(
        source, EvaluationContext(SNAPSHOT.version, {}, -1, {}, NOW)
    )


def _tally(partition_evaluator: PartitionEvaluator, values: list[bytes]) -> tuple[Tally, list[Any]]:
    """The tally of some records, and the decisions made of them."""
    made = [partition_evaluator.decide(b"key", value, None, number, NOW) for number, value in enumerate(values)]
    counted = tally("requests", NOW, partition_evaluator.counts, np.full(len(values), NOW), [None] * len(values))
    return counted, [json.loads(value or b"") for number, _, value, _ in made if number == 0]


def _counted(decisions: list[Any]) -> dict[tuple[str, str], int]:
    found = [(d["system"] if d["system"] in all_systems() else OTHER, d["context"]["outcome"]) for d in decisions]
    return {pair: found.count(pair) for pair in found}


def _requests(count: int, **changes: Any) -> list[bytes]:
    return [json.dumps({**asked, **changes}).encode() for asked in workload.requests(DOCUMENTS, count)]


def test_decisions_are_counted_as_their_records_say_also_from_the_cache() -> None:
    """Plain ones, batches, those after their deadline and behind the policies, and of a system that is none."""
    values = [
        *_requests(100) * 2,
        *_requests(3, evaluations=[{}]),
        *_requests(4, deadline=NOW - 1),
        *_requests(5, context={"min_policy_offsets": {"unknown": {"0": 1}}}),
        *_requests(6, system="\u0000 strange allow"),
    ]
    counted, decisions = _tally(_for_partition(), values)
    assert len(decisions) == len(values)
    assert {(system, outcome): count for system, outcome, count in counted.outcomes} == _counted(decisions)
    assert {outcome for _, outcome, _ in counted.outcomes} == {"allow", "deny", "error"}
    assert counted.dead_letters == 0


def test_an_answer_that_is_too_large_is_counted_as_the_error_it_became() -> None:
    counted, decisions = _tally(_for_partition(record_out=4096), _requests(2, evaluations=[{}] * 100))
    assert [d["context"]["reasons"][0]["code"] for d in decisions] == ["answer-too-large"] * 2
    assert counted.outcomes == [("lenses6", "error", 2)]


def test_what_is_no_request_is_a_dead_letter() -> None:
    counted, _ = _tally(_for_partition(), [b"", b"{", *_requests(1)])
    assert counted.dead_letters == 2
    assert sum(count for _, _, count in counted.outcomes) == 1


ACCESS = {"subject": {"type": "user", "id": "user:u"}, "action": {"name": "a"}, "resource": {"type": "lrn", "id": "x"}}


def test_verdicts_are_counted_by_the_policies_answer_and_a_life_cycle_as_such() -> None:
    source, answers = Source("audit", 0, "topic-id", DEFAULT_TRUST, 2), AuditAnswers(SNAPSHOT, DEFAULT_TRUST, 9)
    partition_evaluator = AuditEvaluator(source, 1, lambda _: answers, Limits())
    events: list[Any] = [
        {"id": "1", "system": "lenses6", **ACCESS, "outcome": "success"},
        {"id": "2", "system": "lenses6", "event": "login", "subject": ACCESS["subject"]},
        {"id": "3", "system": "strange", **ACCESS, "outcome": "failure"},
        {"id": "4"},
    ]
    for number, event in enumerate(events):
        partition_evaluator.decide(b"k", json.dumps(event).encode(), None, number, NOW)
    counted = tally("audit", NOW, partition_evaluator.counts, np.full(4, NOW), [None] * 4)
    assert sorted(counted.outcomes) == [("lenses6", "error", 1), ("lenses6", "lifecycle", 1), ("other", "error", 1)]
    assert counted.dead_letters == 1


def test_ages_are_counted_by_the_millisecond() -> None:
    times = [NOW - 5, NOW, NOW - 5, NOW + 2]
    counted = tally("requests", NOW, no_counts(), np.array(times), [None] * 4)
    assert dict(zip(counted.ages, counted.aged, strict=True)) == {5: 2, 0: 1, -2: 1}


def _header(value: bytes | None) -> list[dict[str, Any]]:
    return [{"key": "x", "value": b"y"}, {"key": "traceparent", "value": value}]


@pytest.mark.parametrize(
    ("headers", "kept"),
    [
        ([_header(b"00-1")] * 100, ["00-1"] * TRACES),
        ([None] * LOOKED_AT + [_header(b"00-1")], []),
        ([_header(None), _header(b"\xff" * 1000)], ["\ufffd" * 64]),
        ([], []),
    ],
)
def test_traces_are_few_and_short_whatever_clients_send(headers: list[Any], kept: list[str]) -> None:
    assert tally("requests", NOW, no_counts(), np.zeros(0, np.int64), headers).traces == kept
