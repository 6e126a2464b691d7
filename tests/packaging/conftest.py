"""Fixtures for the tests of what is distributed."""

import pytest

from tests.cli.lockkeeper import Command


@pytest.fixture
def lockkeeper(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """The command, to be called with its arguments."""
    return Command(capsys, monkeypatch)
