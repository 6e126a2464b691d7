"""Requests as records: short forms are completed, and each has a deadline, so that no late answer allows."""

import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

import msgspec

from policy import MalformedRequest
from policy.testing import CaseFileError, full_request
from streaming.client.guarding import Subject, acting_subject
from streaming.records.audit import read_event
from streaming.records.avro import Reader
from streaming.records.formats import JSON_ALONE, key_of
from streaming.settings import Limits
from streaming.topics import Offsets

NAMES = ("traceparent", "tracestate")

Header = tuple[str, str | bytes | None]  # as Kafka's clients take them


def trace_headers(traceparent: str | None = None, tracestate: str | None = None) -> list[Header]:
    """The given trace, else that of OpenTelemetry's current span, else none."""
    context = {"traceparent": traceparent, "tracestate": tracestate} if traceparent else _current()
    return [(name, text.encode("ascii", "replace")) for name in NAMES if (text := context.get(name))]


def _current() -> dict[str, str | None]:
    """A caller with a current span has imported OpenTelemetry; others do not need it."""
    if "opentelemetry.trace" not in sys.modules:
        return {}
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier: dict[str, str | None] = {}
    TraceContextTextMapPropagator().inject(carrier)
    return carrier


NAMES_OFFSETS = "min_policy_offsets"


class Fields(TypedDict, total=False):
    """A request in short. Texts stand for the ids (of an action, the name); mappings are taken as they are.

    `groups`, `roles`, `token`, `organization` are claims about the subject; `properties` are the resource's.
    `evaluations`: several questions in one record (AuthZEN), for which the other fields are the defaults;
    `options`: how they are evaluated.
    """

    id: str
    system: str
    subject: Subject
    action: str | Mapping[str, Any]
    resource: str | Mapping[str, Any]
    context: Mapping[str, Any]
    properties: Mapping[str, Any]
    groups: Sequence[str]
    roles: Sequence[str]
    token: Mapping[str, Any]
    organization: str
    evaluations: Sequence[Mapping[str, Any]]
    options: Mapping[str, Any]
    time: str | int
    deadline: str | int


class RequestFields(Fields, total=False):
    """A request in short, and how it is sent.

    `min_policy_offsets`: what publishing returned; the request is not decided under older policies. `raise_on_error`:
    raise NotDecided instead of returning an error. `traceparent`, `tracestate`: instead of those of the current span.
    """

    min_policy_offsets: Offsets
    raise_on_error: bool
    traceparent: str
    tracestate: str


HOW = frozenset(RequestFields.__annotations__) - frozenset(Fields.__annotations__)


class ProducerRecord(msgspec.Struct, frozen=True):
    """A record to be sent. `items`: of a request, how many evaluations it has; `deadline`: the request's."""

    topic: str
    key: bytes | None
    value: bytes
    headers: list[Header]
    id: str
    items: int = 0
    deadline: Any = None


class InvalidRequest(Exception):
    """There is no request to send. The answer is an error."""

    def __init__(self, request_id: str, code: str, message: str, items: int = 0) -> None:
        super().__init__(message)
        self.code = code
        self.record = ProducerRecord("", None, b"", [], request_id, items)


def request_record(
    topic: str, request: Mapping[str, Any] | None, timeout: float, fields: Mapping[str, Any]
) -> ProducerRecord:
    """The record of a whole request, or of one in short. It gets an id and a deadline where it has none.

    Raises TypeError for what no service can mean, and InvalidRequest for values that make no request.
    """
    how = {name: fields[name] for name in HOW & fields.keys()}
    short = {name: value for name, value in fields.items() if name not in HOW}
    if request is not None and short:
        raise TypeError(f"a whole request and {', '.join(short)}: give one or the other")
    whole = dict(_written_out(short) if request is None else request)
    whole.setdefault("id", str(uuid.uuid4()))
    whole.setdefault("deadline", int((time.time() + timeout) * 1000))
    if how.get(NAMES_OFFSETS) is not None:
        _demand(whole, how[NAMES_OFFSETS])
    headers = trace_headers(how.get("traceparent"), how.get("tracestate"))
    evaluations = whole.get("evaluations")
    items = len(evaluations) if isinstance(evaluations, Sequence) else 0
    return _encoded(topic, whole, headers, items)


def _written_out(short: dict[str, Any]) -> dict[str, Any]:
    if "system" not in short:
        raise TypeError("system: required, such as lenses6; or give a whole request")
    subject = short.get("subject", acting_subject())
    if not subject and "evaluations" not in short:
        message = "no subject: call within `with acting_as(…)`, or give `subject`"
        raise InvalidRequest(str(short.get("id", "")), "no-subject", message)
    system = short["system"]
    fields = {name: value for name, value in short.items() if name != "system" and value is not None}
    if "evaluations" in fields:
        fields["evaluations"] = list(fields["evaluations"])
    try:
        request = full_request({**fields, **({"subject": subject} if subject else {})}, system)
    except CaseFileError as error:
        raise TypeError(str(error)) from None
    if "id" not in short:
        del request["id"]
    return request


def _demand(request: dict[str, Any], offsets: Offsets) -> None:
    """Name the offsets in the context, and in those of the items that have one of their own."""
    request["context"] = _context_demanding(request.get("context") or {}, offsets)
    if request.get("evaluations"):
        request["evaluations"] = [_item_demanding(item, offsets) for item in request["evaluations"]]


def _item_demanding(item: Any, offsets: Offsets) -> Any:
    if not isinstance(item, Mapping) or not isinstance(item.get("context"), Mapping):
        return item
    return {**item, "context": _context_demanding(item["context"], offsets)}


def _context_demanding(context: Mapping[str, Any], offsets: Offsets) -> dict[str, Any]:
    """Raises TypeError where it names offsets already: they may be older ones."""
    if NAMES_OFFSETS in context:
        raise TypeError(f"{NAMES_OFFSETS} stands in the context too: give one or the other")
    return {**context, NAMES_OFFSETS: offsets}


def _encoded(topic: str, whole: dict[str, Any], headers: list[Header], items: int) -> ProducerRecord:
    id_ = whole["id"] if isinstance(whole["id"], str) else ""
    try:
        value, deadline = msgspec.json.encode(whole), whole["deadline"]
        return ProducerRecord(topic, key_of(whole.get("subject")), value, headers, id_, items, deadline)
    except (TypeError, ValueError, RecursionError, OverflowError) as error:
        raise InvalidRequest(id_, "malformed-request", f"the request cannot be written: {error}", items) from error


def event_record(topic: str, event: Mapping[str, Any], decision_id: str | None) -> ProducerRecord:
    """The record of an audit event in the form of the contracts. It gets an id and the time where it has none.

    Its subject is that of `acting_as` where it names none. Raises ValueError, as the job would refuse it.
    """
    whole = {"id": str(uuid.uuid4()), "time": int(time.time() * 1000), **event}
    if "subject" not in whole and (subject := acting_subject()) is not None:
        whole["subject"] = {"type": "user", "id": subject} if isinstance(subject, str) else subject
    if decision_id is not None:
        whole["decision_id"] = decision_id
    try:
        value = msgspec.json.encode(whole)
        key = key_of(whole.get("subject")) or key_of(whole.get("resource"))
        read_event(value, key, Limits(), Reader(JSON_ALONE))
    except (TypeError, ValueError, RecursionError, OverflowError, MalformedRequest) as error:
        raise ValueError(str(error)) from error
    return ProducerRecord(topic, key, value, trace_headers(), str(whole["id"]))
