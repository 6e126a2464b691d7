"""The records of an Arrow batch, by columns or one by one."""

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streaming.enforcer.texts import Numbers

# Of Spark's Kafka source, as expressions. Headers come as JSON, their values in base64: as the nested Arrow column
# they cost five times the rest together.
COLUMNS = ("topic", "partition", "offset", "timestamp", "key", "value", "to_json(headers) AS headers")

Row = tuple[bytes | None, bytes | None, list[dict[str, Any]] | None, int, int]
"""Key, value, headers (None: there are none), offset and timestamp (ms) of a record."""


class _Header(msgspec.Struct):
    """A header of a record as Spark writes it; it leaves out a value that is null."""

    key: str
    value: bytes | None = None


_decode_headers = msgspec.json.Decoder(list[_Header]).decode


class Records:
    """Records of one partition in order; at least one. Columns: `keys`, `values`, `offsets`, and `times` in ms.

    `first`, `last`: the bounds of the times.
    """

    def __init__(self, batch: pa.RecordBatch) -> None:
        self.keys, values, self.offsets = (batch.column(name) for name in ("key", "value", "offset"))
        self.values = values.cast(pa.binary())  # Spark has a setting by which it is another type
        self._headers = batch.column("headers")
        milliseconds = batch.column("timestamp").cast(pa.timestamp("ms"), safe=False).cast(pa.int64())
        self.times: Numbers = milliseconds.to_numpy()
        self.first, self.last = int(self.times.min()), int(self.times.max())
        self.longest_key: int = pc.max(pc.binary_length(self.keys)).as_py() or 0

    def __len__(self) -> int:
        return len(self.values)

    def rows(self, which: Numbers | None = None) -> Iterator[Row]:
        """The records one by one: all of them, or those with these numbers."""
        numbers = np.arange(len(self)) if which is None else which
        columns = (column.take(pa.array(numbers)).to_pylist() for column in (self.keys, self.values, self.offsets))
        keys, values, offsets = columns
        return zip(
            keys, values, map(self.headers, numbers.tolist()), offsets, self.times[numbers].tolist(), strict=True
        )

    def headers(self, number: int) -> list[dict[str, Any]] | None:
        """The headers of a record; None: it has none."""
        text = self._headers[number].as_py()
        return [{"key": header.key, "value": header.value} for header in _decode_headers(text)] if text else None

    def with_headers(self) -> Numbers:
        """The numbers of the records that have headers."""
        return np.flatnonzero(self._headers.is_valid())

    def some_headers(self) -> Iterator[list[dict[str, Any]] | None]:
        """The headers of the records, one after the other, decoded when asked for."""
        return map(self.headers, range(len(self)))
