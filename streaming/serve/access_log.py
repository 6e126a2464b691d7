"""The access log: one line of JSON for each response. Of a request it has the method and the path, and no more."""

import sys
import time
from collections import deque
from datetime import UTC, datetime
from typing import Any, TextIO

import msgspec

HELD = 100_000  # lines that are not written yet; older ones are lost beyond
PATH_CHARACTERS = 256
REQUEST_ID, CALLER = "lockkeeper.request_id", "lockkeeper.caller"  # of a request's scope


class AccessLogEntry(msgspec.Struct, frozen=True, tag_field="event", tag="access"):
    """A response. `ms`: since the headers of the request; `caller`: "" without one; `lost`: lines before it."""

    timestamp: str
    method: str
    path: str
    status: int
    ms: float
    request_id: str
    caller: str
    lost: int


class AccessLog:
    """Keeps lines until `flush` writes them, in another thread: a slow disk or terminal must not delay answers."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream
        self._lines: deque[tuple[float, str, str, int, float, str, str]] = deque()
        self._lost = 0

    def add(self, scope: dict[str, Any], status: int, seconds: float) -> None:
        """Note a response, in the loop's thread."""
        if len(self._lines) >= HELD:
            self._lost += 1
            return
        path = scope["raw_path"][:PATH_CHARACTERS].decode("latin-1")
        self._lines.append(
            (time.time(), scope["method"], path, status, seconds, scope[REQUEST_ID], scope.get(CALLER, ""))
        )

    def flush(self) -> None:
        """Write what there is."""
        count, lost = len(self._lines), self._lost
        if not count:
            return
        self._lost -= lost
        written = [self._encode(*self._lines.popleft(), lost if n == 0 else 0) for n in range(count)]
        stream = self._stream or sys.stderr
        stream.write("".join(written))
        stream.flush()

    def _encode(
        self, at: float, method: str, path: str, status: int, seconds: float, id_: str, caller: str, lost: int
    ) -> str:
        timestamp = datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")
        line = AccessLogEntry(timestamp, method, path, status, round(seconds * 1000, 3), id_, caller, lost)
        return f"{msgspec.json.encode(line).decode()}\n"
