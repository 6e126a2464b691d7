"""Topics that are read on, so that a look costs what has come since the look before; and Kafka that does not answer."""

import threading
from collections.abc import Callable, Iterator
from typing import TypeVar

import structlog
from confluent_kafka import KafkaException, Message
from confluent_kafka.admin import AdminClient
from starlette.exceptions import HTTPException

from streaming.console.background import BackgroundBusy
from streaming.kafka.clients import Partition, check_reachable, first_offsets, last_stable_offsets, partitions_of
from streaming.kafka.committed import records_between
from streaming.records.registry import RegistryDown
from streaming.settings import Settings

log = structlog.get_logger()

Found = TypeVar("Found")


class Tail:
    """`most`: so many of each partition's newest records are read at first. Not for several threads.

    `is_cut`: whether there are, or were, records before the first one that was read.
    """

    def __init__(self, settings: Settings, admin: AdminClient, topic: str, most: int) -> None:
        self._settings, self._admin, self._topic, self._most = settings, admin, topic, most
        self._read: dict[Partition, int] = {}
        self.is_cut = False

    def records(self) -> Iterator[Message]:
        """What was committed since the last call. Raises KafkaException and TimeoutError."""
        ends = last_stable_offsets(self._admin, partitions_of(self._admin, [self._topic]))
        starts = dict(self._read)
        if new := {partition: end for partition, end in ends.items() if starts.get(partition, end + 1) > end}:
            first = first_offsets(self._admin, new)  # a new partition, or a topic that was deleted and created again
            starts |= {partition: max(first[partition], end - self._most) for partition, end in new.items()}
            self.is_cut = self.is_cut or any(starts[partition] > 0 for partition in new)
        yield from records_between(self._settings, starts, ends)
        self._read = dict(ends)


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

    def __init__(self, admin: AdminClient) -> None:
        self._admin = admin

    def read(self, read: Callable[[], Found]) -> Found:
        """What is read. Raises HTTPException where Kafka, or the schema registry that decisions need, does not answer.

        Its message may name hosts, and is logged. A reading waits `clients.SECONDS` for a broker, and for readings
        before it: longer than who looks at a page.
        """
        try:
            check_reachable(self._admin)
            return read()
        except (KafkaException, TimeoutError) as error:
            log.warning("Kafka does not answer", error=str(error))
            raise HTTPException(503, "Kafka does not answer; load this page again in a moment") from None
        except RegistryDown as error:
            log.warning("the schema registry does not answer", error=str(error))
            raise HTTPException(503, "the schema registry does not answer; load this page again in a moment") from None

    def work_out(self, get: Callable[[], Found | None]) -> Found | None:
        """What `Background` has; None while it is worked out. Raises HTTPException as `read`, and if it is full."""
        try:
            return self.read(get)
        except BackgroundBusy:
            raise HTTPException(503, "other pages are being worked out; load this page again in a moment") from None
