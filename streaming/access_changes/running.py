"""`lockkeeper access-changes` as a process: reads, remembers, writes, until it is asked to stop.

A thread of its own is not needed: policies and facts are looked at many times a second, and decisions are read in small
portions in between, so that none of them waits for long.
"""

import contextlib
import functools
import gc
import threading
import time
from collections.abc import Callable, Iterator, Mapping

import structlog
from confluent_kafka import KafkaException

from policy import to_ms
from streaming.access_changes.decisions import DecisionReader, Joined
from streaming.access_changes.documents import Documents
from streaming.access_changes.following import Following
from streaming.access_changes.metrics import AccessChangesMetrics
from streaming.access_changes.output import Output
from streaming.commit.offsets import IDLE_COMMIT_SECONDS, Committed, check_commit_metadata, without_replaced
from streaming.errors import Stopping, TopicChanged
from streaming.history.ranges import Range
from streaming.history.span import HOUR
from streaming.kafka.clients import (
    LoginErrors,
    Partition,
    first_offsets,
    last_stable_offsets,
    login_failure,
    offsets_since,
    partitions_of,
    topic_ids,
)
from streaming.kafka.manifests import permissions_of
from streaming.kafka.permissions import Permission, explain_refused, refusals_explained
from streaming.kafka.reader import ACCEPT, document_topics
from streaming.ops.health import serving
from streaming.records.access_change import AccessChange, access_change_record
from streaming.records.encodings import open_encodings
from streaming.records.registry import RegistryDown
from streaming.settings import Settings, access_changes_settings

log = structlog.get_logger()

POLL_SECONDS = 0.02  # between two looks at policies and facts
DECISIONS_SECONDS = 0.2  # between two looks at decisions
COMMIT_SECONDS = 1.0  # between two commits that have no record
PORTION, LARGE_PORTION = 4000, 40_000  # decisions read at once: while changes wait for it, and at the start
MOST_READ_AGAIN = 2_000_000  # decisions, at the start
PAUSE_SECONDS = 0.5
FEW_QUESTIONS = 10_000
UNAVAILABLE = (KafkaException, TimeoutError, RegistryDown)


def run(settings: Settings, stop: threading.Event, on_ready: Callable[[], None] = lambda: None) -> None:
    """Run until `stop` is set. `on_ready`: called once, when what was decided before is remembered.

    Raises Fenced when another instance took over; JobStopped for topics that were re-created, and where Kafka refuses
    the login; CannotStart; CannotWrite.
    """
    metrics = AccessChangesMetrics(settings.policy_stale_seconds)
    explained = refusals_explained(settings, _needed(settings))
    with serving(settings.metrics, metrics.registry, metrics.health), contextlib.suppress(Stopping), explained:
        unstarted_since: float | None = None
        while not stop.is_set():
            with contextlib.closing(_Process(settings, stop, metrics)) as process:
                try:
                    process.start()
                except UNAVAILABLE as error:
                    process.check_login(error, unstarted_since)
                    unstarted_since = unstarted_since or time.monotonic()
                    log.warning(
                        "it cannot start while Kafka does not answer; trying again", error=_explain(settings, error)
                    )
                    stop.wait(PAUSE_SECONDS)
                    continue
                unstarted_since = None
                on_ready()
                process.follow()


class _Process:
    """From its start to its end. `settings`: the job's."""

    def __init__(self, settings: Settings, stop: threading.Event, metrics: AccessChangesMetrics) -> None:
        self._settings, self._stop, self._metrics = settings, stop, metrics
        self._own = access_changes_settings(settings)
        self._kept_ms = round(settings.access_changes.hours * HOUR)
        self._login_errors = LoginErrors(self._own)
        self._admin = self._login_errors.admin
        self._decisions = DecisionReader(self._own, self._admin)
        self._opened = contextlib.ExitStack()
        on_wait = functools.partial(setattr, metrics.health, "waits_since")
        output = Output(self._own, stop, on_wait, functools.partial(_explain, settings))
        self._output = self._opened.enter_context(contextlib.closing(output))
        self._joined: Joined | None = None
        self._pending: list[AccessChange] = []
        self._moments: list[int] = []
        self._unread = 0  # decisions that the start left out
        self._frozen = 0  # questions
        self._look_at = self._commit_at = self._renew_at = 0.0

    # Starting

    def start(self) -> None:
        """Fence another instance, and remember what was decided before. Raises one of `UNAVAILABLE`, to be repeated."""
        names = self._own.topics
        self._encodings = self._opened.enter_context(contextlib.closing(open_encodings(self._own)))
        documents = [(topic, 0) for topic in document_topics(names)]
        decisions = partitions_of(self._admin, [names.decisions])
        ids = topic_ids(self._admin, (names.decisions, *document_topics(names)))
        self._topic_ids = ids
        of_group = self._output.open([*documents, *decisions])
        committed = without_replaced(of_group, ids, self._own.accepted_topic_ids)
        check_commit_metadata(committed, ids, None, -1)
        at = _moment_of(committed)
        offsets = {partition: commit.offset for partition, commit in committed.items()}
        followed = {partition: offsets[partition] for partition in documents if partition in offsets}
        self._documents = Documents(self._own, followed, self._stop)
        self._opened.callback(self._documents.close)
        self._positions = self._first_positions(decisions, offsets)
        self._begin(at)
        self._commit()

    def _first_positions(self, decisions: list[Partition], committed: Mapping[Partition, int]) -> dict[Partition, int]:
        """Behind what was read before; at the first start the ends, and of new partitions the beginning."""
        resumed = {partition: committed[partition] for partition in decisions if partition in committed}
        others = [partition for partition in decisions if partition not in resumed]
        new = first_offsets(self._admin, others) if resumed else last_stable_offsets(self._admin, others)
        return {**resumed, **new}

    def _begin(self, at: int) -> None:
        settings, documents, began = self._settings.access_changes, self._documents, time.monotonic()
        first = min(at, at if documents.begins_at is None else documents.begins_at)
        self._following = Following(self._own.topics, documents.in_force, first, settings.questions, self._kept_ms)
        for followed in documents.recent():
            self._following.change(*followed)
        self._following.resume_at(at)
        for portion in self._read_again(at):
            for decided in self._decisions.read(portion).decided:
                self._following.remember(decided)
        self._freeze()
        questions, seconds = len(self._following.questions), round(time.monotonic() - began, 1)
        log.info("decided questions are remembered", questions=questions, seconds=seconds, unread=self._unread)

    def _freeze(self) -> None:
        """Leave what is remembered to no collection of garbage, which would look at all of it while changes wait: a
        second for 100,000 questions. It holds no cycles.
        """
        questions = len(self._following.questions)
        if questions > 2 * self._frozen + FEW_QUESTIONS:
            gc.freeze()
            self._frozen = questions

    def _read_again(self, at: int) -> Iterator[dict[Partition, Range]]:
        """The decisions that were read before and are still to be remembered, in portions."""
        ends = self._positions
        starts = offsets_since(self._admin, ends, at - self._kept_ms)
        most = MOST_READ_AGAIN // max(len(ends), 1)
        self._unread = sum(max(end - starts[partition] - most, 0) for partition, end in ends.items())
        if self._unread:
            log.warning("not all decisions of the time are read again; their questions are forgotten", n=self._unread)
        at_offsets = {partition: max(start, ends[partition] - most) for partition, start in starts.items()}
        while any(at_offsets[partition] < end for partition, end in ends.items()) and not self._stop.is_set():
            portion = _portion(at_offsets, ends, LARGE_PORTION)
            yield portion
            at_offsets.update({partition: offsets.end for partition, offsets in portion.items()})

    def check_login(self, error: Exception, since: float | None) -> None:
        """Raise JobStopped, see `login_failure`, where calls have failed since a moment (monotonic, s)."""
        if (refused := login_failure(self._login_errors.cause_of(error), since)) is not None:
            raise refused from error

    # Following

    def follow(self) -> None:
        """Follow policies, facts and decisions until it is asked to stop. Raises JobStopped, see `login_failure`."""
        unread_since: float | None = None
        while not self._stop.is_set():
            try:
                self._look()
                unread_since = None
                self._login_errors.clear()
                self._metrics.health.policies_read()
            except UNAVAILABLE as error:
                self.check_login(error, unread_since)
                if unread_since is None:
                    log.warning("Kafka does not answer; waiting for it", error=_explain(self._settings, error))
                unread_since = unread_since or time.monotonic()
                self._metrics.health.policies_unread(unread_since)
                self._stop.wait(PAUSE_SECONDS)
                continue
            if self._pending or self._is_commit_due():
                self._commit()
            self._stop.wait(POLL_SECONDS)

    def _look(self) -> None:
        """Decisions are remembered after policies and facts were read up to ends that are asked for later."""
        if self._joined is None and time.monotonic() >= self._look_at:
            self._joined = self._new_decisions()
        for followed in self._documents.read():
            self._turned(self._following.change(*followed))
        self._turned(self._following.pass_time(time.time_ns() // 1_000_000))
        if self._joined is not None:
            joined, self._joined = self._joined, None
            for decided in joined.decided:
                self._pending += self._following.remember(decided)
            self._positions = self._read_to
            self._freeze()
            self._metrics.joined(joined)
            self._metrics.remembered(self._following.questions, self._unread)

    def _new_decisions(self) -> Joined | None:
        """The next portion; None: there is none."""
        self._check_decisions()
        ends = last_stable_offsets(self._admin, partitions_of(self._admin, [self._own.topics.decisions]))
        starts = {partition: self._positions.get(partition, 0) for partition in ends}
        portion = _portion(starts, ends, PORTION)
        if not portion:
            self._look_at = time.monotonic() + DECISIONS_SECONDS
            return None
        self._read_to = {**starts, **{partition: offsets.end for partition, offsets in portion.items()}}
        joined = self._decisions.read(portion)
        self._check_decisions()  # once they are read: a topic with the same id before and after was the same throughout
        return joined

    def _check_decisions(self) -> None:
        """Raise TopicChanged when the topic of decisions was re-created: offsets mean other records there."""
        topic = self._own.topics.decisions
        before, now = self._topic_ids[topic], topic_ids(self._admin, [topic])[topic]
        if now != before:
            raise TopicChanged(
                f"topic {topic} was deleted and re-created: its topic id was {before} and is {now}. To read the new "
                f"topic, start again with {ACCEPT}='[\"{now}\"]'"
            )

    def _turned(self, changes: list[AccessChange]) -> None:
        self._pending += changes
        self._moments += {to_ms(change.time) for change in changes}

    def _is_commit_due(self) -> bool:
        now = time.monotonic()
        return now >= self._commit_at and (self._offsets() != self._committed or now >= self._renew_at)

    def _offsets(self) -> dict[Partition, int]:
        return {**self._positions, **self._documents.positions}

    def _commit(self) -> None:
        topic, most = self._own.topics.access_changes, self._own.limits.record_out
        records = [access_change_record(topic, change, most) for change in self._pending]
        offsets = self._offsets()
        self._output.commit(self._encodings.encoded(records), offsets, self._topic_ids, self._following.questions.at)
        self._metrics.committed(self._pending, self._moments)
        self._pending, self._moments, self._committed = [], [], offsets
        self._commit_at = time.monotonic() + COMMIT_SECONDS
        self._renew_at = time.monotonic() + IDLE_COMMIT_SECONDS

    def close(self) -> None:
        """Leave Kafka."""
        self._opened.close()


def _explain(settings: Settings, error: Exception) -> str:
    return explain_refused(settings, error, _needed(settings))


def _needed(settings: Settings) -> list[Permission]:
    return permissions_of(settings, access_changes_settings(settings).job_name)


def _portion(starts: Mapping[Partition, int], ends: Mapping[Partition, int], most: int) -> dict[Partition, Range]:
    """Of each partition that has any, as many offsets as make about so many together."""
    waiting = [partition for partition, end in ends.items() if starts[partition] < end]
    share = max(most // max(len(waiting), 1), 1)
    return {
        partition: Range(starts[partition], min(ends[partition], starts[partition] + share)) for partition in waiting
    }


def _moment_of(committed: Mapping[Partition, Committed]) -> int:
    """Up to when time was followed (ms); at the first start now."""
    moments = (commit.metadata.read_until for commit in committed.values() if commit.metadata is not None)
    return max((moment for moment in moments if moment is not None), default=time.time_ns() // 1_000_000)
