"""Request records as a worker takes them: any bytes, by the fast path and the careful one, against the reference."""

import itertools
from random import Random
from typing import Any

from policy.core.request import CLAIMS
from streaming.enforcer.evaluator import EncodedEvaluator, EvaluationContext, Evaluator, PartitionEvaluator, Source
from streaming.enforcer.source import Records
from streaming.enforcer.worker import replace_too_large
from streaming.ops.tally import tally
from streaming.records.avro import Reader, is_avro
from streaming.records.formats import JSON_ALONE, Formats
from streaming.records.packing import DECISIONS, Outgoing, Packed, pack
from streaming.records.size_gate import fits, record_size
from streaming.settings import DEFAULT_TRUST
from tests.fuzz.harness import Execution, Violation
from tests.fuzz.mutation import FAULTY, OTHERS, mutate_bytes, mutate_data, mutate_text
from tests.fuzz.samples import Data, World, all_requests, system_of, words
from tests.fuzz.targets.judged import (
    AT,
    KEPT,
    LIMITS,
    READ,
    Worlds,
    check_dead_letter,
    compare,
    draw_headers,
    encoded,
    expected,
    formats,
    named_secrets,
    read_answer,
    with_secret,
)
from tests.stream.arrow import records_at
from tests.stream.packed import read_headers

LETTERS = 1
TRUSTS = (DEFAULT_TRUST, CLAIMS, frozenset[str](), CLAIMS - {"groups"}, CLAIMS - {"facts", "roles"})
SOURCE = "topic-id"
AMPLIFIED = 200  # one request of so many has an answer that is much larger than itself
ALIKE = 3  # records of an input are alike but for their ids, so that the fast path is taken


class Requests:
    """See the module."""

    name, share, records = "requests", 70, 8

    def __init__(self, seed: str) -> None:
        self._worlds = Worlds(f"{seed} {self.name}")
        self._evaluators: dict[Any, Evaluator] = {}

    def portable(self, given: Any) -> Any:
        """The input without what comes from the seed."""
        return self._worlds.portable(given)

    def draw(self, dice: Random, number: int, deep: bool) -> Any:
        """Some records of one topic, of which some are alike."""
        block = self._worlds.number_of(self.records * number)
        world = self._worlds.get(block)
        request, records = draw_request(dice, world, number), list[Any]()
        for copy in range(self.records):
            if copy % ALIKE == 0:
                request = draw_request(dice, world, self.records * number + copy)
            value: bytes | None = encoded(dice, "request", alike(dice, request, copy), deep)
            if dice.randrange(50) == 0:
                value = None
            key = dice.choice((None, b"k", b"", str(number).encode(), mutate_bytes(dice, b"key")))
            records.append([key, value, draw_headers(dice), AT + dice.choice((0, 0, -1000, 1, -AT))])
        trust = sorted(TRUSTS[block % len(TRUSTS)])
        return {
            "world": block,
            "trust": trust,
            "limits": limits_of(block),
            "avro": dice.random() < 0.1,
            "records": records,
        }

    def run(self, given: Any) -> Execution:
        """Decide the records as a worker does and compare every answer; raises Violation."""
        world, trust, limits = self._worlds.get(given["world"]), frozenset(given["trust"]), LIMITS[given["limits"]]
        source = Source("requests", 0, SOURCE, trust, LETTERS)
        context = EvaluationContext(world.snapshot.version, {"policies": READ["policies"]}, 7, READ, AT)
        partition_evaluator = self._evaluator(given, world).for_partition(source, context, Reader(formats("request")))
        sent = [(key, value, _headers(headers), at) for key, value, headers, at in given["records"]]
        records = Records(records_at(sent))
        made = (
            _in_avro(partition_evaluator, source, records, limits)
            if given["avro"]
            else partition_evaluator.decide_all(records)
        )
        partition_evaluator.counts["dead letter"] += replace_too_large(made, records, LETTERS, limits.record_out)
        tally("requests", AT, partition_evaluator.counts, records.times, records.some_headers())
        allows = past = 0
        for number, ((key, value, headers, at), outgoing) in enumerate(zip(sent, in_order(made), strict=True)):
            wanted = expected(world.snapshot, trust, key, value, at, limits)
            allows += _check(outgoing, key, value, headers, number, limits, wanted)
            past += wanted is not None
        return Execution(past, len(sent) - past, allows)

    def _evaluator(self, given: Any, world: World) -> Evaluator:
        """The one who has judged the world's inputs before, with the caches."""
        bounds = LIMITS[given["limits"]], KEPT[given["limits"]]
        if not isinstance(given["world"], int):
            return Evaluator(world.snapshot, *bounds)
        evaluator = self._evaluators.get(given["world"])
        if evaluator is None:
            self._evaluators.clear()
            evaluator = self._evaluators[given["world"]] = Evaluator(world.snapshot, *bounds)
        return evaluator


def limits_of(block: int) -> int:
    """Which of the limits hold for a block; mostly not the small ones."""
    return (0, 1, 0, 1, 2)[block // len(TRUSTS) % 5]


def _headers(headers: Any) -> Any:
    return None if headers is None else [(name, value) for name, value in headers]


def _in_avro(partition_evaluator: PartitionEvaluator, source: Source, records: Records, limits: Any) -> Packed:
    encoding = EncodedEvaluator(partition_evaluator, source, limits, Formats(output="avro-single-object"))
    return Packed([], [encoding.decide(*row) for row in records.rows()])


def in_order(packed: Packed) -> list[Outgoing]:
    """The records by their positions, each columns packed as it goes to the sender."""
    found: list[tuple[int, Outgoing]] = []
    for topic, columns in packed.batches():
        pack("topic", [("content-type", b"application/json")], columns)
        positions = range(len(columns.keys)) if columns.positions is None else columns.positions.tolist()
        headers = (encoded and read_headers(encoded) for encoded in columns.headers.to_pylist())
        outgoing = zip(
            itertools.repeat(topic), columns.keys.to_pylist(), columns.values.to_pylist(), headers, strict=False
        )
        found += zip(positions, outgoing, strict=True)
    return [record for _, record in sorted(found, key=lambda pair: pair[0])]


def _check(
    outgoing: Outgoing, key: bytes | None, value: bytes | None, headers: Any, offset: int, limits: Any, wanted: Any
) -> int:
    """Raise Violation unless a record is the right one; how many allows were compared."""
    number, made_key, made, made_headers = outgoing
    if number == LETTERS:
        check_dead_letter(key, value, headers, (made_key, made, made_headers), limits, offset)
        if wanted is None or b"bytes; at most" in dict(made_headers or ()).get(
            "__connect.errors.exception.message", b""
        ):
            return 0
        raise Violation(f"letter: a request is a dead letter, the reference says {wanted}: {made_headers}")
    assert number == DECISIONS
    if wanted is None:
        raise Violation(f"decision: what is no request was decided: {made!r}")
    size = record_size(made_key, made, made_headers)
    if not fits(size, limits.record_out) or made is None or made_key != key:
        raise Violation(f"size: a decision of {size} bytes; at most {limits.record_out}")
    answer = read_answer(Reader(JSON_ALONE).transcode("decision", made) if is_avro(made) else made)
    compare(answer.outcomes(), wanted, answer.codes())
    _check_carried(headers, made_headers)
    return answer.outcomes().count("allow")


def _check_carried(headers: Any, made: Any) -> None:
    """The last trace parent that has a value is carried over, and no header but those of traces."""
    traces = [text for name, text in headers or () if name == "traceparent" and text is not None and len(text) <= 1024]
    carried = dict(made or ())
    if carried.get("traceparent") != (traces[-1] if traces else None):
        raise Violation(f"headers: {made} for {headers}")
    if carried.keys() - {"traceparent", "tracestate", "content-type"}:
        raise Violation(f"headers: {made} are carried over")


def alike(dice: Random, request: Any, copy: int) -> Any:
    """The request with another id, and mostly about another resource."""
    again = {**request, "id": f"r-{copy}"} if isinstance(request, dict) else request
    resource = again.get("resource") if isinstance(again, dict) else None
    if isinstance(resource, dict) and isinstance(resource.get("id"), str) and dice.random() < 0.7:
        again = {**again, "resource": {**resource, "id": mutate_text(dice, resource["id"])}}
    return again


def draw_request(dice: Random, world: World, number: int) -> Any:
    """A request about the world, with some parts changed; now and then a batch, and with claims and secrets."""
    own = world.sample.requests or all_requests()
    request: Data = {"id": f"r-{number}", **dice.choice(own if dice.random() < 0.9 else all_requests())}
    vocabulary = world.words if dice.random() < 0.7 else words(system_of(world.sample))
    if dice.random() < 0.4 and vocabulary:
        request = _about_another(dice, request, vocabulary)
    elif dice.random() < 0.3:
        part = dice.choice(("subject", "action", "resource", "context", "subject", "resource"))
        if isinstance(request.get(part), dict):
            request = {**request, part: mutate_data(dice, request[part], vocabulary, times=1)}
    if dice.random() < 0.3:
        request = _claiming(dice, request, vocabulary)
    if dice.random() < 0.1:
        request = _several(dice, request, own, vocabulary)
    if dice.random() < 0.15:
        request = _dated(dice, request)
    if dice.random() < 0.1:
        request = mutate_data(dice, request, vocabulary)
    if dice.randrange(AMPLIFIED) == 0 and isinstance(request, dict):  # a mutation may have made it anything
        request = _amplified(dice, request)
    return with_secret(dice, request) if dice.random() < 0.15 else request


def _about_another(dice: Random, request: Data, vocabulary: list[str]) -> Data:
    """With another subject, action or resource, which is one of the world's or nearly so."""
    part = dice.choice(("subject", "action", "resource"))
    field = "name" if part == "action" else "id"
    entity = request.get(part)
    if not isinstance(entity, dict) or not isinstance(entity.get(field), str):
        return request
    text = mutate_text(dice, entity[field]) if dice.random() < 0.5 else dice.choice(vocabulary)
    return {**request, part: {**entity, field: text}}


def _claiming(dice: Random, request: Data, vocabulary: list[str]) -> Data:
    subject = request.get("subject")
    if not isinstance(subject, dict):
        return request
    names: Any = [dice.choice(vocabulary or ["a"]) for _ in range(dice.choice((1, 2, 5)))]
    if dice.randrange(10) == 0:
        names = dice.choice((*OTHERS, names[0], [names], [*names, None]))
    claim = dice.choice(("groups", "roles", "token", "organization", "login_at"))
    value = {"groups": names, "sub": dice.choice(vocabulary or ["a"])} if claim == "token" else names
    properties = subject.get("properties")
    kept = properties if isinstance(properties, dict) else {}
    return {**request, "subject": {**subject, "properties": {**kept, claim: value}}}


def _several(dice: Random, request: Data, own: Any, vocabulary: list[str]) -> Data:
    items: list[Any] = []
    for _ in range(dice.choice((1, 2, 3, 8))):
        other = dice.choice(own)
        names = [name for name in ("subject", "action", "resource", "context") if name in other]
        item = {name: other[name] for name in dice.sample(names, dice.randint(0, len(names)))}
        items.append(mutate_data(dice, item, vocabulary, times=1) if dice.random() < 0.3 else item)
    if dice.randrange(100) == 0:
        items *= 400
    semantic = dice.choice(("execute_all", "deny_on_first_deny", "permit_on_first_permit", "other", None))
    options = {} if semantic is None else {"options": {"evaluations_semantic": semantic}}
    return {**request, "evaluations": items, **options}


def _amplified(dice: Random, request: Data) -> Data:
    """A small request with a large answer: each of its evaluations has the same long resource, which is echoed."""
    resource = {"type": "lrn", "id": dice.choice(("\x01", "\x01", "a", '"')) * 2000}
    return {**request, "resource": resource, "evaluations": [{}] * dice.choice((900, 900, 1001))}


def _dated(dice: Random, request: Data) -> Data:
    field = dice.choice(("time", "deadline", "context"))
    if field == "context":
        wanted = dice.choice(({"policies": {"0": dice.randint(40, 43)}}, {"other": {"0": 1}}, *OTHERS))
        context = request.get("context")
        kept = context if isinstance(context, dict) else {}
        return {**request, "context": {**kept, "min_policy_offsets": wanted}}
    moments = (0, 1, 5, AT - 1, AT, AT + 1, "2026-11-18T11:06:40Z", "2026-11-18t11:06:40.999+23:59", *FAULTY[-12:])
    return {**request, field: dice.choice((*moments, *OTHERS))}


__all__ = ["Requests", "draw_request", "in_order", "named_secrets"]
