"""Lists what lockkeeper consists of as a CycloneDX document: `make sbom`.

Python packages of all extras as they are installed beside it, the locked jars, and the jars within PySpark, each with
its licence and, for jars, its hash. Fails for a licence that licences.toml does not allow. The packages of the image's
Debian are not in it; the workflow that publishes the image has BuildKit list them.
"""

import argparse
import json
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from deploy.sbom.jars import Component, jars_of_pyspark, locked_jars
from deploy.sbom.licences import UnknownLicence, is_allowed, of_package
from streaming import DISTRIBUTION

ROOT = "root-component"  # what cyclonedx-py calls the project


def requirements_of(name: str, extra: str) -> set[str]:
    """The packages that an extra needs here, directly and indirectly."""
    seen: set[tuple[str, str]] = set()
    pending = [(canonicalize_name(name), extra)]
    while pending:
        package = pending.pop()
        if package in seen:
            continue
        seen.add(package)
        for text in distribution(package[0]).requires or ():
            needed = Requirement(text)
            if needed.marker is None or needed.marker.evaluate({"extra": package[1]}):
                pending += [(canonicalize_name(needed.name), more) for more in ("", *sorted(needed.extras))]
    return {package for package, _ in seen} - {canonicalize_name(name)}


def environment() -> dict[str, Any]:
    """What cyclonedx-py lists here; without time and serial number, so that the same state gives the same file."""
    command = [sys.executable, "-m", "cyclonedx_py", "environment", sys.executable, "--pyproject", "pyproject.toml"]
    options = ["--output-reproducible", "--no-validate"]  # the whole is validated; it takes seconds
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=True)
    listed: dict[str, Any] = json.loads(done.stdout)
    return listed


def bill() -> dict[str, Any]:
    """The document.

    Raises:
        UnknownLicence: a component's licence cannot be named.
        PackageNotFoundError: an extra is not installed.
    """
    document, needed = environment(), requirements_of(DISTRIBUTION, "all")
    packages = [c for c in document["components"] if canonicalize_name(c["name"]) in needed]
    for package in packages:
        package["licenses"] = [{"expression": of_package(canonicalize_name(package["name"]), _declared(package))}]
        if package["name"] == "pyspark":
            package["components"] = jars_of_pyspark()
    jars = locked_jars()
    document["components"] = [*packages, *jars]
    document["metadata"]["component"] |= {"version": distribution(DISTRIBUTION).version}
    document["dependencies"] = _dependencies(document["dependencies"], packages, jars)
    return document


def _declared(package: Component) -> list[str]:
    """Identifiers and expressions; names, such as classifiers, only if there are none."""
    licences = package.get("licenses", [])
    named = [each.get("expression") or each["license"].get("id") for each in licences]
    return [text for text in named if text] or [each["license"]["name"] for each in licences if "license" in each]


def _dependencies(listed: list[Any], packages: list[Component], jars: list[Component]) -> list[Any]:
    """Those between what is in the document; lockkeeper itself needs the locked jars."""
    there = {package["bom-ref"] for package in packages}
    kept = [
        {"ref": each["ref"], "dependsOn": [ref for ref in each.get("dependsOn", ()) if ref in there]}
        for each in listed
        if each["ref"] in there
    ]
    own = {ref for each in listed if each["ref"] == ROOT for ref in each.get("dependsOn", ()) if ref in there}
    return [{"ref": ROOT, "dependsOn": [*sorted(own), *(jar["bom-ref"] for jar in jars)]}, *kept]


def components(document: dict[str, Any]) -> list[Component]:
    """All of a document, with those within others."""
    return [inner for outer in document["components"] for inner in (outer, *outer.get("components", ()))]


def refused(document: dict[str, Any]) -> list[str]:
    """The components whose licence is not allowed, with it."""
    licences = [(each["bom-ref"], each["licenses"][0]["expression"]) for each in components(document)]
    return [f"{name}: {licence}" for name, licence in licences if not is_allowed(licence)]


def invalid(document: dict[str, Any]) -> str | None:
    """What CycloneDX's schema says against the document."""
    error = JsonStrictValidator(SchemaVersion.from_version(document["specVersion"])).validate_str(json.dumps(document))
    return None if error is None else str(error)


def main() -> None:
    """Write the document, or say which licence is missing or not allowed."""
    parser = argparse.ArgumentParser(description="List what lockkeeper consists of.")
    parser.add_argument("file", type=Path, help="where to write it")
    file: Path = parser.parse_args().file
    try:
        document = bill()
    except (UnknownLicence, PackageNotFoundError) as error:
        sys.exit(f"error: {error}")
    if wrong := [*refused(document), *filter(None, [invalid(document)])]:
        sys.exit("\n".join(["error: not allowed by deploy/sbom/licences.toml, or not valid:", *wrong]))
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    print(f"{len(components(document))} components in {file}")


if __name__ == "__main__":
    main()
