"""A Spark batch that is too much for one transaction is decided range after range; other traffic does not wait."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewPartitions

from streaming.enforcer.source import GROUP, range_options
from streaming.settings import Settings
from streaming.verify.cluster import verify
from tests.brokers import TestBroker
from tests.stream.running import Job, running
from tests.stream.world import World, group, request, role
from tests.waiting import wait_until

pytestmark = pytest.mark.stream

HEAVY = 100
EVALUATIONS = 40
COMPRESSED, SMALL_HEAP = 900, {"spark.driver.memory": "1g"}  # 800 MB of records: more than its old generation
ORDERS = "kafka:topic:prod/main/orders"


@pytest.fixture
def world(broker: TestBroker, fresh_name: Callable[[str], str], tmp_path: Path) -> World:
    """A world where dana may read about orders, and a transaction holds two or three heavy requests at most."""
    made = World(broker, fresh_name("ranges"), str(tmp_path / "checkpoint"), max_batch_bytes=50_000)
    made.publish(group("readers", "user:dana"))
    made.publish(role("readers", ORDERS))
    return made


def _send(world: World, id_: str, partition: int, **more: Any) -> None:
    world.producer.produce(
        world.names.requests[0], json.dumps(request(id_, "dana", "orders", **more)), b"k%d" % partition, partition
    )
    assert world.producer.flush(30) == 0


def _send_heavy(world: World) -> list[str]:
    """A backlog on one partition; returns the ids."""
    ids = [f"heavy-{number}" for number in range(HEAVY)]
    for id_ in ids:
        _send(world, id_, 0, evaluations=[{}] * EVALUATIONS)
    return ids


def _decisions(world: World) -> dict[str, dict[str, Any]]:
    """The decisions that are committed now, by id; each request has one at most."""
    decided = world.everything(world.names.decisions)
    found = {decision["request_id"]: decision for decision in decided}
    assert len(found) == len(decided), "none twice"
    return found


def _assert_each_once(world: World, ids: list[str]) -> dict[str, dict[str, Any]]:
    world.reader(world.names.decisions).until(lambda found: len(found) >= len(ids), "a decision for each", 120)
    found = _decisions(world)
    assert sorted(found) == sorted(ids)
    findings = verify(world.settings)
    assert not findings.violations
    assert findings.requests == findings.decisions == len(ids)
    return found


@pytest.mark.long
def test_a_heavy_backlog_is_decided_in_ranges_each_by_its_policies_while_other_requests_are_answered(
    world: World,
) -> None:
    """A request on another partition, and a change of policies, come while it lasts; then the job is stopped."""
    heavy = _send_heavy(world)
    decisions = world.reader(world.names.decisions)
    with running(world.settings):
        decisions.until(lambda found: len(found) >= 1, "a first range is decided")
        offset = world.publish(role("readers", ORDERS, effect="deny"))
        _send(world, "other", 1)
        assert decisions.answer("other")["decision"] is False
        assert len(_decisions(world)) < len(heavy), "it was answered before the backlog"
    stopped_at = len(_decisions(world))
    assert stopped_at < len(heavy), "the job stops between two ranges"
    with running(msgspec.structs.replace(world.settings, max_batch_bytes=1 << 20)):
        found = _assert_each_once(world, [*heavy, "other"])
    evaluated_at = [found[id_]["context"]["policy_offsets"][world.policies]["0"] for id_ in heavy]
    assert evaluated_at == sorted(evaluated_at)
    assert evaluated_at[0] < offset
    assert evaluated_at[-1] == offset
    assert [found[id_]["decision"] for id_ in heavy] == [at < offset for at in evaluated_at]


def test_one_group_of_the_ranges_reader_never_has_two_kinds_of_parameters() -> None:
    """Spark keeps those of a group and partition as long as Java runs, and refuses others."""
    for source in ({}, {"kafka.group.id": "ours"}, {"kafka.max.poll.records": "7"}):
        groups: dict[str, dict[str, str]] = {}
        for partitions in (1, 2, 6, 7, 24, 200, 2000):
            options = range_options(Settings(source=source), partitions)
            assert groups.setdefault(options[GROUP], options) == options, partitions


@pytest.mark.parametrize("partitions", [pytest.param(count, marks=pytest.mark.long) for count in (6, 24, 200)])
def test_a_backlog_on_unevenly_filled_partitions_is_decided_though_some_are_done_long_before_others(
    world: World, partitions: int
) -> None:
    """The number of partitions that ranges read becomes smaller, one after the other, and larger by what comes."""
    requests = world.names.requests[0]
    world.admin.create_partitions([NewPartitions(requests, partitions)])[requests].result(30)
    wait_until(
        lambda: len(world.producer.list_topics(requests, timeout=30).topics[requests].partitions) == partitions,
        "the partitions are there",
    )
    counts = {number: 1 + 40 // (1 + number) for number in range(partitions)}
    ids = [f"{number}-{one}" for number, count in counts.items() for one in range(count)]
    for id_ in ids:
        _send(world, id_, int(id_.partition("-")[0]), evaluations=[{}] * EVALUATIONS)
    # A share of it has room for a decision or two of each partition, and not for all of the first one's.
    with running(msgspec.structs.replace(world.settings, max_batch_bytes=30_000 * partitions)):
        _assert_each_once(world, ids)


@pytest.mark.long
def test_compressed_records_that_unpacked_are_more_than_javas_memory_do_not_end_the_job(world: World) -> None:
    """They wait in the topic at the start: a few MB, which Spark's consumer would unpack all at once."""
    compressing = Producer(
        {
            "bootstrap.servers": world.settings.bootstrap_servers,
            "compression.type": "lz4",
            "linger.ms": 50,
            "message.max.bytes": 10_000_000,
        }
    )
    for _ in range(COMPRESSED):
        compressing.produce(world.names.requests[0], b"x" * 900_000, partition=0)
        compressing.poll(0)
    assert compressing.flush(60) == 0
    _send(world, "behind", 0)
    with running(msgspec.structs.replace(world.settings, max_batch_bytes=128 << 20, spark=SMALL_HEAP)) as job:
        world.reader(world.names.decisions).until(lambda found: found or job.ended, "the one behind them", 300)
        assert not job.ended
    findings = verify(world.settings)
    assert not findings.violations
    assert findings.dead_letters == COMPRESSED


@pytest.mark.long
def test_killed_between_ranges_each_is_decided_once_and_in_order_also_where_spark_is_to_split_partitions(
    world: World,
) -> None:
    """Three jobs that die after their first range, one within its transactions. A partition has one transaction, and so
    one task, whatever `minPartitions` says.
    """
    heavy = _send_heavy(world)
    split = msgspec.structs.replace(world.settings, source={"minPartitions": "16"})
    for settings, step in ((world.settings, "committed"), (split, "committed"), (world.settings, "written")):
        job = Job(settings, kill_at=step)
        assert job.await_end() == -9, job.reported
        assert 0 < len(_decisions(world)) < len(heavy)
    with running(split):
        wait_until(lambda: len(_decisions(world)) > len(heavy) // 2, "half of it is decided", 120)
    with running(world.settings):
        _assert_each_once(world, heavy)
