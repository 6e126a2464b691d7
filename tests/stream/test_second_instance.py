"""A second instance, which starts while the first one decides on: each request once, and no login is forgotten."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from streaming.settings import MetricsSettings, Settings
from streaming.settings.monitor import MonitorSettings, Rules
from tests.brokers import TestBroker, free_port
from tests.stream.running import START_SECONDS, running
from tests.stream.test_monitor import login
from tests.stream.test_outage import BACK_SECONDS, FENCED, Asked, Run
from tests.stream.world import LOOKS_BACK, World, group, request, role
from tests.waiting import wait_until

pytestmark = [pytest.mark.stream, pytest.mark.long]

SEPARATE = MonitorSettings(mode="separate", rules=Rules(grace_seconds=600.0))
"""It does not run here: no login becomes a fact. Nor, with this grace, does the driver write heartbeats to it: by one
the first instance would notice that it is fenced.
"""


@pytest.fixture
def world(broker: TestBroker, fresh_name: Callable[[str], str], tmp_path: Path) -> World:
    """A world where dana may read about orders, and nobody a pipeline."""
    settings: dict[str, Any] = {"monitor": SEPARATE, "master": "local[2]"}
    made = World(broker, fresh_name("second"), str(tmp_path / "checkpoint"), **settings)
    made.publish(role("readers", "kafka:topic:prod/main/orders"))
    made.publish(group("readers", "user:dana"))
    pipeline = {"type": "pipeline", "owner": "o", "acl": {}, "pipeline_kind": "data-collector", "connections": []}
    for kind, name, spec in (("Organization", "acme", {"enforcement": True}), ("Object", "pipeline:p", pipeline)):
        document = {"system": LOOKS_BACK, "kind": kind, "name": name, "spec": spec}
        made.publish_to(made.names.policies[LOOKS_BACK], f"{kind}/{name}", document)
    return made


def _run(settings: Settings, folder: Path, way: str) -> Run:
    """A job. `way`: see `outage_process`."""
    folder.mkdir()
    (folder / way).touch()
    return Run(msgspec.structs.replace(settings, metrics=MetricsSettings(port=free_port())), folder)


def _audited(world: World, event: dict[str, Any]) -> dict[str, Any]:
    """What becomes of an audit event."""
    [audit] = world.names.audit
    world.send([event], audit)
    records: list[dict[str, Any]] = []

    def concerns_event(messages: list[Any]) -> bool:
        values = (json.loads(message.value()) for message in messages)
        records[:] = [value for value in values if value.get("event_id") == event["id"]]
        return bool(records)

    world.reader(world.names.verdicts).until(concerns_event, f"what becomes of {event['id']}", BACK_SECONDS)
    return records[0]


@pytest.mark.parametrize(
    ("own_checkpoint", "first_ends"), [(True, True), (False, True), (False, False)], ids=["moved", "ended", "both"]
)
def test_it_goes_on_where_the_first_has_come_meanwhile(
    world: World, tmp_path: Path, own_checkpoint: bool, first_ends: bool
) -> None:
    """The first one decides on until its partitions are taken. With the same checkpoint, if it does not end, both
    propose the next batch: then the one that is fenced ends, and says so.
    """
    asked, settings = Asked(world), world.settings
    first = _run(settings, tmp_path / "first", "no-idle-commits")  # by which it would notice it, too
    if own_checkpoint:
        settings = msgspec.structs.replace(settings, checkpoint=str(tmp_path / "other"))
    second: Run | None = None
    try:
        first.await_ready()
        asked.send("before")
        asked.await_each_once()
        second = _run(settings, tmp_path / "second", "driver-written")
        wait_until((tmp_path / "second/paused").exists, "it has read the committed offsets", START_SECONDS)
        asked.send("meanwhile")
        asked.await_each_once()
        assert _audited(world, login("dana"))["event"] == "login"
        if first_ends:
            first.kill()
        second.go_on()
        second.await_ready()
        asked.send("after")
        asked.await_each_once()
        access = {**request("viewed", "", ""), "system": LOOKS_BACK, "outcome": "success"}
        access |= {"subject": {"type": "user", "id": "dana"}, "action": {"name": "pipeline.view"}}
        access |= {"resource": {"type": "pipeline", "id": "pipeline:p"}}
        assert _audited(world, access)["outcome"] == "unknown", "dana's login is no fact yet"
        if not first_ends:
            world.publish(role("others", "kafka:topic:prod/main/others"))  # which a driver writes down in a transaction
            assert first.process.wait(BACK_SECONDS) == FENCED, first.log()[-3000:]
        assert second.end() == 0, second.log()[-3000:]
    finally:
        first.kill()
        if second is not None:
            second.kill()


def test_one_that_finds_the_next_batch_proposed_by_another_goes_on_while_the_job_is_its_own(world: World) -> None:
    """Spark ends a query to whose checkpoint another one writes. Here that has proposed a batch without records."""
    asked = Asked(world)
    with running(world.settings):
        asked.send("before")
        asked.await_each_once()
        proposed = Path(world.settings.checkpoint, "offsets")
        wait_until(lambda: _newest(proposed) == _newest(proposed.with_name("commits")), "the batch is complete")
        newest = _newest(proposed)
        shutil.copy(proposed / str(newest), proposed / str(newest + 1))
        asked.send("after")
        asked.await_each_once()


def _newest(log: Path) -> int:
    """The newest batch in a log of Spark's."""
    return max(int(file.name) for file in log.iterdir() if file.name.isdigit())
