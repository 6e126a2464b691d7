"""The workflows of GitHub: clean to zizmor, and what of OpenSSF Scorecard's checks a clone can show."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.files import DEPLOY, ROOT, read_yaml

GITHUB = ROOT / ".github"
EXAMPLE = DEPLOY / "examples" / "github-actions.yaml"
WORKFLOWS = [*sorted((GITHUB / "workflows").glob("*.yml")), EXAMPLE]
ZIZMOR = [str(Path(sys.executable).parent / "zizmor"), "--offline", "--quiet", "--persona", "pedantic"]
# A commit, and as a comment the tag that it had, which Dependabot renews with it.
PINNED = re.compile(r"[\w.-]+/[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+")

every = pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)


def _zizmor(*paths: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([*ZIZMOR, *map(str, paths)], capture_output=True, text=True, timeout=60)


def _jobs(path: Path) -> Iterator[dict[str, Any]]:
    yield from read_yaml(path)["jobs"].values()


def _steps(path: Path) -> Iterator[dict[str, Any]]:
    for job in _jobs(path):
        yield from job["steps"]


def _triggers(path: Path) -> Any:
    return read_yaml(path)[True]  # YAML 1.1 reads the key `on` so


def test_zizmor_finds_nothing() -> None:
    shown = _zizmor(GITHUB, EXAMPLE)
    assert shown.returncode == 0, shown.stdout + shown.stderr
    assert f"{ZIZMOR[1]} --quiet --persona pedantic" in (ROOT / "Makefile").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("was", "becomes", "rule"),
    [
        (r"@[0-9a-f]{40} # v\d+\.\d+\.\d+", "@v7", "unpinned-uses"),
        (r"\{persist-credentials: false\}", "{}", "artipacked"),
        (r"pull_request:", "pull_request_target:", "dangerous-triggers"),
        (r"permissions: \{\}", "permissions: write-all", "excessive-permissions"),
    ],
)
def test_zizmor_finds_what_must_not_be(was: str, becomes: str, rule: str, tmp_path: Path) -> None:
    (tmp_path / "workflow.yml").write_text(re.sub(was, becomes, EXAMPLE.read_text(encoding="utf-8")))
    shown = _zizmor(tmp_path / "workflow.yml")
    assert shown.returncode != 0
    assert rule in shown.stdout


@every
def test_actions_are_pinned_by_commit_and_name_the_version(path: Path) -> None:
    used = re.findall(r"uses: (.+)", path.read_text(encoding="utf-8"))
    assert used
    assert [use for use in used if not PINNED.fullmatch(use)] == []


def test_an_action_has_one_version() -> None:
    used = {use for path in WORKFLOWS for use in re.findall(r"uses: (\S+)", path.read_text(encoding="utf-8"))}
    versions = {(re.split("[/@]", use)[0], re.split("[/@]", use)[1], use.partition("@")[2]) for use in used}
    assert len(versions) == len({(owner, name) for owner, name, _ in versions})


@every
def test_a_job_may_do_what_it_says_and_no_checkout_keeps_its_token(path: Path) -> None:
    assert read_yaml(path)["permissions"] == {}
    text = path.read_text(encoding="utf-8")
    # Each right to write says what it is for.
    assert len(re.findall(r": write # \w", text)) == len(re.findall(r": write", text))
    for job in _jobs(path):
        assert job["permissions"]["contents"] == "read"
    checkouts = [step for step in _steps(path) if step.get("uses", "").startswith("actions/checkout@")]
    assert len(checkouts) >= len(list(_jobs(path)))
    assert all(step["with"]["persist-credentials"] is False for step in checkouts)


@every
def test_code_of_strangers_runs_without_secrets(path: Path) -> None:
    assert not {"pull_request_target", "workflow_run", "issue_comment"} & _triggers(path).keys()
    written = {name for job in _jobs(path) for name, right in job["permissions"].items() if right == "write"}
    assert written <= ({"security-events"} if "pull_request" in _triggers(path) else {"packages"})


def test_ci_runs_what_a_clone_runs_and_the_image_comes_of_tags_alone() -> None:
    assert ".ci/run" in [step.get("run") for step in _steps(GITHUB / "workflows" / "ci.yml")]
    image = GITHUB / "workflows" / "image.yml"
    assert _triggers(image) == {"push": {"tags": ["v*"]}}
    [build] = [step["with"] for step in _steps(image) if "build-push-action" in step.get("uses", "")]
    assert (build["file"], build["push"], build["sbom"], build["provenance"]) == (
        "deploy/Dockerfile",
        True,
        True,
        "mode=max",
    )
    commands = [step.get("run", "") for step in _steps(image)]
    assert "make sbom" in commands


def test_what_is_pinned_is_renewed_and_where_to_report_is_said() -> None:
    """Scorecard's checks Dependency-Update-Tool, SAST, Security-Policy and License, as far as a clone has them."""
    updates = read_yaml(GITHUB / "dependabot.yml")["updates"]
    assert {update["package-ecosystem"] for update in updates} == {
        "github-actions",
        "uv",
        "docker",
        "docker-compose",
    }
    for update in updates:
        for folder in update.get("directories", [update.get("directory")]):
            assert (ROOT / folder.lstrip("/")).is_dir()
    analysed = read_yaml(GITHUB / "workflows" / "codeql.yml")["jobs"]["analyze"]["strategy"]["matrix"]["language"]
    assert analysed == ["actions", "python"]
    assert "Report a vulnerability" in (GITHUB / "SECURITY.md").read_text(encoding="utf-8")
    assert "Apache License" in (ROOT / "LICENSE").read_text(encoding="utf-8")
