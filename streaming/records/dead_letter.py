"""Dead letters: records that are no requests, as they came but for secrets, with headers that say why."""

import hashlib
import re
from typing import Any

import msgspec

from streaming.records.headers import Header
from streaming.records.masking import MASK, NAME, mask_secrets
from streaming.records.size_gate import record_size
from streaming.settings import Limits

ROOM = 16 * 1024  # for the headers that say why
BEARER = re.compile(rb"^\s*(bearer|basic)\s", re.IGNORECASE)


class Rejection(msgspec.Struct, frozen=True):
    """Which record was refused, and why."""

    topic: str
    partition: int
    offset: int
    why: Exception


def dead_letter(
    rejection: Rejection, key: bytes | None, value: bytes | None, headers: list[dict[str, Any]] | None, limits: Limits
) -> tuple[bytes | None, bytes, list[Header]]:
    """Key, value and headers of the dead letter; one that is too large carries hashes instead."""
    kept = [(h["key"], _mask_header(h["key"], h["value"] or b"")) for h in headers or ()]
    masked = mask_secrets(value or b"")
    masked_key = None if key is None else mask_secrets(key)
    if record_size(masked_key, masked, kept) + ROOM > limits.record_out:
        return hashed_letter(rejection, key, value)
    return masked_key, masked, [*kept, *_reasons(rejection)]


def hashed_letter(rejection: Rejection, key: bytes | None, value: bytes | None) -> tuple[None, bytes, list[Header]]:
    """The same with hashes in place of key and value: at most ALWAYS_FITS bytes, whatever came."""
    return None, _stand_in(rejection, key, value), _reasons(rejection)


def _reasons(rejection: Rejection) -> list[Header]:
    reasons = {
        "topic": rejection.topic,
        "partition": str(rejection.partition),
        "offset": str(rejection.offset),
        "stage": "VALUE_CONVERTER",
        "exception.class.name": f"{type(rejection.why).__module__}.{type(rejection.why).__name__}",
        "exception.message": str(rejection.why)[:4000],
    }
    return [(f"__connect.errors.{name}", text.encode("utf-8", "replace")) for name, text in reasons.items()]


def _stand_in(rejection: Rejection, key: bytes | None, value: bytes | None) -> bytes:
    return msgspec.json.encode(
        {
            "topic": rejection.topic,
            "partition": rejection.partition,
            "offset": rejection.offset,
            "key_sha256": hashlib.sha256(key or b"").hexdigest(),
            "value_sha256": hashlib.sha256(value or b"").hexdigest(),
        }
    )


def _mask_header(name: str, value: bytes) -> bytes:
    named = NAME.search(name.lower().encode("utf-8", "replace"))
    return MASK if named or BEARER.match(value) else mask_secrets(value)
