"""The records of an Arrow batch, as columns that Python can go through."""

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streaming.settings import Limits

CHUNK = 1 << 16  # bytes looked through at a time: what fits into the processor's cache
BACKSLASH, SPACE = ord("\\"), ord(" ")


class _Header(msgspec.Struct):
    """A header of a record as Spark writes it; it leaves out a value that is null."""

    key: str
    value: bytes | None = None


_decode_headers = msgspec.json.Decoder(list[_Header]).decode


class Records:
    """Records of one partition in order; at least one. `times`: their timestamps, `first`, `last`: the bounds, ms."""

    def __init__(self, batch: pa.RecordBatch, limits: Limits) -> None:
        self._values, self._headers = batch.column("value"), batch.column("headers").to_pylist()
        keys = batch.column("key")
        milliseconds = batch.column("timestamp").cast(pa.timestamp("ms"), safe=False).cast(pa.int64())
        bounds = pc.min_max(milliseconds)
        self.first, self.last = bounds["min"].as_py(), bounds["max"].as_py()
        self.longest_key: int = pc.max(pc.binary_length(keys)).as_py() or 0
        texts = plain_texts(self._values, limits.record_in - self.longest_key)
        self.times: list[int] = milliseconds.to_pylist()
        self._columns = (texts, keys.to_pylist(), self._headers, batch.column("offset").to_pylist(), self.times)

    def columns(self) -> Iterator[tuple[bytes | None, bytes | None, str | None, int, int]]:
        """Of each record: the value where it is plain text, key, whether it has headers, offset, timestamp (ms)."""
        return zip(*self._columns, strict=True)

    def value(self, number: int) -> bytes | None:
        """The value of a record, by its number within these."""
        value: bytes | None = self._values[number].as_py()
        return value

    def headers(self, number: int) -> list[dict[str, Any]] | None:
        """The headers of a record; None: it has none."""
        text = self._headers[number]
        return [{"key": header.key, "value": header.value} for header in _decode_headers(text)] if text else None

    def some_headers(self) -> Iterator[list[dict[str, Any]] | None]:
        """The headers of the records, one after the other, decoded when asked for."""
        return (self.headers(number) for number in range(len(self._headers)))


def plain_texts(values: pa.BinaryArray, longest: int) -> list[bytes | None]:
    """The values that are plain text, else None.

    Plain: UTF-8 without backslashes and control characters, of at most `longest` bytes. Then what stands between two
    quotes of JSON is what it says.
    """
    try:
        values.cast(pa.string())
    except pa.ArrowInvalid:
        return [None] * len(values)
    texts: list[bytes | None] = values.to_pylist()
    for number in {*_odd(values), *_long(values, longest)}:
        texts[number] = None
    return texts


def _odd(values: pa.BinaryArray) -> Iterator[int]:
    """The numbers of the values with a backslash or a control character, some of them several times."""
    ends = np.frombuffer(values.buffers()[1], np.int32)[values.offset : values.offset + len(values) + 1]
    content = np.frombuffer(values.buffers()[2] or b"", np.uint8)
    for start in range(ends[0], ends[-1], CHUNK):
        chunk = content[start : min(start + CHUNK, ends[-1])]
        odd = (chunk < SPACE) | (chunk == BACKSLASH)
        if odd.any():
            yield from (np.searchsorted(ends, start + np.flatnonzero(odd), side="right") - 1).tolist()


def _long(values: pa.BinaryArray, longest: int) -> list[int]:
    lengths = pc.binary_length(values)
    if (pc.max(lengths).as_py() or 0) <= longest:
        return []
    found: list[int] = np.flatnonzero(lengths.fill_null(0).to_numpy() > longest).tolist()
    return found
