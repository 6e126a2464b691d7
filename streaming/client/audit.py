"""Audit events as records: what a service has done, or what has begun and ended in it."""

import time
import uuid
from collections.abc import Mapping
from typing import Any

import msgspec

from policy import MalformedRequest
from streaming.client.asking import Record, key_of, trace_headers
from streaming.client.guarding import acting_subject
from streaming.records.audit_event import read_event
from streaming.records.avro import Reader
from streaming.records.formats import JSON_ALONE
from streaming.settings import Limits


def event_record(topic: str, event: Mapping[str, Any], decision_id: str | None) -> Record:
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
    return Record(topic, key, value, trace_headers(), str(whole["id"]))
