"""Reads topics: whole ones up to ends that are fetched beforehand, or records as they come; committed records alone."""

import contextlib
import json
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

import msgspec
import structlog
from confluent_kafka import Consumer, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient

from streaming.errors import JobStopped, TopicChanged
from streaming.kafka.clients import (
    RETRIED_SECONDS,
    SECONDS,
    LoginErrors,
    Partition,
    admin_client,
    first_offsets,
    last_stable_offsets,
    log_reader,
    log_state,
    partitions_of,
    topic_ids,
)
from streaming.kafka.permissions import is_not_authorized
from streaming.kafka.stalled import Progress, positions_of
from streaming.runtime.checkpoints import ARCHIVE
from streaming.settings import Settings
from streaming.topics import TopicNames

log = structlog.get_logger()

ACCEPT = "LOCKKEEPER_ACCEPTED_TOPIC_IDS"


class TopicLog(msgspec.Struct, frozen=True):
    """The log of a topic. `id`: Kafka's id of the topic; `start`: the log start offset, for documents' topics alone.

    Its text is `ID`, or `ID:START` where the log does not start at 0; `parse_log` reads it.
    """

    id: str
    start: int = 0

    def __str__(self) -> str:
        return f"{self.id}:{self.start}" if self.start else self.id

    def replaced_by(self, current: "TopicLog") -> bool:
        """Whether records of this log are gone: it is another topic, or records at its beginning were deleted.

        Compaction does not move the log start offset.
        """
        return current.id != self.id or current.start > self.start


def parse_log(text: str) -> TopicLog:
    """The reverse of `str`. Raises ValueError."""
    id_, _, start = text.partition(":")
    return TopicLog(id_, int(start or 0))


def find_logs(
    admin: AdminClient, documents: Iterable[str], others: Iterable[str] = (), seconds: float = SECONDS
) -> dict[str, TopicLog]:
    """The logs of topics as they are now; of `documents`, which have one partition, also where they start.

    Raises KafkaException and TimeoutError.
    """
    documents = tuple(documents)
    starts = first_offsets(admin, [(topic, 0) for topic in documents], seconds)
    ids = topic_ids(admin, (*documents, *others), seconds)
    return {topic: TopicLog(id_, starts.get((topic, 0), 0)) for topic, id_ in ids.items()}


def document_topics(names: TopicNames) -> tuple[str, ...]:
    """The topics of policies and facts, of one partition each."""
    return *names.policy_topics().values(), names.facts


def check_logs(
    settings: Settings,
    read_before: Mapping[str, TopicLog],
    logs: Mapping[str, TopicLog],
    error: type[JobStopped],
    accepted: Collection[str] = (),
) -> None:
    """Raise `error`, with what fixes it, when records of a known log are gone and the log found is not accepted."""
    changed = {
        topic: log for topic, log in logs.items() if topic in read_before and read_before[topic].replaced_by(log)
    }
    refused = {topic: log for topic, log in changed.items() if str(log) not in accepted}
    if refused:
        what = (
            f"{_what_happened(topic, read_before[topic], log)}. {_fix(settings, topic)}"
            for topic, log in refused.items()
        )
        raise error("\n".join([*what, _start(settings, refused)]))


def _start(settings: Settings, refused: Mapping[str, TopicLog]) -> str:
    new = {str(log) for topic, log in refused.items() if topic != settings.topics.history}
    ids = json.dumps(sorted(new.union(settings.accepted_topic_ids)))
    return f"Then start the job with {ACCEPT}='{ids}'" if new else "Then start the job again"


def _what_happened(topic: str, before: TopicLog, now: TopicLog) -> str:
    if now.id != before.id:
        return f"topic {topic} was deleted and re-created: its topic id was {before.id} and is {now.id}"
    return (
        f"the records of topic {topic} below offset {now.start} were deleted, by kafka-delete-records.sh or by a "
        f"cleanup.policy other than compact; its log start offset was {before.start}"
    )


def _fix(settings: Settings, topic: str) -> str:
    """What to do about a topic before the job is started again."""
    names = settings.topics
    if topic == names.history:
        return "What the policy topics still hold is written to the new one"
    if topic == names.facts:
        return "Have the platforms publish their facts again"
    if topic in names.policy_topics().values():
        return (
            "Documents that were in force are no longer on it, denies perhaps among them: publish all of its documents "
            "with `lockkeeper policy apply`"
        )
    return (
        "Requests on it that were not decided are lost. To read the new topic from its beginning, move the checkpoint "
        f"away with `{ARCHIVE} {settings.checkpoint}`"
    )


POLL_SECONDS = 0.002
FETCH = 1000
STUCK_SECONDS = 10.0
"""After so long without a record that is there, the consumer is replaced; then after twice as long, and so on."""

UNAVAILABLE = frozenset({"_TRANSPORT", "_ALL_BROKERS_DOWN", "_TIMED_OUT", "_RESOLVE", "_LOG_TRUNCATION"})
"""Errors of librdkafka's own that may pass, like those which Kafka calls retriable."""


class TopicReader:
    """Follows topics of one partition each from their log start offsets.

    `positions`: the ends of the last complete reading, by partition.
    `logs`: of these topics and of others, all of which must stay as they are; None: these topics', as found now.
    """

    def __init__(self, settings: Settings, topics: Iterable[str], logs: Mapping[str, TopicLog] | None = None) -> None:
        topics = tuple(topics)
        self._settings, self._login_errors = settings, LoginErrors(settings)
        self._admin = self._login_errors.admin
        self._logs = logs if logs is not None else find_logs(self._admin, topics)
        self._consumer = log_reader(settings)
        self.partitions = partitions_of(self._admin, topics)
        self.positions: dict[Partition, int] = {(topic, n): self._logs[topic].start for topic, n in self.partitions}
        self._fetched = dict(self.positions)
        self._ahead: list[Message] = []  # fetched, but behind the ends of the last reading
        self._lacks_since: float | None = None  # since when nothing came of what is there, monotonic s; None: all did
        self._patience = STUCK_SECONDS
        self._assign(self.positions)

    def read_to_end(self, seconds: float = SECONDS) -> Iterator[Message]:
        """Yield what lies before the ends as they are now, and nothing beyond: ends are ends of transactions.

        How far one can read is the last stable offset; how far one is, the consumer's position: it moves past
        markers and aborted records too, where waiting for a record with the last offset would hang.

        All of a reading is of the logs that were known before. Ends, log start offsets and topic ids are fetched
        at once: a change of policies that was acknowledged before that is in the answers, also one on a re-created
        topic, whose id is another. A topic may yet be re-created between the answers. Where the ends are where the
        last reading ended, nothing of the new topic is taken, and the next reading sees its id. Else the ids are
        fetched again after the last record: no id is given twice, so a topic with the same id before and after was the
        same throughout. A log start offset never moves back; where records were deleted after it was fetched,
        reading them fails.

        Raises KafkaException when Kafka does not answer; TimeoutError when the ends are not reached in time, or lie
        before what was read; TopicChanged when records are gone that were or should have been read. What was yielded
        must not be used then.
        """
        answers_in = max(seconds, RETRIED_SECONDS)
        ends = self._checked_ends(answers_in)
        if ends != self.positions:
            # From now on: a Kafka that answers late would leave no time to read anything, however often it is tried.
            yield from self._up_to(ends, time.monotonic() + seconds)
            self._check(topic_ids(self._admin, self._logs, answers_in))
        self.positions.update(ends)
        self._lacks_since, self._patience = None, STUCK_SECONDS

    def _assign(self, positions: Mapping[Partition, int]) -> None:
        self._consumer.assign([TopicPartition(*partition, start) for partition, start in positions.items()])

    def _checked_ends(self, seconds: float) -> dict[Partition, int]:
        try:
            ends, starts, ids, counts = log_state(self._admin, self.partitions, self._logs, seconds)
        except (KafkaException, TimeoutError) as error:
            raise self._login_errors.cause_of(error) from None
        self._login_errors.clear()
        self._check(ids, starts)
        if grown := sorted(topic for topic, _ in self.partitions if counts[topic] != 1):
            raise TopicChanged(
                f"{', '.join(grown)}: got more partitions than one. What is published to the others is not read, "
                "perhaps denies among it, and Kafka cannot take partitions away. Name another topic in the settings, "
                "create it with `lockkeeper topics create`, and publish all of the documents there"
            )
        if self._is_ahead_of(ends):
            raise TimeoutError(f"the last stable offsets {ends} lie before {self.positions}, which were read before")
        return ends

    def _is_ahead_of(self, ends: Mapping[Partition, int]) -> bool:
        return any(end < self.positions[partition] for partition, end in ends.items())

    def _check(self, ids: Mapping[str, str], starts: Mapping[Partition, int] | None = None) -> None:
        logs = {
            topic: TopicLog(ids[topic], (starts or {}).get((topic, 0), log.start)) for topic, log in self._logs.items()
        }
        check_logs(self._settings, self._logs, logs, TopicChanged)

    def _up_to(self, ends: Mapping[Partition, int], deadline: float) -> Iterator[Message]:
        fetched, self._ahead = self._ahead, []
        yield from self._before(ends, fetched)
        while self._lacks(ends):
            yield from self._before(ends, self._fetch())
            if self._lacks(ends) and time.monotonic() > deadline:
                self._replace_stuck_consumer()
                raise TimeoutError(f"the ends {ends} are not reached in time, only {self._fetched}")

    def _replace_stuck_consumer(self) -> None:
        """After a broker was restarted, librdkafka may read a partition no further, for good and without an error
        (confluentinc/librdkafka#4492). Assigning it once more does not help.
        """
        now = time.monotonic()
        self._lacks_since = self._lacks_since or now
        if now - self._lacks_since < self._patience:
            return
        log.warning("no record comes from Kafka, though there are some; reading on with a new consumer")
        self._consumer.close()
        self._consumer = log_reader(self._settings)
        self._assign(self._fetched)
        self._lacks_since, self._patience = now, 2 * self._patience

    def _lacks(self, ends: Mapping[Partition, int]) -> bool:
        return any(self._fetched[partition] < end for partition, end in ends.items())

    def _before(self, ends: Mapping[Partition, int], messages: list[Message]) -> Iterator[Message]:
        self._ahead += [message for message in messages if not _is_before(ends, message)]
        yield from (message for message in messages if _is_before(ends, message))

    def _fetch(self) -> list[Message]:
        messages = self._consumer.consume(FETCH, POLL_SECONDS)
        for message in messages:
            if message.error() is not None:
                self._assign(self._fetched)  # librdkafka may have ended the reading of this partition
                self._checked_ends(RETRIED_SECONDS)  # which fails with the cause, if that is it
                raise _reading_error(message)
        before, self._fetched = self._fetched, positions_of(self._consumer, self._fetched)
        if self._fetched != before:
            self._lacks_since = None
        return messages

    def close(self) -> None:
        """Leave Kafka."""
        self._consumer.close()


def _reading_error(message: Message) -> Exception:
    error = message.error()
    assert error is not None
    # A permission may be granted again: what waits for it reads on then.
    if error.retriable() or error.name() in UNAVAILABLE or is_not_authorized(error, "topic"):
        return KafkaException(error)
    return JobStopped(f"{message.topic()}-{message.partition()} cannot be read: {error}")


def _is_before(ends: Mapping[Partition, int], message: Message) -> bool:
    topic, partition, offset = message.topic(), message.partition(), message.offset()
    assert topic is not None
    assert partition is not None
    assert offset is not None
    return offset < ends[topic, partition]


FOLLOW_POLL_SECONDS = 0.1


def follow(settings: Settings, topic: str, from_beginning: bool, stopped: Callable[[], bool]) -> Iterator[Message]:
    """Every committed record of `topic` from its beginning or from now on, until `stopped` says so.

    Raises KafkaException when the cluster does not answer or the topic is missing; TopicChanged when it was deleted.
    """
    admin = admin_client(settings)
    partitions, ids = partitions_of(admin, [topic]), topic_ids(admin, [topic])
    starts = first_offsets(admin, partitions) if from_beginning else last_stable_offsets(admin, partitions)
    consumer, progress = _reader_from(settings, starts), Progress(admin)
    try:
        while not stopped():
            for message in consumer.consume(100, FOLLOW_POLL_SECONDS):
                if message.error() is not None:
                    raise KafkaException(message.error())
                yield message
                starts[topic, message.partition() or 0] = (message.offset() or 0) + 1
            if progress.is_due():
                _check_same(admin, ids)
                if _is_stalled(progress, consumer, starts):
                    consumer.close()
                    consumer = _reader_from(settings, starts)
    finally:
        consumer.close()


def _reader_from(settings: Settings, offsets: Mapping[Partition, int]) -> Consumer:
    consumer = log_reader(settings)
    consumer.assign([TopicPartition(*partition, offset) for partition, offset in offsets.items()])
    return consumer


def _check_same(admin: AdminClient, ids: Mapping[str, str]) -> None:
    """Raise TopicChanged where a topic is not the one that it was: librdkafka waits for good then, without an error."""
    with contextlib.suppress(KafkaException, TimeoutError):  # then the next look says so
        try:
            is_same = topic_ids(admin, ids, RETRIED_SECONDS) == ids
        except TopicChanged:
            is_same = False
        if not is_same:
            raise TopicChanged(
                f"{', '.join(ids)}: deleted, or deleted and re-created; nothing of the new topic is read. Create it "
                "with `lockkeeper topics create` if it is not there, and start again"
            )


def _is_stalled(progress: Progress, consumer: Consumer, read: Mapping[Partition, int]) -> bool:
    with contextlib.suppress(KafkaException, TimeoutError):  # then the next look says so
        return progress.is_stalled(positions_of(consumer, read))
    return False
