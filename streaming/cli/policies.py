"""`lockkeeper policy apply | get | delete`: documents to Kafka and back."""

import os
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from streaming.cli.app import (
    MISUSED,
    Bootstrap,
    Config,
    Failure,
    Json,
    echo,
    echo_err,
    echo_json,
    echo_text,
    policy_app,
    reach,
    settings_of,
)
from streaming.cli.authorship import AuthorOption, CommitOption, ReasonOption, authorship
from streaming.cli.expected import Expect, check_expected
from streaming.cli.published import as_yaml, with_refusals

HOW_TO_WRITE = "write SYSTEM/KIND/NAME, such as lenses6/Role/topic-readers"

if TYPE_CHECKING:
    from policy import Located
    from streaming.kafka.committed import RecordKey, Stored
    from streaming.kafka.publish import Offsets, Publication
    from streaming.settings import Settings


@policy_app.command("apply")
def apply(
    path: Annotated[Path, typer.Argument(help="A file or folder of documents.", show_default=False)],
    config: Config = None,
    bootstrap: Bootstrap = None,
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
    author: AuthorOption = None,
    commit: CommitOption = None,
    reason: ReasonOption = None,
    expect: Expect = None,
    as_json: Json = False,
) -> None:
    """Publish documents in one transaction; none is published if one is invalid.

    Prints the offsets; a request can ask for them with `context.min_policy_offsets`, as --json prints them.
    Documents with warnings are published after a question, where there is a terminal to ask on.
    While another one publishes, it is tried again.

    \b
    Examples:
      lockkeeper policy apply policies/
      lockkeeper policy apply policies/roles.yaml --bootstrap localhost:9092 --json
      lockkeeper policy apply policies/ --prune --reason "audit may read orders"
    """
    from streaming.kafka.publish import publish_prepared

    settings = settings_of(config, bootstrap)
    documents = _checked(path, settings, is_ci() if strict is None else strict)
    change = authorship(settings, author, commit, reason, path)
    reach(settings)
    application = _Application(settings, documents, prune, expect)
    offsets = publish_prepared(settings, application.systems, application.prepare, change)
    for key in application.gone:
        echo_err(f"deleted {key}")
    _show_offsets(offsets, change.change, application.summary(), as_json)


class _Application:
    """The documents of an `apply`, beside what is live when it is their turn: that is read again for each attempt."""

    def __init__(self, settings: "Settings", documents: Sequence["Located"], prune: bool, expect: str | None) -> None:
        from policy import identify

        self._settings, self._documents, self._prune, self._expect = settings, documents, prune, expect
        self.systems = {identify(document.value).system for document in documents}
        self._stored: Mapping[RecordKey, Any] | None = None
        self.gone: list[RecordKey] = []

    def prepare(self) -> "Publication":
        """What to publish. Raises Failure when what is live is not what is expected."""
        from streaming.kafka.publish import Publication

        check_expected(self._settings, self.systems, self._expect)
        self._stored = _stored(self._documents, self._settings, needed=self._prune)
        self.gone = _missing_in(self._documents, self._stored) if self._prune else []
        return Publication([document.value for document in self._documents], self.gone)

    def summary(self) -> str:
        """How many were published and deleted."""
        return f"{_published(self._documents, self._stored)}, {len(self.gone)} deleted"


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
    found = warnings_of(documents)
    if found and strict:
        raise Failure("nothing was published, because of (--no-strict accepts warnings):", details=found)
    for warning in found:
        echo_err(f"warning: {warning}")
    if found and sys.stdin.isatty() and not typer.confirm("Publish all the same?", err=True):
        raise Failure("nothing was published")
    return documents


def _stored(documents: Sequence["Located"], settings: "Settings", needed: bool) -> "dict[RecordKey, Any] | None":
    """The documents in the topics of these documents' systems; None: they cannot be read, and are not needed."""
    from confluent_kafka import KafkaException

    from policy import identify
    from streaming.kafka.committed import read_stored

    try:
        stored = read_stored(settings, {identify(document.value).system for document in documents})
    except KeyError:  # a topic does not exist: publishing says so
        return None
    except (KafkaException, TimeoutError):  # who publishes need not be allowed to read
        if needed:
            raise
        return None
    return {one.record_key: one.document for one in stored}


def _missing_in(documents: Sequence["Located"], stored: "Mapping[RecordKey, Any] | None") -> list["RecordKey"]:
    """The keys of what is stored and not among the documents."""
    return sorted((stored or {}).keys() - {_record_key(document) for document in documents})


def _record_key(document: "Located") -> "RecordKey":
    from policy import identify
    from streaming.kafka.committed import RecordKey

    return RecordKey.of(identify(document.value))


def _published(documents: Sequence["Located"], stored: "Mapping[RecordKey, Any] | None") -> str:
    if stored is None:
        return f"{len(documents)} published"
    same = sum(stored.get(_record_key(document)) == document.value for document in documents)
    return f"{len(documents)} published ({same} of them unchanged)" if same else f"{len(documents)} published"


def _show_offsets(offsets: "Offsets", change: str, summary: str, as_json: bool) -> None:
    if as_json:
        echo_json(offsets)
        return
    for topic, partitions in sorted(offsets.items()):
        for partition, offset in partitions.items():
            echo(f"{topic}, partition {partition}: up to offset {offset}")
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
    config: Config = None,
    bootstrap: Bootstrap = None,
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
    settings = settings_of(config, bootstrap)
    found = with_refusals(settings, _found(settings, key, at))
    show = show_json if as_json else show_yaml
    if errors := [text for stored in found if (text := show(stored, refused)) is not None]:
        raise Failure(errors[0], details=errors[1:])


def _found(settings: "Settings", key: str, at: str | None = None) -> list["Stored"]:
    """The documents at or below `key`, those in force `at` a point. Raises Failure when there is none."""
    from streaming.cli.restoring import documents_at
    from streaming.kafka.committed import read_stored

    topics = settings.topics.policy_topics()
    systems = _systems(key, topics)
    reach(settings, *(topics[system] for system in systems))
    stored = read_stored(settings, systems) if at is None else documents_at(settings, systems, at)
    found = [one for one in stored if not key or f"{one.key}/".startswith(f"{key.rstrip('/')}/")]
    if key and not found:
        raise Failure(_unknown(key, [one.key for one in stored]))
    return found


def _systems(key: str, known: Collection[str]) -> list[str]:
    system = key.partition("/")[0]
    if system and system not in known:
        message = f"{key}: {system!r} is not a system. Write SYSTEM/KIND/NAME, with one of {', '.join(known)}"
        raise Failure(message, MISUSED)
    return [system] if system else list(known)


def _unknown(key: str, known: Sequence[str]) -> str:
    return f"{key}: no such document{_nearest(key, known)}"


def _nearest(key: str, known: Sequence[str]) -> str:
    from policy import nearest

    return nearest(key, known) or "; `lockkeeper policy get` lists what there is"


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
    config: Config = None,
    bootstrap: Bootstrap = None,
    author: AuthorOption = None,
    commit: CommitOption = None,
    reason: ReasonOption = None,
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

    settings = settings_of(config, bootstrap)
    topics = settings.topics.policy_topics()
    systems = {system for key in keys for system in _systems(_full(key), topics)}
    reach(settings, *(topics[system] for system in systems))
    change = authorship(settings, author, commit, reason)

    def prepare() -> Publication:
        check_expected(settings, systems, expect)
        live = read_stored(settings, systems)
        return Publication([], [_only_record(live, key) for key in keys])

    prepare()  # before another publisher is fenced
    offsets = publish_prepared(settings, systems, prepare, change)
    _show_offsets(offsets, change.change, f"{len(keys)} deleted", as_json)


def _full(key: str) -> str:
    if not all(key.partition("/")):
        raise Failure(f"{key}: {HOW_TO_WRITE}", MISUSED)
    return key


def _only_record(live: Sequence["Stored"], key: str) -> "RecordKey":
    """The record that is shown by this key, whether it can be read or not. Raises Failure."""
    from streaming.kafka.committed import find_key

    found = [stored for stored in live if stored.key == key]
    if len(found) == 1:
        return found[0].record_key
    if found:
        named = ", ".join(f"{stored.record_key.key!r} (offset {stored.offset})" for stored in found)
        raise Failure(
            f"{key}: nothing was deleted: the keys of {len(found)} records read so: {named}. Delete the one "
            "that is meant with `policy rollback` of its change"
        )
    if find_key(key) is None:
        raise Failure(f"{key}: {HOW_TO_WRITE}", MISUSED)
    raise Failure(f"{key}: no such document; nothing was deleted{_nearest(key, [stored.key for stored in live])}")
