"""The newest decisions are read on from one look to the next, within a bound; viewers find those of their systems."""

import contextlib
import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from streaming.console import recent
from streaming.console.recent import RecentDecisions
from streaming.console.viewer import Viewer
from streaming.kafka.clients import last_stable_offsets
from streaming.settings import Settings
from streaming.topics import TopicNames
from tests.brokers import TestBroker
from tests.waiting import wait_until

pytestmark = pytest.mark.stream
EVERYTHING = Viewer()


def _decision(number: int, subject: str = "user:dana", system: str = "lenses6", **more: Any) -> dict[str, Any]:
    reasons = [{"code": "denied", "message": "m", "document": f"{system}/Role/r", "statement": number}]
    asked = {"action": {"name": "read"}, "resource": {"type": "topic", "id": "orders"}}
    context = {"outcome": "deny", "reasons": reasons, "request": {"subject": {"type": "user", "id": subject}, **asked}}
    return {"id": f"d-{number}", "system": system, "time": f"t-{number}", "context": context, **more}


class _Topic:
    """A topic of decisions with two partitions."""

    def __init__(self, broker: TestBroker, name: str) -> None:
        names = TopicNames(decisions=name)
        self.settings = Settings(bootstrap_servers=broker.bootstrap_servers, topics=names)
        self.admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        self.admin.create_topics([NewTopic(name, 2, 1)])[name].result(30)
        wait_until(self._is_ready, "the new topic can be read")

    def _is_ready(self) -> bool:
        with contextlib.suppress(KafkaException):
            name = self.settings.topics.decisions
            return len(last_stable_offsets(self.admin, [(name, 0), (name, 1)])) == 2
        return False

    def write(self, *decisions: dict[str, Any] | bytes, partition: int = 0, at: int = 0) -> None:
        producer = Producer({"bootstrap.servers": self.settings.bootstrap_servers})
        for number, decision in enumerate(decisions):
            value = decision if isinstance(decision, bytes) else json.dumps(decision).encode()
            producer.produce(self.settings.topics.decisions, value, partition=partition, timestamp=1000 + at + number)
        assert producer.flush(30) == 0


@pytest.fixture
def topic(broker: TestBroker, fresh_name: Callable[[str], str]) -> _Topic:
    return _Topic(broker, fresh_name("decisions"))


def _times(recent_decisions: RecentDecisions) -> list[str]:
    return [decision.time for decision in recent_decisions.newest()[0]]


def test_each_look_reads_what_was_decided_since_the_one_before(topic: _Topic) -> None:
    decisions = RecentDecisions(topic.settings, topic.admin)
    assert decisions.newest() == ([], None)
    topic.write(_decision(1), b"no decision", _decision(2))
    topic.write(_decision(3), partition=1, at=1)
    assert _times(decisions) == ["t-2", "t-3", "t-1"]
    topic.write(_decision(4), at=10)
    assert _times(decisions) == ["t-4", "t-2", "t-3", "t-1"]
    assert decisions.newest()[1] is None, "nothing was let go of"


def test_it_is_bounded_and_says_from_when_on_all_are_there(topic: _Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent, "MOST", 4)
    monkeypatch.setattr(recent, "FEWEST", 2)
    topic.write(*(_decision(number) for number in range(5)))
    topic.write(_decision(9), partition=1)
    newest, since = RecentDecisions(topic.settings, topic.admin).newest()
    assert [decision.time for decision in newest] == ["t-4"], "of the other partition is not known what came before"
    assert since == 1004
    decisions = RecentDecisions(topic.settings, topic.admin)
    decisions.newest()
    topic.write(_decision(5), _decision(6), at=5)
    assert decisions.newest()[1] == 1006


def test_viewers_find_those_of_a_subject_and_of_their_systems(topic: _Topic) -> None:
    item = {"context": _decision(7, "user:erik")["context"]}
    topic.write(_decision(1), _decision(2, "user:erik"), _decision(3, system="cdap"), _decision(4, evaluations=[item]))
    newest, _ = RecentDecisions(topic.settings, topic.admin).newest()

    def found(viewer: Viewer, subject: str = "", system: str = "") -> list[str]:
        return [decision.time for decision in newest if decision.fits(viewer, subject, system)]

    assert found(EVERYTHING) == ["t-4", "t-3", "t-2", "t-1"]
    assert found(EVERYTHING, "user:erik") == ["t-4", "t-2"], "one by an evaluation"
    assert found(EVERYTHING, "user:e*") == [], "it is a name, as in the rest of the page"
    assert found(EVERYTHING, system="cdap") == ["t-3"]
    assert found(Viewer("one", frozenset({"cdap"}))) == ["t-3"]
    assert newest[0].statements == (("lenses6/Role/r", 4), ("lenses6/Role/r", 7))


def test_what_retention_has_deleted_is_not_called_known(topic: _Topic) -> None:
    name = topic.settings.topics.decisions
    topic.write(*(_decision(number) for number in range(5)))
    topic.write(_decision(9), partition=1, at=9)

    def delete_before(partition: int, offset: int) -> None:
        [deleted] = topic.admin.delete_records([TopicPartition(name, partition, offset)]).values()
        deleted.result(30)

    delete_before(0, 2)
    newest, since = RecentDecisions(topic.settings, topic.admin).newest()
    assert [decision.time for decision in newest] == ["t-9", "t-4", "t-3"], "before the oldest there were others"
    assert since == 1003
    delete_before(0, 5)
    before = time.time_ns() // 1_000_000
    newest, since = RecentDecisions(topic.settings, topic.admin).newest()
    assert [decision.time for decision in newest] == ["t-9"]
    assert since is not None
    assert since >= before, "of the partition nothing is left, so nothing is known of what was decided"
