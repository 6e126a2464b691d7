"""The newest decisions, with no more of each than which statements decided it, read on from one look to the next.

A look costs what was decided since the one before, and is bounded: where more was, the newest of it are read, and what
was read before is let go of. So the first page that asks costs as much as others, once it was read beforehand.
"""

import collections
import itertools
import time

import msgspec
from confluent_kafka.admin import AdminClient

from streaming.console.reading import Locked, Tail
from streaming.console.viewer import Viewer
from streaming.history.records import record_of
from streaming.kafka.clients import Partition
from streaming.records.avro import Undecodable
from streaming.records.decision import read_decision, requested
from streaming.records.registry import Deserializer
from streaming.settings import Settings

MOST, FEWEST = 20_000, 200  # decisions that are held, of all partitions together, and of each at least

DocumentStatement = tuple[str, int | None]


class RecentDecision(msgspec.Struct, frozen=True):
    """`at`: of its record, ms; `time`: of its request. `subjects`: of a batch those of its evaluations, too."""

    at: int
    offset: int
    system: str
    time: str
    subjects: tuple[str, ...]
    statements: tuple[DocumentStatement, ...]

    def fits(self, viewer: Viewer, subject: str, system: str) -> bool:
        """Whether it is of a subject and a system, "" for any, and the viewer may see it."""
        if system not in ("", self.system) or not viewer.may_see(self.system):
            return False
        return not subject or subject in self.subjects


class _Partition:
    """What is held of a partition. `is_cut`: whether there were decisions before it, also deleted ones."""

    def __init__(self, most: int, is_cut: bool) -> None:
        self.decisions = collections.deque[RecentDecision](maxlen=most)
        self.is_cut = is_cut

    def add(self, decision: RecentDecision) -> None:
        self.is_cut = self.is_cut or len(self.decisions) == self.decisions.maxlen
        self.decisions.append(decision)


class RecentDecisions:
    """Of the topic of decisions. For several threads. Raises KafkaException and TimeoutError."""

    def __init__(self, settings: Settings, admin: AdminClient) -> None:
        self._deserializer = Deserializer(settings.schema_registry)
        self._partitions: dict[Partition, _Partition] = {}
        topic, forget = settings.topics.decisions, self._partitions.clear
        self._tail, self._lock = Tail(settings, admin, topic, MOST, FEWEST, forget, self._begin), Locked()
        self._names: dict[str, str] = {}  # so that each is held once

    def newest(self) -> tuple[list[RecentDecision], int | None]:
        """The newest first. Of those before the moment (ms) that is returned too some are not there; None: all are."""
        with self._lock:
            self._read_on()
            partitions = self._partitions.values()
            cut = [partition.decisions for partition in partitions if partition.is_cut]
            oldest = max((decisions[0].at + 1 for decisions in cut if decisions), default=0)
            every = itertools.chain.from_iterable(partition.decisions for partition in partitions)
            known = (decision for decision in every if decision.at >= oldest)
            since = oldest if all(cut) else time.time_ns() // 1_000_000  # of a partition all are deleted
            newest = sorted(known, key=lambda decision: (decision.at, decision.offset), reverse=True)
            return newest, since if cut else None

    def _begin(self, partition: Partition, most: int, is_cut: bool) -> None:
        """What is held of one that is not read on from there is let go of."""
        self._partitions[partition] = _Partition(most, is_cut)

    def _read_on(self) -> None:
        for record in map(record_of, self._tail.records()):
            if (decision := self._decoded(record.value, record.at, record.offset)) is not None:
                self._partitions[record.topic, record.partition].add(decision)
        if len(self._names) > MOST:
            self._names.clear()

    def _decoded(self, value: bytes, at: int, offset: int) -> RecentDecision | None:
        try:
            decision = read_decision(self._deserializer.json("decision", value))
            answers = (decision.context, *(item.context for item in decision.evaluations))
            echoed = [requested(answer) for answer in answers]
        except (Undecodable, ValueError, RecursionError):
            return None
        subjects = dict.fromkeys(self._once(request.subject.id) for request in echoed if request is not None)
        reasons = (reason for answer in answers for reason in answer.reasons)
        statements = dict.fromkeys((self._once(str(reason.document)), reason.statement) for reason in reasons)
        return RecentDecision(
            at, offset, self._once(decision.system), decision.time, tuple(subjects), tuple(statements)
        )

    def _once(self, name: str) -> str:
        return self._names.setdefault(name, name)
