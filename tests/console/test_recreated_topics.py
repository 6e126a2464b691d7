"""A topic that was deleted and created again is read from its beginning: its offsets name other records."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from streaming.console.alerts import AlertLog
from streaming.console.changes import ChangeLog
from streaming.console.recent import RecentDecisions
from streaming.records.registry import Deserializer, RegistryDown
from streaming.settings import SchemaRegistry
from tests.brokers import TestBroker
from tests.stream.world import SYSTEM, World

pytestmark = pytest.mark.stream

STATE = {"policy_offsets": {"p": {"0": 1}}, "policy_version": "sha256:1"}
BEFORE, AFTER = ["a", "b"], ["c", "d", "e"]  # more than before: the new topic ends beyond the offset that was read


@pytest.fixture
def world(broker: TestBroker, tmp_path: Path) -> World:
    return World(broker, f"recreated-{time.time_ns()}", (tmp_path / "checkpoint").as_uri())


def _alert(name: str) -> dict[str, Any]:
    return {"id": name, "kind": "denial-burst", "severity": "low", "time": "t", "subject": "user:a", "message": "m"}


def _change(name: str) -> dict[str, Any]:
    moments = {"time": "2026-11-28T10:00:00Z", "before": STATE, "after": STATE}
    return {"id": name, "system": SYSTEM, **moments, "documents": [], "documents_count": 0}


def _decision(name: str) -> dict[str, Any]:
    context = {"outcome": "allow", "policy_version": "sha256:1", "reasons": []}
    return {"id": name, "request_id": name, "system": SYSTEM, "time": name, "context": context}


def _alerts(world: World) -> Callable[[], list[str]]:
    log = AlertLog(world.settings, world.admin)
    return lambda: [episode.alert.id for episode in reversed(log.episodes())]


def _changes(world: World) -> Callable[[], list[str]]:
    log = ChangeLog(world.settings, world.admin)
    return lambda: [change.id for change in log.history().changes]


def _decisions(world: World) -> Callable[[], list[str]]:
    log = RecentDecisions(world.settings, world.admin)
    return lambda: [decision.time for decision in reversed(log.newest()[0])]


KINDS = [("alerts", _alert, _alerts), ("changes", _change, _changes), ("decisions", _decision, _decisions)]


@pytest.mark.parametrize(("field", "record_of", "reader_of"), KINDS, ids=[name for name, *_ in KINDS])
def test_what_was_read_of_the_topic_before_is_gone_and_nothing_of_the_new_one_is_left_out(
    world: World,
    field: str,
    record_of: Callable[[str], dict[str, Any]],
    reader_of: Callable[[World], Callable[[], list[str]]],
) -> None:
    topic, read = getattr(world.names, field), reader_of(world)

    def write(names: list[str]) -> None:
        for name in names:
            world.producer.produce(topic, json.dumps(record_of(name)).encode(), partition=0)
        assert world.producer.flush(30) == 0

    write(BEFORE)
    assert read() == BEFORE
    world.recreate(topic)
    write(AFTER)
    assert read() == AFTER
    write(BEFORE)
    assert read() == [*AFTER, *BEFORE]


def test_an_alert_is_counted_once_also_where_a_later_record_cannot_be_read_yet(world: World) -> None:
    topic = world.names.alerts
    world.producer.produce(topic, json.dumps(_alert("a")).encode(), partition=0)
    world.producer.produce(topic, b"\x00\x00\x00\x00\x07avro", partition=0)
    assert world.producer.flush(30) == 0
    away = msgspec.structs.replace(world.settings, schema_registry=SchemaRegistry("http://localhost:1"))
    log = AlertLog(away, world.admin)
    for _ in range(3):
        with pytest.raises(RegistryDown):
            log.episodes()
    log._deserializer = Deserializer(SchemaRegistry())  # without a registry it is no alert
    assert [(episode.alert.id, episode.alerts) for episode in log.episodes()] == [("a", 1)]
    assert log.unreadable == 1


def test_records_of_changes_that_cannot_be_read_are_counted_as_those_of_alerts_are(world: World) -> None:
    """A list that leaves them out says so: who changed policies stands in one of them, perhaps."""
    for value in (json.dumps(_change("a")).encode(), b"junk", None, json.dumps({"id": 1}).encode()):
        world.producer.produce(world.names.changes, value, partition=0)
    assert world.producer.flush(30) == 0
    log = ChangeLog(world.settings, world.admin)
    assert [change.id for change in log.history().changes] == ["a"]
    assert log.unreadable == 3
