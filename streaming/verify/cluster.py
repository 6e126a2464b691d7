"""The checker on the topics of a cluster (`verify`), and requests and policy changes of its own (`Traffic`).

`verify` reads alone and joins no group. `Traffic` disturbs nothing that is live: its documents have names of their own
and grant to subjects and on resources that no other principal has. What was once denied above an allow is never
allowed later, so no change raises an alert, nor do several that the job reads at once. So many subjects send requests
that none of them is denied in a burst. At the end the documents are deleted.
"""

import itertools
import json
import random
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient

from policy import to_text
from streaming.decision_log.status import committed_of
from streaming.errors import CannotStart
from streaming.history.ranges import DISORDER_MS, Progress, Topics, watched
from streaming.history.records import record_of
from streaming.history.span import HOUR, Span
from streaming.kafka.clients import (
    SECONDS,
    Partition,
    PartitionOffsets,
    admin_client,
    first_offsets,
    last_stable_offsets,
    log_ends,
    offsets_since,
    partitions_of,
    topic_ids,
)
from streaming.kafka.committed import records_by_time
from streaming.kafka.publish import UNKNOWN_OFFSET, await_visible, resolve_unknown_offsets
from streaming.records.registry import Deserializer
from streaming.settings import Settings
from streaming.snapshots.at_offsets import read_document_log
from streaming.topics import dead_letters_of
from streaming.verify import Findings
from streaming.verify.checker import Checker, Range

BROKERS_CLOCKS_MS = 1_000  # by how much the clocks of two brokers may differ
POLL_SECONDS = 0.05
COMMITTED_POLL_SECONDS = 0.5
DECIDED_SECONDS = 120.0


def verify(
    settings: Settings,
    span: Span | None = None,
    demanded: Mapping[str, Mapping[str, int]] | None = None,
    progress: Progress = lambda _text: None,
    sample: float = 1.0,
) -> Findings:
    """Check the requests of a time range (None: all that are there) with their decisions and dead letters.

    `demanded`, `sample`: see `Checker`. Raises KafkaException and TimeoutError when the cluster does not answer.
    """
    admin, names = admin_client(settings), settings.topics
    # In this order: what is committed has its answers below `ends`, and every answer its request below `log_ends`.
    committed = _committed(settings, partitions_of(admin, names.asking))
    outputs = partitions_of(admin, (names.decisions, *map(dead_letters_of, names.asking)))
    ends = _settled_ends(admin, outputs)
    requests = last_stable_offsets(admin, partitions_of(admin, names.asking))
    kept_from = Topics(settings, admin).kept_from(ends)
    answers_from = kept_from + DISORDER_MS if kept_from else 0  # those to older requests may have been deleted
    ranges = _ranges(admin, requests, committed, answers_from, span)
    progress("reading policies and facts")
    log = read_document_log(settings)
    clocks_ms = BROKERS_CLOCKS_MS if len(admin.list_topics(timeout=SECONDS).brokers) > 1 else 0
    decode, ids = Deserializer(settings.schema_registry).json, topic_ids(admin, names.asking)
    partitions = sum(topic == names.decisions for topic, _ in outputs)
    checker = Checker(settings, log, ranges, ids, partitions, demanded, clocks_ms, decode, sample)
    first = first_offsets(admin, outputs)
    starts = first if span is None else offsets_since(admin, ends, span.start - DISORDER_MS)
    starts |= {partition: offsets.start for partition, offsets in ranges.items()}
    ends |= {partition: offsets.end for partition, offsets in ranges.items()}
    records = map(record_of, records_by_time(settings, starts, ends))
    for record in watched(records, "records of requests, decisions and dead letters", progress):
        checker.take(record)
    return checker.finish()


def await_decided(settings: Settings, last: Mapping[Partition, int], seconds: float = DECIDED_SECONDS) -> bool:
    """Wait until the job has committed these offsets as decided; whether it did so in time."""
    deadline = time.monotonic() + seconds
    while True:
        committed = _committed(settings, list(last))
        if all(committed.get(partition, 0) > offset for partition, offset in last.items()):
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(COMMITTED_POLL_SECONDS)


def _committed(settings: Settings, partitions: list[Partition]) -> PartitionOffsets:
    """The committed offsets of the job's group; none where it has none or may not be read."""
    try:
        return {partition: committed.offset for partition, committed in committed_of(settings, partitions).items()}
    except (KafkaException, CannotStart):
        return {}


def _settled_ends(admin: AdminClient, partitions: list[Partition]) -> PartitionOffsets:
    """The last stable offsets, once the transactions that are open now have ended.

    A transaction's offsets may be visible before its decisions are. Raises TimeoutError when one stays open.
    """
    wanted, deadline = log_ends(admin, partitions), time.monotonic() + 2 * SECONDS
    while True:
        ends = last_stable_offsets(admin, partitions)
        if all(ends[partition] >= end for partition, end in wanted.items()):
            return ends
        if time.monotonic() > deadline:
            raise TimeoutError(f"a transaction of {', '.join(sorted({t for t, _ in wanted}))} stays open: {ends}")
        time.sleep(POLL_SECONDS)


def _ranges(
    admin: AdminClient, log_end: PartitionOffsets, committed: PartitionOffsets, answers_from: int, span: Span | None
) -> dict[Partition, Range]:
    starts = first_offsets(admin, log_end) if span is None else offsets_since(admin, log_end, span.start)
    ends = log_end if span is None else offsets_since(admin, log_end, span.end)
    return {
        partition: Range(starts[partition], ends[partition], end, committed.get(partition), answers_from)
        for partition, end in log_end.items()
    }


SYSTEM = "lenses6"
FLUSH_SECONDS = 30.0
KEYS = 20
SEMANTICS = ("execute_all", "deny_on_first_deny", "permit_on_first_permit")
IN_A_ROW = 4  # requests of one subject …
SECONDS_BETWEEN = 20  # … and then none for so long: fewer denials a minute than a burst has


class Sent(msgspec.Struct):
    """What was sent. `demanded`: by request id, the newest offset by topic acknowledged before it was produced.

    `last`: the newest offset by partition. `first_at`, `last_at`: when the broker got the first and the last, ms.
    """

    requests: int = 0
    changes: int = 0
    demanded: dict[str, dict[str, int]] = {}
    last: dict[Partition, int] = {}
    first_at: int = 0
    last_at: int = 0


class Traffic:
    """Sends for one run. Raises KafkaException when the cluster does not take it."""

    def __init__(self, settings: Settings, rate: float) -> None:
        self.run = f"verify-{secrets.token_hex(4)}"
        self.subjects = max(100, int(rate * SECONDS_BETWEEN / IN_A_ROW))
        self.sent = Sent(demanded={}, last={})
        self._settings, self._rate = settings, rate
        self._topic = settings.topics.policy_topics()[SYSTEM]
        common = {"log_level": "2", **settings.kafka, "bootstrap.servers": settings.bootstrap_servers}
        self._producer = Producer({**common, "enable.idempotence": True, "linger.ms": 2})
        self._publisher = Producer({**common, "enable.idempotence": True})
        self._acknowledged: dict[str, int] = {}
        self._failure: Exception | None = None

    def send(self, seconds: float, change_every: float, stopped: Callable[[], bool] = lambda: False) -> Sent:
        """Publish, and send requests for so long while policies change. Call `delete` once all are decided."""
        over = threading.Event()
        changes = threading.Thread(target=self._change, args=(change_every, over), daemon=True)
        self.publish(self.group(), self.role(0))
        try:
            changes.start()
            self._send(time.monotonic() + seconds, stopped)
        finally:
            over.set()
            changes.join()
        if self._failure is not None:
            raise self._failure
        return self.sent

    def _send(self, end: float, stopped: Callable[[], bool]) -> None:
        due, numbers = time.monotonic(), itertools.count()
        while (now := time.monotonic()) < end and not stopped() and self._failure is None:
            if due > now:
                self._producer.poll(due - now)
                continue
            request = self.request(next(numbers))
            self.sent.demanded[request["id"]] = dict(self._acknowledged)
            key = f"{self.run}-{self.sent.requests % KEYS}"
            topic = self._settings.topics.requests[0]
            self._producer.produce(topic, msgspec.json.encode(request), key, on_delivery=self._note)
            self.sent.requests += 1
            due += 1 / self._rate
        if self._producer.flush(FLUSH_SECONDS):
            raise TimeoutError(f"the broker did not acknowledge the requests within {FLUSH_SECONDS:g} s")

    def _note(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._failure = KafkaException(error)
            return
        topic, partition, offset, (_, at) = message.topic(), message.partition(), message.offset(), message.timestamp()
        assert topic is not None
        assert partition is not None
        if offset is None:
            return  # see `UNKNOWN_OFFSET`; the records after it, of which there are more, have offsets
        self.sent.last[topic, partition] = max(offset, self.sent.last.get((topic, partition), -1))
        self.sent.first_at = min(at, self.sent.first_at or at)
        self.sent.last_at = max(at, self.sent.last_at)

    def _change(self, every: float, over: threading.Event) -> None:
        try:
            while not over.wait(every):
                self.sent.changes += 1
                self.publish(self.role(self.sent.changes))
        except Exception as failure:  # raised where the requests are sent
            self._failure = failure

    def publish(self, *documents: dict[str, Any]) -> None:
        """Publish documents, and return once they can be read: from then on they must be known."""
        self._write([(f"{d['kind']}/{d['name']}", json.dumps(d).encode()) for d in documents])

    def delete(self) -> None:
        """Delete the documents that were published."""
        self._write([(f"{kind}/{self.run}", None) for kind in ("Group", "Role")])

    def _write(self, records: list[tuple[str, bytes | None]]) -> None:
        written: list[int] = []
        refused: list[KafkaError] = []

        def note(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                refused.append(error)
            else:
                offset = message.offset()
                written.append(UNKNOWN_OFFSET if offset is None else offset)

        for key, value in records:
            self._publisher.produce(self._topic, value, key, partition=0, on_delivery=note)
        self._publisher.flush(FLUSH_SECONDS)
        if refused:
            raise KafkaException(refused[0])
        if len(written) < len(records):
            raise TimeoutError(f"the broker did not acknowledge the policies within {FLUSH_SECONDS:g} s")
        offsets = resolve_unknown_offsets(self._settings, {self._topic: {"0": written[-1]}})
        await_visible(self._settings, offsets)
        self._acknowledged = {self._topic: offsets[self._topic]["0"]}

    def group(self) -> dict[str, Any]:
        """The group of all subjects, which has the role."""
        members = [f"user:{self.run}-{number}" for number in range(self.subjects)]
        return {"system": SYSTEM, "kind": "Group", "name": self.run, "spec": {"roles": [self.run], "members": members}}

    def role(self, change: int) -> dict[str, Any]:
        """The role after so many changes. Of orders it in turn says allow, deny above an allow, and nothing.

        Then come other orders. Payments are always allowed, and refunds always denied above an allow.
        """
        orders = _orders(change)
        of_orders: tuple[list[dict[str, str]], ...] = (
            [self._says("allow", orders)],
            [self._says(e, orders) for e in ("allow", "deny")],
            [],
        )
        always = [self._says("allow", "payments"), self._says("allow", "refunds"), self._says("deny", "refunds")]
        spec = {"statements": [*of_orders[change % 3], *always]}
        return {"system": SYSTEM, "kind": "Role", "name": self.run, "spec": spec}

    def _says(self, effect: str, topic: str) -> dict[str, str]:
        return {"effect": effect, "action": "kafka:ReadTopicData", "resource": f"kafka:topic:{self.run}/main/{topic}"}

    def request(self, number: int) -> dict[str, Any]:
        """A request: each subject asks some in a row; every tenth is a batch, and of some the deadline is past."""
        rng = random.Random(number)
        topics = (_orders(self.sent.changes), "payments", "refunds")
        resources = [{"type": "lrn", "id": f"kafka:topic:{self.run}/main/{topic}"} for topic in topics]
        request: dict[str, Any] = {
            "id": f"{self.run}-{number}",
            "system": SYSTEM,
            "subject": {"type": "user", "id": f"user:{self.run}-{number // IN_A_ROW % self.subjects}"},
            "action": {"name": "kafka:ReadTopicData"},
            "resource": rng.choice(resources),
        }
        if number % 10 == 3:
            items = [{"resource": resource} for resource in rng.sample(resources, len(resources))]
            request |= {"evaluations": items, "options": {"evaluations_semantic": rng.choice(SEMANTICS)}}
        if number % 10 == 7:
            ahead = rng.choice((HOUR, -HOUR))
            request["deadline"] = to_text(time.time_ns() // 1_000_000 + ahead)
        return request


def _orders(change: int) -> str:
    """The topic that the role is about after so many changes: another one after each deny."""
    return f"orders-{change // 3}"
