"""The wheel holds all that the checkout's packages hold, and says what it needs."""

import subprocess
import sys
import tomllib
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("policy", "streaming")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The wheel, built here by the build backend that `uv build` and pip would fetch."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    [built] = folder.glob("lockkeeper_authz-*-py3-none-any.whl")
    return zipfile.ZipFile(built)


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    """The section `project` of pyproject.toml."""
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return project


def _metadata(wheel: zipfile.ZipFile, file: str) -> str:
    [name] = [name for name in wheel.namelist() if name.endswith(f".dist-info/{file}")]
    return wheel.read(name).decode()


@pytest.fixture(scope="module")
def metadata(wheel: zipfile.ZipFile) -> Message:
    """What the wheel says of itself."""
    return Parser().parsestr(_metadata(wheel, "METADATA"))


def test_every_file_of_the_packages_is_in_it_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    """Data too: catalogues, schemas, the lock of the jars, settings of Ivy and of logging, the demo's policies."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", *PACKAGES],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    if listed.returncode != 0:
        pytest.skip(f"not in a clone, so which files belong to the packages is not known: {listed.stderr.strip()}")
    expected = {name for name in listed.stdout.splitlines() if (ROOT / name).is_file()}
    assert {name for name in wheel.namelist() if ".dist-info/" not in name} == expected
    assert {"streaming/runtime/jars.lock", "streaming/runtime/ivysettings.xml", "streaming/py.typed"} <= expected


def test_it_brings_the_command_the_licence_and_what_it_needs(
    wheel: zipfile.ZipFile, metadata: Message, project: dict[str, Any]
) -> None:
    assert project["scripts"] == {"lockkeeper": "streaming.cli:main"}
    assert "lockkeeper = streaming.cli:main" in _metadata(wheel, "entry_points.txt")
    assert "Apache License" in _metadata(wheel, "licenses/LICENSE")
    assert metadata["License-Expression"] == project["license"] == "Apache-2.0"
    assert metadata["Requires-Python"] == project["requires-python"]
    stated = [text.split(";") for text in metadata.get_all("Requires-Dist", [])]
    assert [f"pyspark=={_pyspark(project)}", "extra == 'job'"] in [[part.strip() for part in text] for text in stated]
    needed = {text[0].strip() for text in stated}
    assert {_name(text) for text in project["dependencies"]} <= {_name(text) for text in needed}


def _name(expression: str) -> str:
    return expression.split("[")[0].split("<")[0].split(">")[0].split("=")[0].strip()


def _pyspark(project: dict[str, Any]) -> str:
    [pinned] = [text for text in project["optional-dependencies"]["job"] if text.startswith("pyspark==")]
    return str(pinned.removeprefix("pyspark=="))


def test_the_version_comes_from_the_tags_and_is_no_fixed_text(metadata: Message, project: dict[str, Any]) -> None:
    assert project["dynamic"] == ["version"]
    assert metadata["Version"][0].isdigit()


def test_spark_and_the_connectors_jars_are_of_one_version(project: dict[str, Any]) -> None:
    """PySpark refuses a connector of another Spark only once a query runs."""
    jars = (ROOT / "streaming" / "runtime" / "jars.lock").read_text(encoding="utf-8")
    assert f"org.apache.spark:spark-sql-kafka-0-10_2.13:{_pyspark(project)}" in jars
