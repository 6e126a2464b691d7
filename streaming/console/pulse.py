"""The pulse of a cluster: which decisions come, how late, by which policies, and what waits. Read in the background.

One reader serves all who look, and what it reads is bounded: of many decisions a sample, scaled by the offsets between.
"""

import collections
import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec
from confluent_kafka.admin import AdminClient

from policy import to_ms
from streaming.console.reading import UNREAD, explain
from streaming.decision_log.search import Decoder
from streaming.decision_log.status import Status, status
from streaming.history.records import ConsumerRecord, record_of
from streaming.kafka.clients import RETRIED_SECONDS, Partition, last_stable_offsets, partitions_of
from streaming.kafka.committed import records_between
from streaming.settings import Settings

SECONDS, STATUS_SECONDS = 1.0, 5.0  # between two looks
KEPT_SECONDS = 300  # of counts
SAMPLE = 1000  # decisions of each partition that are read of one look
LATENCIES = 2000  # of a system, the newest
CLOSE_SECONDS = 2.0
INSTANCES, INSTANCE_SECONDS = 100, 900.0  # that are known, and for how long after their newest answer

Counts = Mapping[tuple[str, str], float]


class Beat(msgspec.Struct, frozen=True):
    """One look. `at`: monotonic, s; `counts`: decisions since the look before, by system and outcome."""

    at: float
    seconds: float
    counts: Counts
    is_sample: bool = False


class Instance(msgspec.Struct, frozen=True):
    """Who answers, and the newest policy version that it answered by. `at`: when, Unix time, s."""

    name: str
    version: str
    at: float


class Look(msgspec.Struct, frozen=True):
    """All that is known now. `latencies`: by system, s, of the last `KEPT_SECONDS`.

    `unread`: why Kafka cannot be read; "": it can.
    """

    beats: tuple[Beat, ...] = ()
    latencies: tuple[tuple[str, float], ...] = ()
    instances: tuple[Instance, ...] = ()
    status: Status | None = None
    unread: str = ""
    number: int = 0


class Pulse:
    """Looks until `stop` is set. `look`: what it saw; threads that read it take no lock."""

    def __init__(self, settings: Settings, admin: AdminClient, stop: threading.Event) -> None:
        self._settings, self._admin, self._stop = settings, admin, stop
        self._decode = Decoder(settings)
        self._read: dict[Partition, int] = {}
        self._looked_at = 0.0
        self._beats = collections.deque[Beat](maxlen=int(KEPT_SECONDS / SECONDS))
        self._latencies = {
            system: collections.deque[tuple[int, float]](maxlen=LATENCIES) for system in settings.systems
        }
        self._instances: dict[str, Instance] = {}
        self._status: Status | None = None
        self._unread: dict[Callable[[], None], str] = {}
        self.look = Look()
        self._threads = [
            threading.Thread(target=self._repeat, args=arguments, name=f"pulse-{name}", daemon=True)
            for name, arguments in (
                ("decisions", (self._count, SECONDS)),
                ("status", (self._ask_status, STATUS_SECONDS)),
            )
        ]

    def start(self) -> None:
        """Begin to look."""
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Wait a moment for it to leave Kafka; `stop` must be set. A call to brokers that are away takes longer."""
        for thread in self._threads:
            thread.join(CLOSE_SECONDS)

    def _repeat(self, look: Callable[[], None], seconds: float) -> None:
        while not self._stop.is_set():
            try:
                look()
                self._unread.pop(look, None)
            except UNREAD as error:
                if self._stop.is_set():  # what a call ends with that closing did not wait for, says nothing of Kafka
                    return
                if look not in self._unread:
                    self._unread[look] = explain(self._settings, self._admin, error)
                self.look = msgspec.structs.replace(self.look, unread=self._why(), number=self.look.number + 1)
            self._stop.wait(seconds)

    def _why(self) -> str:
        """Why one of both looks sees nothing, while the other may."""
        return next(iter(list(self._unread.values())), "")

    def _ask_status(self) -> None:
        self._status = status(self._settings, self._admin, wait=STATUS_SECONDS)

    def _count(self) -> None:
        at, ends = time.monotonic(), last_stable_offsets(self._admin, self._partitions(), RETRIED_SECONDS)
        if self._read:
            self._beats.append(self._beat(at, ends))
        self._read, self._looked_at = dict(ends), at
        now, number = time.time(), self.look.number + 1
        instances = sorted(self._instances.values(), key=lambda instance: instance.name)
        recent = tuple(instance for instance in instances if instance.at > now - INSTANCE_SECONDS)
        self.look = Look(tuple(self._beats), self.recent_latencies(now), recent, self._status, self._why(), number)

    def recent_latencies(self, now: float) -> tuple[tuple[str, float], ...]:
        """Of the decisions that came in the time of the counts, by system, s. `now`: Unix time, s."""
        since = (now - KEPT_SECONDS) * 1000
        return tuple(
            (system, latency) for system, newest in self._latencies.items() for at, latency in newest if at >= since
        )

    def _partitions(self) -> list[Partition]:
        return partitions_of(self._admin, [self._settings.topics.decisions], RETRIED_SECONDS)

    def _beat(self, at: float, ends: Mapping[Partition, int]) -> Beat:
        """What came since the look before; of a partition that is new or was re-created, nothing."""
        before = {partition: min(self._read.get(partition, end), end) for partition, end in ends.items()}
        starts = {partition: max(before[partition], end - SAMPLE) for partition, end in ends.items()}
        whole, read = (sum(ends[partition] - side[partition] for partition in ends) for side in (before, starts))
        scale = whole / read if read else 0.0
        counts = collections.Counter[tuple[str, str]]()
        for record in map(record_of, records_between(self._settings, starts, ends)):
            if (decision := self._decode(record)) is not None:
                counts[str(decision.get("system", "")), _outcome(decision)] += 1
                self._note(record, decision)
        scaled = {key: count * scale for key, count in counts.items()}
        return Beat(at, at - self._looked_at, scaled, read < whole)

    def _note(self, record: ConsumerRecord, decision: Mapping[str, Any]) -> None:
        """How late it came, and by which policies who decided it. What it says is plain data of the job."""
        with contextlib.suppress(ValueError, TypeError):
            latency = max(record.at - to_ms(decision.get("time") or ""), 0) / 1000
            if (newest := self._latencies.get(str(decision.get("system", "")))) is not None:
                newest.append((record.at, latency))
        context, answered = decision.get("context") or {}, decision.get("answered") or {}
        self._note_instance(self._settings.job_name, context.get("policy_version"), record.at)
        if isinstance(answered, Mapping) and answered.get("by"):
            self._note_instance(str(answered["by"]), answered.get("policy_version"), record.at)

    def _note_instance(self, name: str, version: object, at: int) -> None:
        self._instances.pop(name, None)
        self._instances[name] = Instance(name, str(version or ""), at / 1000)
        while len(self._instances) > INSTANCES:
            del self._instances[next(iter(self._instances))]


def _outcome(decision: Mapping[str, Any]) -> str:
    outcome = (decision.get("context") or {}).get("outcome")
    return outcome if outcome in ("allow", "deny") else "error"


def quantile(values: Iterable[float], part: float) -> float | None:
    """The value below which a part of them lies; None where there are none."""
    ordered = sorted(values)
    return ordered[min(int(part * len(ordered)), len(ordered) - 1)] if ordered else None
