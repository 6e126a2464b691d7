"""The policies and facts of the job: read from their topics, compiled to snapshots, with the alerts that they raise."""

import contextlib
import itertools
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

import structlog
from confluent_kafka import KafkaException, Message

from policy import (
    Compiler,
    DocumentStore,
    FactChange,
    FactOverlay,
    Key,
    Snapshot,
    SnapshotChange,
    all_systems,
    changes_of,
)
from policy.evaluation import Lookup
from streaming.commit.offsets import Committed
from streaming.errors import CannotStart, Stopping
from streaming.kafka.authorship import Authorship, authorship_of
from streaming.kafka.clients import Partition, admin_client
from streaming.kafka.reader import TopicLog, TopicReader, check_logs, document_topics, find_logs
from streaming.ops.tally import OTHER, Compiled
from streaming.records.formats import Result
from streaming.settings import Settings
from streaming.snapshots.alerts import policy_rejected, topic_recreated
from streaming.snapshots.at_offsets import DocumentLog, Retention, document_record
from streaming.snapshots.change_log import ChangeLog
from streaming.snapshots.changes import Changes, Unanalysed
from streaming.snapshots.documents import (
    DELETIONS_HELD_MS,
    KEPT_BY_TOPIC_MS,
    NO_DOCUMENT,
    NO_KIND,
    DocumentRecord,
    History,
    KeptVersion,
    Loader,
    Refused,
    policy_key,
)
from streaming.topics import NOTHING_READ

log = structlog.get_logger()

HISTORY_ATTEMPT_SECONDS = 30.0
HISTORY_PAUSE_SECONDS = 0.5
FORGET_SECONDS = 10.0
WARNED_AT_ONCE = 10
PAST_FORGOTTEN_SECONDS = 6 * 3600.0
FUTURE = 1 << 62
READ_SECONDS = 300.0  # to read the policies and facts to their end


class Reader(Protocol):
    """What is needed of a `TopicReader`."""

    positions: dict[Partition, int]

    def read_to_end(self, seconds: float) -> Iterator[Message]:
        """See `TopicReader`."""

    def close(self) -> None:
        """Leave Kafka."""


OpenReader = Callable[[Settings, Iterable[str], Mapping[str, TopicLog]], Reader]


class Policies:
    """Follows the documents' topics. `snapshot`: what the policies said at `positions`, a new object when one was read.

    `overlay`: what the facts topic said then, changed in place. `documents`: the records of the policy topics, from
    which snapshots of the past are rebuilt.
    `changed_at`: the broker's timestamp of the newest policy document read, ms.
    `published`: the offsets below which alerts were written before this run, by partition; see `pending`.
    `on_compiled` is called with each snapshot that is compiled. `retention`: what the topics are sure to hold of the
    past.
    `logs`: what a job reads, which must be what a job before has read, else CannotStart is raised; None: no job.
    `unanalysed`: by policy topic, where changes begin whose alerts were not written before this run, see `changes`.
    `stop`: ends waiting for the history topic; raises Stopping then.
    `replaced`: committed offsets of deleted topics; see `OffsetTracker`.
    `changed_lookups`: of facts, by system, that may have other answers by the changes that were taken last, but for
    those of the first reading. `recent_facts`: so many of the newest changes of facts are kept apart at first; see
    `take_older_facts`.
    `open_reader`: of the topics, for one that reads them in parts. `is_to_come`: of a topic and offset, whether that
    one will yield the record after the first reading. What the history topic keeps of it is left out: a version is in
    force from its place in its log on, and ends the one before it there.
    """

    def __init__(
        self,
        settings: Settings,
        published: Mapping[Partition, int],
        on_compiled: Callable[[Compiled], None] = lambda _compiled: None,
        logs: Mapping[str, TopicLog] | None = None,
        retention: Mapping[str, Retention] | None = None,
        unanalysed: Unanalysed | None = None,
        stop: threading.Event | None = None,
        replaced: Mapping[Partition, Committed] | None = None,
        recent_facts: int = 0,
        open_reader: OpenReader = TopicReader,
        is_to_come: Callable[[str, int], bool] = lambda _topic, _offset: False,
    ) -> None:
        topics, limit = settings.topics, settings.limits.document
        self._settings = settings
        self._logs = find_logs(admin_client(settings), document_topics(topics)) if logs is None else logs
        self._policies = DocumentStore(systems=settings.systems)
        self._facts = DocumentStore(facts_only=True, systems=settings.systems)
        by_system = topics.policy_topics()
        self._loaders = {topic: Loader(self._policies, system, limit) for system, topic in by_system.items()}
        self._loaders[topics.facts] = Loader(self._facts, None, limit)
        self._history = History(topics.history, by_system, limit, self._logs)
        systems = {topic: system for system, topic in by_system.items()}
        self._changes = Changes(settings, systems, published, unanalysed)
        self._refused: Mapping[str, Sequence[str]] = {}
        self._published, self._unpublished, self._is_to_come = published, list[Refused](), is_to_come
        self._on_compiled = on_compiled
        self._alerts_topic, self._facts_topic = topics.alerts, topics.facts
        opened_at = time.time_ns() // 1_000_000
        retention = retention or {}
        self.documents = DocumentLog(topics, limit, opened_at, retention)
        self._policies_read, self._facts_read = False, Counter[Key]()
        self._forget_at, self._forget_past_at = 0.0, time.monotonic() + PAST_FORGOTTEN_SECONDS
        self.changed_at = 0
        trusted = self._logs if logs is None else {topic for topic, _ in published}
        kept = self._read_history(trusted, stop or threading.Event())
        for record in kept:
            if not is_to_come(record.topic, record.offset):
                self._load(record)
        for topic in by_system.values():
            # A job before 0.2 does not say it: it has kept what it had read, unless the history topic was lost.
            had_read = published.get((topic, 0), 0) if kept or self._history.known_logs else 0
            unsaid = sys.maxsize if logs is None else had_read
            self.documents.note_kept_until(topic, self._history.kept_until.get(topic, unsaid))
        self._recreated: list[Result] = []
        if logs is not None:
            self._check_logs()
            self._recreated = self._alerts_of_recreated(replaced or {})
        self._reader = open_reader(settings, self._loaders, self._logs)
        self._complete = False
        self._compiler = Compiler(self._policies)
        self.snapshot = self._compiler.snapshot
        self._change_log = ChangeLog(settings, published, Snapshot(DocumentStore(systems=settings.systems)).version)
        held_after, self._deleted_before = self.documents.facts_known()
        self.overlay, self._fact_changes = FactOverlay(all_held_after=held_after), list[FactChange]()
        self.changed_lookups, self._changed_lookups = list[tuple[str, Lookup]](), list[tuple[str, Lookup]]()
        self._recent_facts = recent_facts
        self._older_facts: tuple[FactOverlay, int] | None = None
        first_held = retention.get(topics.facts, Retention()).start
        # Compaction has removed nothing that a later record has superseded since then.
        self._facts_all_after = FUTURE if first_held else max(held_after, opened_at - DELETIONS_HELD_MS)

    def _check_logs(self) -> None:
        """Raise CannotStart when a topic is not the one that a job before has read, unless that is accepted."""
        settings = self._settings
        read = {topic: log for topic, log in self._logs.items() if topic != settings.topics.history}
        check_logs(settings, self._history.known_logs, read, CannotStart, settings.accepted_topic_ids)

    def _alerts_of_recreated(self, replaced: Mapping[Partition, Committed]) -> list[Result]:
        """An alert for each topic that is accepted in place of a deleted one; the history notes the new id with it."""
        before = {
            topic: committed.metadata.topic_id
            for (topic, _), committed in replaced.items()
            if committed.metadata is not None
        }
        before |= {topic: log.id for topic, log in self._history.known_logs.items()}
        offsets: dict[str, dict[int, int]] = {}
        for (topic, number), committed in replaced.items():
            offsets.setdefault(topic, {})[number] = committed.offset
        now = time.time_ns() // 1_000_000
        return [
            topic_recreated(self._alerts_topic, topic, before[topic], log.id, offsets.get(topic, {}), now)
            for topic, log in sorted(self._logs.items())
            if topic != self._settings.topics.history and before.get(topic, log.id) != log.id
        ]

    def _read_history(self, trusted: Container[str], stop: threading.Event) -> list[DocumentRecord]:
        """However long it takes: a reading that is cut short goes on where it was."""
        kept: dict[bytes, KeptVersion | None] = {}
        with contextlib.closing(TopicReader(self._settings, [self._settings.topics.history])) as reader:
            while not self._take_history(reader, kept, trusted):
                if stop.wait(HISTORY_PAUSE_SECONDS):
                    raise Stopping("asked to stop while reading the history topic")
        return [version.record for version in kept.values() if version is not None]

    def _take_history(
        self, reader: TopicReader, kept: dict[bytes, KeptVersion | None], trusted: Container[str]
    ) -> bool:
        """Read on; whether the end is reached. A deletion may come in a later reading than what it deletes."""
        try:
            for message in reader.read_to_end(HISTORY_ATTEMPT_SECONDS):
                key = message.key() or b""
                version = self._history.read_back(key, message.value(), message.headers() or (), trusted)
                kept[key] = version
                if version is not None:
                    self.documents.add_kept(version)
        except (KafkaException, TimeoutError) as error:
            log.warning("history topic not read to its end; waiting", records_read=len(kept), error=str(error))
            return False
        return True

    def catch_up(self, seconds: float) -> None:
        """Read up to the ends fetched now: a new snapshot if policies were read, changes of the layer for facts.

        Raises KafkaException when Kafka does not answer; TimeoutError when it takes longer than `seconds`. What was
        read stays, and must not be used before a reading that is complete.
        """
        for message in self._reader.read_to_end(seconds):
            record = document_record(message)
            if record.topic != self._facts_topic:  # of facts the layer holds the past
                self.documents.add(record)
            is_fact = record.topic == self._facts_topic  # there may be very many of them
            refused = self._load(record, None if is_fact else authorship_of(message.headers()))
            if refused is not None and refused.offset >= self._published.get((refused.topic, 0), 0):
                self._unpublished.append(refused)
        self.documents.read_to(
            {partition: end for partition, end in self.positions.items() if partition[0] != self._facts_topic}
        )
        if not self._complete:
            self._history.close_gaps(self._policies, time.time_ns() // 1_000_000, self._is_to_come)
            self._mark_lost()
        self._apply_facts()
        if self._policies_read or not self._complete:
            self._compile()
            self._changes.compare(self._policies, self.snapshot)
        elif time.monotonic() >= self._forget_at:
            self._forget()
        self._change_log.close(self.snapshot.version, self.policy_offsets())
        self._complete = True

    def _load(self, record: DocumentRecord, authorship: Authorship | None = None) -> Refused | None:
        """`authorship`: None for what the history topic keeps, which is no change."""
        loader = self._loaders[record.topic]
        key = loader.key_of(record)
        if loader.system is None:
            self._facts_read.update([key] if key is not None else [])
            return loader.take(record)
        # A producer's clock may be ahead: what is read here is in force.
        at = min(record.at, time.time_ns() // 1_000_000) if record.by_producer else record.at
        self._policies_read, self.changed_at = True, max(self.changed_at, at)
        document_key = policy_key(record.key, loader.system)
        change = "" if authorship is None else self._change_log.note(document_key, record, authorship, self._policies)
        if key is not None:
            self._history.note(key, record)
        self._changes.note(document_key, record, self._policies, change)
        refused = loader.take(record)
        if authorship is not None:
            self._change_log.noted(document_key, refused is not None, self._policies)
        return refused

    def _mark_lost(self) -> None:
        """Have a refused version stand for each good one that may have been in force and was removed unread.

        Such as when no job ran for longer than `min.compaction.lag.ms`. It affects whomever a document that cannot be
        read affects, and is kept as all versions are: the next start would take the refused one for the first.
        """
        lost = list(self._history.lost_versions)
        for key, document_history in self._policies.histories.items():
            if document_history.in_force is None:
                offset = self.documents.offset_of_lost_version(key, document_history)
                lost += [] if offset is None else [(key, offset, document_history.versions[0].at)]
        topics = self._settings.topics.policy_topics()
        for key, offset, at in lost:
            if key.kind == NO_KIND:
                continue
            topic = topics[key.system]
            record = DocumentRecord(topic, f"{key.kind}/{key.name}".encode(), NO_DOCUMENT, offset, at)
            self._policies_read = True
            self._history.note(key, record)
            self._loaders[topic].take(record)
            log.warning(
                "a document is refused, and its last good version may have been removed before it was read; "
                "publish it again, or delete it: until then the requests that it may affect are answered error",
                document=str(key),
            )

    def _apply_facts(self) -> None:
        """Take over into the layer what the documents read say now, in the order of the log."""
        changes: list[FactChange] = []
        for key, count in self._facts_read.items():
            document_history = self._facts.histories.get(key)
            changes += changes_of(key, document_history, count) if document_history is not None else []
            self._facts.forget(key)
        changes.sort(key=lambda change: change.order)
        older = len(changes) if self._complete else self._older(changes)
        for number, change in enumerate(changes):
            if number == older:
                self._keep_older_facts(changes[number - 1].order if number else NOTHING_READ)
            lookups = self.overlay.apply(change)
            self._fact_changes.append(change)
            if self._complete:
                self._changed_lookups += ((change.key.system, lookup) for lookup in lookups)
        self._facts_read.clear()
        if not self._complete:
            self.overlay.sees_all_from_now(self._deleted_before)

    def _older(self, changes: Sequence[FactChange]) -> int:
        """How many changes of the first reading come before those that are kept apart."""
        older = len(changes)
        while (
            older and len(changes) - older < self._recent_facts and changes[older - 1].recorded > self._facts_all_after
        ):
            older -= 1
        return older

    def _keep_older_facts(self, offset: int) -> None:
        layer = self.overlay.copy()
        layer.sees_all_from_now(self._deleted_before)
        self._older_facts = layer, offset

    def take_older_facts(self) -> tuple[FactOverlay, int] | None:
        """The layer before the newest changes of the first reading, and its offset; once. None: all were older.

        It is what was known at that offset: what these changes have superseded was still there to be read.
        """
        taken, self._older_facts = self._older_facts, None
        return taken

    def take_fact_changes(self) -> list[FactChange]:
        """The changes of the layer since they were last taken, in order."""
        taken, self._fact_changes = self._fact_changes, []
        self.changed_lookups, self._changed_lookups = self._changed_lookups, []
        return taken

    def _compile(self) -> None:
        before, self._policies_read, began = self.snapshot.version, False, time.perf_counter()
        self._compiler.compile()
        self.snapshot = self._compiler.snapshot
        self._on_compiled(measure(time.perf_counter() - began, self._compiler, self._policies))
        self._forget()
        if self.snapshot.version != before:
            refused, superseded = len(self.snapshot.rejected), self.snapshot.history_held
            version = self.snapshot.version
            log.info("policies in force", version=version, refused=refused, superseded_versions_held=superseded)
        self._warn_of_refused()

    def _warn_of_refused(self) -> None:
        """Log each document that is refused now and was not before, with its first error; all are in the alerts."""
        refused = {document.key: document.errors for document in self.snapshot.rejected}
        new = {key: errors for key, errors in refused.items() if self._refused.get(key) != errors}
        self._refused = refused
        for key, errors in itertools.islice(new.items(), WARNED_AT_ONCE):
            log.warning("a document is refused", document=key, error=errors[0], errors=len(errors))
        if len(new) > WARNED_AT_ONCE:
            log.warning("more documents are refused", documents=len(new) - WARNED_AT_ONCE)

    def _forget(self) -> None:
        """Drop versions that no rule refers to any more: when policies change, and now and then as users log in."""
        policy_sets = self.snapshot.with_facts(self.overlay).policy_sets
        retention_floors = {
            name: all_systems()[name].retention_floor(policy_set.facts) for name, policy_set in policy_sets.items()
        }
        self._history.settle(self._policies, self._policies.forget_before(retention_floors))
        self._forget_at = time.monotonic() + FORGET_SECONDS
        if time.monotonic() >= self._forget_past_at:
            self.documents.forget_before(time.time_ns() // 1_000_000 - KEPT_BY_TOPIC_MS)
            self._forget_past_at = time.monotonic() + PAST_FORGOTTEN_SECONDS

    def compiled(self) -> Compiler:
        """The policies in force, compiled, for another thread: what is read later does not change it."""
        return self._compiler.following(self._policies.copy())

    def changes_since(self, snapshot: Snapshot | None) -> list[SnapshotChange] | None:
        """What `snapshot` differs in from an earlier one, see `Compiler.changes_since`."""
        return self._compiler.changes_since(snapshot)

    @property
    def store(self) -> DocumentStore:
        """The policy documents with their versions: to be read, not to be changed."""
        return self._policies

    @property
    def positions(self) -> dict[Partition, int]:
        """The ends of the last complete reading, by partition: where the next one goes on."""
        return self._reader.positions

    def policy_offsets(self) -> dict[str, dict[str, int]]:
        """The newest offset read, by policy topic and partition; -1 for an empty one."""
        offsets = self.all_offsets()
        return {topic: partitions for topic, partitions in offsets.items() if topic != self._facts_topic}

    def all_offsets(self) -> dict[str, dict[str, int]]:
        """The same with the facts topic."""
        return {topic: {str(number): end - 1} for (topic, number), end in self.positions.items()}

    def facts_offset(self) -> int:
        """The newest offset read of the facts topic; -1: it is empty."""
        return self.positions[self._facts_topic, 0] - 1

    def pending(self) -> list[Result]:
        """What the next transaction must say of the documents: alerts, their changes, and those of the history."""
        alerts = [
            policy_rejected(self._alerts_topic, refused) for refused in self._unpublished if self._is_read(refused)
        ]
        changes = [*self._change_log.pending(), *self._changes.pending()]
        return self._recreated + alerts + changes + self._history.changes(self._policies, self.positions)

    def unanalysed(self) -> dict[str, tuple[int, ...]]:
        """What the same transaction must commit beside the offsets; to be asked for after `pending`."""
        return self._changes.unanalysed()

    @property
    def has_news(self) -> bool:
        """Whether alerts of changes are there that `pending` has not returned yet."""
        return self._changes.has_news

    def published(self) -> None:
        """Note that a transaction with all of `pending` was committed."""
        self._unpublished = [refused for refused in self._unpublished if not self._is_read(refused)]
        self._recreated.clear()
        self._change_log.published()
        self._changes.published()
        self._history.written(self._policies)

    def _is_read(self, refused: Refused) -> bool:
        """Whether an offset beyond it is committed next; an incomplete reading is reported once it is complete."""
        return refused.offset < self.positions[refused.topic, 0]

    def close(self) -> None:
        """Leave Kafka, and end the analysis of changes."""
        self._changes.close()
        self._reader.close()


def measure(seconds: float, compiler: Compiler, policies: DocumentStore) -> Compiled:
    """What was compiled within `seconds` from a document store, which still holds versions that it will drop."""
    nameless = (rejected.key.split("/", 1)[0] for rejected in policies.nameless)
    refused = compiler.refused + Counter(system if system in all_systems() else OTHER for system in nameless)
    snapshot = compiler.snapshot
    return Compiled(
        seconds,
        +compiler.in_force,
        refused,
        {name: sum(map(len, policy_set.grants.values())) for name, policy_set in snapshot.policy_sets.items()},
        snapshot.history_held,
        compiler.newest,
    )


@contextlib.contextmanager
def policies_in_force(settings: Settings, retention: Mapping[str, Retention] | None = None) -> Iterator[Policies]:
    """Policies and facts as the job would see them if it started now, with what the history topic keeps.

    `retention`: see `Policies`. Raises KafkaException, TimeoutError and CannotStart.
    """
    with contextlib.closing(Policies(settings, {}, retention=retention)) as policies:
        policies.catch_up(READ_SECONDS)
        yield policies
