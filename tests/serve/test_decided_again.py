"""Whatever is asked, the job can decide the record of an answer, and decides it alike: no server is accused wrongly."""

import json
from random import Random
from typing import Any

import pytest

from policy import decode_json
from streaming.enforcer.answered import AnsweredEvaluator, EvaluatorAtOffsets
from streaming.enforcer.evaluator import EvaluationContext, Evaluator, Source
from streaming.pdp.evaluation import evaluate
from streaming.pdp.reading import AnswerContext, Read, suspend_aware_clock
from streaming.pdp.recording import answered_record
from streaming.records.answered import ANSWER_SKEW_MS
from streaming.records.avro import Reader
from streaming.records.formats import JSON_ALONE
from streaming.serve import authzen
from streaming.settings import Limits
from tests.fuzz.mutation import to_json
from tests.fuzz.samples import World, build, draw_sample, system_of
from tests.fuzz.targets.judged import AT, READ
from tests.fuzz.targets.requests import TRUSTS, draw_request

WORLDS, REQUESTS = 40, 25
OFFSETS = {"policies": READ["policies"]}
MOMENTS: tuple[Any, ...] = (AT, AT - 1, AT + 1, "2026-11-21T10:00:00Z", None, 1.5, "x", True, -1)
DEMANDED: tuple[Any, ...] = (READ, {"policies": {"0": 42}}, {"facts": {"0": 8}}, {"x": {"0": 1}}, {}, None, [])
STRAY: tuple[dict[str, Any], ...] = ({}, {}, {"Answered": 1}, {"sid": "s"}, {"options": None}, {"evaluations": [{}, 1]})


@pytest.mark.parametrize("number", range(WORLDS))
def test_the_job_decides_the_record_of_each_answer_alike(number: int) -> None:
    dice = Random(f"decided again {number}")
    world = build(draw_sample(dice))
    trust = TRUSTS[number % len(TRUSTS)] - {"time"}
    evaluator, answered = Evaluator(world.snapshot, Limits()), 0
    for offset in range(REQUESTS):
        asked = _asked(dice, world, offset)
        answer = (_served if dice.random() < 0.5 else _decided_here)(asked, world, trust)
        if answer is None:
            continue
        answered += 1
        at = AT + dice.choice((0, 1, ANSWER_SKEW_MS, -ANSWER_SKEW_MS))
        context = EvaluationContext(world.snapshot.version, OFFSETS, READ["facts"]["0"], READ, at + 60_000)
        source = Source("answered", 0, "topic-id", trust, 1)
        job = AnsweredEvaluator(
            evaluator,
            lambda *_: EvaluatorAtOffsets(evaluator, None, True),
            source,
            context,
            "facts",
            ANSWER_SKEW_MS,
            Reader(JSON_ALONE),
        )
        output, _, value, headers = job.decide(None, answer, None, offset, at)
        assert output == 0, (asked, headers)
        findings = json.loads(value or b"")["answered"]
        assert findings.get("agrees") or not findings["verified"], asked
    assert answered > REQUESTS // 5, "most are answered"


def _asked(dice: Random, world: World, number: int) -> bytes:
    request = draw_request(dice, world, number)
    if isinstance(request, dict):
        request = {**request, **dice.choice(STRAY)}
        for name in ("time", "deadline"):
            if dice.random() < 0.3:
                request[name] = dice.choice(MOMENTS)
        if dice.random() < 0.2:
            request["context"] = {"min_policy_offsets": dice.choice(DEMANDED)}
    return to_json(dice, request)


def _context(world: World, trust: frozenset[str]) -> AnswerContext:
    return AnswerContext(Read(world.snapshot, suspend_aware_clock(), OFFSETS, 7, READ), AT, "bounded", 0.0, 15.0, trust)


def _served(asked: bytes, world: World, trust: frozenset[str]) -> bytes | None:
    """The record of a server's answer; None: it refuses the request."""
    rules, answer_context = authzen.Rules((), system_of(world.sample), trust), _context(world, trust)
    try:
        request = authzen.parse_evaluations(asked, "r-1", "", rules)
        decision, _ = authzen.answer(request, answer_context, rules)
    except authzen.BadRequest:
        return None
    return answered_record(request.body, decision, answer_context, "pdp")


def _decided_here(asked: bytes, world: World, trust: frozenset[str]) -> bytes | None:
    """The record of a local client's answer; None: it records none."""
    try:
        request = decode_json(asked)
    except (ValueError, RecursionError):
        return None
    if not isinstance(request, dict):
        return None
    answer_context = _context(world, trust)
    decision = evaluate(request, answer_context)
    if not decision.evaluations and decision.reasons[0].code == "malformed-request":
        return None
    return answered_record(request, decision, answer_context, "shop")
