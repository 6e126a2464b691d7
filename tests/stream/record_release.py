"""Records what this version's job leaves behind, for the tests of all later versions.

python -m tests.stream.record_release VERSION     # writes tests/released/VERSION
"""

import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from confluent_kafka import ConsumerGroupTopicPartitions

from streaming.topics import TopicSpec
from streaming.verify.cluster import Traffic, await_decided
from tests.brokers import TestBroker, any_broker
from tests.stream.releases import (
    CHECKPOINT,
    MONITOR,
    MONITOR_CHECKPOINT,
    MONITOR_OFFSETS,
    NAME,
    OFFSETS,
    RECORDS,
    RELEASES,
    Committed,
    Kept,
    denied_access,
    login,
    requests,
    specs_of,
    write_rows,
)
from tests.stream.running import Job, running
from tests.stream.world import LOOKS_BACK, World, group, role

RATE, SECONDS, CHANGE_EVERY = 12.0, 2.0, 0.4  # of the checker's traffic


def record(broker: TestBroker, folder: Path) -> None:
    """Let the job decide, be killed and leave work behind; write down what is there then."""
    world = World(broker, NAME, str(folder / CHECKPOINT), monitor=MONITOR)
    _publish(world)
    with running(world.settings):
        world.send(requests("decided"))
        world.await_no_lag()
        _supersede(world)
        history = world.reader(world.names.history)
        history.until(lambda seen: len(seen) >= 2, "two superseded versions on the history topic")
        assert await_decided(world.settings, Traffic(world.settings, RATE).send(SECONDS, CHANGE_EVERY).last)
        _audit(world)
    world.send(requests("replayed"))
    assert Job(world.settings, kill_at="committed").await_end() == -9  # decided, and Spark does not know
    world.send(requests("waiting"))
    _dump(world, folder)


def _audit(world: World) -> None:
    """What the monitor remembers from then on: an episode of Mallory's, and when Dana logged in last."""
    [audit], at = world.names.audit, time.time_ns() // 1_000_000
    world.send([denied_access("denied", "mallory", at), login("login", "dana", at)], audit)
    world.reader(world.names.facts).until(lambda seen: len(seen) >= 2, "the login is a fact")
    alerts = world.reader(world.names.alerts)
    alerts.until(lambda seen: sum(b"mallory" in message.value() for message in seen) >= 2, "two alerts of the access")


def _publish(world: World) -> None:
    world.publish(group("readers", "user:dana"))
    world.publish(role("readers", "kafka:topic:prod/main/orders"))
    topic = world.names.policies[LOOKS_BACK]
    organization = {"system": LOOKS_BACK, "kind": "Organization", "name": "shop", "spec": {"enforcement": True}}
    world.publish_to(topic, "Organization/shop", organization)
    world.publish_to(topic, "Object/pipeline:orders", _pipeline({"user:miguel": ["READ"]}))
    session = {"system": LOOKS_BACK, "kind": "Session", "name": "miguel", "spec": {"login_at": _now(world)}}
    world.publish_to(world.names.facts, f"{LOOKS_BACK}/Session/miguel", session)


def _pipeline(acl: dict[str, list[str]]) -> dict[str, Any]:
    spec = {"type": "pipeline", "owner": "rita", "organization": "shop", "acl": acl}
    return {"system": LOOKS_BACK, "kind": "Object", "name": "pipeline:orders", "spec": spec}


def _now(world: World) -> int:
    """The broker's time, ms, after all that was published: that of a record which becomes a dead letter."""
    delivered: list[Any] = []
    topic = world.names.requests[1]
    world.producer.produce(topic, b"{}", on_delivery=lambda _error, message: delivered.append(message))
    assert world.producer.flush(30) == 0
    return int(delivered[0].timestamp()[1])


def _supersede(world: World) -> None:
    """From now on the newest versions alone would refuse everybody: what holds is on the history topic."""
    world.publish(b"{broken", key="Role/readers")
    world.publish_to(world.names.policies[LOOKS_BACK], "Object/pipeline:orders", _pipeline({}))


def _dump(world: World, folder: Path) -> None:
    specs = specs_of(world.names, NAME)
    write_rows(folder / RECORDS, [kept for spec in specs for kept in _kept(world, spec)])
    for group_id, file in ((NAME, OFFSETS), (f"{NAME}-monitor", MONITOR_OFFSETS)):
        asked = ConsumerGroupTopicPartitions(group_id)
        found = world.admin.list_consumer_group_offsets([asked])[group_id].result(30).topic_partitions
        ours = sorted((tp for tp in found if tp.topic.startswith(NAME)), key=lambda tp: (tp.topic, tp.partition))
        write_rows(folder / file, [Committed(tp.topic, tp.partition, tp.offset, tp.metadata) for tp in ours])
    for checkpoint in (CHECKPOINT, MONITOR_CHECKPOINT):
        for checksum in (folder / checkpoint).rglob(".*"):
            checksum.unlink()


def _kept(world: World, spec: TopicSpec) -> list[Kept]:
    """The records of a topic: all of them, since `verify` relies on it that those of the last seven days are there."""
    found = [_as_kept(message) for message in world.reader(spec.name).to_the_end()]
    return sorted(found, key=lambda kept: (kept.partition, kept.offset))


def _as_kept(message: Any) -> Kept:
    headers = [(name, value.decode()) for name, value in message.headers() or ()]
    key, value = (data if data is None else data.decode() for data in (message.key(), message.value()))
    return Kept(
        message.topic(), message.partition(), message.offset(), message.timestamp()[1], key, value, headers=headers
    )


def main(version: str) -> None:
    """Write `tests/released/VERSION` anew."""
    with any_broker() as broker, tempfile.TemporaryDirectory() as scratch:
        made = Path(scratch) / version
        record(broker, made)
        shutil.rmtree(RELEASES / version, ignore_errors=True)
        shutil.copytree(made, RELEASES / version)


if __name__ == "__main__":
    main(sys.argv[1])
