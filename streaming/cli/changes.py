"""`lockkeeper policy log | show`: who changed which policies when, and what a change opened."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from streaming.cli.app import policy_app
from streaming.cli.cluster import connect
from streaming.cli.common_options import Json, KafkaOptions
from streaming.cli.decisions import span_since
from streaming.cli.differences import difference_line
from streaming.cli.failure import MISUSED, Failure
from streaming.cli.output import echo, echo_err, echo_json, echo_lines
from streaming.cli.published import topics_of

if TYPE_CHECKING:
    from policy.analysis import Difference
    from streaming.records.change import PolicyState
    from streaming.settings import Settings
    from streaming.snapshots.at_offsets import DocumentLog
    from streaming.snapshots.logged import ChangeHistory, LoggedChange

NO_CHANGES = "no changes on {} yet: the job writes a change when it has read it. Is `lockkeeper run` running?"
UNREAD = "newer documents of {} are in no change yet: the job has not read them. Is `lockkeeper run` running?"
MARKS = {"added": "+", "changed": "~", "removed": "-", "refused": "x"}
SHOWN = 20
NEW_SECONDS, ANALYSED_SECONDS, POLL_SECONDS = 60.0, 5.0, 0.3

ChangeArgument = Annotated[
    str,
    typer.Argument(
        metavar="CHANGE",
        help="An id or its beginning; HEAD, HEAD~1: the newest; a change's `name`.",
        show_default=False,
    ),
]


def logged_changes(settings: "Settings", *read: str) -> "ChangeHistory":
    """The changes on their topic; `read`: other topics that are needed. Raises Failure."""
    from streaming.snapshots.logged import read_changes

    connect(settings, settings.topics.changes, *read)
    return read_changes(settings)


def find_change(history: "ChangeHistory", text: str) -> "LoggedChange":
    """The change with an id or the beginning of one. Raises Failure."""
    from streaming.snapshots.logged import NoSuchChange

    try:
        return history.find(text)
    except NoSuchChange as error:
        raise Failure(str(error) if history.changes else NO_CHANGES.format("their topic")) from None


@policy_app.command("log")
def log(
    since: Annotated[
        str | None, typer.Option("--since", help="RFC 3339, ms since 1970, or a length such as 90m, 24h or 7d.")
    ] = None,
    system: Annotated[str | None, typer.Option("--system", help="Changes of this system.")] = None,
    document: Annotated[
        str | None,
        typer.Option(
            "--document",
            metavar="KIND/NAME",
            help="Changes of this document; also SYSTEM/KIND/NAME, or with a * at the end.",
        ),
    ] = None,
    author: Annotated[str | None, typer.Option("--author", help="Changes whose author has this in the name.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="At most so many, the newest.")] = 50,
    *,
    kafka: KafkaOptions,
    as_json: Json = False,
) -> None:
    """List the changes of policies, the newest first: when, who, which documents, why.

    Author, commit and reason are what the publisher claims; Kafka does not verify them. + added, ~ changed, - removed,
    x refused. A change of several systems is one line.

    \b
    Examples:
      lockkeeper policy log
      lockkeeper policy log --since 7d --document Role/topic-readers
      lockkeeper policy log --system lenses6 --author dana --json
    """
    from streaming.records.change import has_document

    settings = kafka.settings()
    if system is not None and system not in settings.topics.policy_topics():
        raise Failure(no_system(system, settings.topics.policy_topics()), MISUSED)
    moment = 0 if since is None else span_since(since, None).start
    history = logged_changes(settings)
    matching = [
        change
        for change in reversed(history.changes)
        if change.at >= moment
        and (system is None or any(part.system == system for part in change.parts))
        and (document is None or has_document(change.parts, document))
        and (author is None or author.lower() in change.first.author.lower())
    ]
    for change in matching[:limit]:
        echo_json(change) if as_json else echo(_line(change, history.short(change)))
    if len(matching) > limit:
        echo_err(f"{len(matching) - limit} older changes are not shown: see --limit")
    if not matching:
        echo_err("no change fits" if history.changes else NO_CHANGES.format(settings.topics.changes))
    if history.changes:
        warn_of_unread_documents(settings, history)
    if history.is_cut:
        echo_err(f"retention has taken older changes from {settings.topics.changes}")


def warn_of_unread_documents(settings: "Settings", history: "ChangeHistory") -> None:
    """Listing changes needs no permission to read policies: without it this is not known."""
    from confluent_kafka import KafkaException

    from streaming.snapshots.logged import unread_topics

    try:
        connect(settings, *settings.topics.policy_topics().values())
        unread = unread_topics(settings, history)
    except (Failure, KafkaException, TimeoutError) as error:
        for line in f"it is unknown whether the job has read all documents: {error}".splitlines():
            echo_err(line)
        return
    if unread:
        echo_err(UNREAD.format(", ".join(unread)))


def no_system(name: str, names: Iterable[str]) -> str:
    """The message for an option `--system` that names none."""
    from policy import nearest

    systems = tuple(names)
    return f"--system {name}: not one of {', '.join(systems)}{nearest(name, systems, most=1)}"


def _line(change: "LoggedChange", id_: str) -> str:
    """`id_`: a text that names this change and no other."""
    counts = Counter[str](document.change for document in change.documents)
    documents = " ".join(f"{MARKS[manner]}{counts[manner]}" for manner in MARKS if manner in counts) or "no change"
    systems = ", ".join(part.system for part in change.parts)
    first = change.first
    reason = f"  {first.reason}" if first.reason else ""
    return f"{id_}  {first.time}  {first.author or 'unknown author'}  {systems} {documents}{reason}"


@policy_app.command("show")
def show(change: ChangeArgument, *, kafka: KafkaOptions, as_json: Json = False) -> None:
    """Show a change: who made it and why, its documents, what it granted and took, and what it opened.

    Grants are compared as they were in force before and after, as far as Kafka still holds the documents. + added,
    - removed; an exclamation mark where more may be allowed than before.

    \b
    Examples:
      lockkeeper policy show 3f2a91c07b1e
      lockkeeper policy show HEAD
    """
    settings = kafka.settings()
    logged = _analysed(settings, find_change(logged_changes(settings), change))
    differences, why_not = differences_of(settings, logged)
    if as_json:
        import msgspec

        fields = msgspec.to_builtins(logged)
        echo_json({**fields, "differences": differences, "differences_unknown": why_not})
        return
    echo_lines(_description(logged))
    echo(f"what changed cannot be shown: {why_not}" if why_not else "what changed:")
    echo_lines(f"  {difference_line(difference)}" for difference in differences)
    echo_lines(_widened(logged))


def _analysed(settings: "Settings", change: "LoggedChange") -> "LoggedChange":
    """The change with what it widens, for which is waited where it is new."""
    import time

    from streaming.snapshots.logged import read_changes

    deadline = time.monotonic() + ANALYSED_SECONDS
    is_new = change.at / 1000 > time.time() - NEW_SECONDS
    while is_new and not change.widens and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
        change = find_change(read_changes(settings), change.name)
    return change


def open_documents(settings: "Settings", systems: Collection[str]) -> "DocumentLog":
    """The documents of some systems of all times that the topics still hold. Raises Failure."""
    import msgspec

    from streaming.snapshots.at_offsets import read_document_log

    topics_of(settings, systems)
    narrowed = msgspec.structs.replace(settings, systems=tuple(name for name in settings.systems if name in systems))
    connect(narrowed, documents=narrowed.topics.documents)
    return read_document_log(narrowed)


def differences_of(settings: "Settings", change: "LoggedChange") -> "tuple[list[Difference], str]":
    """The grants that a change gave and took, and why they are not known, "" where they are."""
    from policy.analysis import compare
    from streaming.snapshots.at_offsets import NoLongerKnown
    from streaming.snapshots.logged import snapshots_around

    try:
        log = open_documents(settings, [part.system for part in change.parts])
    except Failure as failure:  # who may read the changes need not be allowed to read all documents
        return [], str(failure).partition("\n")[0]
    differences: list[Difference] = []
    try:
        for part in change.parts:
            differences += [
                difference for difference in compare(*snapshots_around(log, part)) if difference.system == part.system
            ]
    except NoLongerKnown as error:
        return [], str(error)
    return differences, ""


def _description(change: "LoggedChange") -> Iterator[str]:
    first = change.first
    yield f"change  {change.id} ({change.name})"
    yield f"time    {first.time}"
    for name, text in (("author", first.author), ("commit", first.commit), ("reason", first.reason)):
        if text:
            yield f"{name:7} {text} (claimed)"
    for part in change.parts:
        yield f"before  {_state(part.before)}"
        yield f"after   {_state(part.after)}"
    yield "documents:"
    for entry in change.documents:
        yield f"  {MARKS[entry.change]} {entry.key}  {entry.change}, offset {entry.offset}"
    if (more := change.documents_count - len(change.documents)) > 0:
        yield f"  and {more} more"


def _state(state: "PolicyState") -> str:
    read = ((topic, at["0"]) for topic, at in sorted(state.policy_offsets.items()) if at["0"] >= 0)
    offsets = ", ".join(f"{topic} {offset}" for topic, offset in read)
    return f"{state.policy_version or 'no request was decided by it'} ({offsets or 'no documents'})"


def _widened(change: "LoggedChange") -> Iterator[str]:
    from policy.analysis import widening_text

    if unknown := change.systems_not_analyzed:
        where = f" in {', '.join(unknown)}" if change.widens else ""
        rest = "the job works it out, but not of what is older than its first start"
        yield f"what it opens{where} is not known (yet): {rest}"
    for widening in change.widens:
        others = [id_ for id_ in widening.changes if id_ != change.id]
        together = f", together with {', '.join(others)}" if others else ""
        yield f"what it opens{together}:" if widening.widens else f"it opens nothing{together}"
        for permission in widening.widens[:SHOWN]:
            yield f"  {widening_text(permission)}"
        if widening.widens_count > SHOWN:
            yield f"  and {widening.widens_count - SHOWN} more: see --json"
        if not widening.complete:
            yield "  This is not all: the analysis was too much work, or the list too long"
