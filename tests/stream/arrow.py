"""Records as Spark hands them to a worker."""

import struct
from collections.abc import Iterable

import msgspec
import pyarrow as pa

AT = 1_795_000_000_123
Headers = list[tuple[str, bytes]] | None
Sent = tuple[bytes | None, bytes | None, Headers]
"""Key, value, headers."""


def records_batch(sent: Iterable[Sent], at: int = AT) -> pa.RecordBatch:
    """Records with the offsets from 0, all of one moment (ms)."""
    return records_at((*record, at) for record in sent)


def records_at(sent: Iterable[tuple[bytes | None, bytes | None, Headers, int]]) -> pa.RecordBatch:
    """The same, each of its own moment."""
    keys, values, headers, times = zip(*sent, strict=True)
    beside = map(_beside, range(len(keys)), times, keys, headers)
    return pa.RecordBatch.from_pydict({"value": pa.array(values, pa.binary()), "beside": pa.array(beside, pa.binary())})


def _beside(offset: int, at: int, key: bytes | None, headers: Headers) -> bytes:
    told = msgspec.json.encode([{"key": k, "value": v} for k, v in headers]) if headers else None
    lengths = (-1 if text is None else len(text) for text in (key, told))
    return struct.pack(">qqiii", offset, at, 0, *lengths) + (key or b"") + (told or b"") + b"requests"
