"""What a benchmark runs on, when, and on which commit."""

import functools
import importlib.metadata
import os
import platform
import subprocess
import time
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
