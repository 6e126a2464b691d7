"""Dead letters: records that are no requests, as they came but for secrets, with headers that say why."""

import hashlib
import re
from typing import Any

import msgspec

from streaming.enforcer.headers import Header
from streaming.records.size_gate import record_size
from streaming.settings import Limits

MASK = b"***"
ROOM = 16 * 1024  # for the headers that say why
SECRET_HEADER = re.compile(r"authorization|cookie|token|secret|password|credential|api-?key", re.IGNORECASE)
BEARER = re.compile(rb"^\s*(bearer|basic)\s", re.IGNORECASE)
# In what is not JSON a secret's end cannot be told, nor a name that is written in escapes: all that follows is masked.
SECRET_FOLLOWS = re.compile(rb"(token|password|secret)\W*[:=]|\\u00", re.IGNORECASE)


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
    masked = mask_value(value or b"")
    if record_size(key, masked, kept) + ROOM > limits.record_out:
        return hashed_letter(rejection, key, value)
    return key, masked, [*kept, *_reasons(rejection)]


def hashed_letter(rejection: Rejection, key: bytes | None, value: bytes | None) -> tuple[None, bytes, list[Header]]:
    """The same with hashes in place of key and value: at most ALWAYS_FITS bytes, whatever came."""
    return None, _stand_in(rejection, key, value), _reasons(rejection)


def _reasons(rejection: Rejection) -> list[Header]:
    told = {
        "topic": rejection.topic,
        "partition": str(rejection.partition),
        "offset": str(rejection.offset),
        "stage": "VALUE_CONVERTER",
        "exception.class.name": f"{type(rejection.why).__module__}.{type(rejection.why).__name__}",
        "exception.message": str(rejection.why)[:4000],
    }
    return [(f"__connect.errors.{name}", text.encode("utf-8", "replace")) for name, text in told.items()]


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
    return MASK if SECRET_HEADER.search(name) or BEARER.match(value) else value


def mask_value(value: bytes) -> bytes:
    """The value without its tokens: exactly where it is JSON, else without all that follows what looks like one."""
    try:
        told = msgspec.json.decode(value)
    except (ValueError, RecursionError):
        secret = SECRET_FOLLOWS.search(value)
        return value if secret is None else value[: secret.end()] + MASK
    return msgspec.json.encode(told) if _mask_within(told) else value


def _mask_within(value: Any) -> bool:
    """Mask every `token` in place, at any depth; tells whether there was one."""
    found = False
    todo = [value]
    while todo:
        part = todo.pop()
        if isinstance(part, dict):
            found |= "token" in part
            part.update({"token": MASK.decode()} if "token" in part else {})
            todo += part.values()
        elif isinstance(part, list):
            todo += part
    return found
