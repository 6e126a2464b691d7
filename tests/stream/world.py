"""A world of topics for one job: publishes documents, sends requests, reads what comes out."""

import json
import re
import time
import uuid
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from streaming.kafka.topics import create_topics
from streaming.settings import Settings
from streaming.settings.monitor import MonitorSettings
from streaming.topics import TopicNames
from tests.brokers import CONSUMER_GROUPS, TestBroker
from tests.java_archive import java_options
from tests.waiting import wait_until

SYSTEM = "lenses6"
LOOKS_BACK = "streamsets"  # a system in which older versions count
SHORT_LIVED = {
    "spark.driver.extraJavaOptions": java_options(),
    # The monitor's state is looked after as often as in days of a job.
    "spark.sql.streaming.stateStore.maintenanceInterval": "1s",
    "spark.sql.streaming.stateStore.minDeltasForSnapshot": "2",
    "spark.sql.streaming.minBatchesToRetain": "4",
}


def role(name: str, *resources: str, effect: str = "allow") -> dict[str, Any]:
    """A role that may read the details of topics."""
    statement = {"effect": effect, "action": ["kafka:GetTopicDetails"], "resource": list(resources)}
    return {"system": SYSTEM, "kind": "Role", "name": name, "spec": {"statements": [statement]}}


def group(name: str, *members: str) -> dict[str, Any]:
    """A group with the role of its own name."""
    return {"system": SYSTEM, "kind": "Group", "name": name, "spec": {"roles": [name], "members": list(members)}}


def request(id_: str, user: str, topic: str, **more: Any) -> dict[str, Any]:
    """May the user read the details of a topic?"""
    return {
        "id": id_,
        "system": SYSTEM,
        "subject": {"type": "user", "id": f"user:{user}"},
        "action": {"name": "kafka:GetTopicDetails"},
        "resource": {"type": "lrn", "id": f"kafka:topic:prod/main/{topic}"},
        **more,
    }


SINGLE = ("facts", "history", "decisions", "verdicts", "alerts", "changes", "access_changes")


def topic_names(name: str) -> TopicNames:
    """The topics of the world with a name."""
    return TopicNames(
        requests=(f"{name}.requests", f"{name}.strangers"),
        audit=(f"{name}.audit",),
        policies={SYSTEM: f"{name}.policies", LOOKS_BACK: f"{name}.{LOOKS_BACK}"},
        **{field: f"{name}.{field}" for field in SINGLE},
    )


class World:
    """Fresh topics on a broker, and the settings of a job for them."""

    def __init__(self, broker: TestBroker, name: str, checkpoint: str, **settings: Any) -> None:
        self.broker = broker
        self.names = topic_names(name)
        if systems := settings.get("systems"):
            policies = {**{one: f"{name}.policies.{one}" for one in systems}, **self.names.policies}
            self.names = msgspec.structs.replace(self.names, systems=systems, policies=policies)
        self.settings = Settings(
            job_name=name,
            bootstrap_servers=broker.bootstrap_servers,
            checkpoint=checkpoint,
            topics=self.names,
            trust={self.names.requests[1]: frozenset()},
            **{"monitor": MonitorSettings(mode="none"), "spark": SHORT_LIVED, **settings},
        )
        self._client = {"bootstrap.servers": broker.bootstrap_servers, "log_level": "2"}
        self.admin = AdminClient(dict(self._client))
        create_topics(self.admin, self.names, partitions=2)
        self.producer = Producer({**self._client, "linger.ms": "0"})

    @property
    def policies(self) -> str:
        """The policy topic of the system that tests use."""
        return self.names.policies[SYSTEM]

    def publish(self, document: dict[str, Any] | bytes, key: str | None = None) -> int:
        """Publish a document; returns its offset once the broker has acknowledged it."""
        value = document if isinstance(document, bytes) else json.dumps(document).encode()
        name = key or (f"{document['kind']}/{document['name']}" if isinstance(document, dict) else "")
        return self._acknowledged(self.policies, name.encode(), value)

    def with_answered(self) -> str:
        """Have a topic of answered records from now on, whose producers may claim groups; its name."""
        topic = self.names.requests[0].replace("requests", "answered")
        self.names = msgspec.structs.replace(self.names, answered=(topic,))
        trust = {**self.settings.trust, topic: frozenset({"groups"})}
        self.settings = msgspec.structs.replace(self.settings, topics=self.names, trust=trust)
        create_topics(self.admin, self.names, partitions=2)
        return topic

    def publish_together(self, *documents: dict[str, Any]) -> None:
        """Publish documents in a transaction of their own."""
        producer = Producer({"bootstrap.servers": self.broker.bootstrap_servers, "transactional.id": uuid.uuid4().hex})
        producer.init_transactions(30)
        producer.begin_transaction()
        for document in documents:
            key = f"{document['kind']}/{document['name']}"
            producer.produce(self.policies, json.dumps(document).encode(), key, partition=0)
        producer.commit_transaction(30)

    def publish_to(self, topic: str, key: str, document: dict[str, Any]) -> int:
        """Publish a document of any system to a topic; returns its offset once the broker has acknowledged it."""
        return self._acknowledged(topic, key.encode(), json.dumps(document).encode())

    def delete(self, key: str) -> int:
        """Publish the deletion of a document."""
        return self._acknowledged(self.policies, key.encode(), None)

    def recreate(self, topic: str) -> None:
        """Delete a topic and create it again, empty."""
        self.admin.delete_topics([topic])[topic].result(30)
        wait_until(lambda: topic not in self.admin.list_topics(timeout=30).topics, f"{topic} is deleted")
        assert create_topics(self.admin, self.names, partitions=2) == [topic]

    def configure(self, topic: str, settings: dict[str, str]) -> None:
        """Set settings of a topic."""
        set_ = AlterConfigOpType.SET
        entries = [ConfigEntry(name, text, incremental_operation=set_) for name, text in settings.items()]
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
        self.admin.incremental_alter_configs([resource])[resource].result(30)

    def delete_records(self, topic: str, before: int) -> None:
        """Delete the records of a compacted topic below an offset; Kafka allows it only where retention deletes."""

        def is_deleted() -> bool:
            [deleted] = self.admin.delete_records([TopicPartition(topic, 0, before)]).values()
            error = deleted.exception(30)
            assert error is None or error.args[0].name() == "POLICY_VIOLATION", error
            return error is None

        self.configure(topic, {"cleanup.policy": "compact,delete"})
        wait_until(is_deleted, f"the records of {topic} below {before} are deleted")
        self.configure(topic, {"cleanup.policy": "compact"})

    def _acknowledged(self, topic: str, key: bytes, value: bytes | None) -> int:
        delivered: list[Any] = []
        self.producer.produce(topic, value, key, on_delivery=lambda error, message: delivered.append((error, message)))
        assert self.producer.flush(30) == 0
        [(error, message)] = delivered
        assert error is None
        return int(message.offset())

    def send(
        self,
        requests: Iterable[dict[str, Any] | bytes],
        topic: str | None = None,
        key: str | None = None,
        headers: list[Any] | None = None,
        partition: int = -1,
    ) -> None:
        """Send requests, keyed by their ids or `key`; returns once the broker has acknowledged them.

        `partition`: instead of the one that the key leads to.
        """
        for asked in requests:
            value = asked if isinstance(asked, bytes) else json.dumps(asked).encode()
            name = key or (asked["id"] if isinstance(asked, dict) else "?")
            self.producer.produce(topic or self.names.requests[0], value, name, partition, headers=headers or [])
        assert self.producer.flush(30) == 0

    def reader(self, topic: str) -> "Reader":
        """A reader of an output topic from its start."""
        return Reader(self._client, topic, self.admin)

    def everything(self, topic: str) -> list[Any]:
        """The values of all records of an output topic that are committed now."""
        return [json.loads(message.value()) for message in self.reader(topic).to_the_end()]

    def lags(self) -> list[int]:
        """The lag of each partition of the job's group, by Kafka's own tool."""
        printed = self.broker.kafka_tool(CONSUMER_GROUPS, "--describe", "--group", self.settings.job_name)
        return [int(line.split()[5]) for line in printed.splitlines() if re.match(self.settings.job_name, line)]

    def await_no_lag(self) -> None:
        """Wait until everything that was sent is decided."""
        wait_until(lambda: set(self.lags()) == {0}, "the lag of the job's group is zero", 60.0)


class Reader:
    """Reads committed records of a topic, from its start."""

    def __init__(self, client: dict[str, str], topic: str, admin: AdminClient) -> None:
        self._consumer = Consumer({**client, "group.id": "tests", "isolation.level": "read_committed"})
        partitions = admin.list_topics(topic).topics[topic].partitions
        self._partitions = [TopicPartition(topic, number, 0) for number in partitions]
        self._consumer.assign(self._partitions)
        self.messages: list[Any] = []

    def until(self, enough: Callable[[list[Any]], bool], what: str, seconds: float = 60.0) -> list[Any]:
        """All messages, once there are enough."""
        deadline = time.monotonic() + seconds
        while not enough(self.messages):
            assert time.monotonic() < deadline, f"not within {seconds} s: {what}; {len(self.messages)} messages"
            message = self._consumer.poll(0.05)
            if message is not None:
                assert message.error() is None
                self.messages.append(message)
        return self.messages

    def to_the_end(self) -> list[Any]:
        """All messages that are committed now."""
        ends = {tp.partition: self._consumer.get_watermark_offsets(tp, timeout=30)[1] for tp in self._partitions}

        def is_there(_messages: list[Any]) -> bool:
            return all(
                tp.offset >= ends[tp.partition]
                for tp in self._consumer.position(self._partitions)
                if ends[tp.partition]
            )

        return self.until(is_there, f"the ends {ends}")

    def answer(self, id_: str, seconds: float = 30.0) -> dict[str, Any]:
        """The decision of the request with an id."""
        found: list[dict[str, Any]] = []

        def seen(messages: list[Any]) -> bool:
            found.extend(d for d in map(json.loads, (m.value() for m in messages)) if d["request_id"] == id_)
            del messages[:]
            return bool(found)

        self.until(seen, f"a decision of {id_}", seconds)
        return found[0]
