"""The state of a job, its policies and its monitor, from committed offsets, their metadata and the topics."""

import contextlib
import http.client
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping, Sequence

import msgspec
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from streaming.commit.offsets import Committed, read_committed
from streaming.kafka.clients import (
    Partition,
    group_observer,
    last_stable_offsets,
    log_ends,
    partitions_of,
)
from streaming.settings import Settings, monitor_settings

NO_ANSWER = "no answer"

SECONDS = 10.0


class TopicStatus(msgspec.Struct, frozen=True):
    """What a group has read of a topic. `committed`: records read, over all partitions; `end`: where the topic ends.

    `committed` None: nothing is. `hung`: records that an open transaction hides from readers. `newest`: the timestamp
    of the newest record, ms; None: there is none.
    """

    topic: str
    committed: int | None
    end: int
    hung: int
    newest: int | None

    @property
    def lag(self) -> int | None:
        """Records that are not read yet."""
        return None if self.committed is None else max(self.end - self.committed, 0)


class GroupStatus(msgspec.Struct, frozen=True):
    """A query of the job by its consumer group. `batch`, `checkpoint`: of its newest commit; None: there is none.

    `read_until`: of the monitor, the time (ms) up to which its newest batch had read.
    """

    group: str
    batch: int | None
    checkpoint: str
    read_until: int | None
    topics: tuple[TopicStatus, ...]

    @property
    def lag(self) -> int:
        """Over all topics."""
        return sum(topic.lag or 0 for topic in self.topics)


class Status(msgspec.Struct, frozen=True):
    """`decided`: the timestamp (ms) of the newest decision. `policies`: of the newest document, by topic.

    `problems`: what needs attention, a sentence each. `metrics`: whether the job says that it is ready, where asked.
    """

    at: int
    job: GroupStatus
    monitor: GroupStatus
    decided: int | None
    policies: dict[str, int | None]
    problems: tuple[str, ...]
    metrics: str = ""


def status(settings: Settings, admin: AdminClient, endpoint: str = "", wait: float = 1.0) -> Status:
    """Read it. `wait`: seconds between two looks, where records wait: a job that decides has committed meanwhile.

    Raises KafkaException and TimeoutError when the cluster does not answer.
    """
    names = settings.topics
    documents = (*names.policy_topics().values(), names.facts)
    inputs = names.inputs
    job = _group(settings, admin, (*inputs, *documents))
    monitored = (names.decisions, names.verdicts)
    monitor = _group(monitor_settings(settings), admin, monitored)
    problems = list(_problems(settings, job, monitor))
    if _waiting(job, (*inputs, *names.policy_topics().values())) and job.batch is not None:
        time.sleep(wait)
        later = _group(settings, admin, (*inputs, *documents))
        if [topic.committed for topic in later.topics] == [topic.committed for topic in job.topics]:
            problems.append(f"records wait, and {job.group} has committed nothing within {wait:g} s: is it running?")
        job = later
    decided = _newest(admin, partitions_of(admin, [names.decisions]))
    policies = {topic.topic: topic.newest for topic in job.topics if topic.topic in documents}
    metrics = _ready(endpoint) if endpoint else ""
    if metrics.startswith(NO_ANSWER):
        problems.append("the metrics endpoint does not answer")
    return Status(time.time_ns() // 1_000_000, job, monitor, decided, policies, tuple(problems), metrics)


def _waiting(job: GroupStatus, inputs: Sequence[str]) -> bool:
    return any(topic.lag for topic in job.topics if topic.topic in inputs)


def _problems(settings: Settings, job: GroupStatus, monitor: GroupStatus) -> Iterable[str]:
    if job.batch is None:
        yield f"the group {job.group} has committed nothing: the job has not run yet, or has another job_name"
    for topic in job.topics:
        if topic.hung:
            yield f"{topic.topic}: an open transaction hides {topic.hung} records from readers"
    if settings.monitor.mode != "none" and job.batch is not None and monitor.batch is None:
        yield f"the monitor's group {monitor.group} has committed nothing"


def committed_of(settings: Settings, partitions: Iterable[Partition]) -> dict[Partition, Committed]:
    """What the job's group has committed, also while a transaction is open. Raises KafkaException and CannotStart."""
    with contextlib.closing(group_observer(settings)) as observer:
        return read_committed(observer, partitions)


def _group(settings: Settings, admin: AdminClient, topics: Sequence[str]) -> GroupStatus:
    partitions = partitions_of(admin, topics)
    committed = committed_of(settings, partitions)
    ends, stable = log_ends(admin, partitions), last_stable_offsets(admin, partitions)
    marks = [offset.metadata for offset in committed.values() if offset.metadata is not None]
    newest = max(marks, key=lambda metadata: metadata.batch, default=None)
    statuses = tuple(_topic(admin, topic, committed, ends, stable) for topic in topics)
    if newest is None:
        return GroupStatus(settings.job_name, None, "", None, statuses)
    return GroupStatus(settings.job_name, newest.batch, newest.checkpoint, newest.read_until, statuses)


def _topic(
    admin: AdminClient,
    topic: str,
    committed: Mapping[Partition, Committed],
    ends: Mapping[Partition, int],
    stable: Mapping[Partition, int],
) -> TopicStatus:
    own = [partition for partition in ends if partition[0] == topic]
    offsets = [committed[partition].offset for partition in own if partition in committed]
    end = sum(ends[partition] for partition in own)
    hung = sum(ends[partition] - stable[partition] for partition in own)
    return TopicStatus(topic, sum(offsets) if offsets else None, end, hung, _newest(admin, own))


def _newest(admin: AdminClient, partitions: Iterable[Partition]) -> int | None:
    """The newest timestamp of the partitions' records, ms."""
    newest: OffsetSpec = OffsetSpec.max_timestamp()  # type: ignore[no-untyped-call]
    wanted_offsets = {TopicPartition(*partition): newest for partition in partitions}
    timestamps = [future.result(SECONDS).timestamp for future in admin.list_offsets(wanted_offsets).values()]
    return max((at for at in timestamps if at is not None and at >= 0), default=None)


def _ready(endpoint: str) -> str:
    """What the job's /readyz says."""
    url = f"{endpoint.rstrip('/').removesuffix('/metrics')}/readyz"
    try:
        with urllib.request.urlopen(url, timeout=SECONDS) as answer:
            return str(answer.read().decode("utf-8", "replace")).strip()
    except urllib.error.HTTPError as error:
        return error.read().decode("utf-8", "replace").strip()
    except (OSError, ValueError, http.client.HTTPException) as error:
        return f"{NO_ANSWER} from {url}: {getattr(error, 'reason', error)}"
