"""Puts on a broker what a released version left behind, at the offsets and with the dates that it had."""

import shutil
from collections import defaultdict
from collections.abc import Collection
from pathlib import Path
from typing import Any

import msgspec
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from streaming.enforcer.kafka import topic_ids
from streaming.topic_specs import TopicSpec
from streaming.topics import check_topics, mend_topics
from tests.brokers import TestBroker
from tests.stream.releases import (
    CHECKPOINT,
    NAME,
    OFFSETS,
    RECORDS,
    STAMP,
    Committed,
    Kept,
    has_rule,
    read_rows,
    specs_of,
)
from tests.stream.world import World, topic_names
from tests.waiting import wait_until

DATED_BY_US = {STAMP: "CreateTime", "retention.ms": "-1"}  # what is old would be deleted for its age


def restore(broker: TestBroker, name: str, folder: Path, checkpoint: Path) -> World:
    """A world as the release left it: its topics, its offsets, its checkpoint, all under another name."""
    specs = specs_of(topic_names(name), name)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    _create(admin, specs)
    ids = _new_ids(admin, read_rows(folder / OFFSETS, Committed, name))
    # The job knows by their offsets those topics that it reads, which are those that the broker dates.
    exact = {spec.name for spec in specs if has_rule(spec, STAMP, "LogAppendTime")}
    _produce(broker, read_rows(folder / RECORDS, Kept, name, ids), exact)
    world = World(broker, name, str(checkpoint))
    mend_topics(world.admin, check_topics(world.admin, world.names))
    wait_until(lambda: not check_topics(world.admin, world.names), "the topics are as the job wants them")
    _commit(world, read_rows(folder / OFFSETS, Committed, name, ids))
    shutil.copytree(folder / CHECKPOINT, checkpoint)
    for path in filter(Path.is_file, checkpoint.rglob("*")):
        path.write_text(path.read_text(encoding="utf-8").replace(NAME, name), encoding="utf-8")
    return world


def _create(admin: AdminClient, specs: list[TopicSpec]) -> None:
    wanted = [spec.new_topic(partitions=2, replication=1) for spec in specs]
    made = [NewTopic(topic.topic, topic.num_partitions, 1, config=topic.config | DATED_BY_US) for topic in wanted]
    for future in admin.create_topics(made, operation_timeout=30).values():
        future.result(30)


def _produce(broker: TestBroker, records: list[Kept], exact: Collection[str]) -> None:
    """Write the records. In `exact` topics, what compaction took away becomes a deletion of nothing."""
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    ends: dict[tuple[str, int], int] = defaultdict(int)
    found: list[tuple[Any, Any]] = []
    for kept in records:
        place = kept.topic, kept.partition
        for _gone in range(ends[place], kept.offset if kept.topic in exact else 0):
            _write(producer, msgspec.structs.replace(kept, key=f"{kept.key}-gone", value=None), [])
        _write(producer, kept, found)
        ends[place] = kept.offset + 1
    assert producer.flush(30) == 0
    there = {(m.topic(), m.partition(), m.offset(), m.timestamp()[1]) for error, m in found if error is None}
    assert {(k.topic, k.partition, k.offset, k.timestamp) for k in records if k.topic in exact} <= there


def _write(producer: Producer, kept: Kept, found: list[tuple[Any, Any]]) -> None:
    producer.produce(
        kept.topic,
        kept.value,
        kept.key,
        kept.partition,
        on_delivery=lambda *report: found.append(report),
        timestamp=kept.timestamp,
        headers=kept.headers,
    )


def _new_ids(admin: AdminClient, told: list[Committed]) -> dict[str, str]:
    """The ids of the topics, by those that they had when they were recorded."""
    found = topic_ids(admin, {row.topic for row in told})
    return {msgspec.json.decode(row.metadata)["topic_id"]: found[row.topic] for row in told}


def _commit(world: World, told: list[Committed]) -> None:
    """Commit the group's offsets as they were."""
    settings = {"bootstrap.servers": world.settings.bootstrap_servers, "group.id": world.settings.job_name}
    consumer = Consumer({**settings, "enable.auto.commit": "false"})
    offsets = [TopicPartition(row.topic, row.partition, row.offset, row.metadata) for row in told]
    consumer.commit(offsets=offsets, asynchronous=False)
    consumer.close()
