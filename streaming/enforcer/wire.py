"""Records on their way out: packed by the workers, many in one cell, and unpacked by the driver."""

from collections.abc import Iterable, Sequence

import msgspec

Header = tuple[str, bytes]
Headers = list[Header]

CONTENT_TYPE = "content-type"
JSON: Header = (CONTENT_TYPE, b"application/json")
JSON_ALONE: Headers = [JSON]

Outgoing = tuple[int, bytes | None, bytes | None, Headers | None]
"""Which of the batch's output topics, key, value, headers. Headers None: only the JSON content type."""

_pack = msgspec.msgpack.Encoder()
_unpack = msgspec.msgpack.Decoder(list[tuple[int, bytes | None, bytes | None, list[Header] | None]])


def pack(records: Iterable[Outgoing]) -> bytes:
    """Many records as one value: per-row work between the JVM and Python is what costs."""
    return _pack.encode(list(records))


def unpack(packed: bytes) -> Sequence[Outgoing]:
    """What `pack` packed."""
    return _unpack.decode(packed)
