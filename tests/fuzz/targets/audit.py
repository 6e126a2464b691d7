"""Audit events, and what the monitor reads: verdicts, decisions and dead letters."""

import contextlib
from random import Random
from typing import Any

import msgspec

from policy.core.request import MalformedRequest, Request
from policy.core.times import to_ms
from streaming.enforcer.answers import TIME
from streaming.enforcer.auditing import AuditAnswers, AuditEvaluator
from streaming.enforcer.evaluator import EvaluationContext, Evaluator, Source
from streaming.monitor.intake import Intake
from streaming.records.audit import Verdict, decode_verdict, read_event
from streaming.records.avro import Reader, Undecodable
from streaming.records.size_gate import fits, record_size
from streaming.settings import DEFAULT_TRUST
from tests.fuzz.harness import Execution, Violation
from tests.fuzz.mutation import FAULTY, OTHERS, mutate_bytes, mutate_data, to_json
from tests.fuzz.samples import system_of, words
from tests.fuzz.targets.judged import (
    AT,
    LIMITS,
    READ,
    Worlds,
    by_reference,
    check_dead_letter,
    compare,
    draw_headers,
    encoded,
    formats,
    with_secret,
)
from tests.fuzz.targets.requests import TRUSTS, draw_request, limits_of

VERDICTS, LETTERS = 1, 2
OLDEST = 5  # ms: of what happened before, no policies are known
WINDOW = 60_000
EVENTS = ("login", "logout", "job.started", "job.stopped", "login", "other", None, 7)


class AuditEvents:
    """Records of an audit topic as a worker takes them, and their verdicts as the monitor does."""

    name, share, records = "audit-events", 40, 1

    def __init__(self, seed: str) -> None:
        self._worlds = Worlds(f"{seed} {self.name}")
        self._intake = Intake("decisions", "verdicts", WINDOW)

    def portable(self, given: Any) -> Any:
        """The input without what comes from the seed."""
        return self._worlds.portable(given)

    def draw(self, dice: Random, number: int, deep: bool) -> Any:
        """An event of an access or of a life cycle."""
        block = self._worlds.number_of(number)
        event = draw_event(dice, self._worlds.get(block), number)
        value = None if dice.randrange(100) == 0 else encoded(dice, "audit-event", event, deep)
        key = dice.choice((None, b"k", mutate_bytes(dice, b"key")))
        at = dice.choice((AT, AT, AT, 0, OLDEST, 3))
        trust = sorted(TRUSTS[block % len(TRUSTS)])
        limits = limits_of(block)
        record = {"key": key, "value": value, "headers": draw_headers(dice), "at": at}
        return {"world": block, "trust": trust, "limits": limits, **record}

    def run(self, given: Any) -> Execution:
        """Raises Violation."""
        snapshot, trust, limits = (
            self._worlds.get(given["world"]).snapshot,
            frozenset(given["trust"]),
            LIMITS[given["limits"]],
        )
        source = Source("audit", 0, "topic-id", trust, LETTERS)
        answers = AuditAnswers(snapshot, trust, 9)
        reader = Reader(formats("audit-event"))
        partition_evaluator = AuditEvaluator(
            source, VERDICTS, lambda at: answers if at >= OLDEST else None, limits, reader
        )
        key, value, at, headers = given["key"], given["value"], given["at"], given["headers"]
        listed = None if headers is None else [{"key": name, "value": text} for name, text in headers]
        number, made_key, made, made_headers = partition_evaluator.decide(key, value, listed, 17, at)
        try:
            event = read_event(value, key, limits, reader)
        except MalformedRequest:
            event = None
        if number == LETTERS:
            check_dead_letter(key, value, headers, (made_key, made, made_headers), limits, 17)
            return Execution(event is not None, True)
        if event is None:
            raise Violation(f"decision: what is no audit event has a verdict: {made!r}")
        size = record_size(made_key, made, made_headers)
        if not fits(size, limits.record_out):
            raise Violation(f"size: a verdict of {size} bytes; at most {limits.record_out}")
        list(self._intake._inputs("verdicts", 0, 17, at, made))
        verdict = decode_verdict(made or b"")
        if not isinstance(verdict, Verdict):
            return Execution()
        moment = at if event.time is None else min(at, to_ms(event.time))
        wanted = ("unknown",)
        if moment >= OLDEST:
            assert event.subject is not None
            assert event.action is not None
            assert event.resource is not None
            parts = (event.subject, event.action, event.resource, event.context, moment)
            wanted = by_reference(snapshot, Request(event.id, event.system, *parts), trust | TIME)
        if (verdict.outcome, wanted) == ("unknown", ("error",)):
            return Execution()  # facts of that time are not known any more: the reference has one word for both
        compare((verdict.outcome,), wanted, {reason.code for reason in verdict.reasons})
        return Execution(allows=wanted.count("allow"))


def draw_event(dice: Random, world: Any, number: int) -> Any:
    """An event about the world."""
    event = draw_request(dice, world, number)
    if not isinstance(event, dict):
        return event
    event = {**event, "outcome": dice.choice(("success", "success", "failure"))}
    if dice.random() < 0.2:
        event["event"] = dice.choice(EVENTS)
    if dice.random() < 0.2:
        event["time"] = dice.choice((0, AT - 5, AT + 5, "2020-01-01T00:00:00Z", *FAULTY[-10:], *OTHERS))
    if dice.random() < 0.1:
        event["outcome"] = dice.choice((None, "allow", *OTHERS))
    return event


class MonitorRecords:
    """What the monitor reads: records that the job wrote, and records that only look like them, which it leaves out."""

    name, share, records = "monitor-records", 12, 1

    def __init__(self, seed: str) -> None:
        self._worlds = Worlds(f"{seed} {self.name}")
        self._intake = Intake("decisions", "verdicts", WINDOW, formats("decision"))

    def portable(self, given: Any) -> Any:
        """The input without what comes from the seed."""
        return given

    def draw(self, dice: Random, number: int, deep: bool) -> Any:
        """A decision or a verdict, changed."""
        world = self._worlds.get(self._worlds.number_of(number))
        topic = dice.choice(("decisions", "verdicts", "verdicts", "dlq"))
        value = _written(dice, topic, world, number)
        genuine = deep and dice.random() < 0.3
        if deep and not genuine:
            value = to_json(dice, mutate_data(dice, msgspec.json.decode(value), words(system_of(world.sample))))
        elif not deep:
            value = mutate_bytes(dice, value)
        return {"topic": topic, "value": value, "genuine": genuine}

    def run(self, given: Any) -> Execution:
        """Raises what the intake raises but for Avro of unknown schemas; of genuine records also what it leaves out."""
        record = given["topic"], 0, 17, AT, given["value"]
        try:
            list(self._intake._inputs(*record))
        except (ValueError, RecursionError, Undecodable):
            if given["genuine"]:
                raise
            with contextlib.suppress(Undecodable):
                list(self._intake.read(*record))
            return Execution(False, True)
        return Execution()


def _written(dice: Random, topic: str, world: Any, number: int) -> bytes:
    """A record as the job writes it."""
    request = with_secret(dice, draw_request(dice, world, number))
    request = request if isinstance(request, dict) else {}
    snapshot, limits = world.snapshot, LIMITS[0]
    value: bytes | None
    if topic == "verdicts":
        event = to_json(dice, {**request, "outcome": "success"})
        source = Source("audit", 0, "topic-id", DEFAULT_TRUST, LETTERS)
        answers = AuditAnswers(snapshot, DEFAULT_TRUST, 9)
        made, _, value, _ = AuditEvaluator(source, VERDICTS, lambda _at: answers, limits).decide(
            b"k", event, None, 17, AT
        )
        wrong = made == LETTERS
    else:
        evaluator = Evaluator(snapshot, limits).for_partition(
            Source("requests", 0, "topic-id", DEFAULT_TRUST, LETTERS),
            EvaluationContext(snapshot.version, READ, 7, READ, AT),
        )
        made, _, value, _ = evaluator.decide(b"k", to_json(dice, request), None, 17, AT)
        wrong = made == LETTERS
    if wrong or value is None:
        return b'{"kind":"tick","time":5}' if topic == "verdicts" else _DECISION
    return value


_DECISION = b'{"id":"a","system":"lenses6","time":"2026-11-21T10:00:00.000Z","context":{"outcome":"deny"}}'
