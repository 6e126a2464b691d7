"""Publishing policy documents: checked first, then all of them in one transaction, or none."""

import contextlib
import random
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from policy import Key, encode_document, identify
from streaming.kafka import clients
from streaming.kafka.authorship import Authorship, Headers, authorship_of
from streaming.kafka.clients import admin_client, last_stable_offsets, log_ends
from streaming.kafka.committed import RecordKey, records_between
from streaming.kafka.permissions import (
    Permission,
    explain_lacking,
    is_not_authorized,
    missing_permissions,
    topic_permissions,
)
from streaming.kafka.topics import SECONDS
from streaming.settings import Settings
from streaming.topics import Offsets

UNKNOWN_OFFSET = -1
"""The offset of a record that Kafka acknowledged as a repetition (DUPLICATE_SEQUENCE_NUMBER): it does not say where the
first one stands. It happens when a partition's leader moves."""

TRANSACTION_MS = 30_000
POLL_SECONDS = 0.005
ROOM = 64 * 1024  # for the key, the headers and the batch around the largest document
RETRY_SECONDS = 120.0  # while other publishers are active
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 2.0
UNKNOWN_ENDS = frozenset({"UNKNOWN", "INVALID_TXN_STATE", "CONCURRENT_TRANSACTIONS"})
"""What a broker may answer to a commit while another producer takes the transactional id, beside that it is fenced."""

OTHER_PUBLISHER = "another publisher was active at the same time and nothing was published; run it again"


class PublishFailed(Exception):
    """Nothing, or nothing that is known of, was published; the message says why and what to do."""


class PublisherFenced(PublishFailed):
    """Another publisher was active at the same time. Whether this one's transaction was committed may be unknown."""


class PolicyRecord(msgspec.Struct, frozen=True):
    """A record for a policy topic; `value` None deletes."""

    topic: str
    key: bytes
    value: bytes | None
    headers: Sequence[tuple[str, str | bytes | None]] = ()


class Publication(NamedTuple):
    """What is published together."""

    documents: Sequence[Mapping[str, Any]]
    deletions: Sequence[Key | RecordKey] = ()


def publish(
    settings: Settings,
    documents: Iterable[Mapping[str, Any]],
    deletions: Iterable[Key] = (),
    authorship: Authorship | None = None,
) -> Offsets:
    """Write documents and deletions to their policy topics, all in one transaction, and return once all can be read.

    From then on no request is decided under older ones. The documents are taken as they are: check them with
    `policy.store.publishable.refusals` first. While other publishers are active it is tried again.
    Raises PublishFailed, and KafkaException when the cluster does not answer or refuses.
    """
    publication = Publication(tuple(documents), tuple(deletions))
    written = (*map(identify, publication.documents), *publication.deletions)
    return publish_prepared(settings, {key.system for key in written}, lambda: publication, authorship)


def publish_prepared(
    settings: Settings,
    systems: Collection[str],
    prepare: Callable[[], Publication],
    authorship: Authorship | None = None,
) -> Offsets:
    """The same of what `prepare` returns, all of it of these systems.

    It is called once no other publisher of these systems can commit any more what it has begun before. What it reads
    of the topics then is what the publication follows: where another one was first, it is called again.
    """
    topics = settings.topics.policy_topics()
    if unknown := sorted(set(systems) - topics.keys()):
        raise PublishFailed(
            f"nothing was published: no topic for {', '.join(unknown)}: add that to the setting `systems`, then run "
            "`lockkeeper topics create`"
        )
    written = [topics[system] for system in systems]
    _check_topics(settings, written)
    change = (authorship or Authorship()).with_id()
    headers = _headers(change)
    attempts = _Attempts(settings, written, change.change)

    def records() -> Iterator[PolicyRecord]:
        attempts.check_unpublished()
        yield from _records(topics, prepare(), headers)

    offsets = attempts.until_published(lambda: _write(settings, systems, records()))
    await_visible(settings, offsets)
    return offsets


def _headers(change: Authorship) -> Headers:
    try:
        return change.headers()
    except ValueError as error:
        raise PublishFailed(f"nothing was published: {error}") from None


def _records(topics: Mapping[str, str], publication: Publication, headers: Headers) -> Iterator[PolicyRecord]:
    documents, deletions = publication
    written = [(identify(document), encode_document(document)) for document in documents]
    for key, value in (*written, *((key, None) for key in deletions)):
        record_key = key if isinstance(key, RecordKey) else RecordKey.of(key)
        yield _record(topics, record_key, value, headers)


class _AlreadyPublished(Exception):
    """An attempt whose commit was not answered was committed after all."""

    def __init__(self, offsets: Offsets) -> None:
        self.offsets = offsets


class _Attempts:
    """Publishes again with random pauses while other publishers take the transactional id.

    A publisher that is fenced while it commits does not know whether it has. So the next attempt looks for the change
    once it has the transactional id, when all that was begun before is ended.
    """

    def __init__(self, settings: Settings, topics: Sequence[str], change: str) -> None:
        self._settings, self._change = settings, change
        self._partitions = [(topic, 0) for topic in topics]
        self._starts = last_stable_offsets(admin_client(settings), self._partitions)
        self._is_first = True

    def until_published(self, attempt: Callable[[], Offsets]) -> Offsets:
        deadline, pause = time.monotonic() + RETRY_SECONDS, FIRST_PAUSE
        while True:
            try:
                return attempt()
            except _AlreadyPublished as published:
                return published.offsets
            except PublisherFenced:
                if time.monotonic() > deadline:
                    raise
            except PublishFailed as failed:
                if self._is_first:
                    raise
                raise PublishFailed(
                    "it may be published, by an attempt that another publisher ended: run it again, which does no "
                    f"harm. Of the next attempt {failed}"
                ) from failed
            self._is_first = False
            time.sleep(random.uniform(0, pause))
            pause = min(2 * pause, LONGEST_PAUSE)

    def check_unpublished(self) -> None:
        """Raise _AlreadyPublished where an attempt before was committed; those who may not read publish twice."""
        if self._is_first:
            return
        published: dict[str, dict[str, int]] = {}
        try:
            ends = last_stable_offsets(admin_client(self._settings), self._partitions)
            for message in records_between(self._settings, self._starts, ends):
                if authorship_of(message.headers()).change == self._change:
                    published.setdefault(message.topic() or "", {})["0"] = message.offset() or 0
        except KafkaException as error:
            if not is_not_authorized(error.args[0], "topic") and not is_not_authorized(error.args[0], "group"):
                raise
        if published:
            raise _AlreadyPublished(published)


def _write(settings: Settings, systems: Collection[str], records: Iterable[PolicyRecord]) -> Offsets:
    try:
        return resolve_unknown_offsets(settings, write(policy_producer(settings, systems), records))
    except PublishFailed as failed:
        cause = failed.__cause__
        if isinstance(cause, KafkaException) and is_not_authorized(cause.args[0], "transactionalId"):
            needed = Permission("transactionalId", transactional_id(settings, systems), "Write")
            raise PublishFailed(f"nothing was published: {explain_lacking(settings, [needed])}") from cause
        raise


def resolve_unknown_offsets(settings: Settings, offsets: Offsets) -> Offsets:
    """In place of offsets that Kafka did not say, those before the ends: what is published by then is not older."""
    unknown = [(topic, int(number)) for topic, at in offsets.items() for number in at if at[number] == UNKNOWN_OFFSET]
    if not unknown:
        return offsets
    with _once_published():
        ends = log_ends(admin_client(settings), unknown)
    return {**offsets, **{topic: {str(number): ends[topic, number] - 1} for topic, number in unknown}}


def await_visible(settings: Settings, offsets: Offsets) -> None:
    """Wait until these offsets can be read. Raises PublishFailed when an older transaction stays open.

    Kafka confirms a transaction once it is decided; its markers, which readers wait for, are written after that.
    """
    admin, deadline = admin_client(settings), time.monotonic() + SECONDS
    last = {(topic, int(number)): offset for topic, at in offsets.items() for number, offset in at.items()}
    with _once_published():
        while any(end <= last[partition] for partition, end in last_stable_offsets(admin, last).items()):
            if time.monotonic() > deadline:
                raise PublishFailed(
                    f"published, but not readable after {SECONDS:g} s: an older transaction is still open"
                )
            time.sleep(POLL_SECONDS)


@contextlib.contextmanager
def _once_published() -> Iterator[None]:
    """Within it an error of Kafka's does not say that nothing was published."""
    try:
        yield
    except (KafkaException, TimeoutError) as error:
        raise PublishFailed(f"published; whether it is readable yet, Kafka does not answer: {error}") from error


def _record(topics: Mapping[str, str], key: RecordKey, value: bytes | None, headers: Headers) -> PolicyRecord:
    if key.system not in topics:
        raise PublishFailed(f"{key}: system {key.system!r} is not one of {', '.join(topics)}")
    return PolicyRecord(topics[key.system], key.key, value, headers)


def _check_topics(settings: Settings, topics: Collection[str]) -> None:
    """A producer would make a missing topic, with the wrong settings, where the broker allows it."""
    admin = admin_client(settings)
    there = clients.partition_numbers(admin, topics, SECONDS)
    if missing := missing_permissions(admin, topic_permissions("Write", topics)):
        raise PublishFailed(f"nothing was published: {explain_lacking(settings, missing)}")
    for topic in sorted(topics):
        if topic not in there:
            raise PublishFailed(f"topic {topic} does not exist: run `lockkeeper topics create`")
        if len(there[topic]) != 1:
            raise PublishFailed(f"topic {topic} has more than one partition: see `lockkeeper topics create`")


def transactional_id(settings: Settings, systems: Collection[str]) -> str:
    """Under which documents of these systems are published: by one at a time, so that no two orders of changes mix.

    One system's documents have an id of their own, which their owners alone may use; several at once have a common one,
    so that one who publishes a system and one who publishes several do not end each other's transactions.
    """
    whole = f"{settings.job_name}-policies"
    return f"{whole}-{next(iter(systems))}" if len(systems) == 1 else whole


def policy_producer(settings: Settings, systems: Collection[str]) -> Producer:
    """What documents are published with; a later one ends what an earlier one left open."""
    fixed = {
        "transactional.id": transactional_id(settings, systems),
        "transaction.timeout.ms": TRANSACTION_MS,
        "message.max.bytes": settings.limits.document + ROOM,
        "queue.buffering.max.messages": 10_000_000,
        "queue.buffering.max.kbytes": 2_000_000,
    }
    return clients.transactional_producer(settings, fixed, {})


def write(producer: Producer, records: Iterable[PolicyRecord]) -> Offsets:
    """Write the records in one transaction; they are asked for once other publishers are fenced.

    The offsets are those of the topics' last records, or `UNKNOWN_OFFSET`.

    Raises PublishFailed, and PublisherFenced.
    """
    offsets: dict[str, list[int]] = {}

    def note(error: KafkaError | None, message: Message) -> None:
        topic, offset = message.topic(), message.offset()
        if error is None and topic is not None:
            offsets.setdefault(topic, []).append(UNKNOWN_OFFSET if offset is None else offset)

    try:
        producer.init_transactions(SECONDS)
        producer.begin_transaction()
        for record in records:
            headers = list(record.headers)
            producer.produce(record.topic, record.value, record.key, partition=0, on_delivery=note, headers=headers)
        _flush(producer)
        if not all(map(_are_adjacent, offsets.values())):
            producer.abort_transaction(SECONDS)
            raise PublisherFenced(OTHER_PUBLISHER)
        producer.commit_transaction(SECONDS)
    except KafkaException as error:
        cause = clients.cause_of(error, producer)
        with contextlib.suppress(KafkaException):
            producer.abort_transaction(SECONDS)
        raise _failure(cause.args[0]) from cause
    return {topic: {"0": of_topic[-1]} for topic, of_topic in offsets.items()}


def _flush(producer: Producer) -> None:
    """Wait until Kafka has all records. Raises KafkaException."""
    try:
        left = producer.flush(SECONDS)
    except SystemError as error:
        # confluent-kafka sets the exception of a fatal error, such as being fenced, and calls reports of delivery with
        # that set, each of which is a SystemError by the one before (confluent-kafka-python #865).
        cause: BaseException | None = error
        while isinstance(cause, SystemError):
            cause = cause.__cause__
        if isinstance(cause, KafkaException):
            raise cause from None
        raise
    if left:
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))


def _are_adjacent(offsets: Sequence[int]) -> bool:
    """Whether no other producer's record lies between those of a transaction on one topic, as far as Kafka says.

    Consumers get what is before the first record of an open transaction (the last stable offset, KIP-98): of one that
    is committed the first half alone, if another one began within it and is not ended.
    """
    return len({offset - number for number, offset in enumerate(offsets) if offset != UNKNOWN_OFFSET}) <= 1


def _failure(error: KafkaError) -> PublishFailed:
    if error.name() in clients.FENCED:
        return PublisherFenced(OTHER_PUBLISHER)
    if error.name() in UNKNOWN_ENDS:
        return PublisherFenced(
            f"another publisher was active at the same time ({error.str()}); it may be published: run it again, which "
            "does no harm"
        )
    return PublishFailed(_explain(error))


def _explain(error: KafkaError) -> str:
    if error.name() == "_TIMED_OUT":
        return "Kafka did not confirm in time; it may be published: run it again, which does no harm"
    return f"nothing was published: {error.str()}"
