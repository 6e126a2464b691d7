"""Puts on a broker what a released version left behind, at the offsets and with the dates that it had."""

import itertools
import re
import shutil
from collections import defaultdict
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import msgspec
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from streaming.kafka.clients import topic_ids
from streaming.kafka.topics import check_topics, fix_topics
from streaming.settings import monitor_settings
from streaming.snapshots.documents import LOG
from streaming.topics import TopicSpec
from tests.brokers import TestBroker
from tests.stream.releases import (
    CHECKPOINT,
    MONITOR,
    MONITOR_CHECKPOINT,
    MONITOR_OFFSETS,
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
    has_monitor = (folder / MONITOR_OFFSETS).exists()
    world = World(broker, name, str(checkpoint), **({"monitor": MONITOR} if has_monitor else {}))  # makes shared topics
    groups = (OFFSETS, MONITOR_OFFSETS) if has_monitor else (OFFSETS,)
    committed = [row for file in groups for row in read_rows(folder / file, Committed, name)]
    ids = _new_ids(admin, committed, read_rows(folder / RECORDS, Kept, name))
    # The job and the monitor know by their offsets those topics that they read.
    exact = {spec.name for spec in specs if has_rule(spec, STAMP, "LogAppendTime")}
    transactional = (_uncompacted(specs) - exact) | {world.names.facts}
    _produce(broker, read_rows(folder / RECORDS, Kept, name, ids), exact, transactional)
    fix_topics(world.admin, check_topics(world.admin, world.names))
    wait_until(lambda: not check_topics(world.admin, world.names), "the topics are as the job wants them")
    _commit(world, world.settings.job_name, read_rows(folder / OFFSETS, Committed, name, ids))
    _copy(folder / CHECKPOINT, checkpoint, name)
    if has_monitor:
        monitor = monitor_settings(world.settings)
        _commit(world, monitor.job_name, read_rows(folder / MONITOR_OFFSETS, Committed, name, ids))
        _copy(folder / MONITOR_CHECKPOINT, Path(monitor.checkpoint), name)
    return world


def _uncompacted(specs: list[TopicSpec]) -> set[str]:
    """Topics whose gaps are the markers of transactions; of the others only that of facts is written in them."""
    return {spec.name for spec in specs if has_rule(spec, "cleanup.policy", "delete")}


def _copy(recorded: Path, checkpoint: Path, name: str) -> None:
    """A checkpoint for other names of topics, in another folder. The state itself is bytes, which name neither."""
    shutil.copytree(recorded, checkpoint)
    for path in filter(Path.is_file, checkpoint.rglob("*")):
        inside = path.relative_to(checkpoint).parts
        if inside[0] != "state" or "_metadata" in inside:
            text = path.read_text(encoding="utf-8").replace(NAME, name)
            # Spark names the files of the state's schema by their whole path.
            path.write_text(re.sub(rf'file:[^"]*/{recorded.name}/', f"file:{checkpoint}/", text), encoding="utf-8")


def _create(admin: AdminClient, specs: list[TopicSpec]) -> None:
    wanted = [spec.new_topic(partitions=2, replication=1) for spec in specs]
    made = [NewTopic(topic.topic, topic.num_partitions, 1, config=topic.config | DATED_BY_US) for topic in wanted]
    for future in admin.create_topics(made, operation_timeout=30).values():
        future.result(30)
    names = {topic.topic for topic in made}
    wait_until(lambda: names <= admin.list_topics(timeout=30).topics.keys(), "the broker knows the topics")


def _produce(broker: TestBroker, records: list[Kept], exact: Collection[str], transactional: Collection[str]) -> None:
    """Write the records at their offsets.

    In `exact` topics, what compaction took away becomes a deletion of nothing; in `transactional` ones a transaction
    ends where its marker was. The others get no gaps: nothing refers to them by offset.
    """
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    ends: dict[tuple[str, int], int] = defaultdict(int)
    found: list[tuple[Any, Any]] = []
    for kept in records:
        if kept.topic in transactional:
            continue
        place = kept.topic, kept.partition
        for _gone in range(ends[place], kept.offset if kept.topic in exact else 0):
            _write(producer, msgspec.structs.replace(kept, key=f"{kept.key}-gone", value=None), [])
        _write(producer, kept, found)
        ends[place] = kept.offset + 1
    assert producer.flush(30) == 0
    _produce_in_transactions(broker, [kept for kept in records if kept.topic in transactional], found)
    there = {(m.topic(), m.partition(), m.offset(), m.timestamp()[1]) for error, m in found if error is None}
    known = {*exact, *transactional}
    assert {(k.topic, k.partition, k.offset, k.timestamp) for k in records if k.topic in known} <= there


def _produce_in_transactions(broker: TestBroker, records: list[Kept], found: list[tuple[Any, Any]]) -> None:
    """Write records with a marker behind each run of neighbours, as there was."""
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "restore"})
    producer.init_transactions(30)
    for run in _runs(records):
        producer.begin_transaction()
        for kept in run:
            _write(producer, kept, found)
        producer.commit_transaction(30)


def _runs(records: list[Kept]) -> Iterator[list[Kept]]:
    """Records of one partition whose offsets follow each other."""
    for _, run in itertools.groupby(
        enumerate(records), lambda at: (at[1].topic, at[1].partition, at[1].offset - at[0])
    ):
        yield [kept for _, kept in run]


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


def _new_ids(admin: AdminClient, committed: list[Committed], records: list[Kept]) -> dict[str, str]:
    """The ids of the topics, by those that they had when they were recorded: with offsets and history."""
    recorded = {row.topic: msgspec.json.decode(row.metadata)["topic_id"] for row in committed}
    for kept in records:
        if kept.key is not None and kept.value is not None and kept.key.startswith(LOG.decode()):
            recorded[kept.key.removeprefix(LOG.decode())] = kept.value.partition(":")[0]
    found = topic_ids(admin, recorded)
    return {id_: found[topic] for topic, id_ in recorded.items()}


def _commit(world: World, group_id: str, committed: list[Committed]) -> None:
    """Commit a group's offsets as they were."""
    settings = {"bootstrap.servers": world.settings.bootstrap_servers, "group.id": group_id}
    consumer = Consumer({**settings, "enable.auto.commit": "false"})
    offsets = [TopicPartition(row.topic, row.partition, row.offset, row.metadata) for row in committed]
    consumer.commit(offsets=offsets, asynchronous=False)
    consumer.close()
