"""Policies and facts, change by change, by the job's own reader of their topics.

A *step* is what came into force together: of one topic, the records with one change id that are read together, and
what lies between them; of records without one, those with adjacent offsets. The marker that ends a transaction takes
an offset, so that of a transaction no half is a step, unless it alternates with others. What a producer without
transactions writes at once may be one step or several, as it is read.
"""

import sys
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping

import msgspec
import structlog
from confluent_kafka import KafkaException, Message

from policy import CompiledDocument, DocumentStore, Key
from policy.analysis import Affected, Edit, FactDocuments, affected_by, affects_everyone, refused, said
from streaming.access_changes.following import Change, InForce
from streaming.errors import Stopping
from streaming.kafka.authorship import Authorship, authorship_of
from streaming.kafka.clients import Partition, admin_client
from streaming.kafka.reader import TopicLog, TopicReader, document_topics, find_logs
from streaming.records.access_change import Cause
from streaming.records.change import is_job_id, job_id
from streaming.settings import Settings
from streaming.snapshots.at_offsets import read_retention
from streaming.snapshots.documents import policy_key
from streaming.snapshots.policies import Policies
from streaming.topics import DAY_MS, NOTHING_READ

log = structlog.get_logger()

READ_SECONDS = 2.0
PAUSE_SECONDS = 0.5
RECENT, RECENT_MS = 64, 600_000  # steps before the committed positions that decisions may be older than
PAST_MS = 6 * DAY_MS  # what is older is taken together: compaction may have removed some of it

Followed = tuple[Change, list[Affected], InForce]
"""What `Following.change` takes."""


class Step(msgspec.Struct):
    """Records of one topic. `at`: the broker's time of the last one, or of an earlier one if that is later; ms."""

    topic: str
    at: int
    authorship: Authorship
    messages: list[Message]

    @property
    def first(self) -> int:
        """The offset of the first record."""
        return self.messages[0].offset() or 0

    @property
    def offset(self) -> int:
        """Of the last record."""
        return self.messages[-1].offset() or 0


class _TopicSteps:
    """The steps of one topic, as its records come. One begins at the `committed` offset."""

    def __init__(self, topic: str, committed: int) -> None:
        self.steps: list[Step] = []
        self._topic, self._committed = topic, committed
        self._indexes: dict[tuple[Authorship, int], int] = {}  # of steps, by what makes records one
        self._adjacent = 0  # the first of the offsets that are adjacent to the newest one

    def add_record(self, message: Message) -> None:
        """Put a record into its step. It lies behind all before."""
        offset, at, authorship = message.offset() or 0, message.timestamp()[1], authorship_of(message.headers())
        last = self.steps[-1] if self.steps else None
        begins = last is not None and last.offset < self._committed <= offset
        if begins:
            self._indexes = {}
        if begins or last is None or offset != last.offset + 1:
            self._adjacent = offset
        at = max(at, last.at if last is not None else 0)
        identity = authorship, 0 if authorship.change else self._adjacent
        index = self._indexes.setdefault(identity, len(self.steps))
        if index == len(self.steps):
            self.steps.append(Step(self._topic, at, authorship, []))
        self._join_from(index)
        step = self.steps[index]
        step.at, step.authorship = at, authorship
        step.messages.append(message)

    def _join_from(self, index: int) -> None:
        """Make one step of this and all that have begun since: transactions that alternate are in force together."""
        if index + 1 == len(self.steps):
            return
        for step in self.steps[index + 1 :]:
            self.steps[index].messages += step.messages
        del self.steps[index + 1 :]
        self._indexes = {identity: min(index, other) for identity, other in self._indexes.items()}


def steps_of(messages: Iterable[Message], committed: Mapping[Partition, int] = {}) -> list[Step]:
    """The records of some topics as steps, by their times; those of one topic stay in the order of its log.

    A step begins at each of the `committed` offsets: what lies below was followed before.
    """
    topics: dict[str, _TopicSteps] = {}
    for message in messages:
        topic = message.topic() or ""
        if topic not in topics:
            topics[topic] = _TopicSteps(topic, committed.get((topic, 0), 0))
        topics[topic].add_record(message)
    steps = (step for of_topic in topics.values() for step in of_topic.steps)
    return sorted(steps, key=lambda step: (step.at, step.topic))


class SteppedReader:
    """Reads topics to their ends with `fetch`; `read_to_end` yields what `give` chose of it: one step after the other.

    `positions`: behind the newest record given out, by partition. `ends`: up to where was fetched.
    """

    def __init__(self, settings: Settings, topics: Iterable[str], logs: Mapping[str, TopicLog]) -> None:
        self._reader = TopicReader(settings, topics, logs)
        self.positions = dict(self._reader.positions)
        self._fetched: list[Message] = []
        self._given: list[Message] = []

    @property
    def ends(self) -> dict[Partition, int]:
        """The ends of the last complete reading: what is beyond was not fetched."""
        return dict(self._reader.positions)

    def fetch(self, seconds: float) -> list[Message]:
        """What was published since. Raises as `TopicReader.read_to_end`: what was read by then is in the next one."""
        self._fetched.extend(self._reader.read_to_end(seconds))
        fetched, self._fetched = self._fetched, []
        return fetched

    def give(self, messages: Iterable[Message]) -> None:
        """What the next `read_to_end` is to yield."""
        self._given.extend(messages)

    def read_to_end(self, seconds: float) -> Iterator[Message]:
        """The records that were given."""
        messages, self._given = self._given, []
        for message in messages:
            yield message
            self.positions[message.topic() or "", message.partition() or 0] = (message.offset() or 0) + 1

    def close(self) -> None:
        """Leave Kafka."""
        self._reader.close()


class Documents:
    """Policies and facts. `in_force`: those that were given out last.

    `committed`: up to where they were followed before; empty: up to their ends. What lies below it is in force at
    first, but for the steps of `recent`, which are to be followed without writing any record. Raises Stopping.
    """

    def __init__(self, settings: Settings, committed: Mapping[Partition, int], stop: threading.Event) -> None:
        self._settings, self._stop = settings, stop
        self._systems = {topic: system for system, topic in settings.topics.policy_topics().items()}
        self._fact_documents = FactDocuments()
        documents = document_topics(settings.topics)
        logs = find_logs(admin_client(settings), (*documents, settings.topics.history))
        self._reader = SteppedReader(settings, documents, logs)
        steps = steps_of(self._fetch(), committed)
        followed, self._waiting = _split(steps, committed or self._reader.ends)
        first, self._recent = _recent(followed)
        self._policies = self._open(logs)
        for step in first:
            self._reader.give(step.messages)
        self._catch_up()
        self.in_force = self._now()

    def _fetch(self) -> list[Message]:
        """All that the topics hold, however long it takes."""
        while True:
            try:
                return self._reader.fetch(READ_SECONDS)
            except (KafkaException, TimeoutError) as error:
                log.info("policies are not read to their ends yet", error=str(error))
                if self._stop.wait(PAUSE_SECONDS):
                    raise Stopping("asked to stop while policies were read") from error

    def _open(self, logs: Mapping[str, TopicLog]) -> Policies:
        """The job's reader, with all alerts and changes noted as written: only the job writes them."""
        settings, reader, ends = self._settings, self._reader, self._reader.ends
        published = {(topic, 0): sys.maxsize for topic in document_topics(settings.topics)}
        coming = {
            (step.topic, message.offset()) for step in (*self._recent, *self._waiting) for message in step.messages
        }

        def is_to_come(topic: str, offset: int) -> bool:
            return (topic, offset) in coming or offset >= ends[topic, 0]

        return Policies(
            settings,
            published,
            logs=logs,
            retention=read_retention(settings, logs),
            stop=self._stop,
            open_reader=lambda *_: reader,
            is_to_come=is_to_come,
        )

    @property
    def begins_at(self) -> int | None:
        """A moment (ms) before the steps of `recent`; None: there are none."""
        return self._recent[0].at - 1 if self._recent else None

    def recent(self) -> Iterator[Followed]:
        """The steps below the committed positions that are to be followed one by one."""
        while self._recent:
            yield self._take(self._recent.popleft())

    def read(self) -> Iterator[Followed]:
        """What was published since, up to the ends fetched now. Raises KafkaException, TimeoutError, TopicChanged."""
        self._waiting.extend(steps_of(self._reader.fetch(READ_SECONDS)))
        while self._waiting:
            yield self._take(self._waiting.popleft())

    @property
    def positions(self) -> dict[Partition, int]:
        """Up to where policies and facts were followed: steps that wait lie beyond it."""
        waiting = {(step.topic, 0): step.first for step in reversed(self._waiting)}
        return {**self._reader.ends, **waiting}

    def _catch_up(self) -> None:
        self._policies.catch_up(READ_SECONDS)
        self._policies.pending()  # is the job's to write; what was returned is forgotten
        self._policies.published()
        self._affected_by_facts = self._fact_documents.affected_by(self._policies.take_fact_changes())

    def _take(self, step: Step) -> Followed:
        policies, system = self._policies.store, self._systems.get(step.topic)
        keys = set[Key]() if system is None else {policy_key(message.key() or b"", system) for message in step.messages}
        before = {key: _said(policies, key) for key in keys}
        nameless = dict(policies.nameless)
        self._reader.give(step.messages)
        self._catch_up()
        affected = list(self._affected_by_facts)
        affected += [affected_by(key.system, [_edit(key, before[key], _said(policies, key))]) for key in keys]
        affected += [self._fact_documents.below(key) for key in keys]
        if policies.nameless != nameless:
            affected += map(affects_everyone, self._settings.systems)
        self.in_force = self._now()
        systems = frozenset(principals.system for principals in affected)
        return Change(step.topic, step.offset, step.at, systems, self._cause(step)), affected, self.in_force

    def _cause(self, step: Step) -> Cause | None:
        """The change as the changes topic names it; facts are not on it."""
        if step.topic not in self._systems:
            return None
        id_, author = step.authorship.change, step.authorship.author
        if not id_ or is_job_id(id_, self._systems):
            id_ = job_id(step.topic, step.first)
        return Cause(id_, author)

    def _now(self) -> InForce:
        policies = self._policies
        snapshot = policies.snapshot.with_facts(policies.overlay)
        offsets = policies.policy_offsets()
        return InForce(snapshot, offsets, max(policies.facts_offset(), NOTHING_READ))

    def close(self) -> None:
        """Leave Kafka."""
        self._policies.close()


def _split(steps: Iterable[Step], committed: Mapping[Partition, int]) -> tuple[list[Step], deque[Step]]:
    """The steps that were followed before, and those that were not."""
    followed, waiting = list[Step](), deque[Step]()
    for step in steps:
        (followed if step.offset < committed.get((step.topic, 0), 0) else waiting).append(step)
    return followed, waiting


def _recent(followed: list[Step]) -> tuple[list[Step], deque[Step]]:
    """What is taken together, and the newest steps, which are followed once more: late decisions have not seen them."""
    late = max(followed[-1].at - RECENT_MS, time.time_ns() // 1_000_000 - PAST_MS) if followed else 0
    recent = [step for step in followed[-RECENT:] if step.at > late]
    return followed[: len(followed) - len(recent)], deque(recent)


_Said = tuple[CompiledDocument, frozenset[str] | None]
"""Of a document: what it says, and whom it affects as a refused one."""


def _said(store: DocumentStore, key: Key) -> _Said:
    history = store.histories.get(key)
    return said(history), refused(history)


def _edit(key: Key, before: _Said, after: _Said) -> Edit:
    return Edit(str(key), before[0], after[0], before[1], after[1])
