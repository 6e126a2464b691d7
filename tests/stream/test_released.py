"""What earlier versions left behind is taken up by today's job: nothing lost, duplicated or decided differently.

`tests/released/VERSION` holds what the job of that version left; `tests.stream.record_release` makes it.
"""

import json
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from policy.core.request import CLAIMS
from streaming.verify.cluster import verify
from tests.brokers import TestBroker
from tests.stream.releases import MONITOR_OFFSETS, RELEASES, denied_access, login, requests
from tests.stream.restore_release import restore
from tests.stream.running import running
from tests.stream.world import LOOKS_BACK, World

pytestmark = pytest.mark.stream

ACCESS_KINDS = ("unauthorized-access", "unrequested-access")
HOUR_MS = 3_600_000
VERSIONS = sorted(path.name for path in RELEASES.iterdir())


@pytest.mark.long
@pytest.mark.parametrize("version", VERSIONS)
def test_what_a_release_left_is_taken_up(
    version: str, broker: TestBroker, fresh_name: Callable[[str], str], tmp_path: Path
) -> None:
    """Its decisions stand, also of a batch that Spark plays again; what it left waiting is decided, by its history."""
    with_monitor = (RELEASES / version / MONITOR_OFFSETS).exists()
    world = restore(broker, fresh_name("released"), RELEASES / version, tmp_path / "checkpoint")
    dated = dict.fromkeys(world.names.audit, CLAIMS)  # whose logins have times of their own
    with running(msgspec.structs.replace(world.settings, trust={**world.settings.trust, **dated})):
        world.send(requests("new"))
        if with_monitor:
            _assert_the_monitor_remembers(world)
        world.await_no_lag()
    asked = {asked["id"] for prefix in ("decided", "replayed", "waiting", "new") for asked in requests(prefix)}
    decided = [decision for decision in world.everything(world.names.decisions) if decision["request_id"] in asked]
    assert Counter(decision["request_id"] for decision in decided) == Counter(asked)
    for decision in decided:
        assert decision["context"]["outcome"] == decision["request_id"].split("-")[1], decision
    assert len(world.everything(f"{world.names.requests[1]}.dlq")) == 1
    alerts = [alert["kind"] for alert in world.everything(world.names.alerts)]
    assert alerts.count("policy-rejected") == 1
    if with_monitor:  # its policy topic is whole, and the checker's own requests are there
        found = verify(world.settings)
        assert found.violations == []
        assert found.waiting == 0
        assert found.decisions > 2 * len(asked)


def _assert_the_monitor_remembers(world: World) -> None:
    """What it read before the upgrade is known by its state: an access is no news, an older login not the newest."""
    [audit], now = world.names.audit, time.time_ns() // 1_000_000
    [denied, *_] = (event for event in world.everything(audit) if event["id"] == "denied")
    older, known = login("older", "dana", denied["time"] - HOUR_MS), denied_access("denied", "mallory", denied["time"])
    world.send([known, older, denied_access("after", "trudy", now), login("after", "trudy", now)], audit)

    def alerts(seen: list[Any]) -> Counter[tuple[str, str]]:
        found = [json.loads(message.value()) for message in seen]
        return Counter((alert["kind"], alert["subject"]) for alert in found if alert["kind"] in ACCESS_KINDS)

    def logins(seen: list[Any]) -> Counter[str]:
        keys = (message.key().decode() for message in seen if message.value())
        return Counter(key for key in keys if key.endswith(("dana", "trudy")))

    dana, trudy = (f"{LOOKS_BACK}/Session/{name}" for name in ("dana", "trudy"))
    users = Counter({dana: 3, trudy: 1})  # the older one, for accesses of its time, and the newest once more
    expected = Counter({(kind, f"user:{name}"): 1 for kind in ACCESS_KINDS for name in ("mallory", "trudy")})
    raised = world.reader(world.names.alerts).until(lambda seen: alerts(seen) >= expected, "the alerts", 150)
    assert alerts(raised) == expected
    known = world.reader(world.names.facts).until(lambda seen: logins(seen) >= users, "the logins", 60)
    assert logins(known) == users
    [newest, _, again] = (message.value() for message in known if message.key() == dana.encode())
    assert newest == again
    verdicts = world.everything(world.names.verdicts)
    twice = [verdict for verdict in verdicts if verdict.get("event_id") == "denied"]
    assert [verdict["outcome"] for verdict in twice] == ["deny", "deny"], "it was reported twice"
