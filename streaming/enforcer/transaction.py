"""Writes everything of a batch in one Kafka transaction: it becomes visible together, or not at all."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from streaming.enforcer.errors import Fenced, JobStopped
from streaming.enforcer.headers import Headers
from streaming.enforcer.kafka import SECONDS, error_name, group_consumer, result_producer
from streaming.settings import Settings

FENCED = frozenset({"_FENCED", "PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH"})
POLL_SECONDS = 0.05

Result = tuple[str, bytes | None, bytes | None, Headers]
"""Topic, key, value (None: a deletion) and headers of a record to write."""


class Lot(NamedTuple):
    """Records to write to one topic: as many keys as values and headers."""

    topic: str
    keys: Sequence[bytes | None]
    values: Sequence[bytes | None]
    headers: Iterable[Headers]


def lots_of(results: Iterable[Result]) -> Iterator[Lot]:
    """Single records as lots."""
    return (Lot(topic, [key], [value], [headers]) for topic, key, value, headers in results)


class Output:
    """The job's one transactional producer.

    Exactly once, rule 1: the transactional id is the job's name, so a second instance fences the first. Whoever
    makes an Output has first fenced every other instance and ended its pending transaction; only then may the
    committed offsets be read, and only after that may the query start.
    """

    def __init__(self, settings: Settings) -> None:
        self._name = settings.job_name
        self._producer: Producer = result_producer(settings)
        self.group: Consumer = group_consumer(settings)
        self._producer.init_transactions(SECONDS)

    def publish(
        self,
        lots: Iterable[Lot],
        offsets: Sequence[TopicPartition],
        before_commit: Callable[[], None] = lambda: None,
    ) -> None:
        """Write the records and commit the offsets, all or nothing. `before_commit` runs inside the transaction.

        Raises Fenced when another instance took over; JobStopped when Kafka refused (nothing is visible then).
        """
        try:
            self._producer.begin_transaction()
            self._write(lots)
            self._producer.send_offsets_to_transaction(list(offsets), self.group.consumer_group_metadata(), SECONDS)
            before_commit()
            self._commit()
        except KafkaException as error:
            if error_name(error) in FENCED:
                raise self._fenced() from error
            self._abort()
            raise JobStopped(f"Kafka refused a transaction, of which nothing is visible: {error}") from error
        except BaseException:
            self._abort()
            raise

    def close(self) -> None:
        """Leave Kafka."""
        self.group.close()
        # A producer that was fenced complains once more.
        with contextlib.suppress(KafkaException):
            self._producer.close()

    def _write(self, lots: Iterable[Lot]) -> None:
        # Any: the library wants lists of headers whose values might also be text or none.
        produce: Any = self._producer.produce
        for topic, *columns in lots:
            for key, value, headers in zip(*columns, strict=True):
                try:
                    produce(topic, value, key, headers=headers)
                except BufferError:
                    self._producer.flush(SECONDS)
                    produce(topic, value, key, headers=headers)

    def _commit(self) -> None:
        """Commit; Kafka answers some requests with "try again", and a second call goes on where the first ended."""
        while True:
            try:
                return self._producer.commit_transaction(SECONDS)
            except KafkaException as error:
                if not error.args[0].retriable():
                    raise

    def _fenced(self) -> Fenced:
        return Fenced(
            f"another instance of job {self._name!r} took over; this one stops. Two jobs that should run side by side "
            "need different values of job_name"
        )

    def _abort(self) -> None:
        # What cannot be aborted now is aborted by the next instance's start, or by its timeout.
        with contextlib.suppress(KafkaException):
            self._producer.abort_transaction(SECONDS)
