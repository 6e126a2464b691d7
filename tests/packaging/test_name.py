"""The distribution is `lockkeeper-authz`: on the public package index, `lockkeeper` is somebody else's program."""

import re
import subprocess
import tomllib
from importlib.metadata import distribution, metadata
from pathlib import Path

import pytest

from streaming import DISTRIBUTION
from streaming.ops.telemetry import NOT_INSTALLED
from tests.cli.lockkeeper import Command

ROOT = Path(__file__).parents[2]
INSTALLERS = r"\b(?:pip3?|pipx|uv|uvx|poetry|pdm|conda)\b"
OTHERS_NAME = re.compile(rf"""{INSTALLERS}[^\n]*[\s'"`]lockkeeper(?=[\[\s'"`=<>~!;]|$)|\blockkeeper\[""", re.MULTILINE)


def _shipped() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True
    )
    if listed.returncode != 0:
        pytest.skip(f"not in a clone, so which files are shipped is not known: {listed.stderr.strip()}")
    return [ROOT / name for name in listed.stdout.splitlines() if (ROOT / name).is_file()]


def test_no_file_recommends_to_install_the_program_of_somebody_else() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in _shipped()
        if path != Path(__file__)
        for match in OTHERS_NAME.finditer(path.read_text(encoding="utf-8", errors="replace"))
    ]
    assert found == [], f"the distribution is called {DISTRIBUTION}"


@pytest.mark.parametrize(
    ("text", "recommended"),
    [
        ("pip install 'lockkeeper[tracing]'", True),
        ("pip install lockkeeper", True),
        ("RUN uv pip install --no-cache lockkeeper==1.2.3", True),
        ("`uvx lockkeeper`", True),
        ("needs lockkeeper[tracing]", True),
        ("pip install 'lockkeeper-authz[tracing]'", False),
        ("pip install lockkeeper-authz", False),
        ("python -m pip install dist/*.whl && lockkeeper run", True),  # over-careful: put it on two lines
    ],
)
def test_such_a_recommendation_is_found(text: str, recommended: bool) -> None:
    assert bool(OTHERS_NAME.search(text)) is recommended


def test_the_code_asks_for_its_version_by_the_name_of_the_distribution(lockkeeper: Command) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["name"] == DISTRIBUTION == metadata(DISTRIBUTION)["Name"] == "lockkeeper-authz"
    assert lockkeeper("--version").out.split() == ["lockkeeper", metadata(DISTRIBUTION)["Version"]]


def test_the_command_keeps_its_name() -> None:
    [command] = distribution(DISTRIBUTION).entry_points
    assert (command.name, command.value) == ("lockkeeper", "streaming.cli:main")


def test_the_message_about_the_extra_names_the_distribution() -> None:
    assert f"pip install '{DISTRIBUTION}[tracing]'" in NOT_INSTALLED
