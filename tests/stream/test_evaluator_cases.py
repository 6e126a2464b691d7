"""The stream's fast path on every case of the specification, of all systems: word for word what `decide` says."""

import json
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from policy import decide
from policy.core.times import to_ms
from policy.testing.casefile import load_cases
from policy.testing.run import Scene, scenes
from streaming.enforcer.evaluator import EvaluationContext, Evaluator, PartitionEvaluator, Source
from streaming.enforcer.source import Records
from streaming.settings import Limits
from tests.stream.arrow import records_batch
from tests.stream.packed import decisions_of

FILES = sorted((Path(__file__).parents[1] / "cases").glob("*.yaml"))
BATCH_FIELDS = ("policy_version", "policy_offsets", "facts_offset", "source", "request")
NOW = 1_795_000_000_000
CONTEXT = EvaluationContext("", {}, 0, {}, NOW)


def _said(partition_evaluator: PartitionEvaluator, request: dict[str, Any], at: int) -> dict[str, Any] | None:
    """What the stream says; None: it is no request."""
    number, _, value, _ = partition_evaluator.decide(None, json.dumps(request).encode(), None, 0, at)
    if number != 0:
        return None
    return _plain(value or b"")


def _plain(value: bytes) -> dict[str, Any]:
    return _without_batch(json.loads(value))


def _without_batch(record: dict[str, Any]) -> dict[str, Any]:
    context = {name: field for name, field in record["context"].items() if name not in BATCH_FIELDS}
    items = {"evaluations": [_without_batch(item) for item in record["evaluations"]]} if "evaluations" in record else {}
    return {"decision": record["decision"], "context": context, **items}


def _said_shortly(evaluator: Evaluator, source: Source, request: dict[str, Any], at: int) -> dict[str, Any] | None:
    """The same in columns, where it can be."""
    value = json.dumps(request).encode()
    packed = evaluator.for_partition(source, CONTEXT).decide_all(Records(records_batch([(None, value, None)], at)))
    decisions = decisions_of(packed)
    return _plain(decisions[0]) if decisions else None


def _expected(scene: Scene, request: dict[str, Any]) -> dict[str, Any] | None:
    decision = decide(scene.snapshot, request, trust=scene.stage.claims | {"time"})
    if decision.reasons[0].code == "malformed-request":
        return None
    return dict(json.loads(json.dumps(decision.to_record())))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_fast_path_answers_every_case_as_decide_does(path: Path) -> None:
    """Each request twice, so that the second answer comes from what the first one left behind."""
    with capture_logs() as logged:
        compared = sum(map(_compared, scenes(load_cases(path))))
    assert compared > 0
    assert logged == [], "no record is decided the slow way by a fault"


def _compared(scene: Scene) -> int:
    """Hold the fast path to `decide` for every request of a case that is one; how many they are."""
    compared = 0
    evaluator, source = Evaluator(scene.snapshot, Limits()), Source("requests", 0, "topic-id", scene.stage.claims, 1)
    for expectation in scene.stage.expect:
        asked = {"id": "1", **scene.request(expectation)}
        asked.pop("deadline", None)  # held against the clock in the stream, and tested there
        at = to_ms(asked.pop("time", NOW))
        partition_evaluator = evaluator.for_partition(source, CONTEXT)
        expected = _expected(scene, {**asked, "time": at})
        for _ in range(2):
            assert _said(partition_evaluator, asked, at) == expected, (scene.case.case, asked)
        assert _said_shortly(evaluator, source, asked, at) == expected, (scene.case.case, asked)
        compared += expected is not None
    return compared
