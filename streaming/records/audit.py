"""Audit events, which services report, and verdicts, which the enforcer reports on them to the monitor (contracts)."""

from collections.abc import Callable
from typing import Annotated, Any, Literal

import msgspec

from policy import (
    LAST_MS,
    Action,
    DocumentStore,
    MalformedRequest,
    Outcome,
    Reason,
    Resource,
    Subject,
    all_systems,
    check_letter_case,
    check_nesting,
    decode_json,
    to_ms,
)
from streaming.records.avro import Reader, Undecodable, is_avro
from streaming.records.decision import ActionName, Entity
from streaming.settings import Limits

Event = Literal["login", "logout", "job.started", "job.stopped"]
OF_SUBJECT = ("login", "logout")
OF_RESOURCE = ("job.started", "job.stopped")


class AuditEvent(msgspec.Struct, kw_only=True):
    """An audit event as its record has it (contracts, "Audit event"); unknown fields are ignored."""

    id: str
    system: str
    subject: Subject | None = None
    action: Action | None = None
    resource: Resource | None = None
    context: dict[str, Any] = {}
    time: str | int | None = None
    outcome: Literal["success", "failure"] | None = None
    decision_id: str | None = None
    event: Event | None = None


EVENT_NAMES = frozenset(AuditEvent.__struct_fields__)


def read_event(value: bytes | None, key: bytes | None, limits: Limits, reader: Reader) -> AuditEvent:
    """The audit event in a record, in JSON or Avro; raises MalformedRequest naming what is wrong."""
    if value is None:
        raise MalformedRequest("not an audit event: the record has no value")
    size = len(value) + len(key or b"")
    if size > limits.record_in:
        raise MalformedRequest(f"not an audit event: {size} bytes; at most {limits.record_in}")
    try:
        value = reader.transcode("audit-event", value) if is_avro(value) else value
        plain = decode_json(value)
        check_nesting(plain)
        check_letter_case(plain, EVENT_NAMES)
        event = msgspec.convert(plain, AuditEvent)
        _check(event)
    except (ValueError, RecursionError, Undecodable) as error:
        raise MalformedRequest(f"not an audit event: {error}") from error
    return event


def _check(event: AuditEvent) -> None:
    """Raise ValueError unless all fields that an event of its kind requires are there."""
    if not event.id or not event.system:
        raise ValueError("id and system must not be empty")
    if event.event is None and event.outcome is None:
        raise ValueError("either `outcome` (success or failure) of an access or `event` of a life cycle is needed")
    if event.time is not None:
        to_ms(event.time)
    for field in _needed(event):
        part = getattr(event, field)
        if part is None:
            raise ValueError(f"Object missing required field `{field}`")
        if not all(getattr(part, name) for name in ("type", "id", "name") if hasattr(part, name)):
            raise ValueError(f"{field}: type, id and name must not be empty")


def _needed(event: AuditEvent) -> tuple[str, ...]:
    if event.event is None:
        return ("subject", "action", "resource")
    return ("subject",) if event.event in OF_SUBJECT else ("resource",)


Moment = Annotated[int, msgspec.Meta(ge=-1, le=LAST_MS)]
"""A record's timestamp or a time that can be written as text, ms; -1: Kafka's for none."""

VerdictOutcome = Outcome | Literal["unknown"]
"""The policies' answer, or that they are not known any more."""


class Verdict(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="access"):
    """An access that happened (or failed), with its evaluation. `time`: ms, when it happened.

    `id`: of the record, `event_id`: as its producer called it. `outcome`: the policy's answer at that time; `unknown`
    where the policies or facts of that time are not known any more. `by_oldest`: written by versions before 0.2, which
    evaluated under the oldest policies held what is older than them.
    """

    id: str
    event_id: str
    system: str
    subject: Entity
    action: ActionName
    resource: Entity
    time: Moment
    result: Literal["success", "failure"]
    outcome: VerdictOutcome
    reasons: tuple[Reason, ...]
    policy_version: str
    decision_id: str | None = None
    by_oldest: bool = False


class Lifecycle(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="lifecycle"):
    """A login, logout, start or end of a job. `time`: ms. `groups`, `roles`: at the login; None: none that count.

    `untrusted`: the kinds of claims that the event makes and the topic's producers may not make. That it happened is a
    claim of the kind `facts`: without this trust, or where it failed, the event becomes no fact. Older versions wrote
    no such field.
    """

    id: str
    event_id: str
    system: str
    event: str
    time: Moment
    subject: str | None = None
    resource: str | None = None
    groups: tuple[str, ...] | None = None
    roles: tuple[str, ...] | None = None
    untrusted: tuple[str, ...] = ()


SESSION, ACTIVE_JOB = "Session", "ActiveJob"
DERIVED_KINDS = frozenset({SESSION, ACTIVE_JOB})
"""The kinds of facts that the monitor derives from lifecycle events."""

Derived = tuple[str, str, str]
"""System, kind and name of such a fact."""


def derived_fact(event: Lifecycle) -> Derived | None:
    """The fact that the monitor derives from an event; None: there is none, or that it happened is not trusted."""
    system, kind, name = all_systems().get(event.system), "", None
    if event.event == "login":
        kind, name = SESSION, event.subject
    elif event.event in OF_RESOURCE:
        kind, name = ACTIVE_JOB, event.resource
    if not name or "facts" in event.untrusted or system is None or kind not in system.kinds:
        return None
    return event.system, kind, name


def check_derived_fact(event: Lifecycle) -> None:
    """Raise MalformedRequest where the job would refuse the fact of an event: it would be no fact, and raise an alert
    about a document that nobody has written.
    """
    if (fact := derived_fact(event)) is not None:
        system, kind, name = fact
        spec = {all_systems()[system].kinds[kind].since: event.time}
        refused = DocumentStore().put({"system": system, "kind": kind, "name": name, "spec": spec})
        if refused is not None:
            raise MalformedRequest(f"not an audit event: no {kind} can be derived: {'; '.join(refused.errors)}")


LAG_REPEATED_SECONDS = 300.0
"""How often the enforcer reports again that answered records are left: a monitor that lost its state waits for it."""


class Heartbeat(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="tick"):
    """All events up to `time` (ms) are written: time advances where no records come.

    `answered_lag`: whether answered records were left to decide then; None: as before. Older versions wrote no such
    field.
    """

    time: int
    answered_lag: bool | None = None


AnyVerdict = Verdict | Lifecycle | Heartbeat

encode_verdict: Callable[[AnyVerdict], bytes] = msgspec.json.Encoder().encode
"""A verdict as the record's value."""

decode_verdict: Callable[[bytes], AnyVerdict] = msgspec.json.Decoder(AnyVerdict).decode
"""The reverse; raises msgspec.DecodeError."""
