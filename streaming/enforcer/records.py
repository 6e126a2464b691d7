"""The records of an Arrow batch, by columns or one by one.

Spark's plan puts all but a record's value into one column of bytes, and here they are taken apart again: with each
row Spark asks every column how large it has become, which cost as much as to write them.
"""

import functools
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Numbers = npt.NDArray[np.int64]

_HEAD = np.dtype([("offset", ">i8"), ("time", ">i8"), ("partition", ">i4"), ("key", ">i4"), ("headers", ">i4")])

# The same in SQL, and what follows it. The last two numbers are how long these texts are; -1: there are none. Headers
# come as JSON, their values in base64: as the nested Arrow column they cost five times the rest together.
_HEADERS = "to_json(headers)"
_LENGTHS = (f"coalesce(octet_length({text}), -1)" for text in ("key", _HEADERS))
_NUMBERS = ("offset", "unix_millis(timestamp)", "partition", *_LENGTHS)
_TEXTS = ("key", _HEADERS, "topic")
_BESIDE = (*map("CAST({} AS BINARY)".format, _NUMBERS), *map("coalesce(CAST({} AS BINARY), X'')".format, _TEXTS))
COLUMNS = ("value", f"concat({', '.join(_BESIDE)}) AS beside")
"""Of Spark's Kafka source, as expressions. ANSI's rules know no cast of numbers to bytes."""

# What stands beside a value.
_PIECES = 4
_KEY, _HEADERS_TEXT, _TOPIC = 1, 2, 3

Row = tuple[bytes | None, bytes | None, list[dict[str, Any]] | None, int, int]
"""Key, value, headers (None: there are none), offset and timestamp (ms) of a record."""


class _Header(msgspec.Struct):
    """A header of a record as Spark writes it; it leaves out a value that is null."""

    key: str
    value: bytes | None = None


_decode_headers = msgspec.json.Decoder(list[_Header]).decode


def decode_headers(text: bytes) -> list[dict[str, Any]]:
    """Headers as the source has them."""
    return [{"key": header.key, "value": header.value} for header in _decode_headers(text)]


class Records:
    """Records of one `partition` of one `topic`, in order; at least one.

    Columns: `keys`, `values`, `offsets`, and `times` in ms. Raises RuntimeError where they are of several partitions.
    """

    def __init__(self, batch: pa.RecordBatch) -> None:
        self._batch = batch
        # Spark has a setting by which the columns are of another type.
        self.values, beside = (batch.column(name).cast(pa.binary()) for name in ("value", "beside"))
        head, self._beside = _taken_apart(beside)
        self.offsets: Numbers = head["offset"].astype(np.int64)
        self.times: Numbers = head["time"].astype(np.int64)
        self.longest_key = max(int(head["key"].max()), 0)
        self._key_is_null, self._has_headers = head["key"] < 0, head["headers"] >= 0
        self.topic, self.partition = _place(self._piece(_TOPIC), head["partition"])

    def __len__(self) -> int:
        return len(self.values)

    @functools.cached_property
    def keys(self) -> pa.BinaryArray:
        """The keys, null where there is none."""
        keys = self._piece(_KEY)
        return pc.if_else(pa.array(self._key_is_null), None, keys) if self._key_is_null.any() else keys

    @functools.cached_property
    def sizes(self) -> Numbers:
        """The bytes of each record: of its value and of all that is beside it."""
        lengths = (pc.fill_null(pc.binary_length(self._batch.column(name)), 0) for name in ("value", "beside"))
        value, beside = (column.to_numpy().astype(np.int64) for column in lengths)
        sizes: Numbers = value + beside
        return sizes

    def head(self, count: int) -> "Records":
        """The first of them, at least one."""
        return self if count >= len(self) else Records(self._batch.filter(pa.array(np.arange(len(self)) < count)))

    def rows(self, which: Numbers | None = None) -> Iterator[Row]:
        """The records one by one: all of them, or those with these numbers."""
        numbers = np.arange(len(self)) if which is None else which
        keys, values = (column.take(pa.array(numbers)).to_pylist() for column in (self.keys, self.values))
        offsets, times = self.offsets[numbers].tolist(), self.times[numbers].tolist()
        return zip(keys, values, map(self.headers, numbers.tolist()), offsets, times, strict=True)

    def row(self, number: int) -> Row:
        """One record."""
        key = self.keys[number].as_py()
        return key, self.texts[number], self.headers(number), int(self.offsets[number]), int(self.times[number])

    @functools.cached_property
    def texts(self) -> list[bytes | None]:
        """The values as Python has them, which are copies."""
        values: list[bytes | None] = self.values.to_pylist()
        return values

    def headers(self, number: int) -> list[dict[str, Any]] | None:
        """The headers of a record; None: it has none."""
        if not self._has_headers[number]:
            return None
        return decode_headers(self._beside[_PIECES * number + _HEADERS_TEXT].as_py())

    def header_texts(self) -> list[bytes | None]:
        """The headers of each record as the source has them, for `decode_headers`; None: it has none."""
        if not self._has_headers.any():
            return [None] * len(self)
        texts: list[bytes | None] = self._piece(_HEADERS_TEXT).to_pylist()
        return [text or None for text in texts]

    def some_headers(self) -> Iterator[list[dict[str, Any]] | None]:
        """The headers of the records, one after the other, decoded when asked for."""
        return map(self.headers, range(len(self)))

    def _piece(self, piece: int) -> pa.BinaryArray:
        return self._beside.take(pa.array(np.arange(piece, len(self._beside), _PIECES)))


def _taken_apart(beside: pa.BinaryArray) -> tuple[npt.NDArray[np.void], pa.BinaryArray]:
    """The numbers that stand beside values, and all their pieces, one value's after the other's."""
    _, offsets, content = beside.buffers()
    ends = np.frombuffer(offsets, np.int32)[beside.offset : beside.offset + len(beside) + 1]
    starts = np.lib.stride_tricks.sliding_window_view(np.frombuffer(content, np.uint8), _HEAD.itemsize)
    head = starts[ends[:-1]].view(_HEAD)[:, 0]
    bounds = np.empty((len(beside), _PIECES), np.int32)
    bounds[:, 0] = ends[:-1]
    bounds[:, _KEY] = bounds[:, 0] + _HEAD.itemsize
    bounds[:, _HEADERS_TEXT] = bounds[:, _KEY] + np.maximum(head["key"], 0)
    bounds[:, _TOPIC] = bounds[:, _HEADERS_TEXT] + np.maximum(head["headers"], 0)
    return head, _pieces_of(bounds, ends[-1], content)


def _place(topics: pa.BinaryArray, partitions: npt.NDArray[np.int32]) -> tuple[str, int]:
    """The topic and partition that all records share: a Kafka task reads exactly one."""
    names, numbers = pc.unique(topics).to_pylist(), np.unique(partitions).tolist()
    if len(names) != 1 or len(numbers) != 1:
        raise RuntimeError(f"one Spark task holds records of {names} {numbers}; unset `minPartitions`")
    return names[0].decode(), numbers[0]


def _pieces_of(bounds: npt.NDArray[np.int32], end: np.int32, content: pa.Buffer) -> pa.BinaryArray:
    """What stands in a buffer between these places, one row of them after the other, and before `end`.

    They rise, and so cover all that is between the first and the last: nothing is copied.
    """
    offsets = np.append(bounds, end).astype(np.int32)
    return pa.BinaryArray.from_buffers(pa.binary(), bounds.size, [None, pa.py_buffer(offsets), content])
