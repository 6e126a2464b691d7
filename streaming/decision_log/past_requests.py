"""Requests of the past, to be decided again by other policies as the job decided them."""

from typing import Any

import msgspec

from policy import MalformedRequest, decode_json, to_ms
from streaming.enforcer.answers import TIME
from streaming.history.records import ConsumerRecord
from streaming.records.answered import read_answer
from streaming.records.avro import Undecodable
from streaming.records.registry import Deserializer
from streaming.settings import Settings

NO_REQUEST = (Undecodable, MalformedRequest, ValueError, RecursionError)
"""What `as_decided` raises for a record that has no decision but a dead letter."""


def as_decided(
    settings: Settings, record: ConsumerRecord, deserializer: Deserializer
) -> tuple[dict[str, Any], frozenset[str]]:
    """A request with the moment of its decision for its time (ms), and what counts of it.

    The deadline is left out: it was about the decision of that time. Raises `NO_REQUEST`, and RegistryDown.
    """
    value, trust, at = deserializer.json("request", record.value), settings.trust_of(record.topic), record.at
    asked = msgspec.convert(decode_json(value), dict[str, Any])
    if record.topic in settings.topics.answered:
        answer = read_answer(value)
        at, trust = answer.decided_at(record.at), answer.claims(trust)
    elif not TIME.isdisjoint(trust) and asked.get("time") is not None:
        at = to_ms(asked["time"])
    rest = {name: part for name, part in asked.items() if name not in ("deadline", "answered")}
    return {**rest, "time": at}, trust | TIME
