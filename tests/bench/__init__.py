"""Benchmarks: the job (`python -m tests.bench`) and the evaluator alone (`python -m tests.bench.evaluator`)."""

import functools
import importlib.metadata
import os
import platform
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def machine() -> dict[str, Any]:
    """CPU, cores, memory (GiB), load average of the last minute, and versions."""
    model = next((line.partition(":")[2].strip() for line in _cpu_lines() if line.startswith("model name")), "?")
    pages = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "memory_gib": round(pages / 2**30, 1),
        "load": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "pyspark": importlib.metadata.version("pyspark"),
    }


@functools.cache  # of the code that was loaded, whatever is edited while it runs
def commit() -> str:
    """The commit of the checkout, with `-dirty` where it has changes; empty outside a checkout."""
    command = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    try:
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def stamped(row: dict[str, Any]) -> dict[str, Any]:
    """The row with time (RFC 3339), commit and machine."""
    return {**row, "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "commit": commit(), "machine": machine()}


def _cpu_lines() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text().splitlines() if path.exists() else []


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
