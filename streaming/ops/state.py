"""A query's progress as Spark reports it with every trigger, and the state of a stateful query."""

import json
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

import msgspec
from prometheus_client import CollectorRegistry, Gauge
from pyspark.sql.streaming.listener import StreamingQueryListener

Progress = Mapping[str, Any]


class QueryState(msgspec.Struct, frozen=True):
    """A stateful query's state after a trigger. `watermark`: Unix time, s; None: it has none yet."""

    rows: int
    bytes: int
    watermark: float | None


def observe_progress(progress: Progress) -> QueryState:
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


def summary(progress: Progress) -> dict[str, Any]:
    """The part of a progress report that shows where time goes; offsets are in Kafka."""
    fields = {
        "query": progress.get("name"),
        "batch": progress.get("batchId"),
        "rows": progress.get("numInputRows"),
        "rows_per_second": progress.get("processedRowsPerSecond"),
        "milliseconds": progress.get("durationMs"),
        "state": progress.get("stateOperators") or None,
    }
    return {name: value for name, value in fields.items() if value is not None}


class MonitorMetrics:
    """The metrics of the monitor's query, on the registry given."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._running = Gauge(
            "lockkeeper_monitor_running", "1: the monitor's query runs, 0: it failed and waits.", registry=registry
        )
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

    def runs(self, running: bool) -> None:
        """Note that the query runs, or not."""
        self._running.set(running)

    def observe(self, progress: Progress) -> None:
        """Note the state in a progress report."""
        state = observe_progress(progress)
        self._rows.set(state.rows)
        self._bytes.set(state.bytes)
        self._watermark.set(state.watermark or 0)


class ProgressListener(StreamingQueryListener):
    """Passes on each progress of every query of a session."""

    def __init__(self, report: Callable[[Progress], None]) -> None:
        self._report = report

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802  the names are Spark's
        """Nothing to report: the job does."""

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        """Pass it on."""
        self._report(json.loads(event.progress.json))

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        """Nothing to report: the job does."""
