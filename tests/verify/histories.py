"""Histories of a job as its topics would hold them: made by the job's own evaluator, batch by batch, without Kafka."""

import itertools
import json
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
from confluent_kafka import murmur2

from policy.store.documents import DocumentStore
from policy.store.snapshot import Snapshot
from streaming.enforcer.evaluator import EvaluationContext, Evaluator, Source
from streaming.history.records import ConsumerRecord
from streaming.settings import Settings
from streaming.snapshots.at_offsets import DocumentLog, Retention
from streaming.snapshots.documents import DocumentRecord as Document
from streaming.snapshots.documents import Loader
from streaming.topics import DAY_MS, dead_letters_of
from streaming.verify import Findings
from streaming.verify.checker import Checker, Range

SETTINGS = Settings()
NAMES = SETTINGS.topics
REQUESTS, DECISIONS = NAMES.requests[0], NAMES.decisions
POLICIES = NAMES.policy_topics()["lenses6"]
LETTERS = dead_letters_of(REQUESTS)
TOPIC_ID = "topic-id"
OUTPUT_PARTITIONS = 2
BEGAN = 1_800_000_000_000


class History:
    """What was published, asked and decided. Each step takes a second of the broker's clock."""

    def __init__(self) -> None:
        self.now = BEGAN
        self.documents: list[Document] = []
        self.records: dict[str, list[ConsumerRecord]] = {REQUESTS: [], LETTERS: []}
        self.decisions: list[list[ConsumerRecord]] = [[] for _ in range(OUTPUT_PARTITIONS)]
        self.ends = {POLICIES: 0, REQUESTS: 0, LETTERS: 0, **{f"{DECISIONS}-{n}": 0 for n in range(OUTPUT_PARTITIONS)}}
        self.committed = 0
        self.read_policies_to: int | None = None  # a reader that stands still
        self.partitions = OUTPUT_PARTITIONS  # of the decisions topic, those that are in use

    def _tick(self) -> int:
        self.now += 1000
        return self.now

    def _next(self, log: str) -> int:
        self.ends[log] += 1
        return self.ends[log] - 1

    def publish(self, *documents: dict[str, Any], marker: bool = False) -> None:
        """Publish documents, in a transaction if its `marker` is wanted."""
        for document in documents:
            key = f"{document['kind']}/{document['name']}".encode()
            value = json.dumps(document).encode()
            self.documents.append(Document(POLICIES, key, value, self._next(POLICIES), self._tick()))
        self.ends[POLICIES] += marker

    def ask(self, request: dict[str, Any] | bytes, key: bytes = b"k") -> int:
        """Send a request; returns its offset."""
        value = request if isinstance(request, bytes) else msgspec.json.encode(request)
        offset = self._next(REQUESTS)
        self.records[REQUESTS].append(ConsumerRecord(REQUESTS, 0, offset, self._tick(), key, value))
        return offset

    def skip(self) -> None:
        """An offset of the request topic without a record: a marker, or what was aborted."""
        self._next(REQUESTS)

    def decide(
        self,
        wanted: Callable[[ConsumerRecord], bool] | None = None,
        change: Callable[[dict[str, Any]], None] = lambda _decision: None,
        extra: Iterable[ConsumerRecord] = (),
    ) -> None:
        """One batch and its transaction: what is not decided yet, unless `wanted` says which; then its marker."""
        end = self.ends[POLICIES] if self.read_policies_to is None else self.read_policies_to
        evaluator = Evaluator(self._snapshot(end), SETTINGS.limits)
        offsets = {topic: {"0": end - 1 if topic == POLICIES else -1} for topic in NAMES.policy_topics().values()}
        read = {**offsets, NAMES.facts: {"0": -1}}
        now = self._tick()
        partition_evaluator = evaluator.for_partition(
            Source(REQUESTS, 0, TOPIC_ID, SETTINGS.trust_of(REQUESTS), 1),
            EvaluationContext(evaluator.snapshot.version, offsets, -1, read, now),
        )
        for record in [*filter(wanted or self._undecided, self.records[REQUESTS]), *extra]:
            number, key, value, headers = partition_evaluator.decide(
                record.key, record.value, None, record.offset, record.at
            )
            if number == 0:
                decision = json.loads(value or b"")
                change(decision)
                self.write(key or b"", decision)
            else:
                letter = ConsumerRecord(LETTERS, 0, self._next(LETTERS), now, b"", value or b"", tuple(headers or ()))
                self.records[LETTERS].append(letter)
        self.commit()

    def _undecided(self, record: ConsumerRecord) -> bool:
        """Rule 2 of exactly once."""
        return record.offset >= self.committed

    def write(self, key: bytes, decision: dict[str, Any]) -> None:
        """Write a decision, with those before it in one transaction."""
        number = murmur2(key, self.partitions)
        offset = self._next(f"{DECISIONS}-{number}")
        value = msgspec.json.encode(decision)
        self.decisions[number].append(ConsumerRecord(DECISIONS, number, offset, self.now, key, value))

    def commit(self) -> None:
        """End the transaction: its marker takes an offset of each partition."""
        self.committed = self.ends[REQUESTS]
        for number in range(OUTPUT_PARTITIONS):
            self._next(f"{DECISIONS}-{number}")

    def _snapshot(self, end: int) -> Snapshot:
        store = DocumentStore(systems=NAMES.systems)
        for document in self.documents:
            if document.offset < end:
                Loader(store, "lenses6", 1 << 20).take(document)
        return Snapshot(store)

    def verify(
        self,
        demanded: dict[str, dict[str, int]] | None = None,
        sample: float = 1,
        lag_ms: int = 7 * DAY_MS,
        **changes: Any,
    ) -> Findings:
        """What the checker finds. `changes`: of the range of the request partition."""
        log = DocumentLog(NAMES, 1 << 20, self.now, {topic: Retention(lag_ms) for topic in [POLICIES, NAMES.facts]})
        for document in self.documents:
            log.add(document)
        log.read_to({(topic, 0): self.ends.get(topic, 0) for topic in log.topics})
        end = self.ends[REQUESTS]
        found = Range(**{"start": 0, "end": end, "log_end": end, "decided": self.committed, **changes})
        checker = Checker(
            SETTINGS, log, {(REQUESTS, 0): found}, {REQUESTS: TOPIC_ID}, OUTPUT_PARTITIONS, demanded, sample=sample
        )
        records = [*self.records[REQUESTS], *self.records[LETTERS], *itertools.chain(*self.decisions)]
        for record in sorted(records, key=lambda record: record.at):
            checker.take(record)
        return checker.finish()


def role(name: str, *topics: str, effect: str = "allow") -> dict[str, Any]:
    """A role that may read the topics."""
    resources = [f"kafka:topic:prod/main/{topic}" for topic in topics]
    statement = {"effect": effect, "action": ["kafka:ReadTopicData"], "resource": resources}
    return {"system": "lenses6", "kind": "Role", "name": name, "spec": {"statements": [statement] if topics else []}}


def group(name: str, *members: str) -> dict[str, Any]:
    """A group with the role of its own name."""
    return {"system": "lenses6", "kind": "Group", "name": name, "spec": {"roles": [name], "members": list(members)}}


def request(id_: str, topic: str = "orders", **more: Any) -> dict[str, Any]:
    """May dana read a topic?"""
    return {
        "id": id_,
        "system": "lenses6",
        "subject": {"type": "user", "id": "user:dana"},
        "action": {"name": "kafka:ReadTopicData"},
        "resource": {"type": "lrn", "id": f"kafka:topic:prod/main/{topic}"},
        **more,
    }
