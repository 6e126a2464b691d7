"""`policy diff` of what is live, of git references, and for pull requests."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from confluent_kafka import Producer
from markdown_it import MarkdownIt

from streaming.cli.differences import Comparison, code, render
from streaming.settings import Settings
from streaming.topics import TopicNames
from tests.cli.documents import GROUP, ROLE, readers_folder, request
from tests.cli.lockkeeper import Command


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Policies in a git repository, with one commit."""
    folder = readers_folder(tmp_path / "policies")
    git(folder, "init", "--quiet")
    commit(folder)
    return folder


def git(folder: Path, *arguments: str) -> None:
    """Run git as somebody."""
    identity = ["-c", "user.name=Dana", "-c", "user.email=dana@example.com"]
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True)


def commit(folder: Path) -> None:
    """Commit all."""
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "-m", "policies")


def widen(folder: Path) -> None:
    """Let the readers read every topic, in a file of its own."""
    (folder / "wide.yaml").write_text("# all topics\n---\n" + ROLE.format(name="wide", topic="*"))
    (folder / "group.yaml").write_text(GROUP.format(name="readers", role="order-readers, wide"))


def test_a_git_reference_is_compared_in_the_authors_notation_with_whom_it_concerns(
    lockkeeper: Command, folder: Path
) -> None:
    widen(folder)
    shown = lockkeeper("policy", "diff", "HEAD", str(folder), "--fail-on", "widening")
    assert shown.code == 1
    assert shown.lines == [
        "+! lenses6/Group/readers: group:readers is role:wide",
        "   gained by claim:readers, user:dana",
        "+! lenses6/Role/wide: role:wide allow kafka:Get* on kafka:topic:prod/main/*",
        "   gained by claim:readers, user:dana",
        "2 differences; no requests were compared",
    ]
    commit(folder)
    assert lockkeeper("policy", "diff", "HEAD", str(folder)).code == 0
    back = lockkeeper("policy", "diff", "HEAD~1", str(folder / "group.yaml"))
    assert "group:readers is role:wide" in back.out
    (folder / "role.yaml").unlink()
    assert " by " not in lockkeeper("policy", "diff", "HEAD", str(folder)).out, "they have it by the other role"
    git(folder, "checkout", "--quiet", "role.yaml")
    (folder / "wide.yaml").unlink()
    assert "lost by claim:readers, user:dana" in lockkeeper("policy", "diff", "HEAD", str(folder)).out


MIXED = """system: lenses6
kind: Role
name: mixed
spec:
  statements:
    - {effect: allow, action: "kafka:Get*", resource: "kafka:topic:prod/main/orders"}
    - {effect: deny, action: "kafka:Get*", resource: "kafka:topic:prod/main/invoices"}
"""
FEW_AND_OWN = """system: lenses6
kind: Group
name: few
spec: {roles: [], members: ["user:bo", "user:dana"]}
---
system: lenses6
kind: Group
name: own
spec: {roles: [orders, invoices], members: ["user:bo"]}
"""


def mixed_change(tmp_path: Path) -> tuple[Path, Path]:
    """Folders. bo may read both topics before; a role then gives dana orders, and denies invoices to both."""
    before, after = tmp_path / "before", tmp_path / "after"
    for folder in (before, after):
        folder.mkdir()
        (folder / "roles.yaml").write_text(
            "---\n".join([MIXED, *(ROLE.format(name=name, topic=name) for name in ("orders", "invoices"))])
        )
        (folder / "groups.yaml").write_text(FEW_AND_OWN)
    (after / "groups.yaml").write_text(FEW_AND_OWN.replace("roles: []", "roles: [mixed]"))
    return before, after


def test_who_only_loses_by_a_difference_that_gives_others_something_does_not_gain_by_it(
    lockkeeper: Command, tmp_path: Path
) -> None:
    before, after = mixed_change(tmp_path)
    shown = lockkeeper("policy", "diff", str(before), str(after))
    assert shown.lines[:2] == [
        "+! lenses6/Group/few: group:few is role:mixed",
        "   gained by claim:few, user:dana; lost by claim:few, user:bo, user:dana",
    ]
    markdown = lockkeeper("policy", "diff", str(before), str(after), "--format", "markdown")
    assert "| gained by `claim:few, user:dana`; lost by `claim:few, user:bo, user:dana` |" in markdown.out
    [difference] = json.loads(lockkeeper("policy", "diff", str(before), str(after), "--json").out)["differences"]
    assert difference["who"] == ["claim:few", "user:bo", "user:dana"]


def test_a_folder_that_the_commit_does_not_have_is_new_and_an_unknown_reference_is_refused(
    lockkeeper: Command, folder: Path
) -> None:
    newer = folder / "newer"
    newer.mkdir()
    (newer / "wide.yaml").write_text(ROLE.format(name="wide", topic="*"))
    shown = lockkeeper("policy", "diff", "HEAD", str(newer))
    assert (shown.code, shown.lines[-1]) == (1, "1 differences; no requests were compared")
    for reference in ("HEAD~9", "no-such-branch", "HEAD:policies"):
        refused = lockkeeper("policy", "diff", reference, str(folder))
        assert (refused.code, "no such path, and no commit" in refused.err) == (2, True)


def test_a_reference_is_refused_where_gits_archive_lacks_documents(lockkeeper: Command, folder: Path) -> None:
    """A deny that is removed from there would be no widening."""
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=folder, check=True, capture_output=True, text=True)
    git(folder, "update-index", "--add", "--cacheinfo", f"160000,{head.stdout.strip()},team")
    git(folder, "commit", "--quiet", "-m", "with a submodule")
    refused = lockkeeper("policy", "diff", "HEAD", str(folder))
    assert (refused.code, "git archive leaves out team" in refused.err) == (2, True)
    (folder / ".gitattributes").write_text("role.yaml export-ignore\n.hidden.yaml export-ignore\n")
    (folder / ".hidden.yaml").write_text("")
    git(folder, "rm", "--quiet", "--cached", "team")
    commit(folder)
    refused = lockkeeper("policy", "review", "HEAD", str(folder))
    assert (refused.code, "git archive leaves out role.yaml (" in refused.err) == (2, True)
    assert lockkeeper("policy", "diff", "HEAD", str(folder / "group.yaml")).code == 0


def test_markdown_is_a_table_that_names_cannot_break_out_of(lockkeeper: Command, folder: Path) -> None:
    widen(folder)
    evil = ROLE.format(name="'a|b`<script>'", topic="orders")
    (folder / "evil.yaml").write_text(evil)
    shown = lockkeeper("policy", "diff", "HEAD", str(folder), "--format", "markdown")
    assert shown.lines[0] == "### Policies: 3 differences; no requests were compared"
    rows = [line for line in shown.lines if line.startswith("| +")]
    assert len(rows) == 3
    assert all(row.replace("\\|", "").count("|") == 5 for row in rows)
    assert all(row.count("`") % 2 == 0 for row in rows)
    assert "gained by `claim:readers, user:dana`" in shown.out


def test_sarif_names_the_file_and_line_of_each_difference(lockkeeper: Command, folder: Path) -> None:
    widen(folder)
    [run] = json.loads(lockkeeper("policy", "diff", "HEAD", str(folder), "--format", "sarif").out)["runs"]
    rules = {rule["id"] for rule in run["tool"]["driver"]["rules"]}
    found = {_place(result): (result["ruleId"], result["level"]) for result in run["results"]}
    assert found == {("group.yaml", 1): ("widens", "warning"), ("wide.yaml", 3): ("widens", "warning")}
    assert {rule for rule, _ in found.values()} <= rules


def test_sarif_has_the_file_as_a_uri(lockkeeper: Command, folder: Path) -> None:
    """Else a file behind # would be another one, and one with a blank none."""
    widen(folder)
    odd = "a:50% #1?[b] \u00e9.yaml"
    (folder / "wide.yaml").rename(folder / odd)
    for command in (("policy", "diff", "--format", "sarif"), ("policy", "review", "--sarif")):
        [run] = json.loads(lockkeeper(*command, "HEAD", str(folder)).out)["runs"]
        places = [result["locations"][0]["physicalLocation"] for result in run["results"]]
        uris = [place["artifactLocation"]["uri"] for place in places]
        assert all(re.fullmatch(r"(?:[A-Za-z0-9._~/-]|%[0-9A-F]{2})+", uri) for uri in uris), uris
        assert str(folder / odd) in map(unquote, uris)


def _place(result: dict[str, Any]) -> tuple[str, int]:
    [location] = result["locations"]
    place = location["physicalLocation"]
    return Path(place["artifactLocation"]["uri"]).name, place["region"]["startLine"]


def test_nothing_that_changes_is_said_in_every_format() -> None:
    nothing = Comparison([], [], 0, {}, "policies")
    assert list(render(nothing, "markdown"))[-1] == "Nothing changes."
    assert json.loads(next(render(nothing, "sarif")))["runs"][0]["results"] == []
    assert json.loads(next(render(nothing, "json"))) == {"differences": [], "changes": [], "requests": 0}


@pytest.mark.stream
def test_live_is_compared_with_what_apply_would_make_of_it_and_the_newest_requests_are_decided_with_both(
    lockkeeper: Command, config: Path, settings: Settings, topics: TopicNames, folder: Path
) -> None:
    options = ("--config", str(config))
    assert lockkeeper("policy", "apply", str(folder), *options).code == 0
    producer = Producer({"bootstrap.servers": settings.bootstrap_servers})
    for topic in ("orders", "payments"):
        producer.produce(topics.requests[0], json.dumps(request(topic=topic)).encode(), partition=0)
        assert producer.flush(30) == 0
    widen(folder)
    (folder / "role.yaml").unlink()
    shown = lockkeeper("policy", "diff", "live", str(folder), *options)
    assert (shown.code, shown.lines[-1]) == (1, "2 differences, 1 of 2 decisions would change")
    assert "request 2: user:dana kafka:GetTopicDetails kafka:topic:prod/main/payments: deny → allow" in shown.lines
    pruned = lockkeeper("policy", "diff", "live", str(folder), "--prune", "--newest", "0", "--json", *options)
    [removed] = [
        one for one in json.loads(pruned.out)["differences"] if one["document"] == "lenses6/Role/order-readers"
    ]
    assert (removed["sign"], removed["who"]) == ("removed", []), "who had it has it by the new role"


@pytest.mark.stream
@pytest.mark.usefixtures("topics")
def test_requests_whose_answers_may_rest_on_facts_are_said_to_be_decided_without_the_facts_topic(
    lockkeeper: Command, config: Path, tmp_path: Path
) -> None:
    grant = {"user": "dana", "entity": "application:ns.app", "privileges": ["READ"]}
    asked = {
        "system": "cdap",
        "subject": {"type": "user", "id": "dana"},
        "action": {"name": "application.get"},
        "resource": {"type": "application", "id": "application:ns.app"},
    }
    policies, requests = tmp_path / "grant.yaml", tmp_path / "requests.jsonl"
    policies.write_text(json.dumps({"system": "cdap", "kind": "Grant", "name": "dana", "spec": grant}))
    requests.write_text(json.dumps(asked) + "\n" + json.dumps({**asked, "system": ["cdap"]}))
    files = ("policy", "diff", "live", str(policies), "--requests", str(requests), "--newest", "0")
    shown = lockkeeper(*files, "--config", str(config))
    assert "requests of cdap are decided as if the facts topic were empty" in shown.err
    gate = (*files, "--fail-on", "nothing", "--config", str(config))
    assert (lockkeeper(*gate).code, lockkeeper(*gate, "--strict").code) == (0, 1)
    requests.write_text(json.dumps(request()))
    without_facts = lockkeeper(*gate, "--strict")
    assert "facts" not in without_facts.err
    assert without_facts.code == 0


@pytest.mark.stream
def test_a_live_document_that_is_refused_counts_as_the_job_has_it(
    lockkeeper: Command, config: Path, settings: Settings, topics: TopicNames, folder: Path
) -> None:
    """By its last good version; without one, what it names are errors, which a good one ends."""
    options, guard = ("--config", str(config)), folder / "guard.yaml"
    (folder / "group.yaml").write_text(GROUP.format(name="readers", role="order-readers, guard"))
    guard.write_text(ROLE.format(name="guard", topic="secret").replace("allow", "deny"))
    assert lockkeeper("policy", "apply", str(folder), *options).code == 0
    producer = Producer({"bootstrap.servers": settings.bootstrap_servers})
    for key in (b"Role/guard", b"Role/new"):
        producer.produce(topics.policy_topics()["lenses6"], b"system: [", key=key)
    assert producer.flush(30) == 0
    compared = ("policy", "diff", "live", str(folder), "--fail-on", "widening", "--newest", "0", *options)
    shown = lockkeeper(*compared)
    assert (shown.code, lockkeeper(*compared, "--strict").code) == (0, 1)
    for name in ("guard", "new"):
        assert f"lenses6/Role/{name}: what is in the topic is refused" in shown.err
    guard.unlink()
    (folder / "new.yaml").write_text(ROLE.format(name="new", topic="new"))
    kept = [line for line in lockkeeper(*compared).lines if "!" in line]
    lifted = "-! lenses6/Role/new: was refused and without a good version: requests that it affected were errors"
    assert kept == [lifted, "+! lenses6/Role/new: role:new allow kafka:Get* on kafka:topic:prod/main/new"]
    pruned = lockkeeper(*compared, "--prune")
    assert pruned.code == 1
    assert "-! lenses6/Role/guard: role:guard deny kafka:Get* on kafka:topic:prod/main/secret" in pruned.lines
    review = lockkeeper("policy", "review", "live", str(folder), "--prune", *options)
    assert (review.code, "deny kafka:Get* on kafka:topic:prod/main/secret" in review.out) == (1, True)


NAMES = (
    "a, a b, a  b, a\u00a0b, a'b, a`b, a``b, `, ``, a|b, a\\|b, a\nb, a\\nb, | x |, <img src=x>, [a](//x.example), *"
)
MISREAD = (*NAMES.split(", "), " a", "a ", " a ", "user:\u202ea")


def test_names_that_differ_are_never_the_same_in_a_table_of_markdown_nor_more_than_a_name() -> None:
    """A reviewer on a pull request sees them: a`b must not pass for a'b, nor two blanks for one."""
    reader, seen = MarkdownIt("commonmark").enable("table"), dict[str, str]()
    for name in MISREAD:
        rows = reader.parse(f"| a | b |\n|---|---|\n| {code(name)} | x |\n")
        cells = [token for token in rows if token.type == "inline"][2:]
        spans = [(child.type, child.content) for child in cells[0].children or []]
        assert [type_ for type_, _ in spans] == ["code_inline"], name
        assert [cell.content for cell in cells[1:]] == ["x"], name
        assert seen.setdefault(spans[0][1], name) == name
        assert spans[0][1].isprintable()
