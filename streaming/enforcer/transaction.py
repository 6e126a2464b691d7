"""Writes everything of a batch in one Kafka transaction: it becomes visible together, or not at all."""

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, cast

import msgspec
from confluent_kafka import Consumer, TopicPartition
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.sql import DataFrame, SparkSession

from streaming.enforcer.errors import CannotWrite, Fenced, JobStopped
from streaming.enforcer.headers import JSON_ALONE
from streaming.enforcer.kafka import group_consumer
from streaming.enforcer.sender import open_sender
from streaming.enforcer.wire import Result, lots_of, pack
from streaming.enforcer.worker import PACKED, TOLD, Told
from streaming.permissions import Permission, explain_missing, principal_of_java
from streaming.records.size_gate import fitting, largest
from streaming.settings import Settings

ERRORS = "org.apache.kafka.common.errors."
FENCED = frozenset({f"{ERRORS}ProducerFencedException", f"{ERRORS}InvalidProducerEpochException"})
TIMEOUT = f"{ERRORS}TimeoutException"
NOT_AUTHORIZED = f"{ERRORS}TransactionalIdAuthorizationException"
CLOSE_SECONDS = 5

_read_told = msgspec.msgpack.Decoder(list[Told]).decode


class Evaluated(NamedTuple):
    """What the workers made of a batch. `rows`: theirs, in Java; `told`: what they tell of them."""

    rows: Any
    told: list[Told]


class Output:
    """The job's one transactional producer.

    Exactly once, rule 1: the transactional id is the job's name, so a second instance fences the first. Whoever
    makes an Output has first fenced every other instance and ended its pending transaction; only then may the
    committed offsets be read, and only after that may the query start.

    `on_dropped` is called with the topic of each result that is too large for Kafka and is left out.

    Raises CannotWrite when Kafka does not take it, or does not answer.
    """

    def __init__(
        self, settings: Settings, spark: SparkSession, on_dropped: Callable[[str], None] = lambda _topic: None
    ) -> None:
        self._name, self._timeout = settings.job_name, settings.transaction_timeout_seconds
        self._largest, self._on_dropped = largest(settings), on_dropped
        self._jvm = cast(Any, spark._jvm)
        self._producer: Any = None
        self._member = self._jvm.org.apache.kafka.clients.consumer.ConsumerGroupMetadata(settings.job_name)
        self.group: Consumer = group_consumer(settings)
        try:
            self._sender: Any = open_sender(spark, settings)
            self._producer = self._sender.producer()
            self._producer.initTransactions()
        except Py4JJavaError as error:
            self.close()
            denied = _denied(settings, error)
            raise CannotWrite(denied or f"Kafka does not let job {self._name!r} write: {_message(error)}") from error

    def collect(self, made: DataFrame) -> Evaluated:
        """Run a batch through the workers; what they made stays in Java."""
        rows = made._jdf.collectAsList()
        return Evaluated(rows, _read_told(self._sender.told(rows, TOLD)))

    def kept(self, evaluated: Evaluated, which: Sequence[bool]) -> Evaluated:
        """What was made of those Arrow batches that count."""
        rows = self._sender.kept(evaluated.rows, TOLD, bytes(which))
        return Evaluated(rows, list(itertools.compress(evaluated.told, which)))

    def publish(
        self,
        results: Iterable[Result],
        offsets: Sequence[TopicPartition],
        evaluated: Evaluated | None = None,
        before_commit: Callable[[], None] = lambda: None,
    ) -> None:
        """Write the results and what was evaluated, and commit the offsets, all or nothing.

        `before_commit` runs inside the transaction. Raises Fenced when another instance took over; JobStopped when
        Kafka refused (nothing is visible then).
        """
        try:
            self._producer.beginTransaction()
            self._write(results, evaluated)
            self._producer.sendOffsetsToTransaction(self._sender.offsets(_lines(offsets)), self._member)
            before_commit()
            self._commit()
        except Py4JJavaError as error:
            # A fenced producer may also learn it late: its call times out, and Kafka refuses what follows.
            if FENCED.intersection(_classes(error)) or FENCED.intersection(self._abort()):
                raise self._fenced() from error
            raise JobStopped(f"Kafka refused a transaction, of which nothing is visible: {_message(error)}") from error
        except BaseException:
            self._abort()
            raise

    def close(self) -> None:
        """Leave Kafka."""
        self.group.close()
        # A Java that has ended took its producer with it.
        with contextlib.suppress(Py4JError):
            if self._producer is not None:
                self._producer.close(self._jvm.java.time.Duration.ofSeconds(CLOSE_SECONDS))

    def _write(self, results: Iterable[Result], evaluated: Evaluated | None) -> None:
        for topic, lot in lots_of(fitting(results, self._largest, self._on_dropped)):
            self._sender.send(pack(topic, JSON_ALONE, lot))
        if evaluated is not None:
            self._sender.sendAll(evaluated.rows, PACKED, TOLD)

    def _commit(self) -> None:
        """Commit; where that took too long, a second call goes on where the first ended."""
        while True:
            try:
                return self._producer.commitTransaction()  # type: ignore[no-any-return]
            except Py4JJavaError as error:
                if next(_classes(error)) != TIMEOUT:
                    raise

    def _fenced(self) -> Fenced:
        return Fenced(
            f"another instance of job {self._name!r} took over, or a transaction took longer than "
            f"transaction_timeout_seconds, {self._timeout:g} s; this one stops. Two jobs that should run side by side "
            "need different values of job_name"
        )

    def _abort(self) -> frozenset[str]:
        """Abort, as far as Kafka lets it; the classes of what Java raised.

        What cannot be aborted now is aborted by the next instance's start, or by its timeout.
        """
        try:
            self._producer.abortTransaction()
        except Py4JJavaError as error:
            return frozenset(_classes(error))
        except Py4JError:  # Java has ended
            pass
        return frozenset()


def _lines(offsets: Iterable[TopicPartition]) -> str:
    """As `Sender.java` reads them; neither names of topics nor JSON hold a tab or the end of a line."""
    return "\n".join(f"{tp.topic}\t{tp.partition}\t{tp.offset}\t{tp.metadata}" for tp in offsets)


def _chain(error: Py4JJavaError) -> Iterator[Any]:
    """Java's exception, and what caused it."""
    exception = error.java_exception
    while exception is not None:
        yield exception
        exception = exception.getCause()


def _classes(error: Py4JJavaError) -> Iterator[str]:
    return (str(exception.getClass().getName()) for exception in _chain(error))


def _denied(settings: Settings, error: Py4JJavaError) -> str:
    """Which permission is missing, and how to grant it; empty when the error is another."""
    if NOT_AUTHORIZED not in _classes(error):
        return ""
    principal, needed = principal_of_java(settings.source, settings.kafka), "transactionalId"
    return explain_missing(principal, settings.bootstrap_servers, [Permission(needed, settings.job_name, "Write")])


def _message(error: Py4JJavaError) -> str:
    """What Java says, without the stack."""
    return ", because of ".join(str(exception.toString()) for exception in _chain(error))
