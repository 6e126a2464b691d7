"""The jars of Spark's Kafka connector and of the embedded broker: locked, fetched once, verified at each use.

`python -m streaming.runtime.jars` fetches what is missing; with `--lock` it writes the lock file anew
from the coordinates in `jars.toml`.
"""

import argparse
import hashlib
import logging
import os
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from streaming.errors import JarError, RuntimeSetupError
from streaming.runtime import ivy
from streaming.runtime.ivy import Coordinate

JarSet = Literal["spark", "broker"]
"""Which jars: those of Spark's Kafka connector, or those of the embedded broker and Kafka's own tools."""

_ROOTS = Path(__file__).with_name("jars.toml")
_LOCK = Path(__file__).with_name("jars.lock")
_LOCK_HEAD = "# Written by `python -m streaming.runtime.jars --lock` from jars.toml; do not edit.\n"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LockedJar:
    """A jar as the lock file has it; `sha256` in lower-case hexadecimal."""

    coordinate: Coordinate
    sha256: str

    def is_intact_in(self, folder: Path) -> bool:
        """Tell whether the folder holds this very file."""
        path = folder / self.coordinate.file
        return path.is_file() and _sha256(path) == self.sha256


def classpath(jar_set: JarSet) -> list[Path]:
    """Return the files of a set in the order of the lock file, fetching those that the cache lacks.

    Raises:
        JarError: a jar could not be fetched, or what came is not what was locked.
        JavaNotFoundError: jars are missing and there is no Java to run Ivy.
    """
    return ensure(read_lock(jar_set), cache_folder())


def ensure(jars: Sequence[LockedJar], cache: Path) -> list[Path]:
    """Return the jars' files below `cache`, fetching those that are not there.

    Every file is verified each time; one that was damaged in the cache is fetched again. With a complete
    cache nothing touches the network.

    Raises:
        JarError: a jar could not be fetched, or what came is not what was locked; the cache is as before.
        JavaNotFoundError: jars are missing and there is no Java to run Ivy.
    """
    missing = [jar for jar in jars if not jar.is_intact_in(cache)]
    if missing:
        _log.info("fetching %d of %d jars into %s", len(missing), len(jars), cache)
        _fetch(missing, cache)
    return [cache / jar.coordinate.file for jar in jars]


def cache_folder() -> Path:
    """Return the per-user folder of fetched jars: `lockkeeper/jars` in XDG_CACHE_HOME or `~/.cache`."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "lockkeeper" / "jars"


def read_lock(jar_set: JarSet, lock: Path = _LOCK) -> list[LockedJar]:
    """Read one set of the lock file.

    Raises:
        JarError: the file cannot be read, lacks the set, or an entry lacks a field.
    """
    try:
        entries = tomllib.loads(lock.read_text())[jar_set]
        return [LockedJar(Coordinate.parse(entry["coordinate"]), entry["sha256"]) for entry in entries]
    except (OSError, tomllib.TOMLDecodeError, KeyError) as error:
        raise JarError(
            f"lock file {lock}: {error!r}; restore it, or run python -m streaming.runtime.jars --lock"
        ) from error


def write_lock(lock: Path = _LOCK) -> None:
    """Resolve the coordinates of `jars.toml` and write the lock file, replacing it as a whole."""
    sections = [_locked_section(jar_set) for jar_set in get_args(JarSet)]
    lock.write_text(_LOCK_HEAD + "".join(sections))


def _fetch(jars: Sequence[LockedJar], cache: Path) -> None:
    """Fetch beside the cache and move in file by file, so that others see a whole file or none."""
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=cache) as name:
        staging = Path(name)
        ivy.fetch((jar.coordinate for jar in jars), staging)
        for jar in jars:
            _verify(jar, staging / jar.coordinate.file)
        for jar in jars:
            _place(staging / jar.coordinate.file, cache / jar.coordinate.file)


def _verify(jar: LockedJar, path: Path) -> None:
    if not path.is_file():
        raise JarError(f"Ivy reported success but did not fetch {jar.coordinate}; check your Ivy settings")
    actual = _sha256(path)
    if actual != jar.sha256:
        raise JarError(
            f"{jar.coordinate} is not the file that was locked: SHA-256 {actual}, expected {jar.sha256}. "
            f"Nothing was installed. Check the repository or mirror it came from."
        )


def _place(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    source.replace(target)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _locked_section(jar_set: JarSet) -> str:
    roots: dict[str, list[str]] = tomllib.loads(_ROOTS.read_text())[jar_set]
    closure, alone = ([Coordinate.parse(text) for text in roots.get(key, [])] for key in ("closure", "alone"))
    with tempfile.TemporaryDirectory(prefix="lockkeeper-lock-") as name:
        folder = Path(name)
        resolved = ivy.resolve(closure, alone, folder)
        return "".join(_locked_entry(jar_set, jar, _sha256(folder / jar.file)) for jar in resolved)


def _locked_entry(jar_set: JarSet, coordinate: Coordinate, sha256: str) -> str:
    return f'\n[[{jar_set}]]\ncoordinate = "{coordinate}"\nsha256 = "{sha256}"\n'


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m streaming.runtime.jars", description=__doc__)
    parser.add_argument("--lock", action="store_true", help="write jars.lock anew from jars.toml")
    options = parser.parse_args(arguments)
    try:
        if options.lock:
            write_lock()
        for jar_set in get_args(JarSet):
            print(f"{jar_set}: {len(classpath(jar_set))} jars in {cache_folder()}")
    except RuntimeSetupError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
