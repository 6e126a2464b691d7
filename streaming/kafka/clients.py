"""Kafka's clients with the settings that the promises need."""

import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

from confluent_kafka import (
    OFFSET_INVALID,
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec, TopicDescription

from streaming.errors import JobStopped, TopicChanged
from streaming.settings import Settings

SECONDS = 30.0
RETRIED_SECONDS = 3.0  # for repeated queries: between two attempts a signal to stop is heard
REACH_SECONDS = 1.0
LAG_SECONDS = 3.0  # a request for the lag waits for it
POLL_SECONDS = 0.05
COORDINATOR_STARTS = frozenset({"COORDINATOR_LOAD_IN_PROGRESS", "COORDINATOR_NOT_AVAILABLE", "NOT_COORDINATOR"})
HIDDEN = frozenset({"UNKNOWN_TOPIC_OR_PART", "TOPIC_AUTHORIZATION_FAILED"})  # of topics that no list would name
LOGIN_REFUSED = frozenset({"_AUTHENTICATION", "_SSL"})  # a password, or a certificate
LOGIN_REFUSED_SECONDS = 30.0
"""A process whose login is refused for so long ends: its supervisor starts it with the password and the certificates
that there are then. A broker that has just started may not know all passwords yet."""
ERRORS_KEPT = 16  # of a client whose calls fail
FENCED = frozenset({"_FENCED", "PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH"})
LOG_SETTINGS = frozenset({"debug", "log_level"})
DELETED = (
    "topic {topic} was deleted. Create it with `lockkeeper topics create`. If it held policies, publish all of its "
    "documents with `lockkeeper policy apply`; if it held facts, have the platforms publish theirs again. The next "
    "start names the setting that accepts the new topic"
)
FETCHING = {
    "fetch.wait.max.ms": "100",
    # librdkafka fetches no more for 1 s once it has 64 MiB or enough records, also if they are read at once. Reading
    # 300,000 records of 1 KB took 1.6 s with that and 0.6 s with this (two cores, 2026-11-29), and a look at a single
    # record 1 s and 7 ms.
    "fetch.queue.backoff.ms": "10",
}
URL_SAFE = str.maketrans("+/", "-_")

Partition = tuple[str, int]
PartitionOffsets = dict[Partition, int]
Found = TypeVar("Found")
Answer = Callable[[], Found]


def admin_client(settings: Settings) -> AdminClient:
    """A client for the metadata of topics, groups and ends."""
    return AdminClient(_common(settings))


class LoginErrors:
    """A client like `admin_client` that knows when the brokers refuse its login: its calls only time out then."""

    def __init__(self, settings: Settings) -> None:
        # A method of this object as callback would be a cycle: the client's threads would stay until the garbage
        # collector comes.
        self._errors: deque[KafkaError] = deque(maxlen=ERRORS_KEPT)
        config: dict[str, Any] = {**_common(settings), "error_cb": self._errors.append}
        self.admin = AdminClient(config)

    def cause_of(self, error: Exception) -> Exception:
        """The newest refusal since a call has succeeded; without one the error of the call that has failed."""
        self.admin.poll(0)
        refusals = [each for each in self._errors if each.name() in LOGIN_REFUSED]
        return KafkaException(refusals[-1]) if refusals else error

    def clear(self) -> None:
        """Note that a call has succeeded. Errors that nobody polls, as of one broker of several, would pile up."""
        self.admin.poll(0)
        self._errors.clear()


def is_login_refused(error: BaseException | None) -> bool:
    """Whether the brokers refuse the password or certificate, or theirs is not trusted."""
    return isinstance(error, KafkaException) and error_name(error) in LOGIN_REFUSED


def login_failure(error: BaseException | None, since: float | None) -> JobStopped | None:
    """By what a process ends whose calls have failed since a moment (monotonic, s), the last one by this error.

    None: not because the brokers refuse its password or certificate, or it refuses theirs; or not for so long.
    """
    if since is None or time.monotonic() - since < LOGIN_REFUSED_SECONDS:
        return None
    if not is_login_refused(error):
        return None
    return JobStopped(
        f"Kafka refuses the login, or its certificate is not trusted: {error}. Passwords and certificates are read at "
        "the start: if they were replaced, start it again"
    )


def group_consumer(settings: Settings) -> Consumer:
    """A consumer that only names the job's group: it never joins. It waits for pending transactions' offsets."""
    return Consumer({**_reading(settings), "group.id": settings.job_name})


def group_observer(settings: Settings) -> Consumer:
    """The same, but it does not wait for transactions that an instance before has left open."""
    return Consumer({**_reading(settings), "group.id": settings.job_name, "isolation.level": "read_uncommitted"})


def log_reader(settings: Settings) -> Consumer:
    """A consumer that reads whole topics, committed records alone."""
    return Consumer({**_reading(settings), **FETCHING, "group.id": settings.job_name})


def head_reader(settings: Settings) -> Consumer:
    """A consumer for single committed records, which also says where there is none."""
    few = {"queued.min.messages": "1", "fetch.message.max.bytes": str(64 << 10), "enable.partition.eof": "true"}
    return Consumer({**_reading(settings), **FETCHING, **few, "group.id": settings.job_name})


def transactional_producer(settings: Settings, fixed: Mapping[str, Any], usual: Mapping[str, Any]) -> Producer:
    """A producer with a transactional id. `fixed`: what the settings for Kafka's clients do not change; `usual`: do.

    Its log goes nowhere, unless that is asked for: librdkafka would write two lines to stderr when another producer
    takes the id, which is raised as well.
    """
    shown = LOG_SETTINGS.isdisjoint(settings.kafka)
    return Producer({**usual, **_common(settings), **fixed}, **({"logger": _unread_log()} if shown else {}))


def _unread_log() -> logging.Logger:
    logger = logging.getLogger("lockkeeper.librdkafka")
    logger.propagate = False
    logger.handlers[:] = [logging.NullHandler()]
    return logger


def is_fatal(error: KafkaError) -> bool:
    """Whether a producer takes no record any more. `produce` and reports of delivery say so by the code alone."""
    return error.fatal() or error.name() == "_FATAL"


def cause_of(error: KafkaException, producer: Producer) -> KafkaException:
    """By what a transaction failed: after a fatal error, of which `produce` says no more, another call names it."""
    if error_name(error) != "_FATAL":
        return error
    try:
        producer.abort_transaction(RETRIED_SECONDS)  # says so at once, though not within 0 s: that would be a timeout
    except KafkaException as cause:
        return cause
    return error


def _common(settings: Settings) -> dict[str, str | int | float | bool]:
    return {"log_level": "2", **settings.kafka, "bootstrap.servers": settings.bootstrap_servers}


def _reading(settings: Settings) -> dict[str, str | int | float | bool]:
    return {
        **_common(settings),
        "isolation.level": "read_committed",
        "enable.auto.commit": "false",
        "auto.offset.reset": "error",
    }


def partitions_of(admin: AdminClient, topics: Iterable[str], seconds: float = SECONDS) -> list[Partition]:
    """Every partition of the topics, sorted.

    Raises KafkaException, `UNKNOWN_TOPIC_OR_PART` when a topic is not there: a broker that starts may know none yet.
    """
    topics = list(topics)
    numbers = partition_numbers(admin, topics, seconds)
    if missing := [topic for topic in topics if topic not in numbers]:
        there = admin.list_topics(timeout=seconds).topics
        why = f"no such topic: {', '.join(missing)}" if there else "the broker knows no topics; does it start just now?"
        raise KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART, why))
    return sorted((topic, number) for topic in topics for number in numbers[topic])


def partition_numbers(admin: AdminClient, topics: Iterable[str], seconds: float = SECONDS) -> dict[str, list[int]]:
    """The partitions of those of the topics that are there, and that one may describe. Raises KafkaException.

    These alone are asked for: a list has every topic of the cluster, which takes 0.4 s with 2,464 of them. But any
    broker answers with a list, where librdkafka asks the controller alone for some, also for a while after it has gone.
    """
    names = sorted(set(topics))
    try:
        return dict(_described(admin, names))
    except (KafkaException, TimeoutError):
        there = admin.list_topics(timeout=seconds).topics
        return {topic: list(there[topic].partitions) for topic in names if topic in there}


def _described(admin: AdminClient, topics: list[str]) -> Iterator[tuple[str, list[int]]]:
    for topic, future in admin.describe_topics(TopicCollection(topics), request_timeout=REACH_SECONDS).items():
        try:
            yield topic, [partition.id for partition in _result(future, REACH_SECONDS).partitions]
        except KafkaException as error:
            if error_name(error) not in HIDDEN:
                raise


def cluster_id(admin: AdminClient) -> str:
    """The id of the cluster, which its storage is formatted with and keeps. Raises KafkaException."""
    return str(admin.list_topics(timeout=SECONDS).cluster_id)


def topic_ids(admin: AdminClient, topics: Iterable[str], seconds: float = SECONDS) -> dict[str, str]:
    """Kafka's id of each topic, as its tools print it: another one once the topic was deleted and re-created.

    Raises TopicChanged for a topic that is not there; KafkaException and TimeoutError.
    """
    return {topic: _id_of(description) for topic, description in _ask_topics(admin, topics, seconds)().items()}


def existing_topic_ids(admin: AdminClient, topics: Iterable[str]) -> dict[str, str]:
    """The same of those that are there."""
    return topic_ids(admin, partition_numbers(admin, topics))


def _ask_topics(admin: AdminClient, topics: Iterable[str], seconds: float) -> Answer[dict[str, TopicDescription]]:
    request = admin.describe_topics(TopicCollection(list(topics)), request_timeout=seconds)

    def answer(topic: str, future: Any) -> TopicDescription:
        try:
            with _metadata_read_after_errors(admin):
                description: TopicDescription = _result(future, seconds)
                return description
        except KafkaException as error:
            if error_name(error) == "UNKNOWN_TOPIC_OR_PART" and _is_deleted(admin, topic, seconds):
                raise TopicChanged(DELETED.format(topic=topic)) from error
            raise

    return lambda: {topic: answer(topic, future) for topic, future in request.items()}


def _id_of(description: TopicDescription) -> str:
    return str(description.topic_id).translate(URL_SAFE)


def _is_deleted(admin: AdminClient, topic: str, seconds: float) -> bool:
    """Whether a broker that knows topics does not know this one: some know none while they start."""
    there = admin.list_topics(timeout=seconds).topics
    return bool(there) and topic not in there


def _result(request: Any, seconds: float) -> Any:
    """What a future holds. Raises KafkaException, and TimeoutError with a message."""
    try:
        return request.result(seconds)
    except TimeoutError as error:
        raise TimeoutError(str(error) or f"Kafka did not answer within {seconds:g} s") from None


class LogState(NamedTuple):
    """Last stable offset and log start offset of each partition; the id and the number of partitions of each topic."""

    ends: dict[Partition, int]
    starts: dict[Partition, int]
    ids: dict[str, str]
    counts: dict[str, int]


def log_state(
    admin: AdminClient, partitions: Iterable[Partition], topics: Iterable[str], seconds: float = SECONDS
) -> LogState:
    """All results of queries that run at once, which takes as long as one. Raises KafkaException and TimeoutError."""
    partitions = list(partitions)
    committed = IsolationLevel.READ_COMMITTED
    ends = _ask_offsets(admin, partitions, OffsetSpec.latest, committed, seconds)
    starts = _ask_offsets(admin, partitions, OffsetSpec.earliest, committed, seconds)
    described = _ask_topics(admin, topics, seconds)()  # first, for its error says that a topic is missing
    ids = {topic: _id_of(description) for topic, description in described.items()}
    counts = {topic: len(description.partitions) for topic, description in described.items()}
    return LogState(ends(), starts(), ids, counts)


def last_stable_offsets(
    admin: AdminClient, partitions: Iterable[Partition], seconds: float = SECONDS
) -> dict[Partition, int]:
    """The last stable offset of each partition: where a reader of committed records can get to."""
    return _ask_offsets(admin, partitions, OffsetSpec.latest, IsolationLevel.READ_COMMITTED, seconds)()


def log_ends(admin: AdminClient, partitions: Iterable[Partition], seconds: float = SECONDS) -> dict[Partition, int]:
    """The end of each partition, open transactions included."""
    return _ask_offsets(admin, partitions, OffsetSpec.latest, IsolationLevel.READ_UNCOMMITTED, seconds)()


def check_reachable(admin: AdminClient, seconds: float = RETRIED_SECONDS) -> None:
    """Raise KafkaException where no broker answers soon."""
    try:
        _result(admin.describe_cluster(request_timeout=REACH_SECONDS), REACH_SECONDS)
    except (KafkaException, TimeoutError):  # see `partition_numbers`
        admin.list_topics(timeout=seconds)


def is_reachable(admin: AdminClient) -> bool:
    """Whether some broker answers."""
    try:
        return bool(admin.list_topics(timeout=REACH_SECONDS).brokers)
    except KafkaException:
        return False


def lags(admin: AdminClient, committed: Mapping[Partition, int]) -> dict[Partition, int]:
    """Records between the committed offset and the end of each partition; empty when Kafka does not answer soon."""
    if not committed:
        return {}
    try:
        ends = log_ends(admin, committed, LAG_SECONDS)
    except (KafkaException, TimeoutError):
        return {}
    return {partition: max(end - committed[partition], 0) for partition, end in ends.items()}


def first_offsets(
    admin: AdminClient, partitions: Iterable[Partition], seconds: float = SECONDS
) -> dict[Partition, int]:
    """The earliest offset of each partition."""
    return _ask_offsets(admin, partitions, OffsetSpec.earliest, IsolationLevel.READ_COMMITTED, seconds)()


def offsets_since(admin: AdminClient, ends: Mapping[Partition, int], moment: int) -> dict[Partition, int]:
    """The first offset of each partition with a timestamp at or after a moment (ms); its end when there is none."""
    since = max(moment, 0)  # Kafka gives numbers below 0 other meanings, or refuses them
    offsets = _ask_offsets(admin, ends, lambda: OffsetSpec.for_timestamp(since), IsolationLevel.READ_COMMITTED)()
    return {partition: min(at, ends[partition]) if at >= 0 else ends[partition] for partition, at in offsets.items()}


def _ask_offsets(
    admin: AdminClient,
    partitions: Iterable[Partition],
    spec: Callable[[], OffsetSpec],
    isolation: IsolationLevel,
    seconds: float = SECONDS,
) -> Answer[dict[Partition, int]]:
    request: Mapping[TopicPartition, Any] = admin.list_offsets(
        {TopicPartition(*partition): spec() for partition in partitions},
        isolation_level=isolation,
        request_timeout=seconds,
    )

    def answer() -> dict[Partition, int]:
        with _metadata_read_after_errors(admin):
            offsets = {(tp.topic, tp.partition): _result(future, seconds).offset for tp, future in request.items()}
            # So librdkafka answers, without an error, for partitions whose leader has gone.
            if unanswered := sorted(at for at, offset in offsets.items() if offset == OFFSET_INVALID):
                raise TimeoutError(f"the leaders of {unanswered} did not answer")
            return offsets

    return answer


@contextlib.contextmanager
def _metadata_read_after_errors(admin: AdminClient) -> Iterator[None]:
    """Within it an error makes the client read the metadata of all topics, so that the next attempt may succeed.

    Else librdkafka goes on asking a leader or controller that has gone: where one of three brokers was killed, until it
    was back. An old leader epoch it would keep for good.
    """
    try:
        yield
    except (KafkaException, TimeoutError):
        is_reachable(admin)
        raise


def group_members(admin: AdminClient, group: str) -> list[str]:
    """The client ids of a group's members; a job's own group has none: its consumers do not join it."""

    def describe() -> Any:
        return _result(admin.describe_consumer_groups([group], request_timeout=SECONDS)[group], SECONDS)

    return sorted(str(member.client_id) for member in once_coordinated(describe).members)


def once_coordinated(query: Callable[[], Found]) -> Found:
    """The result of a query about a group, repeated while its coordinator starts. Raises KafkaException."""
    deadline = time.monotonic() + SECONDS
    while True:
        try:
            return query()
        except KafkaException as error:
            if error_name(error) not in COORDINATOR_STARTS or time.monotonic() > deadline:
                raise
            time.sleep(POLL_SECONDS)


def error_name(error: KafkaException) -> str:
    """Kafka's name of what went wrong, such as `_FENCED`."""
    return str(error.args[0].name())
