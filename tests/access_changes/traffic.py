"""Topics of five systems with decisions that the test writes itself, and what must be reported of them.

The test plays the job: it publishes changes, produces requests, and writes their decisions by the evaluator at the
offsets of then, some of them late.
"""

import json
import random
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec
from confluent_kafka import Consumer, Producer, TopicPartition

from policy import DocumentStore, FactOverlay, Key, Snapshot, decide, to_text
from policy.store.compiler import Compiler
from policy.store.overlay import change_of
from streaming.kafka.clients import last_stable_offsets, partitions_of, topic_ids
from streaming.kafka.committed import records_between
from tests.brokers import TestBroker
from tests.stream.world import World
from tests.waiting import wait_until

SYSTEMS = ("cdap", "lenses5", "lenses6", "streamsets", "ververica")
LATE = 0.3  # of the decisions are written after the changes that follow


def document(system: str, number: int, members: list[str], until: int | None = None) -> dict[str, Any]:
    """Who may read the resource with a number; `until`: ms."""
    name = f"r{number}"
    if system == "lenses6":
        found = {"kind": "Group", "spec": {"roles": [name], "members": [f"user:{member}" for member in members]}}
    elif system == "lenses5":
        held = {"connection": "kafka", "type": "Kafka", "datasets": [name], "permissions": ["Show Topic"]}
        rights = {"namespaces": [held], "application": ["Kafka Consumers / View"]}
        found = {"kind": "Group", "spec": {**rights, "members": members}}
    elif system == "ververica":
        place = {"workspaceId": "w", "namespaceId": name, "role": "VIEWER"}
        found = {"kind": "InitialAccess", "spec": {"initialAccess": [{"userId": one, **place} for one in members]}}
    elif system == "streamsets":
        name = f"pipeline:r{number}"
        acl = {f"user:{member}": ["READ"] for member in members}
        found = {"kind": "Object", "spec": {"type": "pipeline", "owner": "root", "organization": "acme", "acl": acl}}
    else:
        grant = {"group": name, "entity": f"dataset:shop.r{number}", "privileges": ["READ"] if members else ["WRITE"]}
        found = {"kind": "Grant", "spec": grant}
    dated = {} if until is None else {"valid_until": to_text(until)}
    return {"system": system, "name": name, **found, **dated}


def request(system: str, user: str, number: int, of_consumers: bool = False) -> dict[str, Any]:
    """May a user read the resource with a number? `of_consumers`: of the group of consumers with that number."""
    action, resource, subject = {
        "lenses6": ("kafka:GetTopicDetails", {"type": "lrn", "id": f"kafka:topic:prod/main/r{number}"}, {}),
        "lenses5": (
            "kafka.topic.show",
            {"type": "topic", "id": f"r{number}", "properties": {"connection": "kafka", "dataset": f"r{number}"}},
            {},
        ),
        "ververica": (
            "read",
            {"type": "Deployment", "id": "d", "properties": {"workspaceId": "w", "namespaceId": f"r{number}"}},
            {},
        ),
        "streamsets": ("pipeline.view", {"type": "pipeline", "id": f"pipeline:r{number}"}, {}),
        "cdap": (
            "dataset.read",
            {"type": "dataset", "id": f"dataset:shop.r{number}"},
            {"groups": [f"r{(int(user[1:]) + n) % 40}" for n in range(20)]},
        ),
    }[system]
    if of_consumers:
        action, resource = "kafka-consumers.view", {"type": "consumer-group", "id": f"c{number}"}
    id_ = f"user:{user}" if system == "lenses6" else user
    return {
        "id": uuid.uuid4().hex,
        "system": system,
        "subject": {"type": "user", "id": id_, "properties": subject},
        "action": {"name": action},
        "resource": resource,
    }


def shown(record: dict[str, Any]) -> str:
    """A question as its record shows it."""
    subject = {name: record["subject"][name] for name in ("type", "id")}
    resource = {name: value for name, value in record["resource"].items() if value}
    return json.dumps([record["system"], subject, record["action"], resource], sort_keys=True)


class Event(NamedTuple):
    """A change of a document, or with `change` "" its end. `index`: the number of the change; of an end -1."""

    system: str
    at: int
    change: str
    index: int
    document: str

    @property
    def is_fact(self) -> bool:
        """Whether it is of the facts topic."""
        return "/ConsumerGroup/" in self.document


class Asked(NamedTuple):
    """A decision: its request, its time (ms), and how many changes it has seen."""

    request: dict[str, Any]
    at: int
    changes: int


class Traffic:
    """What the test publishes, and remembers of it. `users`, `resources`: how many, of each system."""

    def __init__(self, broker: TestBroker, name: str, seed: int, users: int, resources: int) -> None:
        self.chance, self.users, self.resources = random.Random(seed), users, resources
        self.world = World(broker, name, "unused", systems=SYSTEMS)
        self.settings = msgspec.structs.replace(self.world.settings, trust={})
        self._names = self.world.names
        self._policies, self._facts = DocumentStore(systems=SYSTEMS), DocumentStore(facts_only=True, systems=SYSTEMS)
        self._overlay = FactOverlay()
        self._overlay.sees_all_from_now(0)
        self._offsets = dict.fromkeys((*self._names.policy_topics().values(), self._names.facts), -1)
        self._compiler = Compiler(self._policies)
        client = {"bootstrap.servers": broker.bootstrap_servers, "log_level": "2", "linger.ms": "1"}
        self._publisher = Producer({**client, "transactional.id": f"{name}-test"})
        self._publisher.init_transactions(30)
        self._producer = Producer({**client, "queue.buffering.max.messages": 2_000_000})
        self._members: dict[tuple[str, int], set[str]] = defaultdict(set)
        self._late: list[tuple[bytes, bytes]] = []
        self.events: list[Event] = []
        self.asked: list[Asked] = []
        self.changes = 0
        self.published: list[tuple[int, dict[str, Any]]] = []  # each document, with how many changes there were then
        self.acknowledged: dict[str, float] = {}  # by change, Unix time
        self._last = 0
        self._begin()

    def _begin(self) -> None:
        first = [{"system": "streamsets", "kind": "Organization", "name": "acme", "spec": {"enforcement": True}}]
        for number in range(self.resources):
            statement = {
                "effect": "allow",
                "action": ["kafka:GetTopicDetails"],
                "resource": [f"kafka:topic:prod/main/r{number}"],
            }
            role = {"system": "lenses6", "kind": "Role", "name": f"r{number}", "spec": {"statements": [statement]}}
            consumers = {"connection": "kafka", "topics": [f"r{number}"]}
            first.append(role)
            first.append({"system": "lenses5", "kind": "ConsumerGroup", "name": f"c{number}", "spec": consumers})
            for system in SYSTEMS:
                members = {self._user() for _ in range(self.users // 4)}
                self._members[system, number] = members
                first.append(document(system, number, sorted(members)))
        self._publish(first, "first", 0)

    def _user(self) -> str:
        return f"u{self.chance.randrange(self.users)}"

    def snapshot(self) -> Snapshot:
        """What is in force now."""
        self._compiler.compile()
        return self._compiler.snapshot.with_facts(self._overlay)

    def _publish(self, documents: list[dict[str, Any]], change: str, number: int | None = None) -> int:
        """In one transaction; the broker's time of the last record, ms. `number`: of the change, if it may turn any."""
        delivered: dict[str, Any] = {}  # by topic and key
        self._publisher.begin_transaction()
        names = list[str]()
        for one in documents:
            is_fact = one["kind"] == "ConsumerGroup"
            topic = self._names.facts if is_fact else self._names.policy_topics()[one["system"]]
            key = f"{one['system']}/{one['kind']}/{one['name']}" if is_fact else f"{one['kind']}/{one['name']}"
            names.append(f"{topic} {key.encode()!r}")
            self._publisher.produce(
                topic,
                json.dumps(one).encode(),
                key,
                partition=0,
                headers=[("lockkeeper-change", change.encode()), ("lockkeeper-author", b"test")],
                on_delivery=lambda _, message: delivered.update({f"{message.topic()} {message.key()!r}": message}),
            )
        self._publisher.commit_transaction(60)
        self.acknowledged[change] = time.time()
        self.published += ((number, one) for one in documents if number is not None)
        for one, name in zip(documents, names, strict=True):
            self._take(one, delivered[name].topic(), delivered[name].offset(), delivered[name].timestamp()[1])
        return max(int(message.timestamp()[1]) for message in delivered.values())

    def _take(self, one: dict[str, Any], topic: str, offset: int, at: int) -> None:
        self._offsets[topic] = offset
        if topic != self._names.facts:
            assert not getattr(self._policies.put(one, at, offset), "errors", ())
            return
        self._facts.put(one, at, offset)
        key = Key(one["system"], one["kind"], one["name"])
        self._overlay.apply(change_of(key, self._facts.histories[key]))

    def change(self, kind: str) -> None:
        """One change: `grant`, `revoke`, `fact`, or `expire`, which ends by itself soon."""
        system, number = self.chance.choice(SYSTEMS), self.chance.randrange(self.resources // 2)
        id_, until = f"change-{len(self.events)}-{uuid.uuid4().hex[:6]}", None
        if kind == "fact":
            system, topics = "lenses5", [f"r{self.chance.randrange(self.resources // 2)}" for _ in range(2)]
            made = {"system": system, "kind": "ConsumerGroup", "name": f"c{number}"}
            made["spec"] = {"connection": "kafka", "topics": topics}
        else:
            members = self._members[system, number]
            if kind == "expire":  # of resources that no other change is about
                number = self.resources // 2 + sum(event.change == "" for event in self.events)
                assert number < self.resources
                members = self._members[system, number]
                until = time.time_ns() // 1_000_000 + self.chance.randrange(1500, 3000)
            elif kind == "grant":
                members |= {self._user() for _ in range(max(self.users // 20, 1))}
            else:
                members -= set(self.chance.sample(sorted(members), len(members) // 3))
                if system == "cdap" and self.chance.random() < 0.7:
                    members.clear()
            made = document(system, number, sorted(members), until)
        self.changes += 1
        at = self._publish([made], id_, self.changes)
        name = f"{system}/{made['kind']}/{made['name']}"
        self.events.append(Event(system, at, id_, self.changes, name))
        if until is not None:
            self.events.append(Event(system, until, "", -1, name))

    def publish_last(self) -> None:
        """A change that turns nothing, dated after all others."""
        self._last += 1
        role = {"system": "lenses6", "kind": "Role", "name": "last", "spec": {"statements": []}}
        spec = {"statements": [], "description": str(self._last)}
        self._publish([{**role, "spec": spec}], f"last-{self._last}")

    def ask(self, count: int) -> None:
        """Requests, and their decisions: some of them are not written yet."""
        made = [self._request() for _ in range(count)]
        places: dict[str, Any] = {}

        def delivered(error: Any, message: Any) -> None:
            assert error is None
            places[message.key().decode()] = message

        for one in made:
            topic = self._names.requests[0]
            self._producer.produce(topic, json.dumps(one).encode(), one["id"], on_delivery=delivered)
        assert self._producer.flush(60) == 0
        changes, snapshot = self.changes, self.snapshot()
        policies = {topic: {"0": offset} for topic, offset in self._offsets.items() if topic != self._names.facts}
        topic_id = topic_ids(self.world.admin, self._names.requests[:1])[self._names.requests[0]]
        for one in made:
            place = places[one["id"]]
            at = place.timestamp()[1]
            decision = decide(snapshot, {**one, "time": at})
            id_ = f"{topic_id}-{place.partition()}-{place.offset()}"
            record = {"id": id_, "request_id": one["id"], "system": one["system"], "time": to_text(at)}
            record |= decision.to_record()
            record["context"] |= {
                "policy_version": snapshot.version,
                "policy_offsets": policies,
                "facts_offset": self._offsets[self._names.facts],
                "source": {"topic": place.topic(), "partition": place.partition(), "offset": place.offset()},
            }
            self.asked.append(Asked(one, at, changes))
            value = one["id"].encode(), json.dumps(record).encode()
            self._late.append(value) if self.chance.random() < LATE else self._write(*value)
        assert self._producer.flush(60) == 0

    def _request(self) -> dict[str, Any]:
        system, number = self.chance.choice(SYSTEMS), self.chance.randrange(self.resources)
        return request(system, self._user(), number, system == "lenses5" and self.chance.random() < 0.5)

    def _write(self, key: bytes, value: bytes) -> None:
        self._producer.produce(self._names.decisions, value, key)

    def write_late(self) -> None:
        """The decisions that were kept back."""
        for value in self._late:
            self._write(*value)
        self._late.clear()
        assert self._producer.flush(60) == 0

    def ends(self) -> float:
        """The last moment at which something ends by itself, Unix time."""
        return max((event.at for event in self.events), default=0) / 1000


def key_of(record: dict[str, Any]) -> tuple[str, str, str, str]:
    """Of a record, what `Expected.records` has."""
    change = record.get("change", {}).get("id", "")
    return shown(record), record["before"]["outcome"], record["after"]["outcome"], change


class Arrivals:
    """Reads the records as a consumer does, in a thread: `records` with the moment (Unix time) at which each came."""

    def __init__(self, world: World) -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": world.settings.bootstrap_servers,
                "group.id": "tests",
                "isolation.level": "read_committed",
                "fetch.wait.max.ms": "20",
                "log_level": "2",
            }
        )
        self._settings, self._admin = world.settings, world.admin
        self._partitions = partitions_of(world.admin, [world.names.access_changes])
        self._consumer.assign([TopicPartition(*partition, 0) for partition in self._partitions])
        self.records: list[tuple[float, dict[str, Any]]] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            for message in self._consumer.consume(1000, 0.02):
                assert message.error() is None, message.error()
                record = json.loads(message.value())
                assert message.key().decode() == record["subject"]["id"]
                self.records.append((time.time(), record))

    def await_end(self) -> None:
        """Wait until all is read that is committed now."""
        starts, ends = dict.fromkeys(self._partitions, 0), last_stable_offsets(self._admin, self._partitions)
        count = sum(1 for _ in records_between(self._settings, starts, ends))
        wait_until(lambda: len(self.records) >= count, f"{count} records", 120)

    def seconds_after(self, acknowledged: Mapping[str, float]) -> list[float]:
        """Of each record of a change, how long after its acknowledgement it came."""
        changes = ((at, one["change"]["id"]) for at, one in self.records if "change" in one)
        return [at - acknowledged[change] for at, change in changes]

    def close(self) -> None:
        """Leave Kafka."""
        self._stop.set()
        self._thread.join()
        self._consumer.close()
