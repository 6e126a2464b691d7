"""The document log of a cluster, read from its topics."""

import time
from collections.abc import Mapping

from confluent_kafka import Message

from streaming.kafka.clients import admin_client, first_offsets, last_stable_offsets, partitions_of
from streaming.kafka.committed import committed_records, records_between
from streaming.kafka.reader import find_logs
from streaming.kafka.topics import settings_of
from streaming.settings import Settings
from streaming.snapshots.at_offsets import DocumentLog, Retention
from streaming.snapshots.documents import Record

LAG = "min.compaction.lag.ms"


def read_document_log(settings: Settings) -> DocumentLog:
    """All documents that the policy, facts and history topics hold, read up to the last stable offsets of now.

    Raises KafkaException or TimeoutError when the cluster does not answer, CannotStart for a newer format.
    """
    names = settings.topics
    log = DocumentLog(names, settings.limits.document, time.time_ns() // 1_000_000, read_retention(settings))
    for message in committed_records(settings, [names.history]):
        log.add_kept(message.key() or b"", message.value(), message.headers() or ())
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


def read_retention(settings: Settings) -> dict[str, Retention]:
    """What the documents' topics are sure to hold still, by topic."""
    admin, names = admin_client(settings), settings.topics
    topics = [*names.policy_topics().values(), names.facts, names.history]
    logs = find_logs(admin, topics)
    lags = {topic: int(found.get(LAG) or 0) for topic, found in settings_of(admin, topics).items()}
    return {topic: Retention(lags[topic], log.start, log.id) for topic, log in logs.items()}


def document_record(message: Message) -> Record:
    """A consumed record of a policy or facts topic."""
    topic, offset, (_, at) = message.topic(), message.offset(), message.timestamp()
    assert topic is not None
    assert offset is not None
    return Record(topic, message.key() or b"", message.value() or b"", offset, at)
