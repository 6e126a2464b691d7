"""`lockkeeper decide`: the decisions of the stream, without Kafka."""

import json
from pathlib import Path

import pytest

from policy import compile_documents, decide
from policy.store.repository import read_documents
from tests.cli.documents import BROKEN, GROUP, lines, readers_folder, request
from tests.cli.lockkeeper import Command


@pytest.fixture
def policies(tmp_path: Path) -> Path:
    """A folder of good policies."""
    return readers_folder(tmp_path / "policies")


def test_each_line_gets_a_decision_record_equal_to_the_engines(lockkeeper: Command, policies: Path) -> None:
    asked = [
        request(id="allowed", time="2026-11-21T10:00:00Z"),
        request(id="denied", topic="payments"),
        request(id="unknown", system="nobody"),
    ]
    shown = lockkeeper("decide", "--policies", str(policies), stdin=lines(*asked))
    assert shown.code == 0
    snapshot = compile_documents(document for _, document in read_documents(policies))
    for record, one in zip(shown.records, asked, strict=True):
        expected = json.loads(json.dumps(decide(snapshot, one).to_record()))
        assert record["context"].pop("policy_version") == snapshot.version
        assert {name: record[name] for name in expected} == expected
    assert [record["request_id"] for record in shown.records] == ["allowed", "denied", "unknown"]
    assert [record["context"]["outcome"] for record in shown.records] == ["allow", "deny", "error"]
    assert [record["time"] for record in shown.records] == ["2026-11-21T10:00:00.000Z", None, None]


def test_a_time_that_may_not_be_claimed_is_none(lockkeeper: Command, policies: Path) -> None:
    """Neither for what is valid for a time nor for a deadline, and the record names none; so does the engine."""
    file = policies / "group.yaml"
    file.write_text("valid_until: 2026-12-01T00:00:00Z\n" + GROUP.format(name="readers", role="order-readers"))
    timed = request(time="2026-11-21T10:00:00Z", deadline="2026-11-21T10:00:05Z")
    asked = lines(timed, {**timed, "deadline": None}, request(deadline="2026-11-21T10:00:05Z"))
    trusted = lockkeeper("decide", "-p", str(policies), stdin=asked)
    assert [record["context"]["outcome"] for record in trusted.records] == ["allow", "allow", "error"]
    shown = lockkeeper("decide", "-p", str(policies), "--trust", "groups", stdin=asked)
    assert {(record["context"]["outcome"], record["time"]) for record in shown.records} == {("error", None)}
    assert {record["context"]["reasons"][0]["code"] for record in shown.records} == {"time-needed"}


def test_ids_are_the_same_each_time_and_differ_between_lines(lockkeeper: Command, policies: Path) -> None:
    asked = lines(request(), request())
    first, second = (lockkeeper("decide", "-p", str(policies), stdin=asked) for _ in range(2))
    assert first.out == second.out
    assert len({record["id"] for record in first.records}) == 2


def test_a_line_that_is_no_request_gives_an_error_with_its_number_and_the_others_are_decided(
    lockkeeper: Command, policies: Path, tmp_path: Path
) -> None:
    file = tmp_path / "requests.jsonl"
    file.write_text(lines(request(), "", "{", "[]", '{"id": "r"}', "[" * 100_000, request()))
    shown = lockkeeper("decide", "--policies", str(policies), "--requests", str(file))
    assert shown.code == 1
    assert [record.get("line") for record in shown.records] == [None, 3, 4, 5, 6, None]
    for record in shown.records[1:5]:
        assert record["error"].startswith(f"line {record['line']}: not a request")
        assert "decision" not in record
    assert [shown.records[0]["decision"], shown.records[-1]["decision"]] == [True, True]


def test_a_line_larger_than_a_record_may_be_is_no_request(lockkeeper: Command, policies: Path) -> None:
    shown = lockkeeper("decide", "-p", str(policies), stdin=lines(request(context={"pad": "x" * (1 << 20)})))
    assert shown.code == 1
    assert "at most 1048576" in shown.records[0]["error"]


def test_offsets_cannot_be_demanded_of_files(lockkeeper: Command, policies: Path) -> None:
    """Without a log nobody can tell whether they are met: an error, never an allow."""
    demand = {"min_policy_offsets": {"authz.policies.lenses6.v1": {"0": 0}}}
    shown = lockkeeper("decide", "-p", str(policies), stdin=lines(request(context=demand)))
    assert shown.records[0]["context"]["outcome"] == "error"
    assert shown.records[0]["context"]["reasons"][0]["code"] == "policies-behind"


@pytest.mark.parametrize(
    ("trust", "outcome"), [([], "allow"), (["--trust", "groups"], "allow"), (["--trust", ""], "error")]
)
def test_untrusted_groups_do_not_count(lockkeeper: Command, policies: Path, trust: list[str], outcome: str) -> None:
    claiming = request(subject={"type": "user", "id": "user:eve", "properties": {"groups": ["readers"]}})
    shown = lockkeeper("decide", "-p", str(policies), *trust, stdin=lines(claiming))
    assert shown.records[0]["context"]["outcome"] == outcome


def test_an_unknown_claim_to_trust_is_wrong_usage(lockkeeper: Command, policies: Path) -> None:
    shown = lockkeeper("decide", "-p", str(policies), "--trust", "group")
    assert shown.code == 2
    assert "--trust: group: not among facts, groups, roles, time, token" in shown.err


def test_a_refused_document_is_reported_and_fails_the_command(lockkeeper: Command, policies: Path) -> None:
    (policies / "broken.yaml").write_text(BROKEN)
    shown = lockkeeper("decide", "-p", str(policies), stdin=lines(request()))
    assert shown.code == 1
    assert "refused: lenses6/Role/broken: enforcment" in shown.err
    assert shown.records[0]["decision"] is True


def test_files_that_are_not_there_are_named(lockkeeper: Command, policies: Path, tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    shown = lockkeeper("decide", "-p", str(missing))
    assert (shown.code, shown.err) == (2, f"lockkeeper: {missing}: there is no such file or folder\n")
    shown = lockkeeper("decide", "-p", str(policies), "-r", str(missing))
    assert (shown.code, shown.err) == (2, f"lockkeeper: --requests {missing}: No such file or directory\n")
