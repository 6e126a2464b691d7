"""Lots as `streaming.records.packing` packs them, read once more: as it tells them, without its code."""

import io
import struct

import pyarrow as pa

Headers = list[tuple[str, bytes]]
Read = tuple[str, Headers, list[tuple[bytes | None, bytes | None, Headers | None]]]
"""Topic, the usual headers, and of each record key, value and its own headers."""


def read_lot(packed: bytes) -> Read:
    """What is in a packed lot, all of it."""
    (size,) = struct.unpack_from("<q", packed)
    told = io.BytesIO(pa.decompress(packed[8:], decompressed_size=size, codec="lz4_raw", asbytes=True))
    topic, usual, keys, headers = _text(told).decode(), _headers(told), _column(told), _column(told)
    _numbers(told, len(keys))  # positions
    columns = [_column(told) for _ in range(_number(told))]
    picks = [_numbers(told, len(keys)) for _ in range(_number(told))]
    parts = [_numbers(told, 2) for _ in range(_number(told))]
    assert not told.read()
    records = []
    for number, (key, own) in enumerate(zip(keys, headers, strict=True)):
        entries = [(column, {-1: number, -2: 0}[pick] if pick < 0 else picks[pick][number]) for column, pick in parts]
        texts = [columns[column][entry] if entry >= 0 else None for column, entry in entries]
        value = None if texts[0] is None else b"".join(text for text in texts if text is not None)
        records.append((key, value, None if own is None else read_headers(own)))
    return topic, usual, records


def read_headers(told: bytes) -> Headers:
    """Headers from their cell."""
    cell = io.BytesIO(told)
    headers = _headers(cell)
    assert not cell.read()
    return headers


def _headers(told: io.BytesIO) -> Headers:
    return [(_text(told).decode(), _text(told)) for _ in range(_number(told))]


def _column(told: io.BytesIO) -> list[bytes | None]:
    lengths = _numbers(told, _number(told))
    return [None if length < 0 else told.read(length) for length in lengths]


def _text(told: io.BytesIO) -> bytes:
    return told.read(_number(told))


def _number(told: io.BytesIO) -> int:
    return _numbers(told, 1)[0]


def _numbers(told: io.BytesIO, count: int) -> tuple[int, ...]:
    return struct.unpack(f"<{count}i", told.read(4 * count))
