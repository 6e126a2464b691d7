"""What compaction takes from a policy topic is kept on the history topic: a restart gives the same answers."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from tests.brokers import TestBroker
from tests.stream.running import running
from tests.stream.world import LOOKS_BACK, World, group, request, role
from tests.waiting import wait_until

pytestmark = pytest.mark.stream

ORDERS = "kafka:topic:prod/main/orders"
COMPACT_NOW = {"min.compaction.lag.ms": "0", "segment.ms": "1", "min.cleanable.dirty.ratio": "0.0"}
PROMISED = {"min.compaction.lag.ms": str(7 * 24 * 60 * 60 * 1000), "segment.ms": "604800000"}


def _configure(world: World, topic: str, settings: dict[str, str]) -> None:
    entries = [ConfigEntry(name, text, incremental_operation=AlterConfigOpType.SET) for name, text in settings.items()]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    world.admin.incremental_alter_configs([resource])[resource].result(30)


def _compact(world: World, topic: str, filler: dict[str, Any], gone: int) -> None:
    """Make the broker compact a policy topic for real, until the record at an offset is gone."""
    _configure(world, topic, COMPACT_NOW)

    def is_gone() -> bool:
        # Each record may close the segment before it; only closed ones are compacted.
        last = world.publish_to(topic, f"{filler['kind']}/{filler['name']}", filler)
        reader = world.reader(topic)
        found = reader.until(lambda seen: bool(seen) and seen[-1].offset() >= last, "the end of the policy topic")
        return all(message.offset() != gone for message in found)

    wait_until(is_gone, f"offset {gone} of the policy topic is compacted away", 90)
    _configure(world, topic, PROMISED)


def _answer(world: World, id_: str) -> bool:
    return _answer_to(world, request(id_, "dana", "orders"))


def _answer_to(world: World, asked: dict[str, Any]) -> bool:
    decisions = world.reader(world.names.decisions)
    world.send([asked])
    return bool(decisions.answer(asked["id"], 60)["decision"])


def test_the_last_good_version_of_a_refused_document_outlives_compaction_and_a_restart(
    broker: TestBroker, fresh_name: Callable[[str], str], tmp_path: Path
) -> None:
    """And it leaves the history once a newer good version makes it useless; alerts are not raised again."""
    world = World(broker, fresh_name("history"), str(tmp_path / "checkpoint"))
    history = world.reader(world.names.history)
    world.publish(group("readers", "user:dana"))
    good = world.publish(role("readers", ORDERS))
    with running(world.settings):
        assert _answer(world, "good") is True
        world.publish(b"{broken", key="Role/readers")
        kept = history.until(lambda seen: bool(seen), "the good version on the history topic")
        assert kept[0].key() == f"lenses6/Role/readers/{good}".encode()
        assert json.loads(kept[0].value()) == role("readers", ORDERS)
        assert _answer(world, "broken") is True
    _compact(world, world.policies, role("filler", ORDERS), gone=good)
    with running(world.settings):
        assert _answer(world, "restarted") is True
        world.publish(role("readers", "kafka:topic:prod/main/other"))
        assert _answer(world, "replaced") is False
        removed = history.until(lambda seen: len(seen) >= 2, "the good version is removed from the history")
        assert (removed[1].key(), removed[1].value()) == (kept[0].key(), None)
        assert len(world.everything(world.names.alerts)) == 1


def _pipeline(*readers: str) -> dict[str, Any]:
    acl = {f"user:{reader}": ["READ"] for reader in readers}
    spec = {"type": "pipeline", "owner": "rita", "organization": "shop", "acl": acl}
    return {"system": LOOKS_BACK, "kind": "Object", "name": "pipeline:orders", "spec": spec}


def _organization(name: str = "shop") -> dict[str, Any]:
    return {"system": LOOKS_BACK, "kind": "Organization", "name": name, "spec": {"enforcement": True}}


def _may_miguel_view(world: World, id_: str) -> bool:
    asked = request(id_, "miguel", "orders", system=LOOKS_BACK, action={"name": "pipeline.view"})
    subject = {"type": "user", "id": "miguel", "properties": {"organization": "shop"}}
    return _answer_to(world, asked | {"subject": subject, "resource": {"type": "pipeline", "id": "pipeline:orders"}})


def _log_in(world: World) -> None:
    session = {"system": LOOKS_BACK, "kind": "Session", "name": "miguel", "spec": {"login_at": time.time_ns() // 10**6}}
    world.publish_to(world.names.facts, f"{LOOKS_BACK}/Session/miguel", session)


def test_what_a_user_held_at_his_login_outlives_compaction_and_a_restart(
    broker: TestBroker, fresh_name: Callable[[str], str], tmp_path: Path
) -> None:
    """SS-LOGIN in the stream: change, compact, restart, same answers; the next login ends it, and the history."""
    world = World(broker, fresh_name("login"), str(tmp_path / "checkpoint"))
    topic = world.names.policies[LOOKS_BACK]
    history = world.reader(world.names.history)
    world.publish_to(topic, "Organization/shop", _organization())
    shared = world.publish_to(topic, "Object/pipeline:orders", _pipeline("miguel"))
    with running(world.settings):
        _log_in(world)
        assert _may_miguel_view(world, "shared") is True
        world.publish_to(topic, "Object/pipeline:orders", _pipeline())
        assert _may_miguel_view(world, "withdrawn") is True
        [kept] = history.until(lambda seen: bool(seen), "the shared version on the history topic")
        assert kept.key() == f"{LOOKS_BACK}/Object/pipeline:orders/{shared}".encode()
    _compact(world, topic, _organization("filler"), gone=shared)
    with running(world.settings):
        assert _may_miguel_view(world, "restarted") is True
        _log_in(world)
        assert _may_miguel_view(world, "logged-in") is False
        removed = history.until(lambda seen: len(seen) >= 2, "the shared version is removed from the history")
        assert (removed[1].key(), removed[1].value()) == (kept.key(), None)
