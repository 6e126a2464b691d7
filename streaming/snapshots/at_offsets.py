"""Policy at offsets: the records of the policy, facts and history topics → the snapshot at given offsets.

Exact, or `NoLongerKnown`; never a guess. The limit is what compaction may have removed. Kafka removes a record only
once a later one with the same key is older than the topic's `min.compaction.lag.ms` (a deletion also without a later
one, after its predecessors). So the documents in force at an offset are all still there if every later record is
younger than that. Of a log that was opened at T, records above the *cutoff*, T − lag + an hour for clocks that differ,
are all there, and the state at offset O is exact where one of these is known:

- O is the end of the log, or beyond the end that was found when the log was opened (later records were all seen);
- the newest record up to O, or the moment at which O is said to have been the end, is above the cutoff: so is all
  that follows;
- the record after O has the very next offset (nothing between them was removed) and is above the cutoff. A gap is not
  distinguished from a removed record.

Of a refused document the last good version stays in force, and compaction may remove it as soon as the refused one is
below the cutoff. For policies the job keeps it on the history topic for as long as it needs it, once it has read the
refused one. Where it was needed at O and may have been removed from both, or from the facts topic, which has no
history, O is no longer known.
What a StreamSets object was before the cutoff is marked as unknown in the snapshot itself, as at a start of the job.

Beyond this: offsets do not name the topic they belong to. After a topic was deleted and created again its offsets
begin at 0; those of the old one are beyond its end at first and cannot be distinguished from its own later on. Records
that were deleted from the beginning of a log (`kafka-delete-records`) make all of it unknown.
"""

import functools
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar, cast

import msgspec
from confluent_kafka import TIMESTAMP_CREATE_TIME, Message
from confluent_kafka.admin import AdminClient

from policy import Compiler, DocumentHistory, DocumentStore, Key, Snapshot
from streaming.kafka.authorship import authorship_of
from streaming.kafka.clients import SECONDS, admin_client, first_offsets, last_stable_offsets, partitions_of
from streaming.kafka.committed import committed_records, records_between
from streaming.kafka.reader import TopicLog, find_logs
from streaming.kafka.topics import settings_of
from streaming.settings import Settings
from streaming.snapshots.documents import (
    DELETIONS_HELD_MS,
    DocumentRecord,
    KeptVersion,
    Loader,
    kept_version,
    read_position,
    said_since,
)
from streaming.snapshots.record_log import NoLongerKnown, RecordLog, Retention
from streaming.snapshots.states import State, States
from streaming.topics import NOTHING_READ, Offsets, TopicNames, newest_offset

__all__ = [
    "DocumentLog",
    "NoLongerKnown",
    "Retention",
    "Span",
    "document_record",
    "of_topics",
    "read_document_log",
    "read_further",
    "read_retention",
]

Method = TypeVar("Method", bound=Callable[..., Any])


class Span(msgspec.Struct, frozen=True):
    """From when until when (ms, not included; None: still) these were the newest policy offsets."""

    since: int
    until: int | None
    offsets: Offsets


def _locked(method: Method) -> Method:
    """The method of a log, called by one thread at a time."""

    @functools.wraps(method)
    def called(self: "DocumentLog", *arguments: Any, **named: Any) -> Any:
        with self._lock:
            return method(self, *arguments, **named)

    return cast("Method", called)


class DocumentLog:
    """The records of the documents' topics of one cluster, and the snapshots they amount to.

    Fed in the order of each log: first `add_kept` with all records of the history topic, then `add` with those of the
    policy and facts topics, then `read_to` with the ends up to which all was added; from then on `add` and `read_to`
    again as the topics grow. Records are held once, as bytes; `forget_before` bounds the memory.

    Threads may read beside one that writes: one call at a time, as the records that a state is made of must not be let
    go of in between. Snapshots do not change once they are returned.

    `max_bytes`: of a document (`limits.document`); `opened_at`: when reading began, ms by this machine's clock;
    `retention`: by topic, one that is not named has no lag.
    """

    def __init__(
        self, names: TopicNames, max_bytes: int, opened_at: int, retention: Mapping[str, Retention] | None = None
    ) -> None:
        self._lock = threading.RLock()
        by_topic = {topic: system for system, topic in names.policy_topics().items()}
        self._systems: dict[str, str | None] = {**by_topic, names.facts: None}
        self._names, self._max_bytes = names, max_bytes
        retentions = retention or {}
        self._logs = {topic: RecordLog(topic, retentions.get(topic, Retention()), opened_at) for topic in self._systems}
        history_lag = retentions.get(names.history, Retention()).lag_ms
        self._history_lasts = all(retentions.get(topic, Retention()).lag_ms <= history_lag for topic in by_topic)
        self._gaps: set[tuple[str, int | None]] = set()  # deletions that stand for a successor which is lost
        self._kept: dict[str, dict[int, KeptVersion]] = {topic: {} for topic in by_topic}
        self._kept_until = dict.fromkeys(by_topic, sys.maxsize)  # jobs before 0.2 do not say it
        policies, facts = DocumentStore(systems=names.systems), DocumentStore(facts_only=True, systems=names.systems)
        made_of = (self._logs, self._systems, max_bytes, self._gaps)
        self._policies = States(State(dict.fromkeys(by_topic, NOTHING_READ), policies), *made_of)
        self._facts = States(State({names.facts: NOTHING_READ}, facts), *made_of)

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics whose records `add` takes: all policy topics, and the facts topic."""
        return tuple(self._systems)

    @property
    @_locked
    def complete(self) -> bool:
        """Whether nothing can have been removed from any of the topics."""
        return all(log.is_complete() for log in self._logs.values())

    @_locked
    def records(self, topic: str) -> list[DocumentRecord]:
        """The records of one topic that are held, in the order of the log."""
        return list(self._logs[topic].records)

    @_locked
    def end(self, topic: str) -> int:
        """The offset up to which a topic was read, not included."""
        return self._logs[topic].end

    @_locked
    def share(self, compiler: Compiler) -> None:
        """Take over what another reader of the same topics has read and compiled, where it is the same.

        It costs neither the time to parse a document again nor the memory to hold it twice. The compiler and its store
        must not change any more.
        """
        self._policies.share(compiler)

    @_locked
    def add_kept(self, version: KeptVersion) -> None:
        """Take a version of the history topic.

        Its deletions are not needed: what a document once was stays true when the job has no need of it any more.
        """
        if self._logs[version.record.topic].is_of(version.topic_id):
            self._kept[version.record.topic][version.record.offset] = version

    @_locked
    def note_kept_until(self, topic: str, offset: int, topic_id: bytes | None = None) -> None:
        """Note up to which offset a job has read a policy topic, see `History.kept_until`."""
        if topic in self._kept_until and self._logs[topic].is_of(topic_id):
            self._kept_until[topic] = offset

    @_locked
    def offset_of_lost_version(self, key: Key, document_history: DocumentHistory) -> int | None:
        """Where a good version of a refused document may have stood that compaction removed before a job had read the
        refused one; None: nowhere.
        """
        topic, first = self._names.policy_topics()[key.system], document_history.versions[0]
        log = self._logs[topic]
        if first.good or first.order < self._kept_until[topic] or log.all_seen_above(first.order, first.at):
            return None
        return log.missing_offset_below(first.order)

    @_locked
    def add(self, record: DocumentRecord) -> None:
        """Take a record of a policy or facts topic, the next one of its log."""
        self._logs[record.topic].append(record)

    @_locked
    def read_to(self, ends: Mapping[tuple[str, int], int]) -> None:
        """Note that all records below these ends were added. `ends`: by (topic, partition), last stable offsets."""
        for (topic, _), end in ends.items():
            log = self._logs[topic]
            log.end = max(log.end, end)
            if log.seen_from is None:
                log.insert(self._restored(log, self._kept.pop(topic, {})))
                log.seen_from = end

    def _restored(self, log: RecordLog, kept: Mapping[int, KeptVersion]) -> Iterator[DocumentRecord]:
        """The versions of the history topic; one whose successor is lost ends there, it must not be in force again."""
        there = {record.offset for record in log.records} | kept.keys()
        for record, successor in ((version.record, version.successor) for version in kept.values()):
            if successor >= log.end:
                continue  # kept after the end that was read, where the log has it still
            yield record
            if successor not in there:
                self._gaps.add((log.topic, successor))
                yield msgspec.structs.replace(record, value=b"", offset=successor)

    def newest(self) -> Snapshot:
        """What the policies say at the ends that were read, without facts. Raises NoLongerKnown."""
        return self.snapshot_at({topic: {"0": self.end(topic) - 1} for topic in self._policies.topics}, None)

    @_locked
    def documents_at(self, policy_offsets: Offsets, moment: int | None = None) -> dict[Key, DocumentRecord]:
        """The records of the policy documents in force at these offsets, see `snapshot_at`. Raises NoLongerKnown."""
        state, topics = self._policies_state(policy_offsets, moment), self._names.policy_topics()
        in_force = ((key, history.in_force) for key, history in state.store.histories.items())
        return {
            key: self._logs[topics[key.system]].at(version.order)
            for key, version in in_force
            if version is not None and not version.deleted
        }

    @_locked
    def histories_at(self, policy_offsets: Offsets) -> Mapping[Key, DocumentHistory]:
        """The policy documents at these offsets, see `snapshot_at`; nothing changes them. Raises NoLongerKnown."""
        return dict(self._policies_state(policy_offsets, None).store.histories)

    @_locked
    def policies_at(self, moment: int) -> Span:
        """The policy offsets at a moment (ms) by the records' timestamps, and when they were the newest.

        Raises NoLongerKnown when records of that time may have been removed.
        """
        logs = {topic: self._logs[topic] for topic in self._policies.topics}
        offsets = {topic: {"0": log.check_moment(moment)} for topic, log in logs.items()}
        times = [log.around(moment) for log in logs.values()]
        following = (after for _, after in times if after is not None)
        return Span(max(since for since, _ in times), min(following, default=None), offsets)

    @_locked
    def snapshot_at(self, policy_offsets: Offsets, facts_offset: int | None, moment: int | None = None) -> Snapshot:
        """What policies and facts said when these were the newest offsets read. Raises NoLongerKnown.

        `facts_offset` None: without the facts topic, for systems that have no facts. `moment`: a time (ms) at or after
        which these offsets still were the ends, such as that of the request whose decision names them.
        """
        snapshot = self._policies.policies(self._policies_state(policy_offsets, moment)).snapshot
        if facts_offset is None:
            return snapshot
        state = self._state(self._facts, {self._names.facts: facts_offset}, moment)
        return snapshot.with_facts(self._facts.facts(state))

    @_locked
    def newest_records(self, policy_offsets: Offsets) -> tuple[tuple[str, int], ...]:
        """The offset of the newest record of each policy topic up to these offsets: the same for the same policies."""
        return tuple(
            (topic, self._last_record(topic, newest_offset(policy_offsets, topic))) for topic in self._policies.topics
        )

    @_locked
    def checked_records(self, policy_offsets: Offsets) -> tuple[tuple[str, int], ...]:
        """The same of policies that are still known. Raises NoLongerKnown, also for offsets beyond the end.

        A topic that is not named was not read.
        """
        self._check_names(policy_offsets)
        for topic, partitions in policy_offsets.items():
            if partitions.keys() != {"0"} or partitions["0"] < NOTHING_READ:
                raise NoLongerKnown(f"{topic}: has one partition, 0, and offsets from {NOTHING_READ} on")
        for topic in self._policies.topics:
            self._logs[topic].check(newest_offset(policy_offsets, topic), None)
        return self.newest_records(policy_offsets)

    def facts_known(self) -> tuple[int, int]:
        """Two moments, ms: records of facts that came later are all there; what has none since then was not there."""
        log = self._logs[self._names.facts]
        return log.cutoff, min(log.cutoff, log.opened_at - DELETIONS_HELD_MS)

    @_locked
    def superseded(self, policy_offsets: Offsets) -> dict[str, int]:
        """By policy topic, when the first record beyond these offsets came (ms); none: there is none yet."""
        times = ((topic, self._logs[topic].next_time(partitions["0"])) for topic, partitions in policy_offsets.items())
        return {topic: at for topic, at in times if at is not None}

    @_locked
    def next_change(self, policy_offsets: Offsets) -> int | None:
        """When the policies of these offsets ceased to be in force, ms: all of the first change after them had come."""
        times = (self._logs[topic].next_change(partitions["0"]) for topic, partitions in policy_offsets.items())
        return min((at for at in times if at is not None), default=None)

    def _check_names(self, policy_offsets: Offsets) -> None:
        if unknown := policy_offsets.keys() - set(self._policies.topics):
            raise NoLongerKnown(f"{', '.join(sorted(unknown))}: not among the policy topics of the settings")

    def _policies_state(self, policy_offsets: Offsets, moment: int | None) -> State:
        self._check_names(policy_offsets)
        offsets = {topic: newest_offset(policy_offsets, topic) for topic in policy_offsets}
        return self._state(self._policies, offsets, moment)

    def _state(self, states: States, offsets: Mapping[str, int], moment: int | None) -> State:
        """The state at these offsets; a topic that is not named was not read."""
        for topic, offset in offsets.items():
            self._logs[topic].check(offset, moment)
        state = states.at(
            {topic: self._last_record(topic, offsets.get(topic, NOTHING_READ)) for topic in states.topics}
        )
        self._check_refused(state)
        return state

    def _last_record(self, topic: str, offset: int) -> int:
        """The offset of the newest record up to an offset, which may be that of a transaction's marker."""
        log = self._logs[topic]
        count = log.count(offset)
        return log.records[count - 1].offset if count else log.floor

    def _check_refused(self, state: State) -> None:
        """Raise NoLongerKnown where a good version below a refused one may have been in force and removed since."""
        for key in state.refused:
            if self._may_lack_good_version(key, state.store.histories[key], state):
                raise NoLongerKnown(f"{key}: refused, and its last good version may have been removed")

    def _may_lack_good_version(self, key: Key, document_history: DocumentHistory, state: State) -> bool:
        first = document_history.versions[0]
        are_facts = self._names.facts in state.offsets
        topic = self._names.facts if are_facts else self._names.policy_topics()[key.system]
        log = self._logs[topic]
        if are_facts or log.all_seen_above(first.order, first.at):
            return not log.all_seen_above(first.order, first.at)
        if self.offset_of_lost_version(key, document_history) is not None:
            return True
        loader = Loader(state.store, key.system, self._max_bytes)
        later = log.between(state.offsets[topic], log.end)
        return not self._history_lasts and any(loader.key_of(record) == key for record in later)

    @_locked
    def forget_before(self, moment: int) -> None:
        """Let go of what only snapshots before a moment (ms) need: they are no longer known then."""
        for states in (self._policies, self._facts):
            logs = {topic: self._logs[topic] for topic in states.topics}
            kept = {topic: max(log.offset_at(moment), log.floor) for topic, log in logs.items()}
            states.restart(states.later(states.base, {topic: self._last_record(topic, kept[topic]) for topic in kept}))
            for topic, log in logs.items():
                log.forget(kept[topic])


LAG = "min.compaction.lag.ms"


def of_topics(log: DocumentLog, offsets: Offsets) -> Offsets:
    """The offsets of the topics that a log reads."""
    return {topic: partitions for topic, partitions in offsets.items() if topic in log.topics}


def read_document_log(settings: Settings) -> DocumentLog:
    """All documents that the policy, facts and history topics hold, read up to the last stable offsets of now.

    Raises KafkaException or TimeoutError when the cluster does not answer, CannotStart for a newer format.
    """
    names = settings.topics
    log = DocumentLog(names, settings.limits.document, time.time_ns() // 1_000_000, read_retention(settings))
    by_system = names.policy_topics()
    for message in committed_records(settings, [names.history]):
        key, value, headers = message.key() or b"", message.value(), message.headers() or ()
        if (version := kept_version(by_system, key, value, headers, names.history)) is not None:
            log.add_kept(version)
        elif (position := read_position(key, value, headers)) is not None:
            log.note_kept_until(*position)
    read_further(settings, log, {})
    return log


def read_further(
    settings: Settings, log: DocumentLog, read: Mapping[tuple[str, int], int]
) -> dict[tuple[str, int], int]:
    """Add what was published since the log was `read` to these ends; returns the new ones. Raises as the above."""
    admin = admin_client(settings)
    ends = last_stable_offsets(admin, partitions_of(admin, log.topics))
    starts = first_offsets(admin, ends)
    for message in records_between(settings, {**starts, **read}, ends):
        log.add(document_record(message))
    log.read_to(ends)
    return ends


def read_retention(
    settings: Settings,
    logs: Mapping[str, TopicLog] | None = None,
    seconds: float = SECONDS,
    admin: AdminClient | None = None,
) -> dict[str, Retention]:
    """What the documents' topics are sure to hold still, by topic. `logs`: where they are known already.

    `admin`: a client that is connected. Raises KafkaException and TimeoutError.
    """
    admin, topics = admin or admin_client(settings), settings.topics.documents
    logs = find_logs(admin, topics, seconds=seconds) if logs is None else logs
    lags = {topic: int(values.get(LAG) or 0) for topic, values in settings_of(admin, topics, seconds).items()}
    return {topic: Retention(lags[topic], logs[topic].start, logs[topic].id) for topic in topics}


def document_record(message: Message) -> DocumentRecord:
    """A consumed record of a policy or facts topic."""
    topic, offset, (type_, at) = message.topic(), message.offset(), message.timestamp()
    assert topic is not None
    assert offset is not None
    value = message.value() or b""
    headers = message.headers() or ()
    since = None if value else said_since(headers)
    change = sys.intern(authorship_of(headers).change)  # one for many records
    by_producer = type_ == TIMESTAMP_CREATE_TIME
    return DocumentRecord(topic, message.key() or b"", value, offset, at, since, change, by_producer)
