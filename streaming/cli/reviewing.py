"""`lockkeeper verify` and `lockkeeper report`: whether the job keeps its promises; what it decided in a time range."""

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from streaming.cli.app import app
from streaming.cli.cluster import connect
from streaming.cli.common_options import Json, KafkaOptions
from streaming.cli.decisions import span_since
from streaming.cli.extras import require_extra
from streaming.cli.failure import FAILED, MISUSED, Failure
from streaming.cli.output import echo, echo_err, echo_json
from streaming.cli.signals import stop_on_signals

if TYPE_CHECKING:
    from streaming.history.span import Span
    from streaming.report.gather import Report
    from streaming.settings import Settings
    from streaming.verify import Findings


Since = Annotated[
    str | None,
    typer.Option("--since", help="Check requests from then on: RFC 3339, ms since 1970, or a length such as 7d."),
]
Until = Annotated[str | None, typer.Option("--until", help="Check requests before then; all if not said.")]
Sample = Annotated[float, typer.Option(min=0, max=1, help="The part of the answers to work out again: it is slow.")]
Send = Annotated[bool, typer.Option("--send", help="Produce requests and policy changes first, and check these.")]
Seconds = Annotated[float, typer.Option(min=1, max=604_800, help="With --send: for how long.")]
Rate = Annotated[float, typer.Option(min=1, max=1000, help="With --send: requests a second.")]
ChangeEvery = Annotated[
    float, typer.Option(min=0.1, max=86_400, help="With --send: seconds between two policy changes.")
]


@app.command("verify")
def verify(
    since: Since = None,
    until: Until = None,
    sample: Sample = 1,
    send: Send = False,
    seconds: Seconds = 30,
    rate: Rate = 20,
    change_every: ChangeEvery = 1,
    *,
    kafka: KafkaOptions,
    as_json: Json = False,
) -> None:
    """Check the decisions of a cluster: each request one, in order, and as the reference evaluator decides.

    Reads requests, decisions, dead letters, policies and facts, and writes nothing. With --send it first produces
    requests, and changes of policies of its own, which it deletes at the end. What can no longer be checked, because
    compaction or retention may have removed it, is counted as unknown: neither passed nor failed.

    \b
    Examples:
      lockkeeper verify
      lockkeeper verify --since 2026-11-22T00:00:00Z --sample 0.01 --json
      lockkeeper verify --send --seconds 300 --rate 50 --change-every 1
    """
    require_extra("job")
    from streaming.verify.cluster import verify as check

    settings = kafka.settings()
    is_all = since is None and until is None
    if send and not is_all:
        raise Failure("--send checks what it sends: leave --since and --until out", MISUSED)
    span = None if is_all else span_since("0" if since is None else since, until)
    _reach(settings, send)
    extra: dict[str, Any] = {}
    demanded = None
    if send:
        sent, span, settled = _send(settings, seconds, rate, change_every)
        demanded = sent.demanded
        extra = {"sent": sent.requests, "policy_changes": sent.changes, "settled": settled}
    findings = check(settings, span, demanded, echo_err, sample)
    _show(findings, extra, as_json)
    if _failure(findings, extra) is not None:
        raise typer.Exit(FAILED)


def _reach(settings: "Settings", send: bool) -> None:
    from streaming.topics import dead_letters_of
    from streaming.verify.cluster import SYSTEM

    names = settings.topics
    read = (names.decisions, *names.asking, *map(dead_letters_of, names.asking))
    written = (names.requests[0], names.policy_topics()[SYSTEM]) if send else ()
    connect(settings, *read, documents=names.documents, written=written)


def _send(settings: "Settings", seconds: float, rate: float, change_every: float) -> Any:
    from streaming.history.span import Span
    from streaming.verify.cluster import Traffic, await_decided

    traffic = Traffic(settings, rate)
    echo_err(
        f"sending {rate:g} requests a second for {seconds:g} s as {traffic.run}, and policies every {change_every:g} s"
    )
    try:
        with stop_on_signals() as stop:
            sent = traffic.send(seconds, change_every, stop.is_set)
        settled = await_decided(settings, sent.last)
    finally:
        traffic.delete()
    if not settled:
        echo_err("not all requests were decided in time: is the job running with these settings?")
    return sent, Span(sent.first_at, sent.last_at + 1), settled


def _failure(findings: "Findings", extra: dict[str, Any]) -> str | None:
    """Why the run fails; None: it does not. Of what --send has sent all must be read back, and decided."""
    if not findings.ok:
        return "A CHECK FAILED"
    if not extra:
        return None
    if (missing := extra["sent"] - findings.requests) > 0:  # others may have sent some, too
        return f"A CHECK FAILED: {missing:,} of {extra['sent']:,} requests sent are not there"
    if findings.waiting:
        return f"A CHECK FAILED: {findings.waiting:,} of {findings.requests:,} requests are not decided"
    return None if extra["settled"] else "A CHECK FAILED: not all requests were decided in time"


def _verdict(findings: "Findings", extra: dict[str, Any]) -> str:
    if (failure := _failure(findings, extra)) is not None:
        return failure
    if findings.waiting:
        return f"every check holds for what is decided; {findings.waiting:,} requests are not decided yet"
    return "every check holds"


def _show(findings: "Findings", extra: dict[str, Any], as_json: bool) -> None:
    from policy import OUTCOMES
    from streaming.verify import CHECKS

    if as_json:
        echo_json({**findings.summary(), **extra, "ok": _failure(findings, extra) is None})
        return
    for name, about in CHECKS.items():
        echo(f"{findings.counts[name]:10,}  {name}: {about}")
    for violation in findings.violations:
        echo(f"violation  {violation}")
    for reason, count in sorted(findings.unknown.items()):
        echo(f"{count:10,}  unknown: {reason}")
    dead_letters = f"{findings.dead_letters:,} dead letters"
    outcomes = ", ".join(f"{findings.outcomes[outcome]:,} {outcome}" for outcome in OUTCOMES)
    echo(f"{findings.requests:,} requests, {findings.decisions:,} decisions: {outcomes}; {dead_letters}")
    echo(f"{findings.verified:,} decisions verified, {findings.waiting:,} requests not decided yet")
    if extra:
        echo(f"{extra['sent']:,} requests sent, {extra['policy_changes']:,} policy changes")
    echo(_verdict(findings, extra))


PAGE = Path("lockkeeper-report.html")


From = Annotated[str | None, typer.Option("--from", help="Start of the range: RFC 3339, or ms since 1970.")]
End = Annotated[str | None, typer.Option("--until", help="End of the range, exclusive; default: now.")]
Last = Annotated[str | None, typer.Option("--last", help="Its length instead of --from: 90m, 24h, 7d. [24h]")]
Out = Annotated[Path | None, typer.Option("--out", "-o", help=f"The page's file. [{PAGE}; none with --json]")]
Top = Annotated[int, typer.Option(min=1, max=1000, help="How many names the lists of denied subjects have.")]
Replay = Annotated[int, typer.Option(min=0, help="Decide this many different requests again, for unused statements.")]


@app.command("report")
def report(
    since: From = None,
    until: End = None,
    last: Last = None,
    out: Out = None,
    top: Top = 20,
    replay: Replay = 100_000,
    *,
    kafka: KafkaOptions,
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
    now = _now()
    span = _span(since, until, last, now)
    if out is not None:
        _check_folder(out)
    settings = kafka.settings()
    gathered = _gather(settings, span, top, replay, now)
    if as_json:
        echo_json(gathered)
    if out is not None or not as_json:
        _write(gathered, out or PAGE, quiet=as_json)


def _span(since: str | None, until: str | None, last: str | None, now: int) -> "Span":
    from streaming.history.span import SpanError, span_of

    try:
        return span_of(since, until, last, now)
    except SpanError as error:
        raise Failure(str(error), MISUSED) from error


def _now() -> int:
    return time.time_ns() // 1_000_000


def _check_folder(out: Path) -> None:
    """Before hours of reading, not after."""
    if not out.parent.is_dir() or out.is_dir():
        raise Failure(f"--out {out}: not a file in a folder that exists; name another", MISUSED)


def _gather(settings: "Settings", span: "Span", top: int, replay: int, now: int) -> "Report":
    require_extra("report")
    from streaming.report.gather import gather
    from streaming.topics import dead_letters_of

    names = settings.topics
    inputs = names.inputs
    admin = connect(
        settings, names.decisions, names.alerts, *names.documents, *names.asking, *map(dead_letters_of, inputs)
    )
    return gather(settings, admin, span, now, echo_err, top, replay)


def _write(gathered: "Report", out: Path, quiet: bool) -> None:
    """Beside the old page first: who looks at it sees the old one or the new one."""
    from streaming.report.page import render

    page = render(gathered)
    beside = out.with_name(f".{out.name}.{os.getpid()}")
    try:
        beside.write_text(page, encoding="utf-8")
        beside.replace(out)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise Failure(f"--out {out}: {error.strerror}; name a file that can be written", FAILED) from error
    if not quiet:
        echo(str(out))
