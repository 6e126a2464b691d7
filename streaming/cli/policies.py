"""`lockkeeper policy apply | get | delete`: documents to Kafka and back."""

import os
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from streaming.cli.app import policy_app
from streaming.cli.authorship import AuthorshipOptions
from streaming.cli.cluster import connect
from streaming.cli.common_options import Json, KafkaOptions
from streaming.cli.expected import Expect, check_expected, documents_read
from streaming.cli.failure import MISUSED, Failure
from streaming.cli.output import echo, echo_err, echo_json, echo_text
from streaming.cli.published import as_yaml, topics_of, with_refusals

HOW_TO_WRITE = "write SYSTEM/KIND/NAME, such as lenses6/Role/topic-readers"

if TYPE_CHECKING:
    from policy import Located
    from streaming.kafka.committed import RecordKey, Stored
    from streaming.kafka.publish import Publication
    from streaming.settings import Settings
    from streaming.topics import Offsets


@policy_app.command("apply")
def apply(
    path: Annotated[Path, typer.Argument(help="A file or folder of documents.", show_default=False)],
    *,
    kafka: KafkaOptions,
    prune: Annotated[
        bool, typer.Option("--prune", help="Delete the documents of the same systems that PATH does not have.")
    ] = False,
    strict: Annotated[
        bool | None,
        typer.Option(
            "--strict/--no-strict",
            help="Refuse documents with warnings, such as an unknown operation.  [default: where CI is set]",
            show_default=False,
        ),
    ] = None,
    claimed: AuthorshipOptions,
    if_empty: Annotated[
        bool,
        typer.Option("--if-empty", help="Publish only to topics that never had a record, as in a new stack."),
    ] = False,
    expect: Expect = None,
    as_json: Json = False,
) -> None:
    """Publish documents in one transaction; none is published if one is invalid.

    Documents that the topics hold already are left out, so that applying a folder again changes nothing.
    Prints the offsets; a request can ask for them with `context.min_policy_offsets`, as --json prints them.
    Documents with warnings are published after a question, where there is a terminal to ask on.
    While another one publishes, it is tried again.

    \b
    Examples:
      lockkeeper policy apply policies/
      lockkeeper policy apply policies/roles.yaml --bootstrap localhost:9092 --json
      lockkeeper policy apply policies/ --prune --reason "audit may read orders"
      lockkeeper policy apply samples/ --if-empty
    """
    from policy import identify
    from streaming.kafka.publish import publish_prepared

    settings = kafka.settings()
    documents = _checked(path, settings, is_ci() if strict is None else strict)
    change = claimed.authorship(settings, path)
    read = topics_of(settings, {identify(document.value).system for document in documents}) if prune or expect else ()
    connect(settings, *read, documents=documents_read(settings, expect))  # before another publisher is fenced
    if if_empty:
        documents = _of_empty_topics(documents, settings)
    application = _Application(settings, documents, prune, expect, if_empty)
    offsets = publish_prepared(settings, application.systems, application.prepare, change) if documents else {}
    for key in application.deletions:
        echo_err(f"deleted {key}")
    written = change.change if offsets else None
    _show_offsets({**application.current_offsets(), **offsets}, written, application.summary(), as_json)


class _Application:
    """The documents of an `apply`, beside what is live when it is their turn: that is read again for each attempt."""

    def __init__(
        self,
        settings: "Settings",
        documents: Sequence["Located"],
        prune: bool = False,
        expect: str | None = None,
        if_empty: bool = False,
    ) -> None:
        from policy import identify
        from streaming.kafka.committed import RecordKey

        self._settings, self._prune, self._expect, self._if_empty = settings, prune, expect, if_empty
        self._documents = {RecordKey.of(identify(document.value)): document.value for document in documents}
        self.systems = {identify(document.value).system for document in documents}
        self._unchanged: list[Stored] = []
        self.deletions: list[RecordKey] = []

    def prepare(self) -> "Publication":
        """What to publish. Raises Failure when what is live is not what is expected."""
        from streaming.kafka.publish import Publication

        systems = self.systems
        if self._if_empty:  # another publisher may have been first
            systems = systems - _filled(systems, self._settings)
            self._documents = {key: value for key, value in self._documents.items() if key.system in systems}
        check_expected(self._settings, systems, self._expect)
        stored = _stored(systems, self._settings, needed=self._prune)
        self.deletions = sorted(stored.keys() - self._documents.keys()) if self._prune else []
        unchanged = {key for key in stored.keys() & self._documents if self._is_in_force(stored[key])}
        self._unchanged = [stored[key] for key in unchanged]
        return Publication([self._documents[key] for key in self._documents if key not in unchanged], self.deletions)

    def _is_in_force(self, stored: "Stored") -> bool:
        """Whether the topic holds the document as it would be published."""
        from policy import is_same_value

        return stored.error is None and is_same_value(stored.document, self._documents[stored.record_key])

    def current_offsets(self) -> "Offsets":
        """The last offset of the unchanged documents of each topic: a request can ask for these too."""
        last: dict[str, int] = {}
        for stored in self._unchanged:
            last[stored.topic] = max(stored.offset, last.get(stored.topic, 0))
        return {topic: {"0": offset} for topic, offset in last.items()}

    def summary(self) -> str:
        """How many were published, left out and deleted."""
        unchanged = len(self._unchanged)
        counts = [f"{len(self._documents) - unchanged} published", f"{len(self.deletions)} deleted"]
        return ", ".join([*counts[:1], *([f"{unchanged} unchanged"] if unchanged else []), *counts[1:]])


def _of_empty_topics(documents: Sequence["Located"], settings: "Settings") -> list["Located"]:
    """The documents of systems whose topic never had a record.

    The end of a log never goes back: a topic whose documents were all deleted, and compacted away, is not empty.
    """
    from policy import identify
    from streaming.kafka.clients import log_ends

    topics = settings.topics.policy_topics()
    systems = {identify(document.value).system for document in documents} & topics.keys()
    admin = connect(settings, *(topics[system] for system in systems))
    ends = log_ends(admin, [(topics[system], 0) for system in systems])
    filled = {system for system in systems if ends[topics[system], 0] > 0}
    for system in sorted(filled):
        echo_err(f"{topics[system]} is not empty: the documents of {system} are left out")
    return [document for document in documents if identify(document.value).system not in filled]


def _filled(systems: Collection[str], settings: "Settings") -> set[str]:
    """Those of some systems whose topics have a record by now, reported."""
    from streaming.kafka.committed import committed_records

    topics = settings.topics.policy_topics()
    filled = {message.topic() for message in committed_records(settings, [topics[system] for system in systems])}
    for topic in sorted(map(str, filled)):
        echo_err(f"{topic} is not empty any more: documents of its system are left out")
    return {system for system in systems if topics[system] in filled}


def is_ci() -> bool:
    """Whether the command runs in continuous integration, which sets the variable CI."""
    return os.environ.get("CI", "").lower() not in ("", "0", "false")


def _checked(path: Path, settings: "Settings", strict: bool) -> list["Located"]:
    """The documents at `path`, every one of them valid. Raises Failure and FilesRefused."""
    from policy import read_documents, refusals, warnings_of

    documents = read_documents(path)
    errors = refusals(documents, settings.limits.document)
    if errors:
        raise Failure("nothing was published, because of:", details=errors)
    warnings = warnings_of(documents)
    if warnings and strict:
        raise Failure("nothing was published, because of (--no-strict accepts warnings):", details=warnings)
    for warning in warnings:
        echo_err(f"warning: {warning}")
    if warnings and sys.stdin.isatty() and not typer.confirm("Publish all the same?", err=True):
        raise Failure("nothing was published")
    return documents


def _stored(systems: Collection[str], settings: "Settings", needed: bool) -> "dict[RecordKey, Stored]":
    """The documents in the topics of these systems; none where they cannot be read, and are not needed."""
    from confluent_kafka import KafkaException

    from streaming.kafka.clients import error_name
    from streaming.kafka.committed import read_stored

    try:
        stored = read_stored(settings, systems)
    except (KafkaException, TimeoutError) as error:  # who publishes need not be allowed to read
        is_missing = isinstance(error, KafkaException) and error_name(error) == "UNKNOWN_TOPIC_OR_PART"
        if needed and not is_missing:  # of a topic that does not exist, publishing says so
            raise
        return {}
    return {document.record_key: document for document in stored}


def _show_offsets(offsets: "Offsets", change: str | None, summary: str, as_json: bool) -> None:
    if as_json:
        echo_json(offsets)
        return
    for topic, partitions in sorted(offsets.items()):
        for partition, offset in partitions.items():
            echo(f"{topic}, partition {partition}: up to offset {offset}")
    if change is not None:
        echo(f"change {change}")
    echo(summary)


@policy_app.command("get")
def get(
    key: Annotated[
        str, typer.Argument(metavar="[SYSTEM[/KIND[/NAME]]]", help="Which documents; all when left out.")
    ] = "",
    at: Annotated[
        str | None,
        typer.Option("--at", metavar="TIME|CHANGE|VERSION", help="Those in force then, or after this change."),
    ] = None,
    *,
    kafka: KafkaOptions,
    refused: Annotated[
        bool, typer.Option("--refused", help="Show what refused documents say, too: as comments, which apply ignores.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Print the documents in the topics, as YAML that `apply` accepts.

    With --json one line a document, with its topic, offset and time. A document that is refused, or that YAML cannot
    hold, is left out and reported, and the exit code is 1; the version before it stays in force. With --json its line
    has `error`, and no document.

    \b
    Examples:
      lockkeeper policy get
      lockkeeper policy get lenses6/Role/topic-readers
      lockkeeper policy get lenses6 --json
      lockkeeper policy get --at 2026-11-24T14:03:00Z > then.yaml
    """
    settings = kafka.settings()
    documents = with_refusals(settings, _matching(settings, key, at))
    show = show_json if as_json else show_yaml
    if errors := [text for stored in documents if (text := show(stored, refused)) is not None]:
        raise Failure(errors[0], details=errors[1:])


def _matching(settings: "Settings", key: str, at: str | None = None) -> list["Stored"]:
    """The documents at or below `key`, those in force `at` a point. Raises Failure when there is none."""
    from streaming.cli.restoring import documents_at
    from streaming.kafka.committed import read_stored

    topics = settings.topics.policy_topics()
    systems = _systems(key, topics)
    connect(settings, *(topics[system] for system in systems))
    stored = read_stored(settings, systems) if at is None else documents_at(settings, systems, at)
    matching = [document for document in stored if not key or f"{document.key}/".startswith(f"{key.rstrip('/')}/")]
    if key and not matching:
        raise Failure(f"{key}: no such document{_nearest(key, [document.key for document in stored])}")
    return matching


def _systems(key: str, systems: Collection[str]) -> list[str]:
    system = key.partition("/")[0]
    if system and system not in systems:
        message = f"{key}: {system!r} is not a system. Write SYSTEM/KIND/NAME, with one of {', '.join(systems)}"
        raise Failure(message, MISUSED)
    return [system] if system else list(systems)


def _nearest(key: str, keys: Sequence[str]) -> str:
    from policy import nearest

    return nearest(key, keys) or "; `lockkeeper policy get` lists what there is"


def show_json(stored: "Stored", refused: bool) -> str | None:
    """Print a document's line; returns what is wrong with the document."""
    from policy import to_text

    echo_json(
        {
            "key": stored.key,
            "topic": stored.topic,
            "partition": 0,
            "offset": stored.offset,
            "at": to_text(stored.at),
            "document": stored.document if stored.error is None or refused else None,
            "error": stored.error,
        }
    )
    return _report(stored, stored.error)


def show_yaml(stored: "Stored", refused: bool) -> str | None:
    """Print a document that `apply` accepts; returns why it does not accept another one."""
    from policy import to_text

    text = as_yaml(stored.document)
    error = stored.error or (None if text is not None else "YAML cannot hold one of its numbers; see --json")
    key = stored.key if stored.key.isprintable() else repr(stored.key)  # a name must not end the comment
    head = f"{key}, offset {stored.offset}, {to_text(stored.at)}"
    if error is None:
        echo_text(f"--- # {head}\n{text}")
    elif refused:
        said = text or stored.value.decode("utf-8", "backslashreplace")
        for line in (f"refused: {head}", *said.splitlines()):
            echo(f"# {line}")
    return _report(stored, error)


def _report(stored: "Stored", error: str | None) -> str | None:
    return None if error is None else f"{stored.key}: offset {stored.offset} of {stored.topic}: {error}"


@policy_app.command("delete")
def delete(
    keys: Annotated[
        list[str], typer.Argument(metavar="SYSTEM/KIND/NAME...", help="Which documents.", show_default=False)
    ],
    *,
    kafka: KafkaOptions,
    claimed: AuthorshipOptions,
    expect: Expect = None,
    as_json: Json = False,
) -> None:
    """Delete documents in one transaction; none is deleted if one does not exist.

    \b
    Example:
      lockkeeper policy delete lenses6/Role/topic-readers lenses6/Group/readers
    """
    from streaming.kafka.committed import read_stored
    from streaming.kafka.publish import Publication, publish_prepared

    settings = kafka.settings()
    topics = settings.topics.policy_topics()
    systems = {system for key in keys for system in _systems(_full(key), topics)}
    connect(settings, *(topics[system] for system in systems), documents=documents_read(settings, expect))
    change = claimed.authorship(settings)

    def prepare() -> Publication:
        check_expected(settings, systems, expect)
        live = read_stored(settings, systems)
        return Publication([], [_only_record(live, key) for key in keys])

    prepare()  # before another publisher is fenced
    offsets = publish_prepared(settings, systems, prepare, change)
    _show_offsets(offsets, change.change, f"{len(keys)} deleted", as_json)


def _full(key: str) -> str:
    system, slash, _ = key.partition("/")
    if not (system and slash):  # nothing may stand behind it: the key of a record can be empty
        raise Failure(f"{key}: {HOW_TO_WRITE}", MISUSED)
    return key


def _only_record(live: Sequence["Stored"], key: str) -> "RecordKey":
    """The record that is shown by this key, whether it can be read or not. Raises Failure."""
    from streaming.kafka.committed import find_key
    from streaming.snapshots.documents import policy_key

    named_by_the_job = (str(policy_key(stored.record_key.key, stored.record_key.system)) for stored in live)
    matching = [stored for stored, name in zip(live, named_by_the_job, strict=True) if key in (stored.key, name)]
    if len(matching) == 1:
        return matching[0].record_key
    if matching:
        named = ", ".join(f"{stored.record_key.key!r} (offset {stored.offset})" for stored in matching)
        raise Failure(
            f"{key}: nothing was deleted: the keys of {len(matching)} records read so: {named}. Delete the one "
            "that is meant with `policy rollback` of its change"
        )
    if find_key(key) is None:
        raise Failure(f"{key}: {HOW_TO_WRITE}", MISUSED)
    raise Failure(f"{key}: no such document; nothing was deleted{_nearest(key, [stored.key for stored in live])}")
