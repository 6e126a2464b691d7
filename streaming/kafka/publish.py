"""Publishing policy documents: checked first, then all of them in one transaction, or none."""

import contextlib
import time
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import msgspec
from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient

from policy import Key, encode_document, identify
from streaming.kafka.clients import Partition, admin_client, last_stable_offsets
from streaming.kafka.permissions import (
    Permission,
    explain_missing,
    is_not_authorized,
    missing_permissions,
    principal_of,
    topic_permissions,
)
from streaming.kafka.topics import SECONDS
from streaming.settings import Settings

Offsets = dict[str, dict[str, int]]
"""The last offset written, by topic and partition: what a request's `context.min_policy_offsets` takes."""

TRANSACTION_MS = 30_000
POLL_SECONDS = 0.005
ROOM = 64 * 1024  # for the key and the batch around the largest document


class PublishFailed(Exception):
    """Nothing, or nothing that is known of, was published; the message says why and what to do."""


class PolicyRecord(msgspec.Struct, frozen=True):
    """A record for a policy topic; `value` None deletes."""

    topic: str
    key: bytes
    value: bytes | None


def publish(settings: Settings, documents: Iterable[Mapping[str, Any]], deletions: Iterable[Key] = ()) -> Offsets:
    """Write documents and deletions to their policy topics, all in one transaction, and return once all can be read.

    From then on no request is decided under older ones. The documents are taken as they are: check them with
    `policy.store.publishable.refusals` first.
    Raises PublishFailed, and KafkaException when the cluster does not answer or refuses.
    """
    topics = settings.topics.policy_topics()
    written = [(identify(document), encode_document(document)) for document in documents]
    deleted = [(key, None) for key in deletions]
    systems = {key.system for key, _ in (*written, *deleted)}
    if unknown := sorted(systems - topics.keys()):
        raise PublishFailed(
            f"nothing was published: no topic for {', '.join(unknown)}: add that to the setting `systems`, then run "
            "`lockkeeper topics create`"
        )
    records = [_record(topics, key, value) for key, value in (*written, *deleted)]
    _check_topics(settings, {record.topic for record in records})
    offsets = _write(settings, systems, records)
    await_visible(settings, offsets)
    return offsets


def _write(settings: Settings, systems: Collection[str], records: Iterable[PolicyRecord]) -> Offsets:
    try:
        return write(transactional_producer(settings, systems), records)
    except PublishFailed as failed:
        cause = failed.__cause__
        if isinstance(cause, KafkaException) and is_not_authorized(cause.args[0], "transactionalId"):
            needed = Permission("transactionalId", transactional_id(settings, systems), "Write")
            raise PublishFailed(f"nothing was published: {_explain_missing(settings, [needed])}") from cause
        raise


def await_visible(settings: Settings, offsets: Offsets) -> None:
    """Wait until these offsets can be read. Raises PublishFailed when an older transaction stays open.

    Kafka confirms a transaction once it is decided; its markers, which readers wait for, are written after that.
    """
    admin, deadline = admin_client(settings), time.monotonic() + SECONDS
    last = {(topic, int(number)): offset for topic, at in offsets.items() for number, offset in at.items()}
    while any(end <= last[partition] for partition, end in _last_stable_offsets(admin, last).items()):
        if time.monotonic() > deadline:
            raise PublishFailed(f"published, but not readable after {SECONDS:g} s: an older transaction is still open")
        time.sleep(POLL_SECONDS)


def _last_stable_offsets(admin: AdminClient, partitions: Iterable[Partition]) -> dict[Partition, int]:
    try:
        return last_stable_offsets(admin, partitions)
    except (KafkaException, TimeoutError) as error:
        raise PublishFailed(f"published; whether it is readable yet, Kafka does not answer: {error}") from error


def _record(topics: Mapping[str, str], key: Key, value: bytes | None) -> PolicyRecord:
    if key.system not in topics:
        raise PublishFailed(f"{key}: system {key.system!r} is not one of {', '.join(topics)}")
    return PolicyRecord(topics[key.system], f"{key.kind}/{key.name}".encode(), value)


def _check_topics(settings: Settings, topics: Collection[str]) -> None:
    """A producer would make a missing topic, with the wrong settings, where the broker allows it."""
    admin = admin_client(settings)
    there = admin.list_topics(timeout=SECONDS).topics
    if missing := missing_permissions(admin, topic_permissions("Write", topics)):
        raise PublishFailed(f"nothing was published: {_explain_missing(settings, missing)}")
    for topic in sorted(topics):
        if topic not in there:
            raise PublishFailed(f"topic {topic} does not exist: run `lockkeeper topics create`")
        if len(there[topic].partitions) != 1:
            raise PublishFailed(f"topic {topic} has more than one partition: see `lockkeeper topics create`")


def _explain_missing(settings: Settings, missing: Iterable[Permission]) -> str:
    return explain_missing(principal_of(settings.kafka), settings.bootstrap_servers, missing)


def transactional_id(settings: Settings, systems: Collection[str]) -> str:
    """Under which documents of these systems are published: by one at a time, so that no two orders of changes mix.

    One system's documents have an id of their own, which their owners alone may use; several at once have a common one,
    so that one who publishes a system and one who publishes several do not end each other's transactions.
    """
    whole = f"{settings.job_name}-policies"
    return f"{whole}-{next(iter(systems))}" if len(systems) == 1 else whole


def transactional_producer(settings: Settings, systems: Collection[str]) -> Producer:
    """What documents are published with; a later one ends what an earlier one left open."""
    return Producer(
        {
            "log_level": "2",
            **settings.kafka,
            "bootstrap.servers": settings.bootstrap_servers,
            "transactional.id": transactional_id(settings, systems),
            "transaction.timeout.ms": TRANSACTION_MS,
            "message.max.bytes": settings.limits.document + ROOM,
            "queue.buffering.max.messages": 10_000_000,
            "queue.buffering.max.kbytes": 2_000_000,
        }
    )


def write(producer: Producer, records: Iterable[PolicyRecord]) -> Offsets:
    """Write the records in one transaction. Raises PublishFailed."""
    offsets: Offsets = {}

    def note(error: KafkaError | None, message: Message) -> None:
        topic, offset = message.topic(), message.offset()
        if error is None and topic is not None and offset is not None:
            offsets.setdefault(topic, {})[str(message.partition())] = offset

    try:
        producer.init_transactions(SECONDS)
        producer.begin_transaction()
        for record in records:
            producer.produce(record.topic, record.value, record.key, partition=0, on_delivery=note)
        producer.commit_transaction(SECONDS)
    except KafkaException as error:
        with contextlib.suppress(KafkaException):
            producer.abort_transaction(SECONDS)
        raise PublishFailed(_explain(error.args[0])) from error
    return offsets


def _explain(error: KafkaError) -> str:
    if error.name() in {"_FENCED", "PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH"}:
        return "another publisher was active at the same time and nothing was published; run it again"
    if error.name() == "_TIMED_OUT":
        return "Kafka did not confirm in time; it may be published: run it again, which does no harm"
    return f"nothing was published: {error.str()}"
