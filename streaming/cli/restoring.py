"""`lockkeeper policy rollback | status`, and the documents of a time, change or version for `policy get --at`."""

import re
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from streaming.cli.app import policy_app
from streaming.cli.authorship import AuthorshipOptions
from streaming.cli.changes import ChangeArgument, find_change, logged_changes, open_documents
from streaming.cli.cluster import connect
from streaming.cli.common_options import Json, KafkaOptions
from streaming.cli.differences import some_names
from streaming.cli.expected import VERSION
from streaming.cli.failure import FAILED, MISUSED, Failure
from streaming.cli.output import echo, echo_err, echo_json
from streaming.cli.published import live_documents

if TYPE_CHECKING:
    from policy import Key
    from streaming.kafka.committed import RecordKey, Stored
    from streaming.kafka.publish import Publication
    from streaming.records.change import PolicyChange
    from streaming.settings import Settings
    from streaming.snapshots.at_offsets import DocumentLog
    from streaming.snapshots.documents import DocumentRecord
    from streaming.snapshots.logged import ChangeHistory, LoggedChange
    from streaming.topics import Offsets

SHOWN = 10
SHORTEST_MS = 12  # digits of ms since 1970 that are no beginning of an id
LIKE_A_TIME = re.compile(r"^\d\d?:\d\d|^\d{4}-\d\d")


def documents_at(settings: "Settings", systems: Collection[str], point: str) -> "list[Stored]":
    """The documents of some systems in force at a time, after a change, or of a version, sorted. Raises Failure."""
    from streaming.snapshots.at_offsets import NoLongerKnown

    log = open_documents(settings, systems)
    try:
        records = log.documents_at(*_offsets_of(settings, log, point))
    except NoLongerKnown as error:
        raise Failure(f"--at {point}: no longer known: {error}") from None
    return sorted((_stored(key, record) for key, record in records.items()), key=lambda document: document.key)


def _offsets_of(settings: "Settings", log: "DocumentLog", point: str) -> "tuple[Offsets, int | None]":
    """The policy offsets that a point names, and when they were the newest, where that is known."""
    moment = _moment(point)
    if moment is not None and moment > time.time() * 1000:
        raise Failure(f"--at {point}: it is in the future", MISUSED)
    if moment is not None:
        return log.policies_at(moment).offsets, moment
    if LIKE_A_TIME.search(point):
        raise Failure(f"--at {point}: a time is RFC 3339 with a zone, such as 2026-11-21T10:00:00Z", MISUSED)
    from streaming.snapshots.at_offsets import of_topics

    history = logged_changes(settings)
    if not point.startswith(VERSION):
        part = find_change(history, point).parts[-1]
    elif (at_version := _at_version(history, point)) is not None:
        part = at_version
    else:
        raise Failure(f"--at {point}: no change on {settings.topics.changes} led to this version")
    return of_topics(log, part.after.policy_offsets), None


def _at_version(history: "ChangeHistory", version: str) -> "PolicyChange | None":
    from streaming.snapshots.logged import NoSuchChange

    try:
        return history.at_version(version)
    except NoSuchChange as error:
        raise Failure(f"--at {error}") from None


def _moment(point: str) -> int | None:
    from policy import to_ms

    if point.startswith(VERSION):
        return None
    try:
        return to_ms(int(point) if point.isdecimal() and len(point) > SHORTEST_MS else point)
    except ValueError:
        return None


def _stored(key: "Key", record: "DocumentRecord") -> "Stored":
    from streaming.kafka.committed import RecordKey, stored

    return stored(RecordKey(key.system, record.key), record.topic, record.offset, record.at, record.value)


@policy_app.command("rollback")
def rollback(
    change: ChangeArgument,
    force: Annotated[
        bool, typer.Option("--force", help="Also undo what later changes made of the same documents.")
    ] = False,
    *,
    kafka: KafkaOptions,
    claimed: AuthorshipOptions,
    as_json: Json = False,
) -> None:
    """Undo a change with a new one: its documents become what was in force before it, in one transaction.

    Documents that the change did not touch stay as they are. Refused when a later change touched one of its documents,
    and when Kafka no longer holds what was in force before it. The new change is listed by `policy log`, and can be
    rolled back itself.

    \b
    Examples:
      lockkeeper policy rollback 3f2a91c07b1e --reason "opened payments to everybody"
      lockkeeper policy rollback 3f2a91c07b1e --force
    """
    from streaming.kafka.publish import publish_prepared
    from streaming.snapshots.logged import HEAD

    settings = kafka.settings()
    history = logged_changes(settings)
    logged = find_change(history, change)
    if HEAD.fullmatch(change):
        _check_head(settings, history)
    said = claimed.authorship(settings, reason=f"rollback of {logged.id}")
    undone = _Rollback(settings, logged, force)
    undone.prepare()  # before other publishers are fenced
    offsets = publish_prepared(settings, undone.systems, undone.prepare, said)
    if as_json:
        echo_json(offsets)
        return
    for key, _ in undone.documents:
        echo(f"{'restored' if key in undone.restored else 'deleted '}  {key}")
    echo(f"change {said.change}")


def _check_head(settings: "Settings", history: "ChangeHistory") -> None:
    """Raise Failure where documents were published that no change has yet: `HEAD` would be one before them."""
    from streaming.snapshots.logged import unread_topics

    connect(settings, *settings.topics.policy_topics().values())
    if unread := unread_topics(settings, history):
        raise Failure(
            f"nothing was published: the job has not read the newest documents of {', '.join(unread)}, so HEAD is not "
            "the newest change. Start `lockkeeper run`, or name the change by its id"
        )


class _Rollback:
    """What undoes a change, by what the topics hold when it is published: read again for each attempt."""

    def __init__(self, settings: "Settings", change: "LoggedChange", force: bool) -> None:
        self._settings, self._change, self._force = settings, change, force
        if change.documents_count > len(change.documents):
            raise Failure(
                f"{change.id}: it changed {change.documents_count} documents, of which its record lists the "
                f"first {len(change.documents)}: apply what was in force before it, from `policy get --at`"
            )
        if not change.documents:
            raise Failure(f"{change.id}: it changed no document; there is nothing to undo")
        self.systems = {part.system for part in change.parts}
        self.documents: Sequence[ChangedRecord] = ()
        self.restored: Mapping[RecordKey, Any] = {}

    def prepare(self) -> "Publication":
        """The documents as they were, and those to delete. Raises Failure."""
        from policy import Located, Place, refusals
        from streaming.kafka.publish import Publication

        log = open_documents(self._settings, self.systems)
        self.documents = changed_records(self._settings, log, self._change)
        if not self._force:
            self._check_untouched(log)
        before = self._before(log)
        touched = [entry.record_key for entry in self.documents]
        self._check_none_was_refused(log, [key for key in touched if key not in before])
        self.restored = {key: before[key].document for key in touched if key in before}
        located = [Located(Place(str(key)), document) for key, document in self.restored.items()]
        if errors := refusals(located, self._settings.limits.document):
            raise Failure("nothing was published: what was in force would be refused today:", details=errors)
        return Publication(list(self.restored.values()), [key for key in touched if key not in before])

    def _before(self, log: "DocumentLog") -> "Mapping[RecordKey, Stored]":
        from policy import to_ms
        from streaming.snapshots.at_offsets import NoLongerKnown

        stored: dict[RecordKey, Stored] = {}
        try:
            for part in self._change.parts:
                topic = self._settings.topics.policy_topics()[part.system]
                offsets = {topic: part.before.policy_offsets[topic]}
                records = log.documents_at(offsets, to_ms(part.time) - 1)
                stored |= {
                    document.record_key: document
                    for document in (_stored(key, record) for key, record in records.items())
                }
        except NoLongerKnown as error:
            raise Failure(
                f"nothing was published: what was in force before {self._change.id} is not known any more: {error}"
            ) from None
        return stored

    def _check_none_was_refused(self, log: "DocumentLog", absent: "Collection[RecordKey]") -> None:
        """Raise Failure where a document with nothing in force before was there and refused: its principals got errors.

        What it held is no document to publish, and without one they would have what only it may have denied.
        """
        from streaming.kafka.committed import RecordKey
        from streaming.topics import newest_offset

        values: dict[RecordKey, bytes] = {}
        for part in self._change.parts:
            topic = self._settings.topics.policy_topics()[part.system]
            newest = newest_offset(part.before.policy_offsets, topic)
            records = (record for record in log.records(topic) if record.offset <= newest)
            values |= {RecordKey(part.system, record.key): record.value for record in records}
        if refused := [str(key) for key in absent if values.get(key)]:
            raise Failure(
                f"nothing was published: what {some_names(refused, SHOWN)} held before was refused, and the principals "
                "that it named got errors, which deleting it would end. Use `policy delete` if that is meant"
            )

    def _check_untouched(self, log: "DocumentLog") -> None:
        from streaming.kafka.committed import RecordKey

        topics = self._settings.topics.policy_topics()
        records: dict[RecordKey, dict[int, bytes]] = {}
        for system in self.systems:
            for record in log.records(topics[system]):
                records.setdefault(RecordKey(system, record.key), {})[record.offset] = record.value
        touched = [str(key) for key, offset in self.documents if _is_touched(records.get(key, {}), offset)]
        if touched:
            raise Failure(
                f"nothing was published: later changes touched {some_names(touched, SHOWN)} (`policy log --document` "
                "lists them). Roll them back first, or undo them too with --force"
            )


def _is_touched(values: Mapping[int, bytes], offset: int) -> bool:
    """Whether a later record says something else than the one at an offset: the same again is no change.

    `values`: of a document's records, by offset. Where compaction has taken that record, nothing says that it is so.
    """
    from policy import Unreadable, is_same_value, read_value

    later = [value for at, value in values.items() if at > offset and value != values.get(offset)]
    try:
        return any(not is_same_value(read_value(values[offset]), read_value(value)) for value in later)
    except (KeyError, Unreadable):
        return True


class ChangedRecord(NamedTuple):
    """A document of a change: its key on the topic, and the offset of its newest record in the change."""

    record_key: "RecordKey"
    offset: int


def changed_records(settings: "Settings", log: "DocumentLog", change: "LoggedChange") -> list[ChangedRecord]:
    """The documents of a change by the keys of their records. Raises Failure where two cannot be distinguished.

    What stands in the change is a text to be shown, shortened where it is long. The offset says which record it was;
    where compaction has taken that, the documents of the topic whose keys are shown so are searched.
    """
    from streaming.kafka.committed import RecordKey
    from streaming.snapshots.change_log import document_text

    changed = []
    for part in change.parts:
        topic = settings.topics.policy_topics()[part.system]
        records = {record.offset: record.key for record in log.records(topic)}
        shown: dict[str, set[bytes]] = {}
        for key in records.values():
            shown.setdefault(document_text(part.system, key), set()).add(key)
        for document in part.documents:
            keys = shown.get(document.key, set())
            at_offset = records.get(document.offset)
            key = at_offset if at_offset in keys else _only_key(change, document.key, keys)
            changed.append(ChangedRecord(RecordKey(part.system, key), document.offset))
    return changed


def _only_key(change: "LoggedChange", text: str, keys: set[bytes]) -> bytes:
    if len(keys) == 1:
        return next(iter(keys))
    why = f"it may be one of {', '.join(map(repr, sorted(keys)))}" if keys else "the topic has no record of it any more"
    raise Failure(f"nothing was published: {text}, which {change.id} changed, is not known: {why}")


@policy_app.command("status")
def status(
    path: Annotated[Path, typer.Argument(help="A file or folder of documents.", show_default=False)],
    *,
    kafka: KafkaOptions,
    as_json: Json = False,
) -> None:
    """Compare the documents of a folder with those in the topics of the same systems: is what is live what is written?

    + only in PATH, - only in the topics, ~ different. Exit code 1: there is a difference.

    \b
    Example:
      lockkeeper policy status policies/
    """
    from policy import identify, read_documents, to_text

    settings = kafka.settings()
    written = {str(identify(document.value)): document.value for document in read_documents(path)}
    systems = sorted({key.partition("/")[0] for key in written})
    live = {stored.key: stored for stored in live_documents(settings, systems)}
    drift = _drift(written, live)
    if as_json:
        echo_json({"drift": [{"key": key, "sign": sign} for sign, key in drift], "documents": len(written)})
    else:
        for sign, key in drift:
            at = f"  live since {to_text(live[key].at)}" if key in live else ""
            echo(f"{sign} {key}{at}")
    echo_err(f"{len(written)} documents, {len(drift)} different from what is live")
    if drift:
        raise typer.Exit(FAILED)


def _drift(written: Mapping[str, Any], live: "Mapping[str, Stored]") -> Sequence[tuple[str, str]]:
    """A document that is refused is different: what it says is not in force."""
    from policy import is_same_value

    return [
        ("+" if key not in live else "-" if key not in written else "~", key)
        for key in sorted({*written, *live})
        if key not in live
        or key not in written
        or live[key].error
        or not is_same_value(written[key], live[key].document)
    ]
