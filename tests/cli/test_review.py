"""`policy review`: the page of a change, its gate, and what it says of past requests."""

import json
from pathlib import Path

import msgspec
import pytest

from policy import compile_documents, read_documents
from streaming.cli.sarif import SCHEMA
from streaming.replay.result import Compared, Totals, replayed
from tests.cli.documents import BROKEN
from tests.cli.lockkeeper import Command
from tests.cli.test_comparing import commit, git, mixed_change, widen
from tests.cli.test_comparing import folder as folder  # the fixture


def test_a_widening_fails_with_the_names_of_those_who_gain(lockkeeper: Command, folder: Path) -> None:
    widen(folder)
    shown = lockkeeper("policy", "review", "HEAD", str(folder))
    assert shown.code == 1
    assert shown.lines[0] == "## Policy review: fails: 2 widenings outside of the allow-list"
    assert any(line.startswith("| `user:dana` | `group:readers is role:wide") for line in shown.lines)
    assert f"`{folder / 'wide.yaml'}:8:7`" in shown.out
    plain = json.loads(lockkeeper("policy", "review", "HEAD", str(folder), "--json").out)
    assert (plain["ok"], [one["name"] for one in plain["people"]]) == (False, ["claim:readers", "user:dana"])


def test_who_gains_and_loses_by_one_difference_is_named_once(lockkeeper: Command, tmp_path: Path) -> None:
    before, after = mixed_change(tmp_path)
    shown = lockkeeper("policy", "review", str(before), str(after))
    [row] = [line for line in shown.lines if line.startswith("| + |")]
    assert row.endswith("| `claim:few, user:dana, user:bo` |")


def test_what_the_allow_list_covers_passes(lockkeeper: Command, folder: Path, tmp_path: Path) -> None:
    widen(folder)
    allowed = tmp_path / "allowed.yaml"
    allowed.write_text("- {resource: 'kafka:topic:prod/main/*', reason: the team reads all}\n")
    shown = lockkeeper("policy", "review", "HEAD", str(folder), "--may-widen", str(allowed))
    assert (shown.code, shown.lines[0]) == (0, "## Policy review: passes")
    allowed.write_text("- {resource: 'kafka:topic:prod/main/p*'}\n")
    assert lockkeeper("policy", "review", "HEAD", str(folder), "--may-widen", str(allowed)).code == 1
    for text in ("- {resourc: a}\n", "- {reason: all}\n", ": ["):
        allowed.write_text(text)
        refused = lockkeeper("policy", "review", "HEAD", str(folder), "--may-widen", str(allowed))
        assert (refused.code, f"--may-widen {allowed}" in refused.err) == (2, True)
    assert lockkeeper("policy", "review", "HEAD", str(folder), "--may-widen", str(tmp_path / "no")).code == 2


def test_nothing_changes(lockkeeper: Command, folder: Path) -> None:
    shown = lockkeeper("policy", "review", "HEAD", str(folder))
    assert (shown.code, shown.lines) == (0, ["## Policy review: passes", "", "Nothing changes."])


def test_an_added_document_that_is_refused_closes_what_it_affects(lockkeeper: Command, folder: Path) -> None:
    (folder / "group.yaml").write_text((folder / "group.yaml").read_text().replace("spec: {", "spec: {rolls: [], "))
    shown = lockkeeper("policy", "review", "HEAD", str(folder))
    text = "is refused and without a good version: requests that it affects are errors"
    assert any(line.startswith("| + ") and text in line for line in shown.lines), shown.lines


def test_new_findings_are_listed_by_their_place_and_old_ones_are_not(lockkeeper: Command, folder: Path) -> None:
    (folder / "broken.yaml").write_text(BROKEN)
    shown = lockkeeper("policy", "review", "HEAD", str(folder))
    assert (shown.code, shown.lines[0]) == (1, "## Policy review: fails: 1 lint error")
    assert f"| error | `{folder / 'broken.yaml'}:6:3` |" in shown.out
    (folder / "broken.yaml").unlink()
    (folder / "group.yaml").unlink()
    commit(folder)
    (folder / "more.yaml").write_text((folder / "role.yaml").read_text().replace("order-readers", "others"))
    assert lockkeeper("policy", "review", "HEAD", str(folder), "--strict").code == 1
    page = lockkeeper("policy", "review", "HEAD", str(folder)).out
    assert "no principal has role:others" in page
    assert "no principal has role:order-readers" not in page, "it was so before"


def test_sarif_has_each_widening_at_its_statement(lockkeeper: Command, folder: Path) -> None:
    widen(folder)
    log = json.loads(lockkeeper("policy", "review", "HEAD", str(folder), "--sarif").out)
    assert log["$schema"] == SCHEMA
    [run] = log["runs"]
    found = {
        (Path(place["artifactLocation"]["uri"]).name, place["region"]["startLine"], result["ruleId"], result["level"])
        for result in run["results"]
        for place in [result["locations"][0]["physicalLocation"]]
    }
    assert found == {("wide.yaml", 8, "widens", "error")}
    assert {"widens", "may-widen", "lint-error"} <= {rule["id"] for rule in run["tool"]["driver"]["rules"]}


def test_names_cannot_break_out_of_the_page(lockkeeper: Command, folder: Path) -> None:
    (folder / "evil.yaml").write_text((folder / "role.yaml").read_text().replace("order-readers", "'a|b`<script>'"))
    shown = lockkeeper("policy", "review", "HEAD", str(folder))
    assert all(line.count("`") % 2 == 0 for line in shown.lines)
    assert "`a|b" not in shown.out.replace("\\|", "")


def test_the_result_of_a_replay_is_shown_and_must_be_of_these_policies(
    lockkeeper: Command, folder: Path, tmp_path: Path
) -> None:
    widen(folder)
    version = compile_documents([one.value for one in read_documents(folder)]).version
    file = tmp_path / "replayed.json"
    totals = Totals(answers=10)
    totals.note(("deny", "allow"), 3)
    file.write_bytes(msgspec.json.encode(replayed(totals, Compared("sha256:old", "sha256:live", version), 1.0, 10)))
    shown = lockkeeper("policy", "review", "HEAD", str(folder), "--replayed", str(file))
    assert "Of 13 answers, 3 would differ: 3 would be allow, 0 would no longer be." in shown.out
    git(folder, "checkout", "--quiet", "group.yaml")
    refused = lockkeeper("policy", "review", "HEAD", str(folder), "--replayed", str(file))
    assert (refused.code, "replay again" in refused.err) == (2, True)
    file.write_text("{}")
    assert lockkeeper("policy", "review", "HEAD", str(folder), "--replayed", str(file)).code == 2


@pytest.mark.parametrize("option", ["--sarif", "--json"])
def test_machines_get_one_line_of_json(lockkeeper: Command, folder: Path, option: str) -> None:
    shown = lockkeeper("policy", "review", "HEAD", str(folder), option)
    assert (shown.code, len(shown.records)) == (0, 1)
