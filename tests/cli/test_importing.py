"""`lockkeeper import`: one file a source, safe to run again, and nothing lost that somebody else wrote."""

import json
from pathlib import Path

import pytest

from policy.importers import sources
from tests.cli.documents import GROUP, lines
from tests.cli.lockkeeper import Command

ROLES = """\
roles:
  - {name: order-readers, policy: [{effect: allow, action: "kafka:Get*", resource: "kafka:topic:prod/main/orders"}]}
groups:
  - {name: readers, roles: [order-readers], members: ["user:dana"]}
"""
DENY = ROLES.replace("effect: allow", "effect: deny, unless: Monday")
REQUEST = {
    "id": "r-1",
    "system": "lenses6",
    "subject": {"type": "user", "id": "user:dana"},
    "action": {"name": "kafka:GetTopicDetails"},
    "resource": {"type": "lrn", "id": "kafka:topic:prod/main/orders"},
}


@pytest.fixture
def export(tmp_path: Path) -> Path:
    """An export of Lenses 6."""
    return written(tmp_path / "export.yaml", ROLES)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """The folder of policies, which is not there yet."""
    return tmp_path / "policies"


def written(file: Path, content: str) -> Path:
    """A file with this content."""
    file.write_text(content, encoding="utf-8")
    return file


def state(folder: Path) -> dict[str, bytes]:
    """All files of a folder."""
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def test_help_shows_every_source_and_examples(lockkeeper: Command) -> None:
    shown = lockkeeper("import", "--help")
    assert shown.code == 0
    for source in sources():
        assert f"\n  {source} " in shown.out
    assert "lockkeeper import ranger" in shown.out
    assert "principal_type, principal, entity, privileges" in shown.out


def test_an_import_is_linted_and_decides(lockkeeper: Command, export: Path, out: Path, tmp_path: Path) -> None:
    """The folder is one of policies."""
    shown = lockkeeper("import", "lenses6", str(export), "--out", str(out))
    assert (shown.code, shown.lines) == (0, ["+ lenses6/Group/readers", "+ lenses6/Role/order-readers"])
    assert f"2 documents written to {out}/lenses6.yaml; 0 errors" in shown.err
    assert lockkeeper("policy", "lint", str(out), "--strict").code == 0
    asked = written(tmp_path / "requests.jsonl", lines(REQUEST))
    assert lockkeeper("decide", "--policies", str(out), "--requests", str(asked)).records[0]["decision"] is True


def test_importing_again_changes_nothing(lockkeeper: Command, export: Path, out: Path) -> None:
    lockkeeper("import", "lenses6", str(export), "--out", str(out))
    before = state(out)
    shown = lockkeeper("import", "lenses6", str(export), "--out", str(out))
    assert (shown.code, shown.out, state(out)) == (0, "", before)
    assert "as they already are" in shown.err


def test_what_the_source_has_no_more_goes_and_other_files_stay(lockkeeper: Command, export: Path, out: Path) -> None:
    """A revocation must come through; a document that somebody wrote himself must not go."""
    lockkeeper("import", "lenses6", str(export), "--out", str(out))
    mine = written(out / "mine.yaml", GROUP.format(name="mine", role="order-readers"))
    written(export, ROLES.replace("name: readers", "name: newcomers").replace("kafka:Get*", "kafka:List*"))
    shown = lockkeeper("import", "lenses6", str(export), "--out", str(out), "--json")
    (result,) = shown.records
    assert result["added"] == ["lenses6/Group/newcomers"]
    assert result["removed"] == ["lenses6/Group/readers"]
    assert result["changed"] == ["lenses6/Role/order-readers"]
    assert mine.exists()
    assert "readers\n" not in (out / "lenses6.yaml").read_text().replace("order-readers", "")


def test_a_dry_run_tells_and_writes_nothing(lockkeeper: Command, export: Path, out: Path) -> None:
    shown = lockkeeper("import", "lenses6", str(export), "--out", str(out), "--dry-run")
    assert (shown.code, len(shown.lines), out.exists()) == (0, 2, False)
    assert "would be written" in shown.err


def test_an_error_refuses_the_run_and_names_the_place(lockkeeper: Command, export: Path, out: Path) -> None:
    """Nothing is written, and what is there stays."""
    lockkeeper("import", "lenses6", str(export), "--out", str(out))
    before = state(out)
    written(export, DENY)
    shown = lockkeeper("import", "lenses6", str(export), "--out", str(out))
    assert (shown.code, state(out)) == (1, before)
    (line,) = shown.lines
    assert line.startswith(f"{export}: roles[0].policy[0]: error: unless: unknown field")
    assert "To do: " in line
    assert "nothing was written, because of the errors above: --partial" in shown.err


def test_partial_goes_on_and_denies_whom_it_concerns(
    lockkeeper: Command, export: Path, out: Path, tmp_path: Path
) -> None:
    written(export, DENY)
    shown = lockkeeper("import", "lenses6", str(export), "--out", str(out), "--partial", "--json")
    (result,) = shown.records
    assert (shown.code, result["refused"], result["documents"]) == (0, False, 2)
    assert [finding["level"] for finding in result["findings"]] == ["error"]
    asked = written(tmp_path / "requests.jsonl", lines(REQUEST))
    (answer,) = lockkeeper("decide", "--policies", str(out), "--requests", str(asked)).records
    assert answer["context"]["reasons"][0]["rule"] == "L6-DECIDE-DENY-WINS"


def test_partial_does_not_go_on_where_it_is_not_known_whom_an_error_concerns(
    lockkeeper: Command, export: Path, out: Path
) -> None:
    """What was imported before stays: it may deny."""
    lockkeeper("import", "lenses6", str(export), "--out", str(out))
    before = state(out)
    written(export, ROLES.replace("members: [", "members: [17, "))
    shown = lockkeeper("import", "lenses6", str(export), "--out", str(out), "--partial")
    assert (shown.code, state(out)) == (1, before)
    assert "no document of this run is safe" in shown.out


def test_warnings_alone_do_not_refuse(lockkeeper: Command, export: Path, out: Path) -> None:
    written(export, ROLES.replace("effect: allow", "effect: allow, unless: Monday"))
    shown = lockkeeper("import", "lenses6", str(export), "--out", str(out))
    assert shown.code == 0
    assert ": warning: the statement is left out" in shown.lines[0]


@pytest.mark.parametrize("content", ["system: lenses6\n", "", "# Written by `lockkeeper import cdap`\n", "\x00"])
def test_a_file_that_no_import_wrote_is_not_written_over(
    lockkeeper: Command, export: Path, out: Path, content: str
) -> None:
    out.mkdir()
    written(out / "lenses6.yaml", content)
    shown = lockkeeper("import", "lenses6", str(export), "--out", str(out))
    assert (shown.code, state(out)) == (1, {"lenses6.yaml": content.encode()})
    assert "was not written by `lockkeeper import lenses6`" in shown.err


def test_a_file_that_was_edited_is_not_written_over(lockkeeper: Command, export: Path, out: Path) -> None:
    """Also when the import would not change it."""
    lockkeeper("import", "lenses6", str(export), "--out", str(out))
    file = out / "lenses6.yaml"
    edited = written(file, file.read_text().replace("kafka:Get*", "kafka:*")).read_bytes()
    shown = lockkeeper("import", "lenses6", str(export), "--out", str(out))
    assert (shown.code, file.read_bytes()) == (1, edited)
    assert "was edited since it was imported" in shown.err


def test_a_document_that_another_file_has_refuses_the_run(lockkeeper: Command, export: Path, out: Path) -> None:
    """lockkeeper would refuse both, and the affected principals would get an error."""
    out.mkdir()
    written(out / "mine.yaml", GROUP.format(name="readers", role="order-readers"))
    shown = lockkeeper("import", "lenses6", str(export), "--out", str(out))
    assert (shown.code, list(state(out))) == (1, ["mine.yaml"])
    assert f"{out}/mine.yaml:1 (document 1): has lenses6/Group/readers" in shown.err


def test_two_sources_share_a_folder(lockkeeper: Command, export: Path, out: Path, tmp_path: Path) -> None:
    """Also one that gives nothing."""
    grants = written(tmp_path / "grants.csv", "principal_type,principal,entity,privileges\n")
    assert lockkeeper("import", "cdap", str(grants), "--out", str(out)).code == 0
    assert lockkeeper("import", "lenses6", str(export), "--out", str(out)).code == 0
    assert lockkeeper("import", "cdap", str(grants), "--out", str(out)).code == 0
    assert set(state(out)) == {"cdap.yaml", "lenses6.yaml"}


def test_wrong_use_is_reported_with_exit_code_2(lockkeeper: Command, export: Path, out: Path) -> None:
    """A source that is none, a file that is not there, no folder."""
    shown = lockkeeper("import", "lenses7", str(export), "--out", str(out))
    assert (shown.code, "did you mean lenses" in shown.err) == (2, True)
    shown = lockkeeper("import", "lenses6", "missing.yaml", "--out", str(out))
    assert (shown.code, "missing.yaml: No such file" in shown.err) == (2, True)
    assert lockkeeper("import", "lenses6", str(export)).code == 2
    assert lockkeeper("import", "lenses6", "--out", str(out)).code == 2


def test_a_file_that_cannot_be_read_is_reported_with_its_line(lockkeeper: Command, export: Path, out: Path) -> None:
    """With --partial too: what it holds may deny."""
    written(export, "roles:\n  - &r {name: x}\n")
    shown = lockkeeper("import", "lenses6", str(export), "--out", str(out), "--partial")
    assert (shown.code, out.exists()) == (1, False)
    assert f"{export}:2: an anchor" in shown.err


def test_control_characters_of_names_do_not_reach_the_terminal(lockkeeper: Command, export: Path, out: Path) -> None:
    """Nor do they hide in a file: such a name is refused."""
    written(export, json.dumps({"roles": [{"name": "a\u001b[2Kb\u202e", "policy": []}]}))
    shown = lockkeeper("import", "lenses6", str(export), "--out", str(out))
    assert (shown.code, out.exists()) == (1, False)
    assert "has a control or format character" in shown.out
    assert not {"\u001b", "\u202e"} & set(shown.out + shown.err)
