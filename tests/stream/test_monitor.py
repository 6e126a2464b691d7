"""The monitor with the real job: alerts and facts from audit events and decisions, each exactly once."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from streaming.monitor.rules import MonitorSettings, Rules
from tests.brokers import TestBroker
from tests.stream.running import running
from tests.stream.world import World, group, request, role
from tests.waiting import wait_until

pytestmark = pytest.mark.stream

QUICK = MonitorSettings(trigger_seconds=0.2, partitions=2, rules=Rules(grace_seconds=1.0, episode_seconds=3.0))


def happened(id_: str, user: str, topic: str, **more: Any) -> dict[str, Any]:
    """The user read the details of a topic."""
    return {**request(id_, user, topic), "outcome": "success", **more}


@pytest.fixture
def world(broker: TestBroker, fresh_name: Callable[[str], str], tmp_path: Path) -> World:
    """A world where readers, dana among them, may read about orders."""
    made = World(broker, fresh_name("watch"), str(tmp_path / "checkpoint"), monitor=QUICK)
    made.publish(role("readers", "kafka:topic:prod/main/orders"))
    made.publish(group("readers", "user:dana"))
    return made


def alerts_by_kind(world: World) -> Counter[tuple[str, str]]:
    """How many alerts (by id) there are of each kind and subject."""
    ids = {(alert["kind"], alert["subject"], alert["id"]) for alert in world.everything(world.names.alerts)}
    return Counter((kind, subject) for kind, subject, _ in ids)


def test_it_tells_apart_what_was_asked_for_what_was_denied_and_what_nobody_asked_for(world: World) -> None:
    [audit] = world.names.audit
    with running(world.settings):
        world.send([request("1", "dana", "orders"), request("2", "eve", "orders")])
        answers = world.reader(world.names.decisions)
        answers.until(lambda found: len(found) == 2, "both are decided")
        world.send([happened("a", "dana", "orders"), happened("a", "dana", "orders")], audit)
        world.send([happened("b", "eve", "orders"), happened("c", "dana", "orders", outcome="failure")], audit)
        world.send([happened("d", "dana", "payments"), b"no event"], audit)
        expected = Counter(
            {
                ("unauthorized-access", "user:eve"): 1,
                ("denied-but-done", "user:eve"): 1,
                ("unauthorized-access", "user:dana"): 1,
                ("unrequested-access", "user:dana"): 1,
            }
        )
        wait_until(lambda: alerts_by_kind(world) == expected, "the alerts of what should not be", 60)
    assert alerts_by_kind(world) == expected
    [letter] = world.reader(f"{audit}.dlq").to_the_end()
    assert letter.value() == b"no event"
