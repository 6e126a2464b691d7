"""Columnar batches as `streaming.records.packing` packs them, read without its code."""

import io
import struct

import pyarrow as pa

Headers = list[tuple[str, bytes]]
Read = tuple[str, Headers, list[tuple[bytes | None, bytes | None, Headers | None]]]
"""Topic, the usual headers, and of each record key, value and its own headers."""


def read_packed(packed: bytes) -> Read:
    """The contents of a packed columnar batch."""
    (size,) = struct.unpack_from("<q", packed)
    data = io.BytesIO(pa.decompress(packed[8:], decompressed_size=size, codec="lz4_raw", asbytes=True))
    topic, usual, keys, headers = _text(data).decode(), _headers(data), _column(data), _column(data)
    _numbers(data, len(keys))  # positions
    columns = [_column(data) for _ in range(_number(data))]
    indices = [_numbers(data, len(keys)) for _ in range(_number(data))]
    parts = [_numbers(data, 2) for _ in range(_number(data))]
    assert not data.read()
    records = []
    for number, (key, own) in enumerate(zip(keys, headers, strict=True)):
        entries = [(column, {-1: number, -2: 0}[pick] if pick < 0 else indices[pick][number]) for column, pick in parts]
        texts = [columns[column][entry] if entry >= 0 else None for column, entry in entries]
        value = None if texts[0] is None else b"".join(text for text in texts if text is not None)
        records.append((key, value, None if own is None else read_headers(own)))
    return topic, usual, records


def read_headers(data: bytes) -> Headers:
    """Headers from their cell."""
    cell = io.BytesIO(data)
    headers = _headers(cell)
    assert not cell.read()
    return headers


def _headers(data: io.BytesIO) -> Headers:
    return [(_text(data).decode(), _text(data)) for _ in range(_number(data))]


def _column(data: io.BytesIO) -> list[bytes | None]:
    lengths = _numbers(data, _number(data))
    return [None if length < 0 else data.read(length) for length in lengths]


def _text(data: io.BytesIO) -> bytes:
    return data.read(_number(data))


def _number(data: io.BytesIO) -> int:
    return _numbers(data, 1)[0]


def _numbers(data: io.BytesIO, count: int) -> tuple[int, ...]:
    return struct.unpack(f"<{count}i", data.read(4 * count))
