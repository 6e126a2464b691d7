"""A system of another distribution: found by its entry point, and refused where it cannot be used."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PASS = {"system": "doors", "kind": "Pass", "name": "dana", "spec": {"user": "dana", "doors": ["cellar"]}}
PACKAGES = (path.parent.name for path in (ROOT / "policy/systems").glob("*/__init__.py"))
BUILT_IN = {name.replace("_", "-") for name in PACKAGES if name != "kit"}

Install = Callable[..., Path]
Run = Callable[..., subprocess.CompletedProcess[str]]


def request(door: str) -> dict[str, object]:
    """Whether dana may open a door."""
    return {
        "id": door,
        "system": "doors",
        "subject": {"type": "user", "id": "dana"},
        "action": {"name": "open"},
        "resource": {"type": "door", "id": door},
    }


@pytest.fixture
def install(tmp_path: Path) -> Install:
    """Make a folder for sys.path with a distribution that has these entry points, and the packages of this folder."""

    def make(distribution: str = "acme-doors", **entries: str) -> Path:
        site = tmp_path / "site"
        site.mkdir(exist_ok=True)
        for package in entries.values():
            if (HERE / package).is_dir():
                shutil.copytree(HERE / package, site / package, dirs_exist_ok=True)
        info = site / f"{distribution.replace('-', '_')}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
        lines = "".join(f"{name} = {package}\n" for name, package in entries.items())
        (info / "entry_points.txt").write_text(f"[lockkeeper.systems]\n{lines}")
        return site

    return make


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run Python with the distributions of a folder; systems are found once in a process."""

    def start(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(site)])}
        command = [sys.executable, *arguments]
        return subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)

    return start


def test_a_system_of_another_distribution_decides(install: Install, run: Run) -> None:
    """By the indexed evaluator and by the reference, beside those that lockkeeper has."""
    code = f"""
import policy
from policy.evaluation import reference
snapshot = policy.compile_documents([{PASS!r}])
for asked in ({request("cellar")!r}, {request("attic")!r}):
    decision = policy.decide(snapshot, asked)
    assert decision.outcome == reference.decide(snapshot, asked), decision
    print(decision.outcome, decision.reasons[0].rule)
print(*policy.all_systems())
"""
    done = run(install(doors="doors"), "-c", code)
    assert done.stderr == ""
    assert done.stdout.splitlines() == ["allow DO-PASS", "deny DO-DEFAULT", " ".join(sorted({*BUILT_IN, "doors"}))]


def test_the_command_line_has_it(install: Install, run: Run, tmp_path: Path) -> None:
    """Its importer is listed and runs, and what is imported decides."""
    site = install(doors="doors")
    assert "\n  passes      passes (CSV): user, door\n" in run(site, "-m", "streaming.cli", "import", "--help").stdout
    (tmp_path / "passes.csv").write_text("user,door\ndana,cellar\n")
    (tmp_path / "requests.jsonl").write_text("".join(json.dumps(request(door)) + "\n" for door in ("cellar", "attic")))
    done = run(site, "-m", "streaming.cli", "import", "passes", "passes.csv", "--out", "policies")
    assert done.stdout == "+ doors/Pass/dana cellar\n"
    decide = ("decide", "--policies", "policies", "--requests", "requests.jsonl")
    shown = run(site, "-m", "streaming.cli", *decide).stdout
    assert [json.loads(line)["decision"] for line in shown.splitlines()] == [True, False]


def test_the_command_line_asks_an_engine(install: Install, run: Run, tmp_path: Path) -> None:
    """Why by its statements, and that a list of principals is not complete."""
    site = install("acme-lists", allowlist="allowlist")
    rules = {"rules": ["permit alice read plans", "forbid bob * *"]}
    document = {"system": "allowlist", "kind": "List", "name": "open", "spec": rules}
    (tmp_path / "lists.json").write_text(json.dumps(document))
    command = ("-m", "streaming.cli")
    asked = ("--system", "allowlist", "--policies", "lists.json")
    options = ("--subject", "bob", "--action", "read", "--resource", "plans")
    shown = run(site, *command, "explain", *options, *asked).stdout
    assert shown.splitlines()[0].endswith("deny: bob read plans")
    assert "1 forbid satisfied [AL-FORBID]" in shown
    assert "open rule 1: forbid bob * *" in shown
    done = run(site, *command, "who-can", *options[2:], *asked)
    assert (done.stdout, "not complete: only principals" in done.stderr) == ("alice\n", True)


@pytest.mark.parametrize(
    ("entries", "why"),
    [
        ({"doors": "no_such_package"}, "ModuleNotFoundError: No module named 'no_such_package'"),
        ({"doors": "json"}, "AttributeError: module 'json' has no attribute 'SYSTEM'"),
        ({"gates": "doors"}, "its SYSTEM is named 'doors': give both the same name"),
        ({"cdap": "doors"}, "there is already a system cdap, the package policy.systems.cdap"),
        ({"Doors": "doors"}, "a system's name has lower-case letters, digits and single dashes"),
        ({"half": "half"}, "its SYSTEM lacks kinds, deny_rule"),
    ],
)
def test_a_system_that_cannot_be_used_is_named_and_nothing_starts(
    install: Install, run: Run, tmp_path: Path, entries: dict[str, str], why: str
) -> None:
    """Not even for the other systems: its policies would be missing, and nobody would notice."""
    site = install(**entries)
    (site / "half.py").write_text("class SYSTEM:\n    name = 'half'\n")
    (tmp_path / "requests.jsonl").write_text(json.dumps(request("cellar")) + "\n")
    (tmp_path / "policies.json").write_text(json.dumps({**PASS, "system": "lenses6"}))
    decide = ("decide", "--policies", "policies.json", "--requests", "requests.jsonl")
    done = run(site, "-m", "streaming.cli", *decide)
    [(name, package)] = entries.items()
    assert (done.returncode, done.stdout) == (2, "")
    assert f"acme-doors: entry point {name} = {package} of lockkeeper.systems: {why}" in done.stderr
    assert "Traceback" not in done.stderr


def test_two_distributions_with_one_system_are_refused(install: Install, run: Run) -> None:
    """Which of them decides would depend on the order in which they were installed."""
    install(doors="doors")
    done = run(install("other-doors", doors="doors"), "-c", "import policy; policy.all_systems()")
    assert "other-doors: entry point doors = doors" in done.stderr or "acme-doors: entry point doors" in done.stderr
    assert "there is already a system doors" in done.stderr
