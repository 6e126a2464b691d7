"""`lockkeeper verify` before it reads anything, and what it prints."""

import json

import pytest

from streaming.cli.reviewing import _show
from streaming.verify import CHECKS, Findings, Violation
from tests.cli.lockkeeper import Command


@pytest.fixture
def lockkeeper(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """The command."""
    return Command(capsys, monkeypatch)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--send", "--since", "1"], "--send checks what it sends"),
        (["--since", "yesterday"], "--since: 'yesterday' is not RFC 3339"),
        (["--since", "2", "--until", "1"], "the range is empty"),
        (["--send", "--rate", "0"], "Invalid value for '--rate'"),
        (["--send", "--seconds", "0"], "Invalid value for '--seconds'"),
        (["--send", "--change-every", "0"], "Invalid value for '--change-every'"),
    ],
)
def test_wrong_usage_is_reported_before_a_topic_is_read(
    lockkeeper: Command, arguments: list[str], message: str
) -> None:
    shown = lockkeeper("verify", *arguments, "--bootstrap", "127.0.0.1:1")
    assert shown.code == 2
    assert message in shown.err


def test_a_cluster_that_does_not_answer_fails(lockkeeper: Command) -> None:
    shown = lockkeeper("verify", "--bootstrap", "127.0.0.1:1")
    assert shown.code == 1
    assert "no Kafka at 127.0.0.1:1" in shown.err


@pytest.fixture
def found() -> Findings:
    """One violation, and one decision that could not be checked."""
    made = Findings()
    made.requests = made.decisions = 2
    made.violated(Violation("doubled", "authz.decisions.v1", 1, 42, "one answer to each request", "another"))
    made.unknown["authz.facts.v1 at offset #: compaction may have removed what was in force then"] += 1
    return made


def test_people_see_every_check_the_violations_and_what_is_unknown(
    found: Findings, capsys: pytest.CaptureFixture[str]
) -> None:
    _show(found, {"sent": 2, "policy_changes": 1, "settled": True}, as_json=False)
    shown = capsys.readouterr().out
    assert all(f"{found.counts[check]}  {check}: {about}" in shown for check, about in CHECKS.items())
    assert "violation  doubled: authz.decisions.v1-1 offset 42: another; expected one answer" in shown
    assert "1  unknown: authz.facts.v1 at offset #" in shown
    assert "2 requests sent, 1 policy changes" in shown
    assert shown.endswith("A CHECK FAILED\n")


def test_machines_get_one_object(found: Findings, capsys: pytest.CaptureFixture[str]) -> None:
    _show(found, {}, as_json=True)
    summary = json.loads(capsys.readouterr().out)
    assert (summary["ok"], summary["checks"]["doubled"]) == (False, 1)
    assert summary["violations"][0]["offset"] == 42
