"""`lockkeeper policy diff`: what a change of policies changes, before it is applied."""

import contextlib
import io
import os
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from streaming.cli.app import policy_app
from streaming.cli.cluster import connect
from streaming.cli.common_options import Json, KafkaOptions
from streaming.cli.failure import FAILED, MISUSED, Failure, read_file
from streaming.cli.git import git
from streaming.cli.output import echo_err, echo_lines
from streaming.cli.published import topics_of

if TYPE_CHECKING:
    from policy import DocumentStore, Located, Snapshot
    from policy.analysis import Changed
    from streaming.settings import Settings

Asked = tuple[dict[str, Any], frozenset[str]]
"""A request, and what counts of it."""

LIVE = "live"
RESOLVE = ("rev-parse", "--verify", "--quiet", "--end-of-options")  # a reference may begin with a dash
SUBMODULE = "160000"  # the mode of its entry in a tree
NEWEST_LIVE = 1000  # requests that are decided with both, where one side is live


class Format(StrEnum):
    """How differences are printed."""

    text = "text"
    markdown = "markdown"
    sarif = "sarif"
    json = "json"


class FailOn(StrEnum):
    """What ends with exit code 1."""

    any = "any"
    widening = "widening"
    nothing = "nothing"


class Sides(NamedTuple):
    """The policies before and after. `located`: the new documents, with their places; `documents`: the old ones.

    `unread`: what is live and refused, so that its last good version counts, if any.
    """

    before: "Snapshot"
    after: "Snapshot"
    located: "Sequence[Located]"
    documents: "Sequence[Any]"
    unread: Sequence[str] = ()


@policy_app.command("diff")
def diff(
    old: Annotated[str, typer.Argument(metavar="OLD", help="The old documents: a path, `live`, or a git reference.")],
    new: Annotated[Path, typer.Argument(metavar="NEW", help="The new documents.", show_default=False)],
    requests: Annotated[
        Path | None, typer.Option("--requests", "-r", help="Requests as JSON lines, decided with both.")
    ] = None,
    newest: Annotated[
        int | None,
        typer.Option(
            min=0,
            help=f"Decide this many of the newest requests in Kafka with both.  [default: {NEWEST_LIVE} for `live`]",
            show_default=False,
        ),
    ] = None,
    prune: Annotated[
        bool, typer.Option("--prune", help="With `live`: as `apply --prune`, which deletes what NEW does not have.")
    ] = False,
    fail_on: Annotated[FailOn, typer.Option(help="What ends with exit code 1.")] = FailOn.any,
    strict: Annotated[bool, typer.Option("--strict", help="Fail for warnings too: what is not compared.")] = False,
    output: Annotated[Format, typer.Option("--format", "-f", help="How it is printed.")] = Format.text,
    *,
    kafka: KafkaOptions,
    as_json: Json = False,
) -> None:
    """Show what a change of policies changes: grants, memberships, facts, and decisions of requests.

    OLD `live`: what is in the topics of NEW's systems; NEW is then what `apply` would make of them. A git reference is
    that of NEW's repository. + added, - removed; an exclamation mark where more may be allowed than before.
    Exit code 1: there is a difference; with --fail-on widening: a difference that may allow more, or a request that is
    allowed now. With --strict also where a live document is refused, or requests are decided without the facts topic.

    \b
    Examples:
      lockkeeper policy diff policies-before/ policies/
      lockkeeper policy diff HEAD~1 policies/ --fail-on widening
      lockkeeper policy diff live policies/ --newest 10000 --bootstrap localhost:9092
      lockkeeper policy diff origin/main policies/ --format markdown
    """
    from policy.analysis import effects
    from streaming.cli.differences import Comparison, render

    settings = kafka.settings() if old == LIVE or newest else None
    sides = both_sides(old, new, prune, settings)
    count = newest if newest is not None else NEWEST_LIVE if old == LIVE else 0
    asked = [*_requests(requests), *(_newest(count, settings) if settings is not None and count else ())]
    warnings = [*sides.unread, *(_unread_facts(sides, asked) if settings is not None else ())]
    for warning in warnings:
        echo_err(f"warning: {warning}")
    comparison = Comparison(
        effects(sides.before, sides.after),
        list(_changed(sides, asked)),
        len(asked),
        {key_of(document): document.place for document in sides.located},
        str(new),
    )
    echo_lines(render(comparison, "json" if as_json else output.value))
    if _fails(comparison.differences, comparison.changes, fail_on) or (strict and warnings):
        raise typer.Exit(FAILED)


def _unread_facts(sides: Sides, requests: Sequence[Asked]) -> Iterator[str]:
    """A warning where requests may need the facts topic.

    Who may publish policies of a system need not be able to read the facts, which are those of all systems.
    """
    from policy import all_systems, identify

    changed = {identify(document.value).system for document in sides.located}
    asked = [request.get("system") for request, _ in requests]
    if names := sorted(name for name in changed if all_systems()[name].has_facts and name in asked):
        yield (
            f"requests of {', '.join(names)} are decided as if the facts topic were empty: lockkeeper replay "
            "decides them with the facts of their time"
        )


def _changed(sides: Sides, requests: Sequence[Asked]) -> "Iterator[Changed]":
    """The requests that are decided otherwise by both, each with the claims that count of it."""
    import msgspec

    from policy.analysis import replay

    for number, (request, trust) in enumerate(requests, 1):
        for changed in replay(sides.before, sides.after, [request], trust):
            yield msgspec.structs.replace(changed, number=number)


def _fails(differences: Sequence[Any], changes: Sequence[Any], fail_on: FailOn) -> bool:
    if fail_on is FailOn.widening:
        return any(difference.widens for difference in differences) or any(change.after.allowed for change in changes)
    return fail_on is FailOn.any and bool(differences or changes)


def key_of(document: "Located") -> str:
    """Its `system/kind/name`."""
    from policy import identify

    return str(identify(document.value))


def both_sides(old: str, new: Path, prune: bool, settings: "Settings | None", refused: bool = False) -> Sides:
    """The policies before and after; `settings`: where they are live. Raises FilesRefused, and Failure.

    `refused`: new documents in files may be, else that is a Failure.
    """
    return _live(settings, new, prune) if settings is not None and old == LIVE else _written(old, new, refused)


def _written(old: str, new: Path, refused: bool) -> Sides:
    """Both sides from files. Raises Failure and FilesRefused."""
    from policy import compile_documents

    after, located = sound_documents(new, refused)
    is_path = old != "" and Path(old).exists()
    with contextlib.nullcontext(Path(old)) if is_path else _checked_out(old, new) as folder:
        before, documents = sound_documents(folder) if folder is not None else (compile_documents([]), ())
    return Sides(before, after, located, [document.value for document in documents])


def sound_documents(path: Path, refused: bool = False) -> "tuple[Snapshot, Sequence[Located]]":
    """The documents at `path`, compiled. Raises FilesRefused, and Failure when one is refused that may not be."""
    from policy import compile_documents, read_documents

    located = read_documents(path)
    snapshot = compile_documents([document.value for document in located])
    if snapshot.rejected and not refused:
        errors = [f"{rejected.key}: {error}" for rejected in snapshot.rejected for error in rejected.errors]
        raise Failure(f"{path}: documents are refused:", details=errors)
    return snapshot, located


@contextlib.contextmanager
def _checked_out(reference: str, path: Path) -> Iterator[Path | None]:
    """What a commit has at `path`, as a folder or file; None: nothing. Raises Failure where there is no such commit."""
    folder = path if path.is_dir() else path.parent
    commit = git(folder, *RESOLVE, f"{reference}^{{commit}}")
    if commit is None:
        raise Failure(
            f"{reference or repr(reference)}: no such path, and no commit of the git repository of {path}", MISUSED
        )
    archive = git(folder, "archive", "--format=zip", commit.decode().strip())
    listed = git(folder, "ls-tree", "-r", "-z", commit.decode().strip())
    if archive is None or listed is None:  # the folder is newer than the commit
        yield None
        return
    with tempfile.TemporaryDirectory() as directory:
        with zipfile.ZipFile(io.BytesIO(archive)) as files:
            _refuse_left_out(reference, path, listed, files.namelist())
            files.extractall(directory)
        checked_out = Path(directory) if path.is_dir() else Path(directory) / path.name
        yield checked_out if checked_out.exists() else None


def _refuse_left_out(reference: str, path: Path, listed: bytes, archived: Sequence[str]) -> None:
    """Raise Failure for submodules, and for documents that .gitattributes keeps out: git's archive is without them."""
    from policy import is_document
    from streaming.cli.differences import some_names

    left_out = [
        name
        for mode, _, name in (entry.partition("\t") for entry in os.fsdecode(listed).split("\0"))
        if (mode.startswith(SUBMODULE) or (is_document(name) and name not in archived))
        and (name == path.name or path.is_dir())
    ]
    if left_out:
        raise Failure(
            f"{reference}: git archive leaves out {some_names(left_out)} (a submodule, or export-ignore), and a deny "
            "in there would not be compared: name a folder that has all documents",
            MISUSED,
        )


def _live(settings: "Settings", new: Path, prune: bool) -> Sides:
    """What is in the topics of the new documents' systems, and what applying these makes of it."""
    from policy import Snapshot, identify, with_drafts

    _, located = sound_documents(new)
    applied = {identify(document.value): document.value for document in located}
    live, documents, unread = _read_live(settings, {key.system for key in applied})
    return Sides(Snapshot(live), Snapshot(with_drafts(live, applied, prune)), located, documents, unread)


def _read_live(settings: "Settings", systems: set[str]) -> "tuple[DocumentStore, list[Any], list[str]]":
    """What is in force in the topics of some systems, the documents of it, and a warning for each refused one.

    Of a refused document its last good version, as far as the topic holds that.
    """
    from policy import DocumentStore, read_value
    from streaming.kafka.committed import committed_records
    from streaming.snapshots.at_offsets import document_record
    from streaming.snapshots.documents import Loader

    connect(settings, *topics_of(settings, systems))
    by_topic = {topic: system for system, topic in settings.topics.policy_topics().items() if system in systems}
    read, records = DocumentStore(), {}
    loaders = {topic: Loader(read, system, settings.limits.document) for topic, system in by_topic.items()}
    for message in committed_records(settings, by_topic):
        record = document_record(message)
        records[by_topic[record.topic], record.offset] = record
        loaders[record.topic].take(record)
    live, documents, refused = DocumentStore(), list[Any](), list[str]()
    for key, history in read.histories.items():
        current, newest = history.in_force, history.newest
        if newest.errors:
            refused.append(f"{key}: what is in the topic is refused: {'; '.join(newest.errors)}")
        if current is not None and not current.deleted:
            documents.append(read_value(records[key.system, current.order].value))
            live.put(documents[-1])
        elif newest.errors:
            live.replace(key, history)
    return live, documents, sorted(refused)


def _newest(count: int, settings: "Settings") -> Iterator[Asked]:
    """The newest requests in Kafka, those answered elsewhere among them, oldest first.

    Without records that are no requests, which the job writes to the dead letters: how many these are is printed.
    """
    from streaming.decision_log.past_requests import NO_REQUEST, as_decided
    from streaming.history.records import record_of
    from streaming.kafka.committed import committed_records
    from streaming.records.registry import Deserializer

    topics, deserializer = settings.topics.asking, Deserializer(settings.schema_registry)
    connect(settings, *topics)
    records = [record_of(message) for message in committed_records(settings, topics, count)]
    unreadable = 0
    for record in sorted(records, key=lambda record: (record.at, record.topic, record.offset))[-count:]:
        try:
            yield as_decided(settings, record, deserializer)
        except NO_REQUEST:
            unreadable += 1
    if unreadable:
        echo_err(f"{unreadable} of the newest records cannot be read as requests")


def _requests(path: Path | None) -> list[Asked]:
    """The requests of a file of JSON lines, all of whose claims count. Raises Failure for a line that is no object."""
    import msgspec

    from policy import CLAIMS, decode_json

    if path is None:
        return []
    requests: list[Asked] = []
    for number, line in enumerate(read_file(path, "--requests").splitlines(), 1):
        if line.strip():
            try:
                requests.append((msgspec.convert(decode_json(line), dict[str, Any]), CLAIMS))
            except (ValueError, RecursionError) as error:
                raise Failure(f"--requests {path}: line {number}: {error}", MISUSED) from error
    return requests
