"""`lockkeeper report` before it reads anything: help, wrong usage, no broker."""

from pathlib import Path

import pytest

from tests.cli.lockkeeper import Command, shorten_cluster_timeout


@pytest.fixture
def lockkeeper(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """The command."""
    return Command(capsys, monkeypatch)


def test_help_shows_examples(lockkeeper: Command) -> None:
    shown = lockkeeper("report", "--help")
    assert shown.code == 0
    assert "lockkeeper report --last 24h --out today.html" in shown.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--last", "soon"], "--last soon: write a number and a unit"),
        (["--from", "yesterday"], "--from: 'yesterday' is not RFC 3339"),
        (["--from", "2", "--until", "1"], "the range is empty"),
        (["--from", "1", "--last", "1h"], "give one of them"),
        (["--out", "no-such-folder/page.html"], "--out no-such-folder/page.html: not a file in a folder that exists"),
        (["--out", "."], "--out .: not a file"),
        (["--top", "0"], "Invalid value for '--top'"),
    ],
)
def test_wrong_usage_is_reported_before_a_topic_is_read(
    lockkeeper: Command, arguments: list[str], message: str
) -> None:
    shown = lockkeeper("report", *arguments, "--bootstrap", "127.0.0.1:1")
    assert shown.code == 2
    assert message in shown.err


def test_a_broker_that_does_not_answer_is_reported(
    lockkeeper: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shorten_cluster_timeout(monkeypatch)
    out = tmp_path / "page.html"
    shown = lockkeeper("report", "--bootstrap", "127.0.0.1:1", "--out", str(out))
    assert (shown.code, out.exists()) == (1, False)
    assert "no Kafka at 127.0.0.1:1" in shown.err
