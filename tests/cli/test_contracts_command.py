"""`lockkeeper contracts`: lists, prints and writes the contracts."""

import json
from pathlib import Path

from streaming.records.schemas import names, read
from tests.cli.lockkeeper import Command


def test_without_a_name_it_lists_all_there_are(lockkeeper: Command) -> None:
    shown = lockkeeper("contracts")
    assert (shown.code, shown.lines, shown.err) == (0, names(), "")
    assert {"asyncapi.yaml", "avro/request.avsc", "json/request.json"} <= set(shown.lines)


def test_it_prints_one_as_its_file_is(lockkeeper: Command) -> None:
    shown = lockkeeper("contracts", "avro/decision.avsc")
    assert shown.code == 0
    assert shown.out == read("avro/decision.avsc")
    assert json.loads(shown.out)["name"] == "Decision"


def test_it_writes_all_of_them_or_one(lockkeeper: Command, tmp_path: Path) -> None:
    assert lockkeeper("contracts", "--to", str(tmp_path / "all")).code == 0
    written = {str(file.relative_to(tmp_path / "all")) for file in (tmp_path / "all").rglob("*") if file.is_file()}
    assert written == set(names())
    assert lockkeeper("contracts", "json/alert.json", "--to", str(tmp_path / "one")).code == 0
    assert (tmp_path / "one/json/alert.json").read_text(encoding="utf-8") == read("json/alert.json")


def test_a_name_that_is_none_and_a_folder_that_cannot_be_are_reported(lockkeeper: Command, tmp_path: Path) -> None:
    shown = lockkeeper("contracts", "request")
    assert shown.code == 2
    assert "request: there is no such contract; there are asyncapi.yaml" in shown.err
    (tmp_path / "file").write_text("")
    shown = lockkeeper("contracts", "--to", str(tmp_path / "file"))
    assert shown.code == 1
    assert "name a folder that can be written to" in shown.err
