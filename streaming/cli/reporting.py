"""`lockkeeper report`: what was decided in a time range, as one page."""

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from streaming.cli.app import (
    FAILED,
    MISUSED,
    Bootstrap,
    Config,
    Failure,
    Json,
    app,
    echo,
    echo_err,
    echo_json,
    need,
    reach,
    settings_of,
)

if TYPE_CHECKING:
    from streaming.report import Span
    from streaming.report.gather import Report
    from streaming.settings import Settings

PAGE = Path("lockkeeper-report.html")


From = Annotated[str | None, typer.Option("--from", help="Start of the range: RFC 3339, or ms since 1970.")]
Until = Annotated[str | None, typer.Option("--until", help="End of the range, exclusive; default: now.")]
Last = Annotated[str | None, typer.Option("--last", help="Its length instead of --from: 90m, 24h, 7d. [24h]")]
Out = Annotated[Path | None, typer.Option("--out", "-o", help=f"The page's file. [{PAGE}; none with --json]")]
Top = Annotated[int, typer.Option(min=1, max=1000, help="How many names the lists of denied subjects have.")]
Replay = Annotated[int, typer.Option(min=0, help="Decide this many different requests again, for unused statements.")]


@app.command("report")
def report(
    since: From = None,
    until: Until = None,
    last: Last = None,
    out: Out = None,
    top: Top = 20,
    replay: Replay = 100_000,
    config: Config = None,
    bootstrap: Bootstrap = None,
    as_json: Json = False,
) -> None:
    """Write one HTML page about a time range: decisions, denials, alerts, policy changes, unused statements.

    The range counts by Kafka's timestamps. The page needs no script and no network. --json prints the numbers
    instead, and writes the page too where --out names one.

    \b
    Examples:
      lockkeeper report --last 24h --out today.html
      lockkeeper report --from 2026-11-01T00:00:00Z --until 2026-12-01T00:00:00Z --out november.html
      lockkeeper report --last 7d --json | jq .decisions
    """
    now = time.time_ns() // 1_000_000
    span = _span(since, until, last, now)
    if out is not None:
        _check_folder(out)
    settings = settings_of(config, bootstrap)
    made = _gather(settings, span, top, replay, now)
    if as_json:
        _tell_numbers(made)
    if out is not None or not as_json:
        _write(made, out or PAGE, quiet=as_json)


def _span(since: str | None, until: str | None, last: str | None, now: int) -> "Span":
    from streaming.report import SpanError, span_of

    try:
        return span_of(since, until, last, now)
    except SpanError as error:
        raise Failure(str(error), MISUSED) from error


def _check_folder(out: Path) -> None:
    """Before hours of reading, not after."""
    if not out.parent.is_dir() or out.is_dir():
        raise Failure(f"--out {out}: not a file in a folder that exists; name another", MISUSED)


def _gather(settings: "Settings", span: "Span", top: int, replay: int, now: int) -> "Report":
    need("report")
    from streaming.kafka.topics import dead_letters_of
    from streaming.ops.telemetry import log_warnings_alone
    from streaming.report.gather import Wish, gather

    log_warnings_alone(sys.stderr)
    names = settings.topics
    inputs = (*names.requests, *names.audit)
    documents = (*names.policy_topics().values(), names.facts, names.history)
    admin = reach(settings, names.decisions, names.alerts, *documents, *names.requests, *map(dead_letters_of, inputs))
    return gather(settings, admin, Wish(span, top, replay), now, echo_err)


def _tell_numbers(made: "Report") -> None:
    import msgspec

    echo_json(msgspec.to_builtins(made))


def _write(made: "Report", out: Path, quiet: bool) -> None:
    """Beside the old page first: who looks at it sees the old one or the new one."""
    from streaming.report.page import render

    page = render(made)
    beside = out.with_name(f".{out.name}.{os.getpid()}")
    try:
        beside.write_text(page, encoding="utf-8")
        beside.replace(out)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise Failure(f"--out {out}: {error.strerror}; name a file that can be written", FAILED) from error
    if not quiet:
        echo(str(out))
