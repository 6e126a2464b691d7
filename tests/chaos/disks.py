"""Disks that are full."""

import contextlib
import os
import resource
from pathlib import Path


def fill(path: Path) -> None:
    """Write to a file until its disk is full."""
    with contextlib.suppress(OSError), path.open("wb", buffering=0) as filler:
        while True:
            filler.write(os.urandom(4096))


def forbid_files(pids: set[int]) -> None:
    """Let no file of processes grow."""
    _limit_files(pids, 0)


def allow_files(pids: set[int]) -> None:
    """End what `forbid_files` did."""
    _limit_files(pids, resource.RLIM_INFINITY)


def _limit_files(pids: set[int], size: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
