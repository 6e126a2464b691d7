"""Dead letters: which record was refused, and why."""

import msgspec
from confluent_kafka import Message

from streaming.client.decision import Place

ERRORS = "__connect.errors."


class DeadLetter(msgspec.Struct, frozen=True):
    """A request record that became no decision. `key`, `value`: as they came, secrets masked."""

    source: Place
    message: str
    key: bytes | None
    value: bytes | None


def read_letter(message: Message) -> DeadLetter | None:
    """The dead letter in a record; None when its headers do not tell of any."""
    headers = dict(message.headers() or [])
    told = {name: _text(headers.get(ERRORS + name)) for name in ("topic", "partition", "offset", "exception.message")}
    try:
        source = Place(told["topic"], int(told["partition"]), int(told["offset"]))
    except ValueError:
        return None
    return DeadLetter(source, told["exception.message"], _bytes(message.key()), _bytes(message.value()))


def _text(header: str | bytes | None) -> str:
    return header if isinstance(header, str) else (header or b"").decode("utf-8", "replace")


def _bytes(value: str | bytes | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value
