"""What compaction takes from a policy topic is kept on the history topic: a restart gives the same answers."""

import contextlib
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from policy import decide
from streaming.kafka.clients import Partition
from streaming.kafka.reader import document_topics, find_logs
from streaming.settings import MetricsSettings
from streaming.snapshots.policies import Policies
from tests.brokers import TestBroker, free_port
from tests.stream.running import running
from tests.stream.test_outage import Run
from tests.stream.world import LOOKS_BACK, SYSTEM, Reader, World, group, request, role
from tests.waiting import wait_until

pytestmark = pytest.mark.stream

ORDERS = "kafka:topic:prod/main/orders"
COMPACT_NOW = {"min.compaction.lag.ms": "0", "segment.ms": "1", "min.cleanable.dirty.ratio": "0.0"}
PROMISED = {"min.compaction.lag.ms": str(7 * 24 * 60 * 60 * 1000), "segment.ms": "604800000"}


def _compact(world: World, topic: str, filler: dict[str, Any], gone: int) -> None:
    """Make the broker compact a policy topic for real, until the record at an offset is gone."""
    world.configure(topic, COMPACT_NOW)

    def is_gone() -> bool:
        # Each record may close the segment before it; only closed ones are compacted.
        last = world.publish_to(topic, f"{filler['kind']}/{filler['name']}", filler)
        reader = world.reader(topic)
        found = reader.until(lambda seen: bool(seen) and seen[-1].offset() >= last, "the end of the policy topic")
        return all(message.offset() != gone for message in found)

    wait_until(is_gone, f"offset {gone} of the policy topic is compacted away", 90)
    world.configure(topic, PROMISED)


def _ask(world: World, asked: dict[str, Any]) -> bool:
    decisions = world.reader(world.names.decisions)
    world.send([asked])
    return bool(decisions.answer(asked["id"], 60)["decision"])


def _may_dana_read(world: World, id_: str) -> bool:
    return _ask(world, request(f"dana-{id_}", "dana", "orders"))


def _may_miguel_view(world: World, id_: str) -> bool:
    asked = request(f"miguel-{id_}", "miguel", "orders", system=LOOKS_BACK, action={"name": "pipeline.view"})
    subject = {"type": "user", "id": "miguel", "properties": {"organization": "shop"}}
    return _ask(world, asked | {"subject": subject, "resource": {"type": "pipeline", "id": "pipeline:orders"}})


def _pipeline(*readers: str) -> dict[str, Any]:
    acl = {f"user:{reader}": ["READ"] for reader in readers}
    spec = {"type": "pipeline", "owner": "rita", "organization": "shop", "acl": acl}
    return {"system": LOOKS_BACK, "kind": "Object", "name": "pipeline:orders", "spec": spec}


def _organization(name: str = "shop") -> dict[str, Any]:
    return {"system": LOOKS_BACK, "kind": "Organization", "name": name, "spec": {"enforcement": True}}


def _log_in(world: World) -> None:
    session = {"system": LOOKS_BACK, "kind": "Session", "name": "miguel", "spec": {"login_at": time.time_ns() // 10**6}}
    world.publish_to(world.names.facts, f"{LOOKS_BACK}/Session/miguel", session)


def _history_of(history: Reader, document: str, count: int) -> list[tuple[bytes, dict[str, Any] | None]]:
    """What was written about a document's versions, once there are so many: keys, and documents (None: removed)."""
    start = f"{document}/".encode()

    def about() -> list[Any]:
        return [message for message in history.messages if message.key().startswith(start)]

    history.until(lambda _: len(about()) >= count, f"{count} records of {document} on the history topic")
    return [(message.key(), message.value() and json.loads(message.value())) for message in about()]


@pytest.mark.long
def test_what_compaction_takes_away_outlives_it_and_a_restart(
    broker: TestBroker, fresh_name: Callable[[str], str], tmp_path: Path
) -> None:
    """The last good version of a document that is refused now, and what a user held at his login (SS-LOGIN).

    Each leaves the history once it is of no use: with a newer good version, and with the next login. Alerts are not
    raised again.
    """
    world = World(broker, fresh_name("history"), str(tmp_path / "checkpoint"))
    history, topic = world.reader(world.names.history), world.names.policies[LOOKS_BACK]
    world.publish(group("readers", "user:dana"))
    good = world.publish(role("readers", ORDERS))
    world.publish_to(topic, "Organization/shop", _organization())
    shared = world.publish_to(topic, "Object/pipeline:orders", _pipeline("miguel"))
    with running(world.settings):
        _log_in(world)
        assert (_may_dana_read(world, "good"), _may_miguel_view(world, "shared")) == (True, True)
        world.publish(b"{broken", key="Role/readers")
        world.publish_to(topic, "Object/pipeline:orders", _pipeline())
        assert (_may_dana_read(world, "broken"), _may_miguel_view(world, "withdrawn")) == (True, True)
        role_key, object_key = f"{SYSTEM}/Role/readers", f"{LOOKS_BACK}/Object/pipeline:orders"
        kept_role, kept_object = f"{role_key}/{good}".encode(), f"{object_key}/{shared}".encode()
        assert _history_of(history, role_key, 1) == [(kept_role, role("readers", ORDERS))]
        assert [key for key, _ in _history_of(history, object_key, 1)] == [kept_object]
    _compact(world, world.policies, role("filler", ORDERS), gone=good)
    _compact(world, topic, _organization("filler"), gone=shared)
    with running(world.settings):
        assert (_may_dana_read(world, "restarted"), _may_miguel_view(world, "restarted")) == (True, True)
        world.publish(role("readers", "kafka:topic:prod/main/other"))
        _log_in(world)
        assert (_may_dana_read(world, "replaced"), _may_miguel_view(world, "logged-in")) == (False, False)
        assert _history_of(history, role_key, 2)[1:] == [(kept_role, None)]
        assert _history_of(history, object_key, 2)[1:] == [(kept_object, None)]
        kinds = [alert["kind"] for alert in world.everything(world.names.alerts)]
        assert kinds.count("policy-rejected") == 1


@pytest.mark.long
def test_what_compaction_took_before_a_job_had_read_the_refused_version_after_it_allows_nobody(
    broker: TestBroker, fresh_name: Callable[[str], str], tmp_path: Path
) -> None:
    """No job ran for longer than the lag. Who is a member of the group that was denied is not known any more."""
    world = World(broker, fresh_name("unread"), str(tmp_path / "checkpoint"))
    world.publish(group("readers", "user:dana", "user:eve"))
    world.publish(role("readers", ORDERS))
    world.publish(role("blocked", ORDERS, effect="deny"))
    denied = world.publish(group("blocked", "user:dana"))
    with running(world.settings):
        assert [_ask(world, request(f"before-{user}", user, "orders")) for user in ("dana", "eve")] == [False, True]
    world.publish({"system": SYSTEM, "kind": "Group", "name": "blocked", "spec": {"wrong": 1}})
    _compact(world, world.policies, role("filler", ORDERS), gone=denied)
    by_a_server = {(topic, 0): sys.maxsize for topic in document_topics(world.names)}  # whose alerts a job has written
    assert _outcome_after_long(world, by_a_server) == "error"
    assert _outcome_after_long(world, {}, writes=True) == "error"
    assert _outcome_after_long(world, by_a_server) == "error", "also once a job has read the refused version"
    with running(world.settings):
        for user in ("dana", "eve"):
            decisions = world.reader(world.names.decisions)
            world.send([request(f"after-{user}", user, "orders")])
            assert decisions.answer(f"after-{user}", 60)["context"]["outcome"] == "error"
        world.publish(group("blocked", "user:dana"))
        assert [_ask(world, request(f"corrected-{user}", user, "orders")) for user in ("dana", "eve")] == [False, True]


def _outcome_after_long(world: World, published: dict[Partition, int], writes: bool = False) -> str:
    """Dana's answer by the policies that are read when all records are older than the lag, as by topics without one.

    `writes`: as a job does, what the history topic must keep.
    """
    logs = find_logs(world.admin, document_topics(world.names), [world.names.history])
    with contextlib.closing(Policies(world.settings, published, logs=logs)) as policies:
        policies.catch_up(60)
        for topic, key, value, headers in policies.pending() if writes else ():
            world.producer.produce(topic, value, key, headers=headers)
        assert world.producer.flush(30) == 0
        asked = request("dana-later", "dana", "orders", time=time.time_ns() // 1_000_000)
        return decide(policies.snapshot, asked).outcome


@pytest.mark.long
def test_what_a_fact_changes_is_not_answered_as_before_where_it_could_not_be_sent_at_once(
    broker: TestBroker, fresh_name: Callable[[str], str], tmp_path: Path
) -> None:
    """The batch is tried again. Java answered what is known as before the login: with what was withdrawn since then."""
    port = MetricsSettings(port=free_port())
    world = World(broker, fresh_name("unsent"), str(tmp_path / "checkpoint"), metrics=port)
    topic = world.names.policies[LOOKS_BACK]
    world.publish_to(topic, "Organization/shop", _organization())
    world.publish_to(topic, "Object/pipeline:orders", _pipeline("miguel"))
    _log_in(world)
    job = Run(world.settings, tmp_path)
    try:
        job.await_ready()
        assert _may_miguel_view(world, "shared")
        world.publish_to(topic, "Object/pipeline:orders", _pipeline())
        assert all(_may_miguel_view(world, f"withdrawn-{number}") for number in range(3)), "as at the login"
        (tmp_path / "facts-not-sent").touch()
        _log_in(world)
        assert not _may_miguel_view(world, "logged-in")
        assert not (tmp_path / "facts-not-sent").exists()
        (tmp_path / "facts-sent").unlink()
        _log_in(world)
        wait_until((tmp_path / "facts-sent").exists, "changes are not held until there is a request")
        assert job.end() == 0, job.log()
    finally:
        job.kill()
