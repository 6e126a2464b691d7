"""The checker on the topics of a cluster. Reads alone: nothing is written, no group is joined."""

import time
from collections.abc import Callable, Mapping

from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from streaming.kafka.clients import (
    SECONDS,
    Partition,
    admin_client,
    first_offsets,
    group_observer,
    last_stable_offsets,
    log_ends,
    offsets_since,
    partitions_of,
    topic_ids,
)
from streaming.kafka.committed import records_by_time
from streaming.records.registry import Deserializer
from streaming.report import Span
from streaming.report.gather import record_of
from streaming.settings import Settings
from streaming.snapshots.at_offsets import read_document_log
from streaming.topics import dead_letters_of
from streaming.verify import Findings
from streaming.verify.checker import Checker, Range

BROKERS_CLOCKS_MS = 1_000  # by how much the clocks of two brokers may differ
TRANSACTION_MS = 900_000  # Kafka's `transaction.max.timeout.ms`, unless it was changed
POLL_SECONDS = 0.05
COMMITTED_POLL_SECONDS = 0.5
DECIDED_SECONDS = 120.0
REMARK_EVERY = 100_000

Offsets = dict[Partition, int]


def verify(
    settings: Settings,
    span: Span | None = None,
    demanded: Mapping[str, Mapping[str, int]] | None = None,
    progress: Callable[[str], None] = lambda _text: None,
    sample: float = 1.0,
) -> Findings:
    """Check the requests of a time range (None: all that are there) with their decisions and dead letters.

    `demanded`, `sample`: see `Checker`. Raises KafkaException and TimeoutError when the cluster does not answer.
    """
    admin, names = admin_client(settings), settings.topics
    # In this order: what is committed has its answers below `ends`, and every answer its request below `log_ends`.
    committed = _committed(settings, partitions_of(admin, names.requests))
    outputs = partitions_of(admin, (names.decisions, *map(dead_letters_of, names.requests)))
    ends = _settled_ends(admin, outputs)
    requests = last_stable_offsets(admin, partitions_of(admin, names.requests))
    ranges = _ranges(admin, requests, committed, _answers_from(settings, admin, outputs, ends), span)
    progress("reading policies and facts")
    log = read_document_log(settings)
    brokers = admin.list_topics(timeout=SECONDS).brokers
    checker = Checker(
        settings,
        log,
        ranges,
        topic_ids(admin, names.requests),
        demanded,
        BROKERS_CLOCKS_MS if len(brokers) > 1 else 0,
        Deserializer(settings.schema_registry).json,
        sample,
    )
    first = first_offsets(admin, outputs)
    starts = first if span is None else offsets_since(admin, ends, span.start - TRANSACTION_MS)
    starts |= {partition: found.start for partition, found in ranges.items()}
    ends |= {partition: found.end for partition, found in ranges.items()}
    for count, message in enumerate(records_by_time(settings, starts, ends), 1):
        checker.take(record_of(message))
        if count % REMARK_EVERY == 0:
            progress(f"read {count:,} records of requests, decisions and dead letters …")
    return checker.finish()


def await_decided(settings: Settings, last: Mapping[Partition, int], seconds: float = DECIDED_SECONDS) -> bool:
    """Wait until the job has committed these offsets as decided; whether it did so in time."""
    deadline = time.monotonic() + seconds
    while True:
        committed = _committed(settings, list(last))
        if all(committed.get(partition, 0) > offset for partition, offset in last.items()):
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(COMMITTED_POLL_SECONDS)


def _committed(settings: Settings, partitions: list[Partition]) -> Offsets:
    """The committed offsets of the job's group; none where it has none or may not be read."""
    consumer = group_observer(settings)
    try:
        found = consumer.committed([TopicPartition(*partition) for partition in partitions], timeout=SECONDS)
        return {(tp.topic, tp.partition): tp.offset for tp in found if tp.error is None and tp.offset >= 0}
    except KafkaException:
        return {}
    finally:
        consumer.close()


def _settled_ends(admin: AdminClient, partitions: list[Partition]) -> Offsets:
    """The last stable offsets, once the transactions that are open now have ended.

    A transaction's offsets may be visible before its decisions are. Raises TimeoutError when one stays open.
    """
    wanted, deadline = log_ends(admin, partitions), time.monotonic() + 2 * SECONDS
    while True:
        ends = last_stable_offsets(admin, partitions)
        if all(ends[partition] >= end for partition, end in wanted.items()):
            return ends
        if time.monotonic() > deadline:
            raise TimeoutError(f"a transaction of {', '.join(sorted({t for t, _ in wanted}))} stays open: {ends}")
        time.sleep(POLL_SECONDS)


def _answers_from(settings: Settings, admin: AdminClient, outputs: list[Partition], ends: Offsets) -> int:
    """From which moment (ms) on requests have their answers still there: 0 where no answer was deleted."""
    cut = {partition: first for partition, first in first_offsets(admin, outputs).items() if first > 0}
    oldest = [_first_time(settings, partition, first, ends[partition]) for partition, first in cut.items()]
    return max(oldest, default=0)


def _first_time(settings: Settings, partition: Partition, first: int, end: int) -> int:
    """The time of the first record of a partition; where there is none, now."""
    for message in records_by_time(settings, {partition: first}, {partition: end}):
        return message.timestamp()[1] + TRANSACTION_MS
    return time.time_ns() // 1_000_000


def _ranges(
    admin: AdminClient, log_end: Offsets, committed: Offsets, answers_from: int, span: Span | None
) -> dict[Partition, Range]:
    starts = first_offsets(admin, log_end) if span is None else offsets_since(admin, log_end, span.start)
    ends = log_end if span is None else offsets_since(admin, log_end, span.end)
    return {
        partition: Range(starts[partition], ends[partition], end, committed.get(partition), answers_from)
        for partition, end in log_end.items()
    }
