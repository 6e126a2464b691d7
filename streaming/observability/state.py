"""The state of a stateful query, by what Spark tells with every trigger (a StreamingQueryProgress, as a dict)."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec
from prometheus_client import CollectorRegistry, Gauge


class QueryState(msgspec.Struct, frozen=True):
    """A stateful query's state after a trigger. `watermark`: Unix time, s; None: it has none yet."""

    rows: int
    bytes: int
    watermark: float | None


def observe_progress(progress: Mapping[str, Any]) -> QueryState:
    """What a StreamingQueryProgress says of state, over all stateful operators of the query."""
    operators = progress.get("stateOperators") or ()
    watermark = (progress.get("eventTime") or {}).get("watermark")
    return QueryState(
        rows=sum(int(operator.get("numRowsTotal", 0)) for operator in operators),
        bytes=sum(map(_bytes, operators)),
        watermark=datetime.fromisoformat(watermark).timestamp() if watermark else None,
    )


def _bytes(operator: Mapping[str, Any]) -> int:
    files = (operator.get("customMetrics") or {}).get("rocksdbSstFileSize", 0)
    return int(operator.get("memoryUsedBytes", 0)) + int(files)


class MonitorMetrics:
    """The metrics of the monitor's query, on the registry given.

    Whoever runs that query calls `observe` with each progress, from a StreamingQueryListener
    (`metrics.observe(json.loads(event.progress.json))`) or from `query.lastProgress`.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._rows = Gauge("lockkeeper_monitor_state_rows", "Rows of the monitor's state.", registry=registry)
        self._bytes = Gauge(
            "lockkeeper_monitor_state_bytes",
            "The monitor's state, in memory and in RocksDB's files.",
            registry=registry,
        )
        self._watermark = Gauge(
            "lockkeeper_monitor_watermark_seconds",
            "The monitor's watermark, Unix time: up to then all events are taken to be seen. 0: none yet.",
            registry=registry,
        )

    def observe(self, progress: Mapping[str, Any]) -> None:
        """Note the state that a progress tells of."""
        state = observe_progress(progress)
        self._rows.set(state.rows)
        self._bytes.set(state.bytes)
        self._watermark.set(state.watermark or 0)
