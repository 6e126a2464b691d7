"""A request that was answered elsewhere: the answer, and by which policies it was given."""

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from policy import CLAIMS, REQUEST_NAMES, MalformedRequest, Outcome, check_letter_case, to_ms
from streaming.topics import Offsets

FreshnessKind = Literal["bounded", "min_policy_offsets", "full"]

BY_CHARACTERS = 256
OFFSETS_BYTES = 4 << 10  # more policy topics than any cluster has
ITEMS = 1000
ANSWER_SKEW_MS = 5_000  # by which an answer's time may differ from its record's: of clocks that NTP keeps

NOTHING_READ = {"0": -1}


class Freshness(msgspec.Struct, frozen=True):
    """How new the policies had to be. `age_ms`: how long before the answer the ends were fetched up to which they were
    read; `max_ms`: the most that it may be.
    """

    kind: FreshnessKind
    age_ms: int
    max_ms: int


class ItemAnswer(msgspec.Struct, frozen=True):
    """The answer to an item of a batch."""

    decision: bool
    outcome: Outcome


class Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    """`answered` of a record. `policy_offsets`: JSON, see `offsets_in`. `time`: RFC 3339 or ms.

    `trust`: the claims that the caller might make; None: those that the topic's producers may make.
    `evaluations`: of a batch, in order.
    """

    by: str
    time: str | int
    decision: bool
    outcome: Outcome
    policy_version: str
    policy_offsets: msgspec.Raw
    facts_offset: int
    freshness: Freshness
    trust: tuple[str, ...] | None = None
    evaluations: tuple[ItemAnswer, ...] = ()

    @property
    def at(self) -> int:
        """Its time in ms; raises ValueError."""
        return to_ms(self.time)

    def decided_at(self, recorded_at: int) -> int:
        """The moment (ms) at which the job decides the request again, whose record came at another one."""
        return self.at if abs(self.at - recorded_at) <= ANSWER_SKEW_MS else recorded_at

    def claims(self, trust: frozenset[str]) -> frozenset[str]:
        """What counts of the request, where the producers of its topic may claim `trust`."""
        return trust if self.trust is None else trust.intersection(self.trust)


class _Record(msgspec.Struct):
    answered: Answer


RECORD_NAMES = REQUEST_NAMES | {"answered"}
ANSWER_NAMES = frozenset(Answer.__struct_fields__)

_decode = msgspec.json.Decoder(_Record).decode
_offsets = msgspec.json.Decoder(dict[str, dict[str, int]])


def read_answer(value: bytes) -> Answer:
    """The answer in a record in JSON. Raises MalformedRequest."""
    try:
        record: dict[str, Any] = msgspec.json.decode(value)
        check_letter_case(record, RECORD_NAMES)
        check_letter_case(record.get("answered"), ANSWER_NAMES)
        answer = _decode(value).answered
        answer.at  # noqa: B018  # raises
    except (ValueError, RecursionError) as error:
        raise MalformedRequest(f"not an answered request: {error}") from error
    if wrong := _wrong(answer):
        raise MalformedRequest(f"not an answered request: answered.{wrong}")
    return answer


def _wrong(answer: Answer) -> str | None:
    """The field that is wrong, and why."""
    if not 0 < len(answer.by) <= BY_CHARACTERS:
        return f"by: must have 1 to {BY_CHARACTERS} characters"
    if len(answer.policy_offsets) > OFFSETS_BYTES:
        return f"policy_offsets: more than {OFFSETS_BYTES} bytes"
    if len(answer.evaluations) > ITEMS:
        return f"evaluations: {len(answer.evaluations)}; at most {ITEMS}"
    answers: tuple[Answer | ItemAnswer, ...] = (answer, *answer.evaluations)
    if any(one.decision != (one.outcome == "allow") for one in answers):
        return "decision: must be true where the outcome is allow, and false else"
    if answer.facts_offset < -1 or answer.freshness.age_ms < 0 or answer.freshness.max_ms < 0:
        return "facts_offset, freshness.age_ms, freshness.max_ms: must not be negative"
    if unknown := set(answer.trust or ()) - CLAIMS:
        return f"trust: {sorted(unknown)} are not among {sorted(CLAIMS)}"
    return None


def offsets_in(text: bytes) -> Offsets:
    """The newest offset of each policy topic, by partition. Raises MalformedRequest."""
    try:
        return _offsets.decode(text)
    except (ValueError, RecursionError) as error:
        raise MalformedRequest(f"not an answered request: answered.policy_offsets: {error}") from error


def offsets_key(offsets: Mapping[str, Mapping[str, int]]) -> bytes:
    """The same for the same offsets, however they are written: JSON. A topic of which nothing was read is left out."""
    read = {topic: partitions for topic, partitions in offsets.items() if partitions != NOTHING_READ}
    return msgspec.json.encode(read, order="sorted")


class Findings(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the job found of an answer. `verified`: it has decided the request by the policies that the answer names.

    `agrees`: with the same result; None: not verified. `stale`: policies were older than the answer's freshness allows.
    `misdated`: its time lies too far from the time at which the record came.
    """

    verified: bool = msgspec.field()
    agrees: bool | None = None
    stale: bool = False
    misdated: bool = False


def encode_findings(answer: Answer, findings: Findings) -> bytes:
    """`answered` of a decision record, JSON. Fields of the record that are not known are left out."""
    # Both are objects that are never empty.
    return b"%b,%b" % (_encode(answer)[:-1], _encode(findings)[1:])


_encode: Any = msgspec.json.encode
