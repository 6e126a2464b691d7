"""`lockkeeper replay`: past requests decided again under other policies."""

import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from streaming.cli.app import app
from streaming.cli.cluster import connect
from streaming.cli.common_options import Json, KafkaOptions
from streaming.cli.comparing import LIVE, FailOn, sound_documents
from streaming.cli.decisions import span_since
from streaming.cli.differences import some_names
from streaming.cli.extras import require_extra
from streaming.cli.failure import FAILED, MISUSED, Failure
from streaming.cli.grouped_options import path_of
from streaming.cli.output import echo_err, echo_json, echo_lines
from streaming.cli.published import topics_of

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

    from policy import Located, Snapshot
    from streaming.history.span import Span
    from streaming.replay.comparison import Sides
    from streaming.replay.result import Count, Example, Replayed, Totals
    from streaming.replay.run import Progress, Source
    from streaming.settings import Settings

LINE_SECONDS = 5.0  # between two lines of progress, where there is no terminal
SHOWN_NAMES = 20
LAST_DAY = "24h"


@app.command("replay")
def replay(
    policies: Annotated[Path, typer.Option("--policies", "-p", help="The documents to decide by.", show_default=False)],
    against: Annotated[
        str, typer.Option("--against", metavar="PATH|live", help="The documents to compare with; the live ones.")
    ] = LIVE,
    requests: Annotated[
        list[Path] | None,
        typer.Option("--requests", "-r", help="Requests in files instead of topics: JSON lines or Parquet."),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            help=f"Requests from then on: RFC 3339, ms since 1970, or a length such as 30d.  [default: {LAST_DAY}]",
            show_default=False,
        ),
    ] = None,
    until: Annotated[str | None, typer.Option("--until", help="Requests before then; now if it is left out.")] = None,
    system: Annotated[list[str] | None, typer.Option("--system", help="Requests of this system alone.")] = None,
    prune: Annotated[
        bool, typer.Option("--prune", help="With live ones: as `apply --prune`, which deletes what is not in PATH.")
    ] = False,
    top: Annotated[int, typer.Option(min=1, max=1000, help="How many names each list has.")] = 10,
    fail_on: Annotated[FailOn, typer.Option(help="What ends with exit code 1.")] = FailOn.nothing,
    master: Annotated[
        str | None, typer.Option("--master", help="Spark's master, such as local[2] or spark://HOST:PORT.")
    ] = None,
    *,
    kafka: KafkaOptions,
    as_json: Json = False,
) -> None:
    """Decide past requests again, on Spark, and show which answers would be others, and for whom.

    Reads the request topics, or files, and writes nothing. Both sides are evaluated by the job's evaluator, at the time
    of each request, with the facts of that time; deadlines do not count. The documents of --policies stand in place of
    the live ones as if they always had. Answers for which facts would be needed that are not known any more are counted
    as unknown. Exit code 1: see --fail-on; with `widening`, some answer would be allow; with either, also where no
    answer was compared.

    \b
    Examples:
      lockkeeper replay --policies draft/ --since 30d
      lockkeeper replay --policies draft/ --since 7d --fail-on widening --json > replayed.json
      lockkeeper replay --policies draft/ --against policies/ --requests requests.jsonl
      lockkeeper replay --policies draft/ --since 30d --master spark://spark:7077
    """
    require_extra("job")
    from policy import to_text
    from streaming.replay.result import Compared, replayed
    from streaming.replay.run import replay as run

    settings = kafka.settings(master)
    if requests and (since is not None or until is not None):
        raise Failure("--requests: files are read whole; leave --since and --until out", MISUSED)
    span, systems = span_since(LAST_DAY if since is None else since, until), _systems(system)
    draft, documents = sound_documents(policies)
    admin = _reach(settings, against, documents, not requests)
    source = _source(settings, admin, requests, span)
    sides = _sides(settings, against, draft, documents, prune)
    began = time.monotonic()
    totals = run(settings, admin, sides, source, systems, _Shown())
    of_span = () if requests else (to_text(span.start), to_text(span.end))
    compared = Compared(sides.before.version, sides.after.version, draft.version, *of_span)
    result = replayed(totals, compared, time.monotonic() - began, top)
    show(result, totals, as_json)
    apply_fail_on(result, fail_on)


def apply_fail_on(result: "Replayed", fail_on: FailOn) -> None:
    """Raises Exit where answers differ as `fail_on` says, and Failure where no answer was compared at all."""
    if (fail_on is FailOn.widening and result.opened) or (fail_on is FailOn.any and result.differ):
        raise typer.Exit(FAILED)
    if fail_on is not FailOn.nothing and not result.outcomes:
        raise Failure(
            "--fail-on: no answer was compared, which says nothing of the policies: choose another range or other files"
        )


def _systems(names: Sequence[str] | None) -> Sequence[str]:
    """Raises Failure for one that is none."""
    from policy import all_systems
    from streaming.cli.changes import no_system

    for name in names or ():
        if name not in all_systems():
            raise Failure(no_system(name, all_systems()), MISUSED)
    return names or ()


def _reach(settings: "Settings", against: str, draft: "Sequence[Located]", reads_topics: bool) -> "AdminClient | None":
    """A client, where topics are read. Raises Failure, also for a draft that cannot be live: it would be left out."""
    from policy import identify
    from streaming.ops.logs import log_warnings_only

    log_warnings_only(sys.stderr)
    if against == LIVE:
        topics_of(settings, {identify(document.value).system for document in draft})
    names = settings.topics
    documents = names.documents if against == LIVE else ()
    requests = names.requests if reads_topics else ()
    return connect(settings, *requests, documents=documents) if documents or requests else None


def _source(settings: "Settings", admin: "AdminClient | None", paths: Sequence[Path] | None, span: "Span") -> "Source":
    """Prints what of the topics is not read. Raises Failure for a file that is not there."""
    from streaming.replay.run import IGNORED, PARQUET, FromFiles, files_of, from_topics

    if not paths:
        assert admin is not None
        for remark in describe_unread_requests(settings, admin, span):
            echo_err(remark)
        return from_topics(settings, admin, span)
    for path in paths:
        if not path.exists():
            raise Failure(f"--requests {path}: there is no such file or folder", MISUSED)
        if path.is_file() and path.name.startswith(IGNORED):
            raise Failure(f"--requests {path}: Spark reads no file whose name begins with _ or .: rename it", MISUSED)
        if len({file.suffix == PARQUET for file in files_of(path)}) > 1:
            raise Failure(f"--requests {path}: has Parquet and other files; name a folder for each", MISUSED)
    return FromFiles(tuple(str(path.absolute()) for path in paths))


def describe_unread_requests(settings: "Settings", admin: "AdminClient", span: "Span") -> Iterator[str]:
    """What of the requests of a range is not replayed: deleted ones, and those that were answered elsewhere."""
    from policy import to_text
    from streaming.history.ranges import Topics

    names = settings.topics
    for topic, moment in Topics(settings, admin).deleted_before_by_topic(names.requests, span.start).items():
        yield f"{topic}: requests before {to_text(moment)} may have been deleted by the topic's retention"
    if names.answered:
        yield f"requests that were answered elsewhere are not replayed: {', '.join(names.answered)}"


def _sides(
    settings: "Settings", against: str, draft: "Snapshot", documents: "Sequence[Located]", prune: bool
) -> "Sides":
    """The policies of both sides; of files the facts are among them. Raises Failure and FilesRefused."""
    from streaming.replay.comparison import Sides
    from streaming.replay.policies import live_sides

    if against == LIVE:
        echo_err("reading the live policies and facts")
        return live_sides(settings, [document.value for document in documents], prune)
    before, _ = sound_documents(path_of(against))
    return Sides(before.without_findings(), draft.without_findings())


class _Shown:
    """Shows how far it is: a bar on a terminal, else a line now and then."""

    def __init__(self) -> None:
        self._is_terminal, self._last = sys.stderr.isatty(), time.monotonic()

    def __call__(self, progress: "Progress") -> None:
        now = time.monotonic()
        if self._is_terminal:
            sys.stderr.write(f"\r{_bar(progress)} {_state(progress)}\x1b[K")
            sys.stderr.write("\n" if progress.fraction == 1 else "")
            sys.stderr.flush()
        elif now - self._last >= LINE_SECONDS:
            self._last = now
            echo_err(_state(progress))


BAR = 30


def _bar(progress: "Progress") -> str:
    full = int(BAR * progress.fraction)
    return f"[{'#' * full}{'.' * (BAR - full)}]"


def _state(progress: "Progress") -> str:
    """How much is done, at which rate, and the time that is left."""
    rate, left = progress.rate, progress.seconds_left
    parts = [
        f"{progress.fraction:.0%}",
        *([f"{rate:,.0f} requests a second"] if rate else []),
        *([f"{left:,.0f} s left"] if left is not None else ["starting"]),
    ]
    return ", ".join(parts)


def show(result: "Replayed", totals: "Totals", as_json: bool) -> None:
    """Print the result."""
    if as_json:
        echo_json(result)
    else:
        echo_lines(_lines(result))
    if result.unreadable:
        echo_err(f"{result.unreadable:,} records cannot be read as requests")
    if totals.schemas:  # with a registry none is left
        echo_err("Avro schemas of some are in a registry: name it with the setting schema_registry")


def _lines(result: "Replayed") -> Iterator[str]:
    span = f" from {result.since} until {result.until}" if result.since else ""
    yield f"{result.records:,} requests{span}, {result.answers:,} answers in {result.seconds:,.1f} s"
    yield (
        f"{result.differ:,} answers would differ: {result.opened:,} would be allow, "
        f"{result.closed:,} would no longer be; unknown: {result.unknown:,}"
    )
    if result.outcomes:  # where all are errors none differs
        yield f"outcomes: {', '.join(f'{name}: {number:,}' for name, number in result.outcomes.items())}"
    for title, counts in (
        *(("subject", result.subjects), ("action", result.actions)),
        *(("resource", result.resources), ("statement", result.statements)),
    ):
        if counts:
            yield f"by {title}:"
            yield from map(_counted, counts)
    for title, names in (("gain", result.gain), ("lose", result.lose)):
        if names:
            yield f"{title}: {some_names(names, SHOWN_NAMES)}"
    if result.examples:
        yield "examples:"
        yield from map(_example, result.examples)


def _counted(entry: "Count") -> str:
    changed = f"{entry.opened:,} would be allow, {entry.closed:,} would no longer be, {entry.other:,} differ otherwise"
    return f"  {entry.name}: {changed}"


def _example(entry: "Example") -> str:
    question = f"{entry.subject} {entry.action} {entry.resource}"
    decision = f"  {entry.decision}" if entry.decision else ""
    return f"  {entry.time}  {question}: {entry.before} → {entry.after}: {entry.reason}{decision}"
