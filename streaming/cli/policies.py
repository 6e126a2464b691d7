"""`lockkeeper policy apply | get | delete`: documents to Kafka and back."""

import os
import sys
from collections.abc import Collection, Sequence
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
    harmless,
    policy_app,
    reach,
    settings_of,
)
from streaming.cli.authorship import AuthorOption, CommitOption, ReasonOption, authorship
from streaming.cli.expected import Expect, check_expected

if TYPE_CHECKING:
    from policy import Key, Located
    from streaming.kafka.committed import Stored
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
    if_empty: Annotated[
        bool,
        typer.Option("--if-empty", help="Publish only to topics that never had a record, such as those of a new stack"),
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
    from streaming.kafka.publish import publish_prepared

    settings = settings_of(config, bootstrap)
    documents = _checked(path, settings, is_ci() if strict is None else strict)
    change = authorship(settings, author, commit, reason, path)
    reach(settings)
    if if_empty:
        documents = _of_empty_topics(documents, settings)
    application = _Application(settings, documents, prune, expect)
    offsets = publish_prepared(settings, application.systems, application.prepare, change) if documents else {}
    for key in application.deletions:
        echo_err(f"deleted {key}")
    written = change.change if offsets else None
    _show_offsets(application.current_offsets() | offsets, written, application.summary(), as_json)


class _Application:
    """The documents of an `apply`, beside what is live when it is their turn: that is read again for each attempt."""

    def __init__(self, settings: "Settings", documents: Sequence["Located"], prune: bool, expect: str | None) -> None:
        from policy import identify

        self._settings, self._prune, self._expect = settings, prune, expect
        self._documents = {identify(document.value): document.value for document in documents}
        self.systems = {key.system for key in self._documents}
        self._unchanged: list[Stored] = []
        self.deletions: list[Key] = []

    def prepare(self) -> "Publication":
        """What to publish. Raises Failure when what is live is not what is expected."""
        from streaming.kafka.publish import Publication

        check_expected(self._settings, self.systems, self._expect)
        stored = _stored(self.systems, self._settings, needed=self._prune)
        self.deletions = sorted(stored.keys() - self._documents.keys()) if self._prune else []
        unchanged = {key for key in stored.keys() & self._documents if stored[key].document == self._documents[key]}
        self._unchanged = [stored[key] for key in unchanged]
        return Publication([self._documents[key] for key in self._documents if key not in unchanged], self.deletions)

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
    admin = reach(settings, *(topics[system] for system in systems))
    ends = log_ends(admin, [(topics[system], 0) for system in systems])
    filled = {system for system in systems if ends[topics[system], 0] > 0}
    for system in sorted(filled):
        echo_err(f"{topics[system]} is not empty: the documents of {system} are left out")
    return [document for document in documents if identify(document.value).system not in filled]


def is_ci() -> bool:
    """Whether the command runs in continuous integration, which sets the variable CI."""
    return os.environ.get("CI", "").lower() not in ("", "0", "false")


def _checked(path: Path, settings: "Settings", strict: bool) -> list["Located"]:
    """The documents at `path`, every one of them valid. Raises Failure and FilesRefused."""
    from policy import read_documents, refusals, warnings_of

    documents = read_documents(path)
    errors = refusals(documents, settings.limits.document)
    if errors:
        raise Failure("\n".join(["nothing was published, because of:", *errors]))
    found = warnings_of(documents)
    if found and strict:
        raise Failure("\n".join(["nothing was published, because of (--no-strict accepts warnings):", *found]))
    for warning in found:
        echo_err(f"warning: {warning}")
    if found and sys.stdin.isatty() and not typer.confirm("Publish all the same?", err=True):
        raise Failure("nothing was published")
    return documents


def _stored(systems: Collection[str], settings: "Settings", needed: bool) -> "dict[Key, Stored]":
    """The documents in the topics of these systems; none where they cannot be read, and are not needed."""
    from confluent_kafka import KafkaException

    from streaming.kafka.committed import find_key, read_stored

    try:
        stored = read_stored(settings, systems)
    except KeyError:  # a topic does not exist: publishing says so
        return {}
    except (KafkaException, TimeoutError):  # who publishes need not be allowed to read
        if needed:
            raise
        return {}
    return {key: document for document in stored if (key := find_key(document.key)) is not None}


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
    config: Config = None,
    bootstrap: Bootstrap = None,
    as_json: Json = False,
) -> None:
    """Print the documents in the topics, as YAML that `apply` accepts.

    With --json one line a document, with its topic, offset and time. What cannot be read is reported, and the exit
    code is 1.

    \b
    Examples:
      lockkeeper policy get
      lockkeeper policy get lenses6/Role/topic-readers
      lockkeeper policy get lenses6 --json
      lockkeeper policy get --at 2026-11-24T14:03:00Z > then.yaml
    """
    settings = settings_of(config, bootstrap)
    found = _found(settings, key, at)
    for stored in found:
        _show_stored(stored, as_json)
    if broken := [stored for stored in found if stored.error is not None]:
        raise Failure("\n".join(f"{s.key}: offset {s.offset} of {s.topic}: {s.error}" for s in broken))


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
    from policy import nearest

    return f"{key}: no such document{nearest(key, known) or '; `lockkeeper policy get` lists what there is'}"


def _show_stored(stored: "Stored", as_json: bool) -> None:
    import msgspec

    from policy import to_text

    if as_json:
        echo_json({**msgspec.to_builtins(stored), "at": to_text(stored.at)})
    elif stored.error is None:
        name = stored.key if stored.key.isprintable() else repr(stored.key)  # a name must not end the comment
        echo(f"--- # {name}, offset {stored.offset}, {to_text(stored.at)}\n{_to_yaml(stored.document)}")


def _to_yaml(document: Any) -> str:
    """With letters as they are, unless some look like others on a terminal."""
    import yaml

    text: str = yaml.safe_dump(document, sort_keys=False, allow_unicode=True)
    if harmless(text) != text:
        text = yaml.safe_dump(document, sort_keys=False, allow_unicode=False)
    return text.rstrip()


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
    from streaming.kafka.publish import Publication, publish_prepared

    wanted = [_full_key(key) for key in keys]
    settings = settings_of(config, bootstrap)
    change = authorship(settings, author, commit, reason)
    systems = {key.system for key in wanted}

    def prepare() -> Publication:
        check_expected(settings, systems, expect)
        for key in keys:
            if key not in {stored.key for stored in _found(settings, key)}:
                raise Failure(f"{key}: no such document; nothing was deleted")
        return Publication([], wanted)

    prepare()  # before another publisher is fenced
    offsets = publish_prepared(settings, systems, prepare, change)
    _show_offsets(offsets, change.change, f"{len(wanted)} deleted", as_json)


def _full_key(key: str) -> "Key":
    from streaming.kafka.committed import find_key

    found = find_key(key)
    if found is None:
        raise Failure(f"{key}: write SYSTEM/KIND/NAME, such as lenses6/Role/topic-readers", MISUSED)
    return found
