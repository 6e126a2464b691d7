"""Records and positions in one transaction: what is reported is reported once, whatever ends the process."""

import contextlib
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec
import structlog
from confluent_kafka import KafkaError, KafkaException, Message, Producer, TopicPartition

from streaming.commit.offsets import CommitMetadata, Committed, read_committed
from streaming.errors import CannotWrite, Fenced, Stopping
from streaming.kafka.clients import (
    FENCED,
    Partition,
    cause_of,
    error_name,
    group_consumer,
    group_observer,
    transactional_producer,
)
from streaming.kafka.permissions import Permission, explain_lacking, is_not_authorized
from streaming.records.formats import Result
from streaming.settings import Settings
from streaming.topics import ROOM

log = structlog.get_logger()

SECONDS = 10.0
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 5.0
UNUSED = ""


class Output:
    """The transactional producer. `settings`: with the own name, which is the transactional id and the group.

    Exactly once rests on the rules of the job: the transactional id fences another instance, the committed offsets are
    read after that, and each transaction leaves an id beside them by which it is known whether it was committed.

    `on_wait` is called with the moment (monotonic, s) since when it waits for Kafka, and with None when it no longer
    does. `explain`: an error in words. All methods raise Fenced when another instance took over, and Stopping.
    """

    def __init__(
        self,
        settings: Settings,
        stop: threading.Event,
        on_wait: Callable[[float | None], None],
        explain: Callable[[Exception], str] = str,
    ) -> None:
        self._settings, self._stop, self._on_wait, self._explain = settings, stop, on_wait, explain
        self._group = group_consumer(settings)
        self._transaction = UNUSED  # the last one that is known to be committed
        self._began = 0.0

    def open(self, partitions: Sequence[Partition]) -> dict[Partition, Committed]:
        """Fence other instances; what is committed, in time. Raises KafkaException when Kafka does not answer.

        Raises CannotWrite where the transactional id may not be written: Kafka shows that at its first use alone.
        """
        try:
            committed = self._reopened(partitions)
        except KafkaException as error:
            if is_not_authorized(error.args[0], "transactionalId"):
                needed = Permission("transactionalId", self._settings.job_name, "Write")
                raise CannotWrite(explain_lacking(self._settings, [needed])) from error
            raise
        self._transaction = _transaction_of(committed)
        return committed

    def _make(self) -> Producer:
        settings = self._settings
        fixed = {
            "transactional.id": settings.job_name,
            "transaction.timeout.ms": round(settings.transaction_timeout_seconds * 1000),
            "message.max.bytes": settings.limits.record_out + ROOM,
            "queue.buffering.max.messages": 10_000_000,
        }
        return transactional_producer(settings, fixed, {"partitioner": "murmur2_random"})  # as Java's producers

    def commit(
        self, results: Iterable[Result], offsets: Mapping[Partition, int], topic_ids: Mapping[str, str], moment: int
    ) -> None:
        """Write the records and commit the offsets, however long Kafka is away.

        `moment`: up to when time was followed, ms.
        """
        results, id_ = list(results), secrets.token_hex(8)
        commits = [
            TopicPartition(topic, number, offset, _metadata(topic_ids[topic], moment, id_))
            for (topic, number), offset in sorted(offsets.items())
        ]
        since, pause = 0.0, FIRST_PAUSE
        while True:
            try:
                self._write(results, commits)
                break
            except KafkaException as error:
                cause = cause_of(error, self._producer)
                self._check_fenced(cause)
                if not since:
                    since = time.monotonic()
                    # The transaction's own error may only say how many records were not delivered.
                    why = self._explain(next(map(KafkaException, self._undelivered), cause))
                    log.warning("a transaction failed; looking whether it is committed", error=why)
                if self._is_committed(id_, list(offsets), since):
                    break
                self._wait(since, pause, cause)  # it may be refused for long, such as for want of a permission
                pause = min(2 * pause, LONGEST_PAUSE)
        self._on_wait(None)
        self._transaction = id_

    def _write(self, results: Iterable[Result], commits: list[TopicPartition]) -> None:
        self._began, self._undelivered = time.monotonic(), list[KafkaError]()
        self._producer.begin_transaction()
        for topic, key, value, headers in results:
            self._producer.produce(topic, value, key, on_delivery=self._note_delivery, headers=list(headers))
        self._producer.send_offsets_to_transaction(commits, self._group.consumer_group_metadata(), SECONDS)
        self._producer.commit_transaction(SECONDS)

    def _note_delivery(self, error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            self._undelivered.append(error)

    def _is_committed(self, id_: str, partitions: Sequence[Partition], since: float) -> bool:
        """After a failure: whether the transaction is committed, once a new producer has ended it."""
        pause = FIRST_PAUSE
        while True:
            try:
                self._check_transaction(self._newest(partitions), id_)
                committed = _transaction_of(self._reopened(partitions))
                self._check_transaction(committed, id_)
                return committed == id_
            except KafkaException as failure:
                self._check_fenced(failure)
                self._wait(since, pause, failure)
                pause = min(2 * pause, LONGEST_PAUSE)

    def _wait(self, since: float, seconds: float, failure: KafkaException) -> None:
        self._on_wait(since)
        if self._stop.wait(seconds):
            raise Stopping("asked to stop while it waited for Kafka") from failure

    def _check_transaction(self, committed: str, id_: str) -> None:
        if committed not in (self._transaction, id_):
            raise self._fenced()

    def _reopened(self, partitions: Sequence[Partition]) -> dict[Partition, Committed]:
        self._producer = self._make()
        self._producer.init_transactions(SECONDS)
        return read_committed(self._group, partitions, SECONDS)

    def _newest(self, partitions: Sequence[Partition]) -> str:
        """The transaction of the committed offsets, also while another one is open. Raises KafkaException."""
        with contextlib.closing(group_observer(self._settings)) as observer:
            return _transaction_of(read_committed(observer, partitions, SECONDS))

    def _check_fenced(self, error: KafkaException) -> None:
        """Raise Fenced, unless the coordinator itself may have fenced it: the transaction took too long."""
        in_time = time.monotonic() - self._began < self._settings.transaction_timeout_seconds
        if error_name(error) in FENCED and in_time:
            raise self._fenced()

    def _fenced(self) -> Fenced:
        return Fenced(f"another instance of {self._settings.job_name!r} took over; this one stops")

    def close(self) -> None:
        """Leave Kafka: what was not committed is aborted by the next start."""
        self._group.close()


def _metadata(topic_id: str, moment: int, transaction: str) -> str:
    metadata = CommitMetadata("", -1, topic_id, read_until=moment, transaction=transaction)
    return msgspec.json.encode(metadata).decode()


def _transaction_of(committed: Mapping[Partition, Committed]) -> str:
    return next((commit.metadata.transaction for commit in committed.values() if commit.metadata is not None), UNUSED)
