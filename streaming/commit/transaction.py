"""The driver's transactions: what is a batch's own beside its decisions, and what the monitor writes.

Those of decisions are on the executors, see `streaming.commit.partitions`.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar, cast

import structlog
from confluent_kafka import Consumer, KafkaException, TopicPartition
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from streaming.commit.java_classes import java_classes
from streaming.commit.java_clients import admin_settings, producer_settings, properties
from streaming.commit.protocol import FENCES_EACH_TRANSACTION, explain_version, request_timeout_ms, transaction_version
from streaming.errors import CannotWrite, Fenced, JobStopped, Stopping
from streaming.kafka.clients import group_consumer, login_failure
from streaming.kafka.permissions import Permission, explain_missing, principal_of_java
from streaming.ops.watch import Watch
from streaming.records.formats import JSON_HEADERS, Result
from streaming.records.packing import columnar_batches, pack
from streaming.records.size_gate import fitting, largest
from streaming.settings import Settings

ERRORS = "org.apache.kafka.common.errors."
FENCED = frozenset({f"{ERRORS}ProducerFencedException", f"{ERRORS}InvalidProducerEpochException"})
TIMEOUT = f"{ERRORS}TimeoutException"
NOT_AUTHORIZED = f"{ERRORS}TransactionalIdAuthorizationException"
UNKNOWN_ID = f"{ERRORS}TransactionalIdNotFoundException"
FIRST_ATTEMPTS = 3
CLOSE_SECONDS = 1
OFFSETS_BYTES = 256 << 10  # a broker takes 1 MiB, in which each partition also has the name of the group, and more
ABORTED = frozenset({"PrepareEpochFence", "PrepareAbort", "CompleteAbort"})
COMMITTED = frozenset({"PrepareCommit", "CompleteCommit"})
NOT_INITIALIZED = -1
LAST_EPOCH = 2**15 - 2  # Kafka keeps the last one of a short for fencing, then gives a new producer id
EPOCHS_OF_TIMEOUT = 2  # Kafka 4.0.0 raises it once to fence, and once more to abort (KAFKA-19367); others once


class Owner(NamedTuple):
    """Who has a transactional id: the producer that was initialized with it last."""

    producer_id: int
    epoch: int

    def precedes(self, other: "Owner", epochs: int = 1) -> bool:
        """Whether the coordinator gives `other` after this, so many epochs later at most, or as a new producer id."""
        if self.epoch >= LAST_EPOCH and other.producer_id != self.producer_id:
            return other.epoch == 0
        return other.producer_id == self.producer_id and 0 < other.epoch - self.epoch <= epochs


class Transaction(NamedTuple):
    """What the transaction coordinator says of a transactional id. `state`: as Kafka's tools print it."""

    owner: Owner
    state: str


class Output:
    """The driver's transactional producer.

    Exactly once, rule 1: its transactional id is the job's name, so a second instance fences the first. The process
    that makes an Output has first fenced every other driver and ended its pending transaction; only then may the
    committed offsets of policies and facts be read. `reopen` does the same after a failure. Those of input partitions
    have transactional ids of their own, see `PartitionProducer.java`: who loses one asks here whose the job is.

    `on_dropped` is called with the topic of each result that is too large for Kafka and is left out. `during` names a
    step under way, for the log.

    Raises CannotWrite when Kafka does not take it, or does not answer.
    """

    def __init__(
        self,
        settings: Settings,
        spark: SparkSession,
        on_dropped: Callable[[str], None] = lambda _topic: None,
        during: Callable[[str], contextlib.AbstractContextManager[None]] = lambda _step: contextlib.nullcontext(),
    ) -> None:
        self._settings, self._spark = settings, spark
        self._name, self._timeout = settings.job_name, settings.transaction_timeout_seconds
        self._largest, self._on_dropped, self._during = largest(settings), on_dropped, during
        self._jvm = cast(Any, spark._jvm)
        self._java = java_classes(spark)
        self._producer: Any = None
        self._owner = Owner(NOT_INITIALIZED, NOT_INITIALIZED)
        self._initializing = False  # the producer's initialization has begun, and its end is not known
        self._ending = False  # the end of a transaction was asked for, and Kafka's answer is not known
        self._began, self._last_commit_ms = time.monotonic(), 0.0
        self._request_timeout_ms = request_timeout_ms(settings)
        self._member = self._jvm.org.apache.kafka.clients.consumer.ConsumerGroupMetadata(settings.job_name)
        self.group: Consumer = group_consumer(settings)
        try:
            self._open(FIRST_ATTEMPTS)
        except Py4JJavaError as error:
            self.close()
            denied = denied_transactional_id(settings, error, self._name)
            raise CannotWrite(denied or f"Kafka does not let job {self._name!r} write: {message_of(error)}") from error
        if self.transaction_version < FENCES_EACH_TRANSACTION:
            log.warning(explain_version(self.transaction_version))

    def _open(self, attempts: int = 1) -> None:
        """A producer that has the transactional id, and has ended what the one before left open."""
        self._sender: Any = self._java.Sender(properties(self._jvm, producer_settings(self._jvm, self._settings)))
        self._producer = self._sender.producer()
        self._initializing = True
        for attempts_left in reversed(range(attempts)):
            try:
                self._producer.initTransactions()
                break
            except Py4JJavaError as error:
                if next(_classes(error)) != TIMEOUT or not attempts_left:
                    raise
        self._initializing = self._ending = False
        self._owner = Owner(*self._sender.owner())
        self.transaction_version = transaction_version(self._jvm, self._settings)

    def reopen(self) -> None:
        """A new producer, after Kafka did not take a transaction, or did not answer whether it has.

        Rule 1 holds as at the start: when this returns, no other producer can commit, and the committed offsets are
        to be read again. Before it takes the transactional id back, Kafka must show that no other producer has it.

        Raises Fenced when another instance has it; CannotWrite while Kafka does not answer: then call it again.
        """
        try:
            self._check_owner()
            with self._during("take the transactional id with a new producer"):
                self._close_producer(0)
                self._open()
        except Py4JJavaError as error:
            if not self._java.Failures.isUnavailable(error.java_exception):
                raise JobStopped(f"Kafka does not let job {self._name!r} write: {message_of(error)}") from error
            raise CannotWrite(message_of(error)) from error

    def check_owner(self) -> None:
        """Raise Fenced when another instance has the job; CannotWrite while Kafka does not answer."""
        try:
            self._check_owner()
        except Py4JJavaError as error:
            raise CannotWrite(message_of(error)) from error

    def _check_owner(self) -> None:
        if not self._is_owner(describe_transaction(self._jvm, self._settings)):
            raise self._fenced()

    def _is_owner(self, current: "Transaction | None") -> bool:
        """Whether no other producer has taken the transactional id, as far as the coordinator's state shows.

        Each producer that takes it raises the epoch. So do two others. The coordinator, when it aborts a transaction
        that takes too long. And, since KIP-890 (transaction.version 2), the end of each transaction, of which this
        instance may have lost the answer; a producer that took the id ends its first transaction one epoch later. One
        that speaks the older protocol does not: then both take it for theirs, and the later one fences the other.

        A broker that the others have cut off may take itself for the coordinator still: it answers with an earlier
        owner, which says nothing about the present one.
        """
        self._update_owner()
        if current is None or current.owner == self._owner or current.owner.precedes(self._owner, LAST_EPOCH):
            return True
        if self._initializing and current.state in (*ABORTED, "Empty"):
            return True  # the answer to initTransactions may be lost
        if self._ending and current.state in ABORTED | COMMITTED and self._owner.precedes(current.owner):
            return True
        aborted = current.state in ABORTED and self._took_too_long()
        return aborted and self._owner.precedes(current.owner, EPOCHS_OF_TIMEOUT)

    def _update_owner(self) -> None:
        """The epoch that the answers to this producer's transactions have named, once it is initialized."""
        owner = Owner(*self._sender.owner())
        if owner.producer_id != NOT_INITIALIZED:
            self._owner = owner

    def _took_too_long(self) -> bool:
        """Whether the coordinator may have aborted the transaction that began last."""
        return time.monotonic() - self._began >= self._timeout

    def is_unavailable(self, error: BaseException) -> bool:
        """Whether an error is a fault of Kafka's that may pass, also where Spark or Java met it."""
        java = error.java_exception if isinstance(error, Py4JJavaError) else getattr(error, "_origin", None)
        if java is not None:  # PySpark's own errors keep Java's so
            return bool(self._java.Failures.isUnavailable(java))
        return is_unavailable(error)

    def failed_by_kafka(self, query: StreamingQuery) -> bool:
        """Whether a query ended because Kafka did not answer Spark."""
        failure: Any = query._jsq.exception()
        return bool(failure.isDefined() and self._java.Failures.isUnavailable(failure.get()))

    def publish(
        self,
        results: Iterable[Result],
        offsets: Sequence[TopicPartition],
        before_commit: Callable[[], None] = lambda: None,
    ) -> None:
        """Write the results and commit the offsets, all or nothing.

        `before_commit` runs inside the transaction.

        Raises Fenced when another instance took over; JobStopped when Kafka refused (nothing is visible then).
        CannotWrite when it is not known whether they are committed: the committed offsets say so after `reopen`,
        without which nothing more can be published.
        """
        self._renew_epoch()
        self._began, self._ending = time.monotonic(), False
        try:
            with self._during("send the records to Kafka"):
                self._producer.beginTransaction()
                self._write(results)
            with self._during("send the offsets to Kafka"):
                for lines in _in_portions(_lines(offsets)):
                    self._producer.sendOffsetsToTransaction(self._sender.offsets(lines), self._member)
            before_commit()
            self._end_transaction()
        except Py4JJavaError as error:
            raise self._failure(error) from error
        except BaseException:
            self._abort()
            raise

    def _end_transaction(self) -> None:
        self._ending, asked = True, time.monotonic()
        with self._during("commit the transaction"):  # waits until Kafka has all of the records
            self._producer.commitTransaction()
        self._ending, self._last_commit_ms = False, (time.monotonic() - asked) * 1000

    def _renew_epoch(self) -> None:
        """Raise CannotWrite where the request that ended the last transaction may still be under way.

        Before KIP-890 a delayed EndTxn ends whichever transaction the producer has open when it arrives: half of a
        batch becomes visible (KAFKA-14402). Kafka's producer repeats a request that is not answered within
        request.timeout.ms, so that a slower commit may have left one behind. Only a new epoch, which `reopen` takes,
        makes it void.
        """
        if self.transaction_version < FENCES_EACH_TRANSACTION and self._last_commit_ms >= self._request_timeout_ms:
            took, self._last_commit_ms = self._last_commit_ms, 0.0
            raise CannotWrite(
                f"the last commit took {took:.0f} ms, longer than request.timeout.ms; a repeated request may still be "
                "under way, and the brokers do not tell it from the next one (transaction.version below 2)"
            )

    def _failure(self, error: Py4JJavaError) -> Exception:
        """What a transaction failed by. One that may yet be committed is not aborted here: `reopen` does that."""
        if FENCED.intersection(_classes(error)) and not self._took_too_long():
            return self._fenced()
        if FENCED.intersection(_classes(error)) or self._java.Failures.isUnavailable(error.java_exception):
            return CannotWrite(f"a transaction failed: {message_of(error)}")
        if FENCED.intersection(self._abort()):
            return self._fenced()
        return refused_transaction(message_of(error))

    def close(self) -> None:
        """Leave Kafka."""
        self.group.close()
        self._close_producer(CLOSE_SECONDS)

    def _close_producer(self, seconds: int) -> None:
        # A Java that has ended took its producer with it.
        with contextlib.suppress(Py4JError):
            if self._producer is not None:
                self._producer.close(self._jvm.java.time.Duration.ofSeconds(seconds))

    def _write(self, results: Iterable[Result]) -> None:
        for topic, batch in columnar_batches(fitting(results, self._largest, self._on_dropped)):
            self._sender.send(pack(topic, JSON_HEADERS, batch))

    def _fenced(self) -> Fenced:
        return Fenced(
            f"another instance of job {self._name!r} took over; this one stops. Two jobs that should run side by side "
            "need different values of job_name"
        )

    def _abort(self) -> frozenset[str]:
        """Abort, as far as Kafka lets it; the classes of what Java raised.

        What cannot be aborted now is aborted by the next instance's start, or by its timeout.
        """
        self._ending = True
        try:
            with self._during("abort the transaction"):
                self._producer.abortTransaction()
        except Py4JJavaError as error:
            return frozenset(_classes(error))
        except Py4JError:  # Java has ended
            pass
        return frozenset()


def describe_transaction(jvm: Any, settings: Settings) -> Transaction | None:
    """The job's transactional id as its coordinator knows it; None: Kafka does not know it (any more)."""
    name = settings.job_name
    admin = jvm.org.apache.kafka.clients.admin.Admin.create(admin_settings(jvm, settings))
    try:
        description = admin.describeTransactions(jvm.java.util.Collections.singleton(name)).description(name).get()
        return Transaction(
            Owner(description.producerId(), description.producerEpoch()), str(description.state().toString())
        )
    except Py4JJavaError as error:
        if UNKNOWN_ID in _classes(error):
            return None
        raise
    finally:
        admin.close(jvm.java.time.Duration.ZERO)


def _lines(offsets: Iterable[TopicPartition]) -> Iterator[str]:
    """As `Sender.java` reads them; neither names of topics nor JSON hold a tab or the end of a line."""
    return (f"{tp.topic}\t{tp.partition}\t{tp.offset}\t{tp.metadata}" for tp in offsets)


def _in_portions(lines: Iterable[str]) -> Iterator[str]:
    """The lines of each request. The coordinator writes those of one request as one batch of `__consumer_offsets`, and
    refuses what is larger than its max.message.bytes with INVALID_COMMIT_OFFSET_SIZE: 10,000 partitions are.
    """
    portion: list[str] = []
    size = 0
    for line in lines:
        if portion and size + len(line) > OFFSETS_BYTES:
            yield "\n".join(portion)
            portion, size = [], 0
        portion.append(line)
        size += len(line)
    yield "\n".join(portion)


def _chain(error: Py4JJavaError) -> Iterator[Any]:
    """Java's exception, and what caused it."""
    exception = error.java_exception
    while exception is not None:
        yield exception
        exception = exception.getCause()


def _classes(error: Py4JJavaError) -> Iterator[str]:
    return (str(exception.getClass().getName()) for exception in _chain(error))


def denied_transactional_id(settings: Settings, error: Py4JJavaError, name: str, prefix: bool = False) -> str:
    """Which permission is missing, and how to grant it; empty when the error is another."""
    if NOT_AUTHORIZED not in _classes(error):
        return ""
    principal, needed = principal_of_java(settings.source, settings.kafka), "transactionalId"
    return explain_missing(principal, settings.bootstrap_servers, [Permission(needed, name, "Write", prefix)])


def refused_transaction(error: str) -> JobStopped:
    """What to raise for a transaction that Kafka refused for good. `error`: what Java says."""
    if "InvalidTimestampException" in error:  # KIP-937: more than an hour ahead
        return JobStopped(
            f"Kafka refused the times of records: do the brokers' clocks and this machine's agree? {error}"
        )
    return JobStopped(f"Kafka refused a transaction, of which nothing is visible: {error}")


def message_of(error: Py4JJavaError) -> str:
    """What Java says, without the stack."""
    return ", because of ".join(str(exception.toString()) for exception in _chain(error))


log = structlog.get_logger()

FIRST_PAUSE, LONGEST_PAUSE = 0.2, 5.0

Found = TypeVar("Found")


def is_unavailable(error: BaseException) -> bool:
    """Whether Kafka did not answer, or not in time: the same may succeed later."""
    return isinstance(error, KafkaException | TimeoutError | CannotWrite)


class Outage:
    """The time in which Kafka does not do what the job needs. One thread at a time waits.

    `since`: when the outage under way began (Unix time, s); None: there is none. `cause`: its first error.
    `reported`: whether an alert says that policies could not be read meanwhile. `explain`: an error in words.
    """

    def __init__(self, stop: threading.Event, watch: Watch, explain: Callable[[BaseException], str] = str) -> None:
        self._stop, self._watch, self._explain = stop, watch, explain
        self._pause = FIRST_PAUSE
        self.since: float | None = None
        self.cause = ""
        self.reported = False

    def retry(
        self,
        awaited: str,
        attempt: Callable[[], Found],
        unavailable: Callable[[BaseException], bool] = is_unavailable,
    ) -> Found:
        """What `attempt` returns once Kafka lets it. Raises as `wait`, and other errors at once."""
        while True:
            try:
                return attempt()
            except Exception as error:
                if not unavailable(error):
                    raise
                self.wait(awaited, error)

    def wait(self, awaited: str, error: BaseException) -> None:
        """Pause before the next attempt. Raises Stopping when asked to stop, JobStopped where the login is refused."""
        if (refused := login_failure(error, self.since)) is not None:
            raise refused from error
        if self.since is None:
            self.since, self.cause = time.monotonic(), self._explain(error)
            log.warning("waiting for Kafka", awaited=awaited, error=self.cause)
        else:
            log.debug("still waiting for Kafka", awaited=awaited, error=str(error))
        self._watch.waits_for_kafka(self.since)
        if self._stop.wait(self._pause):
            raise Stopping("asked to stop while it waited for Kafka") from error
        self._pause = min(2 * self._pause, LONGEST_PAUSE)

    def end(self) -> None:
        """Note that Kafka has done all that was needed."""
        if self.since is not None:
            log.info("Kafka is available again", waited_seconds=round(time.monotonic() - self.since, 1))
        self.since, self.cause, self.reported, self._pause = None, "", False, FIRST_PAUSE
        self._watch.waits_for_kafka(None)
