"""Topics that are read on, so that a look costs what has come since the look before; and Kafka that does not answer."""

import threading
from collections.abc import Callable, Hashable, Iterator
from typing import TypeVar

import structlog
from confluent_kafka import KafkaException, Message
from confluent_kafka.admin import AdminClient
from starlette.exceptions import HTTPException

from streaming.console.background import Background, BackgroundBusy
from streaming.errors import JobStopped
from streaming.kafka.clients import (
    RETRIED_SECONDS,
    Partition,
    PartitionOffsets,
    check_reachable,
    error_name,
    first_offsets,
    last_stable_offsets,
    partitions_of,
    topic_ids,
)
from streaming.kafka.committed import records_between
from streaming.kafka.manifests import permissions_of
from streaming.kafka.permissions import NOT_AUTHORIZED, explain_missing, missing_permissions, principal_of
from streaming.records.registry import RegistryDown
from streaming.settings import Settings

log = structlog.get_logger()

UNREAD = (KafkaException, TimeoutError, RegistryDown, JobStopped)
"""What is raised where something cannot be read."""

UNKNOWN = frozenset({"UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION"})
REFUSALS = UNKNOWN | NOT_AUTHORIZED.keys()
AWAY = "Kafka does not answer"
NOT_THERE = "a topic is not there: run `lockkeeper topics create`, or name other topics in the settings"

Found = TypeVar("Found")


class Tail:
    """`most`: so many of the newest records a look reads, of all partitions together, and `fewest` of each at least.

    Not for several threads. `forget`: called where the topic is another one, so that what was read is no more.
    `begin`: with a partition that is not read on from where it was read to, so many records at most, and whether there
    are records before these. `is_cut`: whether there are, or were, such records.
    """

    def __init__(
        self,
        settings: Settings,
        admin: AdminClient,
        topic: str,
        most: int,
        fewest: int,
        forget: Callable[[], None],
        begin: Callable[[Partition, int, bool], None] = lambda _partition, _most, _is_cut: None,
    ) -> None:
        self._settings, self._admin, self._topic = settings, admin, topic
        self._most, self._fewest, self._forget, self._begin = most, fewest, forget, begin
        self._id = ""
        self._read: dict[Partition, int] = {}
        self.is_cut = False

    def records(self) -> Iterator[Message]:
        """What was committed since the last call. Raises KafkaException, TimeoutError, and TopicChanged."""
        partitions = partitions_of(self._admin, [self._topic])
        # Offsets of a topic that was deleted and created again name other records.
        before, self._id = self._id, topic_ids(self._admin, [self._topic])[self._topic]
        if before not in ("", self._id):
            self._read, self.is_cut = {}, False
            self._forget()
        ends = last_stable_offsets(self._admin, partitions)
        starts = self._starts(first_offsets(self._admin, partitions), ends)
        for message in records_between(self._settings, starts, ends):
            yield message  # one whose reader fails is read again, and none before it
            self._read[message.topic() or "", message.partition() or 0] = (message.offset() or 0) + 1
        self._read = dict(ends)

    def _starts(self, first: PartitionOffsets, ends: PartitionOffsets) -> PartitionOffsets:
        """From where on each partition is read."""
        starts, most = dict[Partition, int](), max(self._most // max(len(ends), 1), self._fewest)
        for partition, end in ends.items():
            start, read = max(first[partition], end - most), self._read.get(partition, -1)
            starts[partition] = read if start <= read <= end else start
            if starts[partition] != read:
                self._begin(partition, most, start > 0)
                self.is_cut = self.is_cut or start > 0
        return starts


class Locked:
    """One thread at a time; what the others wait for is bounded by `SECONDS`."""

    SECONDS = 10.0

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        if not self._lock.acquire(timeout=self.SECONDS):
            raise TimeoutError("others read for too long")

    def __exit__(self, *_failure: object) -> None:
        self._lock.release()


class Cluster:
    """What pages read from Kafka. For several threads."""

    def __init__(self, settings: Settings, admin: AdminClient) -> None:
        self._settings, self._admin = settings, admin

    def read(self, read: Callable[[], Found]) -> Found:
        """What is read. Raises HTTPException where that cannot be, with why.

        A reading waits `clients.SECONDS` for a broker, and for readings before it: longer than who looks at a page.
        """
        try:
            check_reachable(self._admin)
            return read()
        except UNREAD as error:
            raise HTTPException(503, no_page_message(self.explain(error))) from None

    def explain(self, error: Exception) -> str:
        """See `explain`."""
        return explain(self._settings, self._admin, error)

    def work_out(
        self, answers: Background[Found], key: Hashable, work_out: Callable[[], Found], keep: bool = False
    ) -> Found | None:
        """See `Background.get`. Raises HTTPException as `read`, and where too many others are worked out."""
        try:
            return self.read(lambda: answers.get(key, work_out, keep))
        except BackgroundBusy:
            raise HTTPException(503, no_page_message("other pages are being worked out")) from None


def no_page_message(why: str) -> str:
    """Why there is no page, and what may help; commands that would help stand alone."""
    return why if "\n" in why else f"{why}; load this page again in a moment"


def explain(settings: Settings, admin: AdminClient, error: Exception) -> str:
    """Why nothing is read, for those who look at pages: without hosts, which an error may name, and is logged.

    `error`: one of `UNREAD`. Names the permissions that the console lacks: Kafka's errors name neither the principal
    nor the operation, and hide a topic that may not be described.
    """
    log.warning("nothing is read", error=str(error))
    if isinstance(error, RegistryDown):
        return "the schema registry does not answer"
    name = error_name(error) if isinstance(error, KafkaException) else ""
    if isinstance(error, TimeoutError) or (name and name not in REFUSALS):
        return AWAY
    try:
        missing = missing_permissions(admin, permissions_of(settings, f"{settings.job_name}-console"), RETRIED_SECONDS)
    except (KafkaException, TimeoutError):
        return AWAY
    if missing:
        return explain_missing(principal_of(settings.kafka), "HOST:PORT", missing)
    return NOT_THERE if name in UNKNOWN else f"Kafka refuses it: {name}" if name else str(error)
