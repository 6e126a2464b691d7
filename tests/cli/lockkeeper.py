"""The command, run in this process as its users run it."""

import io
import json
import sys
from dataclasses import dataclass
from typing import Any

import pytest

from streaming.cli import main
from streaming.cli.cluster import connect


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a command left: its exit code and what it printed."""

    code: int | str | None
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        """The lines of the result."""
        return self.out.splitlines()

    @property
    def records(self) -> list[Any]:
        """The lines of the result, each from JSON."""
        return [json.loads(line) for line in self.lines]


class Command:
    """`lockkeeper`, to be called with its arguments."""

    def __init__(self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self._capsys = capsys
        self._monkeypatch = monkeypatch

    def __call__(self, *arguments: str, stdin: str = "") -> Outcome:
        self._monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode()), encoding="utf-8"))
        self._capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main(arguments)
        out, err = self._capsys.readouterr()
        return Outcome(end.value.code, out, err)


def shorten_cluster_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands wait for a cluster that does not answer for 0.2 s instead of 5."""
    monkeypatch.setitem(connect.__kwdefaults__, "wait", 0.2)
