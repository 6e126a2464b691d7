"""Records as Spark hands them to a worker."""

import struct
from collections.abc import Iterable

import pyarrow as pa

AT = 1_795_000_000_123
Headers = list[tuple[str, bytes | None]] | None
Sent = tuple[bytes | None, bytes | None, Headers]
"""Key, value, headers."""


def records_batch(sent: Iterable[Sent], at: int = AT) -> pa.RecordBatch:
    """Records with the offsets from 0, all of one moment (ms)."""
    return records_at((*record, at) for record in sent)


def records_at(
    sent: Iterable[tuple[bytes | None, bytes | None, Headers, int]], topic: str = "requests", partition: int = 0
) -> pa.RecordBatch:
    """The same, each of its own moment; of any partition."""
    keys, values, headers, times = zip(*sent, strict=True)
    place = struct.pack(">i", partition), topic.encode()
    beside = [_beside(*record, *place) for record in zip(range(len(keys)), times, keys, headers, strict=True)]
    return pa.RecordBatch.from_pydict({"value": pa.array(values, pa.binary()), "beside": pa.array(beside, pa.binary())})


def _beside(offset: int, at: int, key: bytes | None, headers: Headers, partition: bytes, topic: bytes) -> bytes:
    encoded = _encode(headers) if headers else None
    lengths = (-1 if text is None else len(text) for text in (key, encoded))
    return b"".join(
        (struct.pack(">qq", offset, at), partition, struct.pack(">iii", *lengths, 0), key or b"", encoded or b"", topic)
    )


def _encode(headers: list[tuple[str, bytes | None]]) -> bytes:
    texts = [text for name, value in headers for text in (name.encode(), value)]
    return b"".join(struct.pack(">i", -1 if text is None else len(text)) + (text or b"") for text in texts)
