"""Alerts (contracts, "Alert"): their record, bounded in size, and how it is read."""

from collections.abc import Mapping
from typing import Any

import msgspec

from streaming.records.formats import ID_CHARACTERS, JSON_HEADERS, Result, shorten, shorten_id
from streaming.topics import ALWAYS_FITS

BOUNDS = ((20, 1000), (10, 200), (5, 100))  # items of a list and characters of a text, of an alert that is too large
VALUE_BYTES = ALWAYS_FITS - 4 * ID_CHARACTERS  # the rest is for its key, and what encodings differ by


class Alert(msgspec.Struct, frozen=True, kw_only=True):
    """Something to look at. What is missing in a record is shown as unknown.

    `id`: the same for the same occasion. `kind`: an `AlertKind`, or one of a later release. `time`: RFC 3339.
    `subject`: what or whom it is about, a text or `{type, id}`. `evidence`: such as the records it follows from.
    """

    id: str = ""
    kind: str
    severity: str = "?"
    time: str | int = "?"
    subject: Any = None
    message: str = ""
    evidence: Any = []


_encode = msgspec.json.Encoder().encode
read_alert = msgspec.json.Decoder(Alert).decode
"""The alert in the value of a record, in JSON. Raises ValueError, and RecursionError."""


def encode_alert(alert: Alert) -> bytes:
    """The value of its record, shortened to what Kafka takes. `subject` is a text."""
    return _encode(shortened(alert))


def alert_record(topic: str, key: str, alert: Alert) -> Result:
    """Its record for a topic."""
    return topic, shorten_id(key).encode(), encode_alert(alert), JSON_HEADERS


def shortened(alert: Alert) -> Alert:
    """An alert of at most VALUE_BYTES; `evidence` is cut as little as is necessary."""
    bounded = msgspec.structs.replace(alert, subject=shorten_id(alert.subject))
    if _fits(bounded):
        return bounded
    for items, characters in BOUNDS:
        message, evidence = shorten(bounded.message, 4 * characters), _cut(bounded.evidence, items, characters)
        cut = msgspec.structs.replace(bounded, message=message, evidence=evidence)
        if _fits(cut):
            return cut
    items, characters = BOUNDS[-1]
    plain = [_plain_parts(item) for item in bounded.evidence]
    return msgspec.structs.replace(cut, evidence=_cut(plain, items, characters))


def _fits(alert: Alert) -> bool:
    return len(_encode(alert)) <= VALUE_BYTES


def _plain_parts(item: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in item.items() if not isinstance(value, dict | list | tuple)}


def _cut(value: Any, items: int, characters: int) -> Any:
    """Plain data with bounded lists and texts at every depth; what is left out is counted in its place."""
    if isinstance(value, str):
        return shorten(value, characters)
    if isinstance(value, dict):
        return {name: _cut(part, items, characters) for name, part in value.items()}
    if isinstance(value, list | tuple):
        more = len(value) - items
        rest = [{"more": more} if isinstance(value[0], dict) else f"… and {more} more"] if more > 0 else []
        return [*(_cut(part, items, characters) for part in value[:items]), *rest]
    return value
