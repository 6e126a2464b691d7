"""Alerts of the policies themselves: what a change opens, what is not enforced or cannot be read. Each is one alert."""

import contextlib
import json
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer

from policy import to_ms
from streaming.commit.offsets import read_committed
from streaming.kafka.clients import group_observer
from streaming.kafka.publish import publish
from streaming.kafka.reader import document_topics
from streaming.records.formats import Result
from streaming.snapshots.alerts import StaleWatch
from tests.brokers import TestBroker
from tests.stream.running import Job, running
from tests.stream.world import LOOKS_BACK, SYSTEM, World, group, role
from tests.waiting import wait_until

pytestmark = pytest.mark.stream

EVERYTHING = {"effect": "allow", "action": "*", "resource": "*"}
STATEMENTS, MEMBERS = 45, 5_000  # of a large change: seconds of analysis, of which one analysis may take two
LARGE_CHANGES = 20  # at most, until the job is killed during an analysis
ADMIN = {"system": SYSTEM, "kind": "Role", "name": "admin", "spec": {"statements": [EVERYTHING]}}


def _organization(name: str, enforcement: bool) -> dict[str, Any]:
    return {"system": LOOKS_BACK, "kind": "Organization", "name": name, "spec": {"enforcement": enforcement}}


def _enforce(world: World, enforcement: bool) -> int:
    document = _organization("shop", enforcement)
    return world.publish_to(world.names.policies[LOOKS_BACK], "Organization/shop", document)


def _alerts(world: World, count: int) -> dict[str, dict[str, Any]]:
    """All alerts by id without its time, once there are so many; none may be there twice."""
    reader = world.reader(world.names.alerts)
    reader.until(lambda found: len(found) >= count, f"{count} alerts")
    found = [json.loads(message.value()) for message in reader.to_the_end()]
    assert len(found) == count, [alert["message"] for alert in found]
    assert set(Counter(alert["id"] for alert in found).values()) <= {1}
    return {alert["id"].removesuffix(f"-{to_ms(alert['time'])}"): alert for alert in found}


def _changes_are_written(world: World) -> bool:
    found = [json.loads(message.value()) for message in world.reader(world.names.changes).to_the_end()]
    last = [record["id"] for record in found if "documents" in record][-1:]
    return any(last == record["changes"][-1:] for record in found if "widens" in record)


def _check_changes(world: World) -> None:
    """Each change is written once, in order: one begins where the last one ended; and what each widens, once."""
    found = [json.loads(message.value()) for message in world.reader(world.names.changes).to_the_end()]
    made, widens = ([record for record in found if ("widens" in record) == wanted] for wanted in (False, True))
    assert all(one["after"]["policy_offsets"] == two["before"]["policy_offsets"] for one, two in pairwise(made))
    assert set(made[0]["before"]["policy_offsets"][world.policies].values()) == {-1}
    assert made[-1]["after"]["policy_version"].startswith("sha256:")
    compared = [change for record in widens for change in record["changes"]]
    assert Counter(compared) == Counter(record["id"] for record in made[2:]), (
        "before the first start: one of each topic"
    )


def _role_of_many(name: str) -> dict[str, Any]:
    statements = [{**EVERYTHING, "resource": f"kafka:topic:{number}/*"} for number in range(STATEMENTS)]
    return {"system": SYSTEM, "kind": "Role", "name": name, "spec": {"statements": statements}}


def _unanalysed(world: World, observer: Consumer) -> tuple[int, ...]:
    """Where changes of the policies begin whose alerts are not written, by what is committed."""
    place = (world.policies, 0)
    metadata = read_committed(observer, [place])[place].metadata
    return (metadata and metadata.unanalysed) or ()


def _publish_until_unanalysed(world: World) -> list[int]:
    """Publish large changes until one is committed and not analysed; the offsets of the documents that open access.

    One may be analysed before it is committed, so the next is published then.
    """
    members, opened = [f"user:m{number}" for number in range(MEMBERS)], list[int]()
    with contextlib.closing(group_observer(world.settings)) as observer:
        for number in range(LARGE_CHANGES):
            name = f"many{number}"
            offsets = publish(world.settings, [_role_of_many(name), group(name, *members)])
            opened.append(offsets[world.policies]["0"])
            with contextlib.suppress(AssertionError):
                wait_until(lambda: _unanalysed(world, observer) != (), "an analysis under way", 2)
                return opened
    raise AssertionError(f"each of {LARGE_CHANGES} large changes was analysed before it was committed")


@contextlib.contextmanager
def _open_transaction(world: World) -> Iterator[None]:
    """Somebody's transaction on the policy topic that is not ended."""
    settings = {"bootstrap.servers": world.broker.bootstrap_servers, "transactional.id": f"{world.policies}-open"}
    producer = Producer(settings)
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(world.policies, json.dumps(role("late", "*")).encode(), b"Role/late")
    assert producer.flush(30) == 0
    yield
    producer.abort_transaction(30)


@pytest.mark.long
def test_what_changes_open_is_reported_once_over_kills_restarts_and_absence(
    broker: TestBroker, fresh_name: Callable[[str], str], tmp_path: Path
) -> None:
    """Old policies are no change; a change is one whether the job runs, is killed after it, or is away."""
    world = World(broker, fresh_name("changes"), str(tmp_path / "checkpoint"), policy_stale_seconds=1)
    changes, rejected, switch = (
        f"privilege-escalation-{world.policies}",
        f"policy-rejected-{world.policies}",
        f"enforcement-disabled-{world.names.policies[LOOKS_BACK]}",
    )
    world.publish(ADMIN)
    world.publish(group("admin", "user:dana"))
    off = _enforce(world, False)
    job = Job(world.settings)
    try:
        job.await_start()
        expected = {f"{switch}-{off}"}
        assert _alerts(world, 1).keys() == expected, "it enforces nothing, which is reported; the rest is the baseline"
        world.publish(group("admin", "user:dana"))
        erik = world.publish(group("admin", "user:dana", "user:erik"))
        expected.add(f"{changes}-{erik}")
        alert = _alerts(world, 2)[f"{changes}-{erik}"]
        assert alert["severity"] == "critical"
        assert "user:erik" in alert["message"]
        assert "user:dana" not in alert["message"]
        broken = world.publish(b"{broken", key="Role/admin")
        expected.add(f"{rejected}-{broken}")
        assert _alerts(world, 3).keys() == expected
        opened = _publish_until_unanalysed(world)
    finally:
        job.kill()
    expected |= {f"{changes}-{offset}" for offset in opened}
    with contextlib.closing(group_observer(world.settings)) as observer:
        assert _unanalysed(world, observer), "the next start must analyse it again"
    finn = world.publish(group("admin", "user:dana", "user:erik", "user:finn"))
    _enforce(world, True)
    expected.add(f"{changes}-{finn}")
    with running(world.settings):
        assert _alerts(world, len(expected)).keys() == expected
        with contextlib.closing(group_observer(world.settings)) as observer:
            wait_until(lambda: _unanalysed(world, observer) == (), "all changes are analysed")
        off = _enforce(world, False)
        expected.add(f"{switch}-{off}")
        assert _alerts(world, len(expected)).keys() == expected
        offsets = publish(world.settings, [{**ADMIN, "name": "root"}, group("root", "user:gina")])
        folder = f"{changes}-{offsets[world.policies]['0']}"
        expected.add(folder)
        assert _alerts(world, len(expected)).keys() == expected
        places = [item["document"] for item in _alerts(world, len(expected))[folder]["evidence"]]
        assert places[:2] == ["lenses6/Group/root", "lenses6/Role/root"]
        wait_until(lambda: _changes_are_written(world), "what the last change widens")
        _check_changes(world)
        with _open_transaction(world):
            stale = _alerts(world, len(expected) + 1).keys() - expected
        assert {id_.rpartition("-")[0] for id_ in stale} == {f"policy-stale-{world.policies}-0"}


@pytest.fixture
def world(broker: TestBroker, fresh_name: Callable[[str], str], tmp_path: Path) -> World:
    """A world whose policies are stale after a quarter of a second."""
    return World(broker, fresh_name("stale"), str(tmp_path / "checkpoint"), policy_stale_seconds=0.25)


def test_a_transaction_left_open_is_reported_once_for_each_offset_where_it_stands(world: World) -> None:
    """Not at once, not twice, and not once it has ended."""
    world.publish(role("readers", "*"))
    watch = StaleWatch(world.admin, world.settings, [(world.policies, 0)])
    alerts: list[Result] = []

    def reports() -> bool:
        alerts.extend(watch.stuck())
        return bool(alerts)

    assert watch.stuck() == []
    for _ in range(2):
        with _open_transaction(world):
            assert watch.stuck() == [], "it may yet end in time"
            wait_until(reports, "an alert")
            assert len(alerts) == 1
            assert watch.stuck() == []
        alert = json.loads(alerts.pop()[2] or b"")
        assert (alert["kind"], alert["severity"], alert["subject"]) == ("policy-stale", "critical", world.policies)
        assert "not ended" in alert["message"]


def test_topics_that_cannot_be_read_are_reported_after_the_bound_each_time(world: World) -> None:
    """Every documents' topic, with the reason; also where nothing was published between two outages."""
    positions = {(topic, 0): 0 for topic in document_topics(world.names)}
    watch = StaleWatch(world.admin, world.settings, positions, clock=lambda: 10_000.0)
    assert watch.unread(positions, since=10_000.0, why="no answer") == []
    alerts = watch.unread(positions, since=0, why="no answer")
    assert {json.loads(value or b"")["subject"] for _, _, value, _ in alerts} == {topic for topic, _ in positions}
    assert all("no answer" in json.loads(value or b"")["message"] for _, _, value, _ in alerts)
    again = watch.unread(positions, since=3600, why="no answer")
    assert len({json.loads(value or b"")["id"] for _, _, value, _ in (*alerts, *again)}) == 2 * len(positions)
