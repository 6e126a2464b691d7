"""`lockkeeper verify` before it reads anything, and what it prints."""

import json

import pytest

from streaming.cli.reviewing import _failure, _show
from streaming.verify import CHECKS, Findings, Violation
from tests.cli.lockkeeper import Command, shorten_cluster_timeout


@pytest.fixture
def lockkeeper(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """The command."""
    return Command(capsys, monkeypatch)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--send", "--since", "1"], "--send checks what it sends"),
        (["--since", "yesterday"], "--since: 'yesterday' is not RFC 3339"),
        (["--since", "", "--until", ""], "--until: '' is not RFC 3339"),
        (
            ["--since", "2", "--until", "1"],
            "the range is empty: --since 1970-01-01T00:00:00.002Z is not before --until",
        ),
        (["--since", "24h", "--until", "1970-01-01T09:00:00Z"], "--since 24h: that is before 1970"),
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


def test_a_cluster_that_does_not_answer_fails(lockkeeper: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    shorten_cluster_timeout(monkeypatch)
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


@pytest.mark.parametrize(
    ("waiting", "requests", "settled", "failure"),
    [
        (3407, 6000, True, "3,407 of 6,000 requests are not decided"),
        (1, 7000, True, "1 of 7,000 requests are not decided"),
        (3407, 6000, False, "3,407 of 6,000 requests are not decided"),
        (0, 5998, True, "2 of 6,000 requests sent are not there"),
        (0, 6000, False, "not all requests were decided in time"),
        (0, 6000, True, None),
    ],
)
def test_what_was_sent_must_be_decided(
    waiting: int, requests: int, settled: bool, failure: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    found = Findings()
    found.requests, found.waiting = requests, waiting
    extra = {"sent": 6000, "policy_changes": 1, "settled": settled}
    assert (_failure(found, extra) is None) == (failure is None)
    _show(found, extra, as_json=False)
    expected = "every check holds" if failure is None else f"A CHECK FAILED: {failure}"
    assert capsys.readouterr().out.splitlines()[-1] == expected
    _show(found, extra, as_json=True)
    assert json.loads(capsys.readouterr().out)["ok"] is (failure is None)


def test_without_sending_what_waits_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    """The job may be at work: it fails nothing, but nothing is said of what is not decided."""
    found = Findings()
    found.requests, found.waiting = 6000, 3407
    assert _failure(found, {}) is None
    _show(found, {}, as_json=False)
    [*_, last] = capsys.readouterr().out.splitlines()
    assert last == "every check holds for what is decided; 3,407 requests are not decided yet"
