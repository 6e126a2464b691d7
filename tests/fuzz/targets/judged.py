"""What targets of records share: worlds by number, the reference's answer to a record, checks of dead letters."""

import functools
import re
from random import Random
from typing import Any

import msgspec

from policy.core.request import Batch, MalformedRequest, Request
from policy.evaluation import ANSWERS_KEPT, reference
from policy.store.snapshot import Snapshot
from streaming.enforcer.answers import TIME
from streaming.enforcer.requests import staleness
from streaming.records.avro import Reader, Undecodable, Unencodable, Writer, is_avro
from streaming.records.formats import Formats
from streaming.records.schemas import Kind, read
from streaming.records.size_gate import fits, record_size
from streaming.settings import Encoding, Limits
from streaming.verify.answers import read_request
from tests.fuzz.harness import Violation
from tests.fuzz.mutation import FAULTY, mutate_bytes, to_json
from tests.fuzz.samples import PER_WORLD, World, build, draw_sample, plain_sample, world_from

AT = 1_795_000_000_123
READ = {"policies": {"0": 41}, "facts": {"0": 7}}
KNOWN_ID, UNUSABLE_ID, NEW_ID = 1, 2, 3
LIMITS = (Limits(), Limits(), Limits(record_in=3000, record_out=1500, document=2000))
KEPT = (50, ANSWERS_KEPT, ANSWERS_KEPT)  # answers, beside these limits

SECRET = "canary-{:016x}"
NAMES = ("password", "client_secret", "access_token", "api_key", "Authorization", "sasl.jaas.config")
_NAMED = "|".join(map(re.escape, NAMES))
NAMED = re.compile(rf'(?i:"(?:{_NAMED})")\s*:\s*"(canary-[0-9a-f]{{16}})"'.encode())
IN_AVRO = re.compile(rf"(?:{_NAMED})[\x02-\x7f]{{1,2}}(canary-[0-9a-f]{{16}})".encode())
ANY_SECRET = re.compile(rb"canary-[0-9a-f]{16}")

Headers = list[Any]
Outcomes = tuple[str, ...]


class Worlds:
    """Worlds by number, each a function of the seed; one is held at a time."""

    def __init__(self, seed: str) -> None:
        self._seed = seed
        self._number = -1
        self._world: World | None = None

    def number_of(self, number: int) -> int:
        """The world of an input."""
        return number // PER_WORLD

    def get(self, given: Any) -> World:
        """The world with a number, or of the documents that were kept with an input."""
        if not isinstance(given, int):
            return world_from(given)
        if self._world is None or given != self._number:
            self._world, self._number = build(draw_sample(Random(f"{self._seed} world {given}"))), given
        return self._world

    def portable(self, given: Any) -> Any:
        """The input with its documents in place of the world's number."""
        world = given["world"]
        return {**given, "world": plain_sample(self.get(world).sample)} if isinstance(world, int) else given


def encoded(dice: Random, kind: Kind, value: Any, deep: bool) -> bytes:
    """A record's value in one of the encodings; one that is not deep is broken as bytes."""
    data = to_json(dice, value)
    if dice.random() < 0.15:
        data = _in_avro(dice, kind, data)
    return data if deep else mutate_bytes(dice, data)


def _in_avro(dice: Random, kind: Kind, data: bytes) -> bytes:
    choices: tuple[tuple[Encoding, int], ...] = (("avro-single-object", 0), ("avro-confluent", dice.randint(0, NEW_ID)))
    encoding, id_ = dice.choice(choices)
    try:
        return _writer(kind, encoding, id_).encode(data)
    except (Unencodable, ValueError, RecursionError):
        return data


@functools.cache
def _writer(kind: Kind, encoding: Encoding, id_: int) -> Writer:
    return Writer(kind, encoding, id_)


@functools.cache
def formats(kind: Kind) -> Formats:
    """One schema is known, one cannot be used."""
    return Formats(registry=True, known={KNOWN_ID: (read(f"avro/{kind}.avsc"),)}, unusable={UNUSABLE_ID: "no schema"})


def draw_headers(dice: Random) -> Headers | None:
    """Kafka headers: traces, secrets, and anything else."""
    if dice.random() < 0.6:
        return None
    trace = f"00-{dice.randrange(16**32):032x}-{dice.randrange(16**16):016x}-01".encode()
    found: Headers = []
    for _ in range(dice.choice((1, 1, 2, 5))):
        name = dice.choice(("traceparent", "tracestate", "traceparent", "content-type", *NAMES, *FAULTY[:30]))
        value = dice.choice((trace, trace, None, b"", b"00-1", b"\xff", b"x" * 2000, mutate_bytes(dice, trace)))
        found.append([name.encode("utf-8", "replace").decode(), value])
    if dice.random() < 0.3:
        found.append([dice.choice(NAMES), SECRET.format(dice.randrange(16**16)).encode()])
    return found


def with_secret(dice: Random, value: Any) -> Any:
    """The plain data with a secret in a field of its own."""
    if not isinstance(value, dict):
        return value
    named = {dice.choice(NAMES): SECRET.format(dice.randrange(16**16))}
    place = dice.choice(("", "context", "resource"))
    if isinstance(value.get(place), dict):
        return {**value, place: {**value[place], **named}}
    return {**value, **named}


def named_secrets(data: bytes) -> set[bytes]:
    """The secrets in a value, each of which has a name everywhere it is."""
    named = (*NAMED.findall(data), *(IN_AVRO.findall(data) if is_avro(data) else ()))
    return {secret for secret in set(named) if data.count(secret) == named.count(secret)}


def check_dead_letter(
    key: bytes | None, value: bytes | None, headers: Headers | None, made: Any, limits: Limits, offset: int
) -> None:
    """A dead letter is within the limit, says why and from where, and holds no secret."""
    made_key, made_value, made_headers = made
    size = record_size(made_key, made_value, made_headers)
    if not fits(size, limits.record_out):
        raise Violation(f"size: a dead letter of {size} bytes; at most {limits.record_out}")
    by_name = dict(made_headers)
    if (
        by_name.get("__connect.errors.offset") != str(offset).encode()
        or "__connect.errors.exception.message" not in by_name
    ):
        raise Violation("letter: a dead letter does not say where it is from, or why")
    secrets = named_secrets(value or b"")
    secrets |= {text for name, text in headers or () if name in NAMES and text and ANY_SECRET.fullmatch(text)}
    secrets -= set(ANY_SECRET.findall(key or b""))
    shown = b"".join((made_key or b"", made_value or b"", *(text or b"" for _, text in made_headers)))
    if leaked := sorted(secret for secret in secrets if secret in shown):
        raise Violation(f"secret: a dead letter shows {leaked[0].decode()}")


def expected(
    snapshot: Snapshot, trust: frozenset[str], key: bytes | None, value: bytes | None, at: int, limits: Limits
) -> Outcomes | None:
    """The reference's answer to a request record, of a batch with those of its items; None: it is no request."""
    if value is None or len(value) + len(key or b"") > limits.record_in:
        return None
    try:
        if is_avro(value):
            value = Reader(formats("request")).transcode("request", value)
        asked = read_request(value, at, trust)
    except (MalformedRequest, Undecodable):
        return None
    late = asked.envelope.deadline is not None and asked.envelope.deadline < AT
    if late or staleness(asked.dated, READ) is not None:
        return ("error",)
    return by_reference(snapshot, asked.dated, trust | TIME)


def by_reference(snapshot: Snapshot, asked: Request | Batch, trust: frozenset[str]) -> Outcomes:
    """The outcome by the reference evaluator; of a batch that of the record, then those of its items."""
    outcomes = reference.answer(snapshot, asked, trust)
    if isinstance(outcomes, str):
        return (outcomes,)
    first_permit = isinstance(asked, Batch) and asked.semantic == "permit_on_first_permit"
    counted = outcomes[-1:] if first_permit else outcomes
    return (next((one for one in ("error", "deny") if one in counted), "allow"), *outcomes)


def compare(found: Outcomes, wanted: Outcomes, codes: set[str]) -> None:
    """Raise Violation where an answer is not the reference's, which knows no limits (`codes`: the reasons')."""
    if found == wanted:
        return
    if len(found) == len(wanted):
        wider = [number for number, outcome in enumerate(found) if outcome == "allow" != wanted[number]]
    else:
        wider = [0] if "allow" in found else []
    if wider:
        raise Violation(f"allow: {found} where the reference says {wanted}")
    if not codes & {"too-many-objects", "answer-too-large"}:
        raise Violation(f"otherwise: {found} where the reference says {wanted}")


class _Context(msgspec.Struct):
    outcome: str
    reasons: list[dict[str, Any]]


class Answer(msgspec.Struct):
    """A decision record, or an evaluation, as far as it is compared."""

    decision: bool
    context: _Context
    evaluations: list["Answer"] = []
    request_id: str = ""

    def outcomes(self) -> Outcomes:
        """Its outcome and those of its evaluations."""
        for part in (self, *self.evaluations):
            if part.decision is not (part.context.outcome == "allow"):
                raise Violation(f"contradiction: decision {part.decision}, outcome {part.context.outcome}")
        return self.context.outcome, *(part.context.outcome for part in self.evaluations)

    def codes(self) -> set[str]:
        """The codes of all reasons."""
        return {reason["code"] for part in (self, *self.evaluations) for reason in part.context.reasons}


read_answer = msgspec.json.Decoder(Answer).decode
