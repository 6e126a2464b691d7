"""Columnar batches as `streaming.records.packing` packs them, read without its code."""

import io
import itertools
import struct

import pyarrow as pa

from streaming.records.packing import DECISIONS, Packed

Headers = list[tuple[str, bytes | None]]
Read = tuple[str, Headers, list[tuple[bytes | None, bytes | None, Headers | None]]]
"""Topic, the usual headers, and of each record key, value and its own headers."""


def read_packed(packed: bytes) -> Read:
    """The contents of a packed columnar batch."""
    (size,) = struct.unpack_from("<q", packed)
    data = io.BytesIO(pa.decompress(packed[8:], decompressed_size=size, codec="lz4_raw", asbytes=True))
    topic, usual, keys, headers = _text(data).decode(), _headers(data), _column(data), _column(data)
    values = _column(data)
    data.read(8 * len(keys))  # offsets
    assert not data.read()
    own = (None if one is None else read_headers(one) for one in headers)
    records = list(zip(keys, values, own, strict=True))
    return topic, usual, records


def decisions_of(packed: Packed) -> list[bytes]:
    """All decision records of an Arrow batch's output."""
    columns = (batch.values.to_pylist() for number, batch in packed.batches() if number == DECISIONS)
    return [value for value in itertools.chain.from_iterable(columns) if value is not None]


def read_headers(data: bytes) -> Headers:
    """Headers from their cell."""
    cell = io.BytesIO(data)
    headers = _headers(cell)
    assert not cell.read()
    return headers


def _headers(data: io.BytesIO) -> Headers:
    return [(_text(data).decode(), _nullable(data)) for _ in range(_number(data))]


def _column(data: io.BytesIO) -> list[bytes | None]:
    lengths = _numbers(data, _number(data))
    return [None if length < 0 else data.read(length) for length in lengths]


def _nullable(data: io.BytesIO) -> bytes | None:
    length = _number(data)
    return None if length < 0 else data.read(length)


def _text(data: io.BytesIO) -> bytes:
    return data.read(_number(data))


def _number(data: io.BytesIO) -> int:
    return _numbers(data, 1)[0]


def _numbers(data: io.BytesIO, count: int) -> tuple[int, ...]:
    return struct.unpack(f"<{count}i", data.read(4 * count))
