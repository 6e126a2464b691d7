"""Private memory of processes, from Linux's smaps_rollup."""

import os
from collections.abc import Iterator
from pathlib import Path

WORKER = b"streaming.runtime.daemon"  # Spark forks the Python workers from a daemon, whose command line they keep


def private_memory(pid: int | str) -> float:
    """The unique set size of a process, MiB: what would be freed if it ended. 0 where it has ended."""
    kib = sum(int(line.split()[1]) for line in _lines(f"{pid}/smaps_rollup") if line.startswith(b"Private_"))
    return round(kib / 1024, 1)


def largest_worker() -> float:
    """The most private memory that a Python worker of this process's Spark has, MiB."""
    return max(map(private_memory, workers_below(os.getpid())), default=0.0)


def workers_below(pid: int) -> Iterator[int]:
    """Spark's Python workers below a process: what was forked from their daemon."""
    parents = {int(path.name): _parent(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal()}
    daemons = {child for child in parents if _is_below(child, pid, parents) and _is_forked(child)}
    yield from (child for child in daemons if parents[child] in daemons)


def _is_below(child: int, pid: int, parents: dict[int, int]) -> bool:
    while child in parents and child != pid:
        child = parents[child]
    return child == pid


def _is_forked(pid: int) -> bool:
    return any(WORKER in line for line in _lines(f"{pid}/cmdline"))


def _parent(pid: str) -> int:
    fields = b"".join(_lines(f"{pid}/stat")).rpartition(b")")[2].split()
    return int(fields[1]) if fields else 0


def _lines(name: str) -> list[bytes]:
    try:
        return Path("/proc", name).read_bytes().splitlines()
    except OSError:  # the process has ended
        return []
