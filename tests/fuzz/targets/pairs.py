"""Two requests that differ in one field, one after the other: what is cached of the first never answers the second.

Every way of asking: `policy.decide`, a worker with JSON and Avro, audit events, the server, the client that decides
within an application; alone and in a batch. Cold answers come from a snapshot and an evaluator that prepare nothing.
"""

import itertools
from random import Random
from typing import Any

from policy import Decision, MalformedRequest, Reason, Snapshot, answer, decide, parse_request
from streaming.enforcer.answers import TIME
from streaming.enforcer.auditing import AuditAnswers, AuditEvaluator
from streaming.enforcer.evaluator import EvaluationContext, Evaluator, PartitionEvaluator, Source
from streaming.enforcer.source import Records
from streaming.pdp.evaluation import evaluate
from streaming.pdp.reading import AnswerContext, Read
from streaming.records.avro import Reader, Unencodable, Writer
from streaming.records.formats import JSON_ALONE
from streaming.serve import authzen
from tests.fuzz.harness import Execution, Violation
from tests.fuzz.mutation import OTHERS, mutate_text, part_at, paths, replaced
from tests.fuzz.samples import World, all_requests, build, words
from tests.fuzz.samples import system_of as _system_of
from tests.fuzz.targets.judged import AT, LIMITS, READ, Worlds
from tests.fuzz.targets.requests import TRUSTS, draw_request, in_order
from tests.stream.arrow import records_at

WAYS = ("decide", "batch", "json", "json", "avro", "audit", "serve", "client")
CONFUSABLE: tuple[Any, ...] = (0, False, 0.0, "0", 1, True, 1.0, "1", None, "", [], {}, "null", -0.0)
"""Values that a key of a cache may take for each other."""

LEFT_OUT = object()
VERDICTS, LETTERS = 0, 1


class Pairs:
    """See the module."""

    name, share, records = "pairs", 200, 16

    def __init__(self, seed: str) -> None:
        self._worlds = Worlds(f"{seed} {self.name}")
        self._warm: tuple[Any, Asked] | None = None

    def portable(self, given: Any) -> Any:
        """The input without what comes from the seed."""
        return self._worlds.portable(given)

    def draw(self, dice: Random, number: int, deep: bool) -> Any:
        """Some pairs, each with the way in which it is asked. Those of one that is not deep differ in type."""
        block = self._worlds.number_of(number)
        world, pairs = self._worlds.get(block), list[Any]()
        vocabulary = world.words or words(_system_of(world.sample))
        for _ in range(self.records):
            drawn = draw_request(dice, world, number)
            request = drawn if isinstance(drawn, dict) and len(drawn) > 1 else dice.choice(all_requests())
            pairs.append([dice.choice(WAYS), request, one_field_changed(dice, request, vocabulary, deep)])
        return {"world": block, "trust": sorted(TRUSTS[block % len(TRUSTS)]), "pairs": pairs}

    def run(self, given: Any) -> Execution:
        """Raises Violation where an answer depends on what was asked before."""
        world, trust = self._worlds.get(given["world"]), frozenset(given["trust"])
        asked = self._asked(given["world"], world, trust)
        allows = 0
        for way, *pair in given["pairs"]:
            cold = Asked(asked.cold, asked.cold, trust)
            for request in pair if way != "batch" else [_together(*pair)]:
                warm, expected = asked.warm_answer(way, request), cold.cold_answer(way, request)
                if warm != expected:
                    raise Violation(f"{way}: {warm!r} when warm, {expected!r} when cold, for {request!r}")
                allows += "allow" in str(warm)
        return Execution(len(given["pairs"]), 0, allows)

    def _asked(self, number: Any, world: World, trust: frozenset[str]) -> "Asked":
        """What the world's inputs before have warmed up."""
        if self._warm is None or not isinstance(number, int) or self._warm[0] != number:
            self._warm = number, Asked(world.snapshot, build(world.sample).snapshot, trust)
        return self._warm[1]


class Asked:
    """A snapshot with everything that keeps answers; `cold`: the same documents compiled once more."""

    def __init__(self, snapshot: Snapshot, cold: Snapshot, trust: frozenset[str]) -> None:
        self.snapshot, self.cold, self._trust = snapshot, cold, trust
        self._evaluator = Evaluator(snapshot, LIMITS[1])
        self._context = EvaluationContext(snapshot.version, {"policies": READ["policies"]}, 7, READ, AT)
        self._source = Source("requests", 0, "topic-id", trust, LETTERS)
        self._verdicts = AuditAnswers(snapshot, trust, 1000)

    def warm_answer(self, way: str, request: Any) -> Any:
        """The answer with all that is kept."""
        if way in ("decide", "batch"):
            return decide(self.snapshot, request, trust=self._trust).to_record()
        if way == "json":
            partition = self._evaluator.for_partition(self._source, self._context)
            return in_order(partition.decide_all(_records(_value(request))))[0]
        if way == "avro":
            partition = self._evaluator.for_partition(self._source, self._context)
            return partition.decide(b"k", _in_avro(request), None, 0, AT)
        if way == "audit":
            return self._auditor(AuditEvaluator).decide(b"k", _event(request), None, 0, AT)
        return _served(request, self.snapshot, self._trust) if way == "serve" else self._client(request)

    def cold_answer(self, way: str, request: Any) -> Any:
        """The answer of nothing but the documents."""
        if way in ("json", "avro"):
            partition = _Unprepared(
                self._evaluator, self._evaluator.answers(self._trust), self._source, self._context, Reader(JSON_ALONE)
            )
            return partition.decide(b"k", _value(request) if way == "json" else _in_avro(request), None, 0, AT)
        if way == "audit":
            return self._auditor(_UnpreparedVerdicts).decide(b"k", _event(request), None, 0, AT)
        if way in ("decide", "batch"):
            return _answered(self.cold, request, self._trust).to_record()
        trust = self._trust | TIME
        if way == "client":
            asked = _without_circumstances(request)
            try:
                parse_request(asked)  # its own time is replaced, but makes it no request where it is none
            except MalformedRequest as malformed:
                return _malformed(malformed).to_record()
            return _answered(self.cold, {**asked, "time": AT}, trust).to_record()
        try:
            body = authzen.parse_evaluations(_value(request), "r", "", _rules(request, self._trust)).body
        except authzen.BadRequest as refusal:
            return str(refusal)
        return _answered(self.cold, {**body, "time": AT}, trust).to_record()

    def _auditor(self, make: type[AuditEvaluator]) -> AuditEvaluator:
        source = Source("audit", 0, "topic-id", self._trust, LETTERS)
        return make(source, VERDICTS, lambda _at: self._verdicts, LIMITS[1])

    def _client(self, request: Any) -> Any:
        """As a client that decides within an application."""
        answer_context = AnswerContext(_read(self.snapshot), AT, "bounded", 0.0, 0.0, self._trust)
        return evaluate(_without_circumstances(request), answer_context).to_record()


class _Unprepared(PartitionEvaluator):
    def _answer(self, *_: Any) -> None:
        return None


class _UnpreparedVerdicts(AuditEvaluator):
    def _kept(self, *_: Any) -> None:
        return None


def _without_circumstances(request: Any) -> Any:
    """The request without what the client looks at before the policies: a deadline, and offsets to wait for."""
    kept = {name: value for name, value in request.items() if name not in ("deadline", "evaluations")}
    if isinstance(context := request.get("context"), dict):
        kept["context"] = {name: value for name, value in context.items() if name != "min_policy_offsets"}
    return kept


def _answered(snapshot: Snapshot, request: Any, trust: frozenset[str]) -> Decision:
    try:
        return answer(snapshot, parse_request(request), trust)
    except MalformedRequest as malformed:
        return _malformed(malformed)


def _malformed(malformed: MalformedRequest) -> Decision:
    return Decision("error", (Reason("malformed-request", str(malformed)),))


def _served(request: Any, snapshot: Snapshot, trust: frozenset[str]) -> Any:
    """The decision of the server, whose response names nothing else that is not the same for all."""
    try:
        evaluation = authzen.parse_evaluations(_value(request), "r", "", _rules(request, trust))
    except authzen.BadRequest as refusal:
        return str(refusal)
    decision = decide(snapshot, {**evaluation.body, "time": AT}, trust=trust | TIME)
    return decision.to_record()


def _rules(request: Any, trust: frozenset[str]) -> authzen.Rules:
    system = request.get("system")
    return authzen.Rules((), system if isinstance(system, str) and system else "lenses6", trust)


def _read(snapshot: Snapshot) -> Read:
    return Read(snapshot, 0.0, {"policies": READ["policies"]}, 7, {})


def _value(request: Any) -> bytes:
    return authzen.encode(request)


def _in_avro(request: Any) -> bytes:
    try:
        return _avro.encode(_value(request))
    except (Unencodable, ValueError):
        return _value(request)


_avro = Writer("request", "avro-single-object")


def _event(request: Any) -> bytes:
    return _value({**request, "outcome": "success"})


def _records(value: bytes) -> Records:
    return Records(records_at([(b"k", value, None, AT)]))


def _together(first: Any, second: Any) -> Any:
    """Both as items of one batch, twice each and mixed."""
    parts = ("subject", "action", "resource", "context")
    items = [{name: one[name] for name in parts if name in one} for one in (first, second)]
    rest = {name: value for name, value in first.items() if name not in (*parts, "options")}
    return {**rest, "evaluations": [*itertools.chain(items, reversed(items))]}


def one_field_changed(dice: Random, request: Any, vocabulary: list[str], deep: bool) -> Any:
    """The request with one part changed, left out, or added."""
    places = [path for path in paths(request) if path and path != ("id",)]
    path = dice.choice(places)
    part = part_at(request, path)
    new = _other(dice, part, request, vocabulary, deep)
    if new is LEFT_OUT:
        whole = part_at(request, path[:-1])
        kept = whole[: path[-1]] + whole[path[-1] + 1 :] if isinstance(whole, list) else {**whole}
        if isinstance(kept, dict):
            del kept[path[-1]]
        return replaced(request, path[:-1], kept)
    return replaced(request, path, new)


def _other(dice: Random, part: Any, request: Any, vocabulary: list[str], deep: bool) -> Any:
    what = dice.randrange(8)
    if what == 0:
        return LEFT_OUT
    if what == 1 or not deep:
        return dice.choice((*CONFUSABLE, *OTHERS))
    if what == 2 and isinstance(resource := request.get("resource"), dict):
        return resource.get("id")
    if isinstance(part, dict):
        return {**part, dice.choice(vocabulary or ["a"]): dice.choice((*CONFUSABLE, *vocabulary[:20]))}
    if isinstance(part, list):
        return [*part, dice.choice(vocabulary or ["a"])] if what < 5 else list(reversed(part))
    if isinstance(part, str) and what < 6:
        return mutate_text(dice, part)
    return dice.choice(vocabulary or ["a"])
