"""Audit events as their records have them: what services report (contracts, "Audit event")."""

from typing import Any, Literal

import msgspec

from policy import Action, MalformedRequest, Resource, Subject, check_nesting, to_ms
from streaming.records.avro import Reader, Undecodable, is_avro
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


def read_event(value: bytes | None, key: bytes | None, limits: Limits, reader: Reader) -> AuditEvent:
    """The audit event in a record, in JSON or Avro; raises MalformedRequest naming what is wrong."""
    if value is None:
        raise MalformedRequest("not an audit event: the record has no value")
    size = len(value) + len(key or b"")
    if size > limits.record_in:
        raise MalformedRequest(f"not an audit event: {size} bytes; at most {limits.record_in}")
    try:
        value = reader.transcode("audit-event", value) if is_avro(value) else value
        plain = msgspec.json.decode(value)
        check_nesting(plain)
        event = msgspec.convert(plain, AuditEvent)  # of a part that is there twice the last counts, as in requests
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
