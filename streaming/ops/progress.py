"""What Spark tells of a query with every trigger: a StreamingQueryProgress, here as plain data."""

import json
from collections.abc import Callable
from typing import Any

from pyspark.sql.streaming.listener import StreamingQueryListener

from streaming.ops.state import Progress


class ProgressListener(StreamingQueryListener):
    """Passes on each progress of every query of a session."""

    def __init__(self, tell: Callable[[Progress], None]) -> None:
        self._tell = tell

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802  the names are Spark's
        """Nothing to tell: the job does."""

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        """Pass it on."""
        self._tell(json.loads(event.progress.json))

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        """Nothing to tell: the job does."""
