"""The jars as components of CycloneDX: those of the lock file, and those that PySpark brings."""

import hashlib
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

from deploy.sbom.licences import UnknownLicence, group_of, of_jar
from streaming.runtime.jars import JarSet, classpath, read_lock
from streaming.runtime.java import pyspark_folder

_POM = re.compile(r"META-INF/maven/([^/]+)/([^/]+)/pom\.(properties|xml)")
_NAMED = re.compile(r"(?P<artifact>.+?)-(?P<version>\d.*)")

Component = dict[str, Any]


def locked_jars() -> list[Component]:
    """The jars of jars.lock, with its hashes. What several sets have is one component."""
    components = {}
    for jar_set in get_args(JarSet):
        for jar, path in zip(read_lock(jar_set), classpath(jar_set), strict=True):
            where = jar.coordinate
            component = _component(path, where.organisation, where.name, where.revision, where.classifier, jar.sha256)
            components[component["bom-ref"]] = component
    return list(components.values())


def jars_of_pyspark() -> list[Component]:
    """The jars within the package pyspark."""
    components = []
    for path in sorted((pyspark_folder() / "jars").glob("*.jar")):
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        components.append(_component(path, *_coordinates(path), digest))
    return components


def _coordinates(path: Path) -> tuple[str, str, str, str]:
    """Group, name, version and classifier: by the POM that the jar's file is named after, or by its name."""
    poms = sorted((pom for pom in _poms(path) if path.stem.startswith(f"{pom[1]}-")), key=lambda pom: len(pom[1]))
    if poms:
        group, artifact, version = poms[-1]
        rest = path.stem.removeprefix(f"{artifact}-")
        return group, artifact, *((version, rest[len(version) + 1 :]) if rest.startswith(f"{version}-") else (rest, ""))
    named = _NAMED.fullmatch(path.stem)
    group = group_of(named["artifact"]) if named else ""
    if named is None or not group:
        raise UnknownLicence(f"{path.name} names no group; deploy/sbom/licences.toml needs a line for it")
    return group, named["artifact"], named["version"], ""


def _component(path: Path, group: str, artifact: str, version: str, classifier: str, sha256: str) -> Component:
    purl = f"pkg:maven/{group}/{artifact}@{version}" + (f"?classifier={classifier}" if classifier else "")
    return {
        "type": "library",
        "bom-ref": purl,
        "group": group,
        "name": artifact,
        "version": version,
        "purl": purl,
        "hashes": [{"alg": "SHA-256", "content": sha256}],
        "licenses": [{"expression": of_jar(group, artifact, _declared(path, artifact))}],
    }


def _poms(path: Path) -> Iterator[tuple[str, str, str]]:
    """Group, name and version of each POM in a jar; one that holds other jars has several."""
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            if (pom := _POM.fullmatch(name)) and pom[3] == "properties":
                version = re.search(r"^version=(\S+)", archive.read(name).decode("utf-8"), re.MULTILINE)
                yield pom[1], pom[2], version[1] if version else ""


def _declared(path: Path, artifact: str) -> list[str]:
    """The licences that the jar's own POM names, or, if it names none, its manifest."""
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        poms = [name for name in names if (found := _POM.fullmatch(name)) and found[2] == artifact]
        texts = [archive.read(name).decode("utf-8", "replace") for name in poms if name.endswith(".xml")]
        manifest = archive.read("META-INF/MANIFEST.MF").decode("utf-8") if "META-INF/MANIFEST.MF" in names else ""
    named = [
        " ".join(name.split())
        for text in texts
        for licences in re.findall(r"<licenses>(.*?)</licenses>", text, re.DOTALL)
        for name in re.findall(r"<name>(.*?)</name>", licences, re.DOTALL)
    ]
    # A line of a manifest goes on in the next one, after a blank.
    bundled = re.findall(r"^Bundle-License: *(\S.*?)\s*$", re.sub(r"\r?\n ", "", manifest), re.MULTILINE)
    return named or bundled
