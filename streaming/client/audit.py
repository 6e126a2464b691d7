"""Audit events as records: what a service has done, or what has begun and ended in it."""

import time
import uuid
from collections.abc import Mapping
from typing import Any

import msgspec

from streaming.client.acting import acting_subject
from streaming.client.asking import Record, key_of
from streaming.client.tracing import trace_headers

OUTCOMES = ("success", "failure")
LIFECYCLE = {"login": "subject", "logout": "subject", "job.started": "resource", "job.stopped": "resource"}
DONE = ("subject", "action", "resource")


def event_record(topic: str, event: Mapping[str, Any], decision_id: str | None) -> Record:
    """The record of an audit event in the form of the contracts. It gets an id and the time where it has none.

    Its subject is that of `acting_as` where it names none. Raises ValueError, naming what is missing or wrong.
    """
    whole = {"id": str(uuid.uuid4()), "time": int(time.time() * 1000), **event}
    if "subject" not in whole and (subject := acting_subject()) is not None:
        whole["subject"] = {"type": "user", "id": subject} if isinstance(subject, str) else subject
    if decision_id is not None:
        whole["decision_id"] = decision_id
    _check(whole)
    try:
        value = msgspec.json.encode(whole)
        key = key_of(whole.get("subject")) or key_of(whole.get("resource"))
    except (TypeError, ValueError, RecursionError, OverflowError) as error:
        raise ValueError(f"audit event: cannot be written as JSON: {error}") from error
    return Record(topic, key, value, trace_headers(), str(whole["id"]))


def _check(event: Mapping[str, Any]) -> None:
    if "event" in event:
        kind = event["event"]
        if kind not in LIFECYCLE:
            raise ValueError(f"audit event: event {kind!r} is not one of {', '.join(LIFECYCLE)}")
        needed = ["system", LIFECYCLE[kind]]
    else:
        if event.get("outcome") not in OUTCOMES:
            raise ValueError(f"audit event: outcome must be one of {', '.join(OUTCOMES)}, not {event.get('outcome')!r}")
        needed = ["system", *DONE]
    lacking = [field for field in needed if not event.get(field)]
    wrong = [field for field in DONE if field in event and not isinstance(event[field], Mapping)]
    if lacking or wrong:
        raise ValueError(f"audit event: {', '.join(lacking or wrong)}: needed, each an object as in a request")
