"""Decisions (contracts, "Decision"): their record as it is written, and as it is read."""

from collections.abc import Mapping
from typing import Any

import msgspec

from policy import Batch, Decision, DecisionContext, Outcome, Request, context_of
from streaming.records.answered import Findings

_encode = msgspec.json.encode


class Place(msgspec.Struct, frozen=True):
    """Where a record stands."""

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"offset {self.offset} of {self.topic}, partition {self.partition}"


class Answer(DecisionContext, frozen=True):
    """What was answered to a request or to one evaluation of a batch. `request`: see `requested`."""

    request: msgspec.Raw = msgspec.Raw(b"null")


class Context(Answer, frozen=True):
    """What the decision of a record rests on, too. `source`: its request's record."""

    policy_version: str = ""
    policy_offsets: dict[str, dict[str, int]] = {}
    facts_offset: int = -1
    source: Place | None = None
    enforced: bool = True


class Evaluation(msgspec.Struct, frozen=True):
    """The decision on one item of a batch."""

    context: Answer
    decision: bool = False


class AnsweredItem(msgspec.Struct, frozen=True):
    """The answer to one item of a batch."""

    outcome: Outcome


class Answered(Findings, frozen=True, kw_only=True):
    """An answer that was given outside of the job, by `by`, and what the job found of it. `time`: RFC 3339 or ms."""

    by: str
    outcome: Outcome
    time: str | int | None = None
    evaluations: tuple[AnsweredItem, ...] = ()


class DecisionRecord(msgspec.Struct, frozen=True):
    """The value of a decision's record, as far as it is there: only `context` must be, with an outcome."""

    context: Context
    decision: bool = False
    id: str = ""
    request_id: str = ""
    system: str = ""
    time: str = ""
    evaluations: tuple[Evaluation, ...] = ()
    answered: Answered | None = None

    @property
    def source(self) -> Place:
        """Where its request is. Raises ValueError for what is no record of the job's."""
        if self.context.source is None:
            raise ValueError("context.source: missing")
        return self.context.source

    @property
    def answers(self) -> tuple[Answer, ...]:
        """Of a batch those to its items, where it has them; else the one that there is."""
        return tuple(item.context for item in self.evaluations) or (self.context,)


class Entity(msgspec.Struct, frozen=True, omit_defaults=True):
    """A subject or resource."""

    type: str
    id: str
    properties: dict[str, Any] = {}


class ActionName(msgspec.Struct, frozen=True):
    """The action."""

    name: str


class Requested(msgspec.Struct, frozen=True):
    """The request as its decision repeats it. Properties of a subject may be secrets, and are left out."""

    subject: Entity
    action: ActionName
    resource: Entity


read_decision = msgspec.json.Decoder(DecisionRecord).decode
"""The decision in the value of a record, in JSON. Raises ValueError, and RecursionError."""

_decoder: msgspec.json.Decoder[Requested | None] = msgspec.json.Decoder(Requested | None)


def requested(answer: Answer) -> Requested | None:
    """The request of an answer; None: the record does not have it. Raises ValueError, and RecursionError."""
    return _decoder.decode(answer.request)


def read_plain_decision(value: bytes) -> dict[str, Any]:
    """The same decision as plain data: what `DecisionRecord` and `Requested` name has their types, or is absent.

    Raises ValueError, and RecursionError.
    """
    record, plain = read_decision(value), msgspec.json.decode(value, type=dict[str, Any])
    parts = (plain, *plain.get("evaluations", ()))
    for answer, part in zip((record.context, *(item.context for item in record.evaluations)), parts, strict=True):
        if requested(answer) is None:
            part["context"].pop("request", None)
    return plain


class _SourceAlone(msgspec.Struct):
    source: Place


class _Glance(msgspec.Struct):
    context: _SourceAlone
    request_id: str = ""


_glance = msgspec.json.Decoder(_Glance).decode


def glance(value: bytes) -> tuple[Place, str] | None:
    """The request's place and id from a record in JSON, whatever the rest of it is; None when it has none."""
    try:
        seen = _glance(value)
    except (ValueError, RecursionError):
        return None
    return seen.context.source, seen.request_id


def to_json(decision: Decision) -> bytes:
    """A decision as its record has it, up to and with `claims`."""
    context = _encode(context_of(decision))
    return b'"decision":%b,"context":%b' % (b"true" if decision.allowed else b"false", context[:-1])


def echo(request: Request) -> bytes:
    """The request as its decision repeats it: what follows `to_json`, as a `Requested`."""
    subject = {"type": request.subject.type, "id": request.subject.id}
    return b',"request":' + _encode({"subject": subject, "action": request.action, "resource": request.resource})


def evaluations(batch: Batch, decision: Decision) -> bytes:
    """The answers to the items that were decided, each with its own request."""
    answered = zip(batch.items, decision.evaluations, strict=False)
    parts = (
        b"{%b%b}}" % (to_json(given), echo(item) if isinstance(item, Request) else b"") for item, given in answered
    )
    return b',"evaluations":[%b]' % b",".join(parts)


class DecisionEnvelope(msgspec.Struct, frozen=True):
    """What all decisions on records of one partition in one batch begin and end with."""

    head: bytes
    tail: bytes

    @classmethod
    def of(cls, topic_id: str, context: Mapping[str, Any], topic: str, partition: int) -> "DecisionEnvelope":
        """`context`: the fields that say what the decisions rest on. `topic_id`, `partition`: of the requests."""
        fields = {**context, "source": {"topic": topic, "partition": partition, "offset": 0}}
        return cls(f'{{"id":"{topic_id}-{partition}-'.encode(), b"," + _encode(fields)[1:].removesuffix(b"0}}"))

    def write(
        self, offset: int, request_id: bytes, system: bytes, at: bytes, text: bytes, evaluations: bytes = b""
    ) -> bytes:
        """A decision record. `request_id`, `system`: as JSON; `at`: its time; `text`: answer and request."""
        return b'%b%d","request_id":%b,"system":%b,"time":"%b",%b%b%d}}%b}' % (
            *(self.head, offset, request_id, system, at, text),
            *(self.tail, offset, evaluations),
        )
