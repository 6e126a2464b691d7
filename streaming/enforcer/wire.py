"""Records on their way out: packed by the workers, many in one cell, and unpacked by the driver."""

from collections.abc import Iterable

import msgspec

Header = tuple[str, bytes]
Headers = list[Header]

CONTENT_TYPE = "content-type"
JSON: Header = (CONTENT_TYPE, b"application/json")
JSON_ALONE: Headers = [JSON]

Outgoing = tuple[int, bytes | None, bytes | None, Headers | None]
"""Which of the batch's output topics, key, value, headers. Headers None: the content type of decisions alone."""

DECISIONS, VERDICTS = 0, 1  # numbers of these topics among a batch's outputs


class Packed(msgspec.Struct, array_like=True):
    """Many records as columns, which are several times as fast to encode as rows.

    `keys` and `values`: of decisions with no other header than the content type; `others`: all else.
    """

    keys: list[bytes | None]
    values: list[bytes]
    others: list[Outgoing]


def with_content_type(headers: Iterable[Header], content_type: Header) -> Headers:
    """The headers with another content type."""
    return [content_type, *(header for header in headers if header[0] != CONTENT_TYPE)]


_pack = msgspec.msgpack.Encoder()
_unpack = msgspec.msgpack.Decoder(Packed)


def pack(records: Iterable[Outgoing]) -> bytes:
    """Many records as one value: per-row work between the JVM and Python is what costs."""
    packed = Packed([], [], [])
    add_key, add_value = packed.keys.append, packed.values.append
    for record in records:
        number, key, value, headers = record
        if number == DECISIONS and headers is None and value is not None:
            add_key(key)
            add_value(value)
        else:
            packed.others.append(record)
    return _pack.encode(packed)


def unpack(data: bytes) -> Packed:
    """What `pack` packed."""
    return _unpack.decode(data)
