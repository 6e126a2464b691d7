"""Records as Spark hands them to a worker."""

from collections.abc import Iterable

import msgspec
import pyarrow as pa

AT = 1_795_000_000_123
Sent = tuple[bytes | None, bytes | None, list[tuple[str, bytes]] | None]
"""Key, value, headers."""


def records_batch(sent: Iterable[Sent], at: int = AT) -> pa.RecordBatch:
    """Records with the offsets from 0, all of one moment (ms)."""
    keys, values, headers = zip(*sent, strict=True)
    told = [msgspec.json.encode([{"key": k, "value": v} for k, v in h]).decode() if h else None for h in headers]
    return pa.RecordBatch.from_pydict(
        {
            "offset": pa.array(range(len(keys)), pa.int64()),
            "timestamp": pa.array([at * 1000] * len(keys), pa.timestamp("us", "UTC")),
            "key": pa.array(keys, pa.binary()),
            "value": pa.array(values, pa.binary()),
            "headers": pa.array(told, pa.string()),
        }
    )
