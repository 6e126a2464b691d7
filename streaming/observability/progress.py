"""What Spark tells of a query with every trigger (a StreamingQueryProgress), logged."""

import json
from collections.abc import Mapping
from typing import Any

import structlog
from pyspark.sql.streaming.listener import StreamingQueryListener

log = structlog.get_logger()


class ProgressLog(StreamingQueryListener):
    """Logs each progress of every query of a session, at debug level."""

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802  the names are Spark's
        """Nothing to tell: the job does."""

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        """Log it as Spark tells it."""
        log.debug("progress", **summary(json.loads(event.progress.json)))

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        """Nothing to tell: the job does."""


def summary(progress: Mapping[str, Any]) -> dict[str, Any]:
    """What of a progress helps to find where time goes; offsets are Kafka's to tell."""
    told = {
        "query": progress.get("name"),
        "batch": progress.get("batchId"),
        "rows": progress.get("numInputRows"),
        "rows_per_second": progress.get("processedRowsPerSecond"),
        "milliseconds": progress.get("durationMs"),
        "state": progress.get("stateOperators") or None,
    }
    return {name: value for name, value in told.items() if value is not None}
