"""What compaction takes from a policy topic is kept on the history topic: a restart gives the same answers."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from tests.brokers import TestBroker
from tests.stream.running import running
from tests.stream.world import World, group, request, role
from tests.waiting import wait_until

pytestmark = pytest.mark.stream

ORDERS = "kafka:topic:prod/main/orders"
COMPACT_NOW = {"min.compaction.lag.ms": "0", "segment.ms": "1", "min.cleanable.dirty.ratio": "0.0"}
PROMISED = {"min.compaction.lag.ms": str(7 * 24 * 60 * 60 * 1000), "segment.ms": "604800000"}


def _configure(world: World, settings: dict[str, str]) -> None:
    entries = [ConfigEntry(name, text, incremental_operation=AlterConfigOpType.SET) for name, text in settings.items()]
    resource = ConfigResource(ResourceType.TOPIC, world.policies, incremental_configs=entries)
    world.admin.incremental_alter_configs([resource])[resource].result(30)


def _compact(world: World, gone: int) -> None:
    """Make the broker compact the policy topic for real, until the record at an offset is gone."""
    _configure(world, COMPACT_NOW)

    def is_gone() -> bool:
        # Each record may close the segment before it; only closed ones are compacted.
        last = world.publish(role("filler", ORDERS))
        reader = world.reader(world.policies)
        found = reader.until(lambda seen: bool(seen) and seen[-1].offset() >= last, "the end of the policy topic")
        return all(message.offset() != gone for message in found)

    wait_until(is_gone, f"offset {gone} of the policy topic is compacted away", 90)
    _configure(world, PROMISED)


def _answer(world: World, id_: str) -> bool:
    decisions = world.reader(world.names.decisions)
    world.send([request(id_, "dana", "orders")])
    return bool(decisions.answer(id_, 60)["decision"])


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
    _compact(world, gone=good)
    with running(world.settings):
        assert _answer(world, "restarted") is True
        world.publish(role("readers", "kafka:topic:prod/main/other"))
        assert _answer(world, "replaced") is False
        removed = history.until(lambda seen: len(seen) >= 2, "the good version is removed from the history")
        assert (removed[1].key(), removed[1].value()) == (kept[0].key(), None)
        assert len(world.everything(world.names.alerts)) == 1
