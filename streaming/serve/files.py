"""Files that may change while a server runs."""

import os
import time
from collections.abc import Callable, Iterable

LOOK_SECONDS = 1.0

Stamp = tuple[int, int, int] | None


class Changes:
    """Whether any of some files has changed since it was looked at last. `clock`: monotonic, s.

    By time, size and inode of what a path leads to: Kubernetes renews mounted secrets by another link. A file that
    cannot be found has not changed: it is being replaced.
    """

    def __init__(self, files: Iterable[str], clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._at = clock, clock()
        self._stamps = {file: _stamp(file) for file in files}

    def seen(self) -> bool:
        """Whether there is a change; looks once a second at most."""
        if not self._stamps or self._clock() - self._at < LOOK_SECONDS:
            return False
        self._at = self._clock()
        now = {file: _stamp(file) or before for file, before in self._stamps.items()}
        changed = now != self._stamps
        self._stamps = now
        return changed


def _stamp(file: str) -> Stamp:
    try:
        status = os.stat(file)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
