"""The workflow for pull requests and the hook for pre-commit: their own commands, in a repository of policies."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from streaming.kafka.authorship import authorship_of
from streaming.kafka.committed import committed_records
from streaming.settings import Settings
from streaming.topics import TopicNames
from tests.cli.documents import GROUP, ROLE, readers_folder
from tests.cli.test_comparing import commit, git

ROOT = Path(__file__).parents[2]
SCRIPTS = Path(sys.executable).parent
WORKFLOW = ROOT / "deploy/examples/github-actions.yaml"
GITLAB = ROOT / "deploy/examples/gitlab-ci.yaml"
HOOKS = ROOT / ".pre-commit-hooks.yaml"
CASES = """
system: lenses6
cases:
- case: dana reads orders, and nothing else
  stages:
  - expect:
    - ask: {subject: "user:dana", action: "kafka:GetTopicDetails", resource: "kafka:topic:prod/main/orders"}
      answer: allow
    - ask: {subject: "user:dana", action: "kafka:DeleteTopic", resource: "kafka:topic:prod/main/orders"}
      answer: deny
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """What actions/checkout makes of a pull request: a clone whose branch `main` is that of its origin."""
    origin = tmp_path / "origin"
    origin.mkdir()
    git(origin, "init", "--quiet", "--initial-branch=main")
    readers_folder(origin / "policies")
    (origin / "cases").mkdir()
    (origin / "cases" / "readers.yaml").write_text(CASES)
    commit(origin)
    git(tmp_path, "clone", "--quiet", str(origin), "checkout")
    checkout = tmp_path / "checkout"
    git(checkout, "checkout", "--quiet", "-b", "change")
    return checkout


def _commands(job: str) -> Iterator[tuple[str, Mapping[str, str]]]:
    """The commands of a job and their variables, without the installation: lockkeeper is installed here."""
    for step in yaml.safe_load(WORKFLOW.read_text())["jobs"][job]["steps"]:
        if "run" in step and step["run"] != "pip install lockkeeper-authz":
            yield step["run"], step.get("env", {})


def _run(
    job: str, checkout: Path, expressions: Mapping[str, str], **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a job of GitHub's workflow, see `_run_all`."""
    return _run_all(_commands(job), checkout, expressions, **variables)


def _review(checkout: Path, base: str) -> int:
    """Run what is of the review alone in GitHub's workflow; the exit code."""
    commands = [step for step in _commands("review") if not BEFORE_THE_REVIEW.match(step[0])]
    return _run_all(commands, checkout, {}, GITHUB_BASE_REF=base).returncode


def _run_all(
    commands: Iterable[tuple[str, Mapping[str, str]]], checkout: Path, expressions: Mapping[str, str], **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run commands as a runner does: each by `bash -e`, until one fails. Returns the last one's output."""
    summary = checkout.parent / "summary.md"
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("LOCKKEEPER_")}
    runner = {"CI": "true", "GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": str(summary), **variables}
    for command, given in commands:
        own = {name: _evaluated(text, expressions) for name, text in given.items()}
        env = {**inherited, "PATH": f"{SCRIPTS}:{os.environ['PATH']}", **runner, **own}
        done = subprocess.run(
            ["bash", "-e", "-c", command],
            cwd=checkout,
            env=env,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        if done.returncode:
            break
    return done


def _evaluated(text: str, expressions: Mapping[str, str]) -> str:
    return re.sub(r"\$\{\{ *(.*?) *\}\}", lambda found: expressions[found[1]], text)


@pytest.mark.parametrize(("schema", "path"), [("github-workflows", WORKFLOW), ("gitlab-ci", GITLAB)])
def test_the_workflow_is_valid_by_the_schema_of_its_host(schema: str, path: Path) -> None:
    """The copy of it that check-jsonschema has; those of GitLab have regular expressions of JavaScript."""
    from check_jsonschema import main as check_jsonschema  # not by each process that collects the tests

    done = CliRunner().invoke(check_jsonschema, ["--builtin-schema", f"vendor.{schema}", str(path)])
    assert done.exit_code == 0, done.output


def test_a_pull_request_gets_a_summary_and_its_differences_beside_the_lines(checkout: Path) -> None:
    (checkout / "policies" / "wide.yaml").write_text(ROLE.format(name="wide", topic="*"))
    (checkout / "policies" / "group.yaml").write_text(GROUP.format(name="readers", role="order-readers, wide"))
    commit(checkout)
    done = _run("review", checkout, {}, GITHUB_BASE_REF="main")
    assert done.returncode == 1
    summary = (checkout.parent / "summary.md").read_text()
    assert summary.startswith("## Policy review: fails: 2 widenings outside of the allow-list\n")
    assert "| `user:dana` |" in summary
    [run] = json.loads((checkout / "policies.sarif").read_text())["runs"]
    places = {result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] for result in run["results"]}
    assert places == {"policies/wide.yaml"}, "relative, else they are shown nowhere"


INSTALLATION = re.compile("pip ")
BEFORE_THE_REVIEW = re.compile("lockkeeper policy (lint|test) ")
"""What tests of the review need not run again: others run all of the workflow, and see it fail there."""
ALLOWED = "- {resource: 'kafka:topic:prod/main/*', document: 'lenses6/*', reason: the team grows}\n"


@pytest.mark.parametrize(("branch", "code"), [("main", 0), ("change", 1)])
def test_a_change_may_open_what_the_list_of_its_base_allows_not_what_its_own_does(
    checkout: Path, branch: str, code: int
) -> None:
    git(checkout, "checkout", "--quiet", branch)
    (checkout / "may-widen.yaml").write_text(ALLOWED)
    commit(checkout)
    git(checkout, "push", "--quiet", "origin", f"{branch}:{branch}-allows")
    git(checkout, "fetch", "--quiet")
    git(checkout, "checkout", "--quiet", "-B", "wider")
    (checkout / "policies" / "wide.yaml").write_text(ROLE.format(name="wide", topic="*"))
    (checkout / "policies" / "group.yaml").write_text(GROUP.format(name="readers", role="order-readers, wide"))
    commit(checkout)
    base = "main-allows" if branch == "main" else "main"
    assert _review(checkout, base) == code


def _merge_request(
    checkout: Path, base: str, without: re.Pattern[str] = INSTALLATION
) -> subprocess.CompletedProcess[str]:
    """Run GitLab's job for a merge request into a commit. `without`: more of its commands that are left out."""
    script = yaml.safe_load(GITLAB.read_text())["policies"]["script"]
    commands = [(line, {}) for line in script if not INSTALLATION.match(line) and not without.match(line)]
    return _run_all(commands, checkout, {}, CI_MERGE_REQUEST_DIFF_BASE_SHA=base)


def test_a_change_of_the_list_alone_is_reviewed_and_one_that_cannot_be_read_fails(checkout: Path) -> None:
    """Once it is merged, no other change could be reviewed."""
    github, gitlab = (yaml.safe_load(path.read_text()) for path in (WORKFLOW, GITLAB))
    assert "may-widen.yaml" in github[True]["pull_request"]["paths"]  # `on` is a boolean in YAML 1.1
    assert "may-widen.yaml" in gitlab["policies"]["rules"][0]["changes"]
    for content, code in ((ALLOWED, 0), ("- {who: 'user:dana', becuse: typo}\n", 2)):
        (checkout / "may-widen.yaml").write_text(content)
        commit(checkout)
        assert _review(checkout, "main") == code
        assert _merge_request(checkout, "origin/main", BEFORE_THE_REVIEW).returncode == code


@pytest.mark.parametrize("allowed", [False, True])
def test_a_merge_request_of_gitlab_is_reviewed_in_the_same_way(checkout: Path, allowed: bool) -> None:
    if allowed:
        (checkout / "may-widen.yaml").write_text(ALLOWED)
        commit(checkout)
    base = subprocess.run(["git", "rev-parse", "HEAD"], cwd=checkout, capture_output=True, text=True, check=True)
    (checkout / "policies" / "wide.yaml").write_text(ROLE.format(name="wide", topic="*"))
    (checkout / "policies" / "group.yaml").write_text(GROUP.format(name="readers", role="order-readers, wide"))
    commit(checkout)
    done = _merge_request(checkout, base.stdout.strip())
    assert done.returncode == (0 if allowed else 1)
    assert "| `user:dana` |" in (checkout / "review.md").read_text()


def test_a_pull_request_fails_at_the_first_thing_that_is_wrong(checkout: Path) -> None:
    """A misspelt field, then a document that is right but breaks a case."""
    role = checkout / "policies" / "role.yaml"
    good = role.read_text()
    role.write_text(good.replace("effect", "efect"))
    done = _run("review", checkout, {}, GITHUB_BASE_REF="main")
    assert done.returncode != 0
    assert "policies/role.yaml:6:" in done.stdout
    assert "did you mean effect?" in done.stdout
    role.write_text(good.replace("kafka:Get*", "kafka:*"))
    done = _run("review", checkout, {}, GITHUB_BASE_REF="main")
    assert done.returncode == 1
    assert "dana reads orders, and nothing else" in done.stdout + done.stderr
    assert not (checkout / "policies.sarif").exists()


@pytest.mark.stream
def test_what_is_merged_is_applied_with_the_author_of_its_commit(
    checkout: Path, config: Path, settings: Settings, topics: TopicNames
) -> None:
    expressions = {
        "vars.KAFKA_BOOTSTRAP_SERVERS": settings.bootstrap_servers,
        "secrets.KAFKA_CLIENT": "{client.id: workflow}",
    }
    done = _run("apply", checkout, expressions, LOCKKEEPER_CONFIG=str(config))
    assert done.returncode == 0, done.stderr
    records = list(committed_records(settings, [topics.policy_topics()["lenses6"]]))
    said = {authorship_of(record.headers()) for record in records}
    assert len(records) == 2
    [authorship] = said
    assert (authorship.author, authorship.reason) == ("Dana <dana@example.com>", "policies")


class Hook:
    """pre-commit in a repository of policies, with the hook as it is but for its language: lockkeeper is installed."""

    def __init__(self, folder: Path, **changed: Any) -> None:
        [hook] = yaml.safe_load(HOOKS.read_text())
        self._folder = folder
        local = {"repo": "local", "hooks": [{**hook, "language": "system", **changed}]}
        (folder / ".pre-commit-config.yaml").write_text(yaml.safe_dump({"repos": [local]}))

    def __call__(self) -> tuple[int, str]:
        """Run it on what is staged; its exit code and output."""
        git(self._folder, "add", "--all")
        env = {**os.environ, "PATH": f"{SCRIPTS}:{os.environ['PATH']}", "PRE_COMMIT_HOME": str(self._folder.parent)}
        command = [str(SCRIPTS / "pre-commit"), "run", "--color", "never"]
        done = subprocess.run(
            command, cwd=self._folder, env=env, capture_output=True, text=True, check=False, timeout=60
        )
        return done.returncode, done.stdout


def test_the_hook_refuses_a_commit_of_a_bad_document_and_of_a_deletion_that_breaks_another(checkout: Path) -> None:
    manifest = [str(SCRIPTS / "pre-commit"), "validate-manifest", str(HOOKS)]
    assert subprocess.run(manifest, check=False, timeout=60).returncode == 0
    hook = Hook(checkout)
    code, shown = hook()
    assert (code, "Passed" in shown) == (0, True)
    role = checkout / "policies" / "role.yaml"
    good = role.read_text()
    role.write_text(good.replace("effect", "efect"))
    code, shown = hook()
    assert (code, "policies/role.yaml:6:" in shown, "did you mean effect?" in shown) == (1, True, True)
    role.unlink()
    code, shown = hook()
    assert (code, "order-readers" in shown) == (1, True)


def test_the_hook_checks_other_folders_by_its_arguments(checkout: Path) -> None:
    git(checkout, "mv", "policies", "access")
    code, shown = Hook(checkout, args=["access/"])()
    assert (code, "Passed" in shown) == (0, True)
    code, shown = Hook(checkout)()
    assert (code, "policies: there is no such file or folder" in shown) == (1, True)
