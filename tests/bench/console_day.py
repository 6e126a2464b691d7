"""A day for the console's benchmark: policies, decisions by them with the requests of the newest, alerts, changes."""

import contextlib
import itertools
import time
from typing import Any

import msgspec
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from policy import Snapshot, compile_documents, decide, to_text
from streaming.kafka.clients import group_consumer, topic_ids
from streaming.settings import Settings
from tests.bench import stream, workload

SYSTEM = "lenses6"
DAY_MS = 24 * 3600 * 1000
DISTINCT, WITH_REQUESTS = 2000, 20_000  # decisions that differ, and the newest of all, whose requests are on the topic
ALERTS, CHANGES = 2000, 50


class Day(msgspec.Struct, frozen=True):
    """What pages are asked about. `decision`: the id of the newest one."""

    decision: str
    subject: str
    action: str
    resource: str
    document: str


def write_day(settings: Settings, decisions: int, statements: int) -> Day:
    """Policies, decisions over a day, the requests of the newest, alerts and changes."""
    documents = [{"system": SYSTEM, **one} for one in workload.documents(statements)]
    producer = stream.client_producer(settings)
    stream.produce_documents(producer, settings, documents)
    stream.flush(producer)
    snapshot = compile_documents(documents)
    asked = list(workload.requests(documents, DISTINCT))
    offsets = {settings.topics.policy_topics()[SYSTEM]: {"0": len(documents) - 1}}
    answered = [_answered(snapshot, {**request, "system": SYSTEM}, offsets) for request in asked]
    day = _write_decisions(settings, producer, asked, answered, decisions)
    _write_alerts(settings, producer, day)
    _write_changes(settings, producer, documents, len(documents))
    stream.flush(producer)
    return day


def _answered(snapshot: Snapshot, request: dict[str, Any], offsets: dict[str, Any]) -> dict[str, Any]:
    """A decision's record but for its ids, time and source."""
    decision = decide(snapshot, request)
    names = {
        part: {name: request[part][name] for name in request[part] if name != "properties"}
        for part in ("subject", "action", "resource")
    }
    context = {
        "outcome": decision.outcome,
        "reasons": msgspec.to_builtins(decision.reasons),
        "missing": msgspec.to_builtins(decision.missing),
        "claims": list(decision.claims),
        "policy_version": snapshot.version,
        "policy_offsets": offsets,
        "facts_offset": -1,
        "request": names,
    }
    return {"system": SYSTEM, "decision": decision.allowed, "context": context}


def _write_decisions(
    settings: Settings, producer: Producer, asked: list[dict[str, Any]], answered: list[dict[str, Any]], count: int
) -> Day:
    topic, names = settings.topics.requests[0], settings.topics
    [topic_id] = topic_ids(AdminClient({"bootstrap.servers": settings.bootstrap_servers}), [topic]).values()
    first = max(count - WITH_REQUESTS, 0)
    for number in range(first, count):  # all in one partition, so that offsets are known before they are written
        value = msgspec.json.encode({**asked[number % len(asked)], "id": f"r-{number}", "system": SYSTEM})
        _produce(producer, topic, value, partition=0)
    stream.flush(producer)
    _commit(settings, topic, count - first)
    # A decision comes after its request, also here, where a second passes until the first page is asked for.
    now, newest = time.time_ns() // 1_000_000 + 1000, ""
    for number in range(count):
        at, which, offset = now - (count - number) * DAY_MS // count, number % len(asked), number - first
        place = {"topic": topic, "partition": 0, "offset": max(offset, 0)}
        newest = f"{topic_id}-0-{offset}" if offset >= 0 else f"{topic_id}-9-{number}"
        whole = answered[which]
        record = {
            "id": newest,
            "request_id": f"r-{number}",
            "time": to_text(at),
            **whole,
            "context": {**whole["context"], "source": place},
        }
        value = msgspec.json.encode(record)
        _produce(producer, names.decisions, value, partition=number % stream.PARTITIONS, timestamp=at)
    request = asked[(count - 1) % len(asked)]
    documents = [reason["document"] for one in answered for reason in one["context"]["reasons"] if reason["document"]]
    return Day(newest, request["subject"]["id"], request["action"]["name"], request["resource"]["id"], documents[0])


def _commit(settings: Settings, topic: str, end: int) -> None:
    """As the job does: what lies beyond has no decision yet."""
    with contextlib.closing(group_consumer(settings)) as group:
        group.commit(offsets=[TopicPartition(topic, 0, end)], asynchronous=False)


def _write_alerts(settings: Settings, producer: Producer, day: Day) -> None:
    now = time.time_ns() // 1_000_000
    for number in range(ALERTS):
        at = to_text(now - (ALERTS - number) * 1000)
        extent = {"system": SYSTEM, "count": 60, "first": at, "last": at}
        alert: dict[str, Any] = {"id": f"a-{number}", "kind": "denial-burst", "severity": "medium", "time": at}
        alert |= {"subject": day.subject, "message": "60 denials", "evidence": [extent]}
        _produce(producer, settings.topics.alerts, msgspec.json.encode(alert), partition=0)


def _write_changes(settings: Settings, producer: Producer, documents: list[dict[str, Any]], written: int) -> None:
    """Changes of one role each, published as well."""
    topic = settings.topics.policy_topics()[SYSTEM]
    roles = [document for document in documents if document["kind"] == "Role"]
    for number, role in enumerate(itertools.islice(roles, CHANGES)):
        statements = [
            *role["spec"]["statements"],
            {"effect": "deny", "action": "kafka:*", "resource": f"kafka:topic:env-0/cluster-0/closed-{number}"},
        ]
        changed, offset = {**role, "spec": {**role["spec"], "statements": statements}}, written + number
        _produce(producer, topic, msgspec.json.encode(changed), key=f"Role/{role['name']}".encode())
        sides = {
            side: {"policy_offsets": {topic: {"0": at}}} for side, at in (("before", offset - 1), ("after", offset))
        }
        listed = [{"key": f"{SYSTEM}/Role/{role['name']}", "change": "changed", "offset": offset}]
        change: dict[str, Any] = {"id": f"c-{number}", "author": "bench", "commit": "", "reason": "", "system": SYSTEM}
        change |= {"time": to_text(time.time_ns() // 1_000_000), "documents": listed, "documents_count": 1, **sides}
        _produce(producer, settings.topics.changes, msgspec.json.encode(change), partition=0)


def _produce(producer: Producer, topic: str, value: bytes, **more: Any) -> None:
    while True:
        try:
            return producer.produce(topic, value, **more)
        except BufferError:
            producer.poll(1)
