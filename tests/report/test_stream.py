"""`lockkeeper report` about what a real job decided, read from Kafka: exactly so much."""

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from confluent_kafka import TopicPartition

from policy.core.document import Key
from streaming.kafka.publish import publish
from streaming.topics import dead_letters_of
from tests.brokers import TestBroker
from tests.cli.lockkeeper import Command
from tests.stream.running import running
from tests.stream.world import World, group, request, role
from tests.waiting import wait_until

pytestmark = [pytest.mark.stream, pytest.mark.long]

ORDERS, CARTS = "kafka:topic:prod/main/orders", "kafka:topic:prod/main/carts"


def _pass_now() -> int:
    """A moment, ms, after all that happened before and before all that happens after."""
    moment = time.time_ns() // 1_000_000 + 1
    wait_until(lambda: time.time_ns() // 1_000_000 > moment, "the clock goes on")
    return moment


class Range:
    """A world in which something happened before, within and after a range."""

    def __init__(self, broker: TestBroker, folder: Path) -> None:
        self.world = World(broker, f"report-{time.time_ns()}", str(folder / "checkpoint"))
        self.config = folder / "lockkeeper.yaml"
        self.config.write_text(yaml.safe_dump(msgspec.to_builtins(self.world.settings)))
        with running(self.world.settings):
            self._before()
            self.start = _pass_now()
            self._within()
            self.end = _pass_now()
            self._after()

    def _before(self) -> None:
        documents = [
            role("readers", ORDERS),
            role("carts", CARTS),
            role("leaver", ORDERS),
            group("readers", "user:dana"),
        ]
        publish(self.world.settings, documents)
        self.world.send(request(f"before-{n}", "dana", "orders") for n in range(5))
        self._await(self.world.names.decisions, 5)

    def _within(self) -> None:
        """Two roles that say the same, one without members, one that is deleted, and one that is refused."""
        both = {**group("readers", "user:dana"), "spec": {"roles": ["readers", "twins"], "members": ["user:dana"]}}
        publish(self.world.settings, [role("twins", ORDERS), both], [Key("lenses6", "Role", "leaver")])
        self.world.publish({**role("carts", CARTS), "enforcment": True})
        asked = [request(f"allowed-{n}", "dana", "orders") for n in range(3)]
        asked += [request(f"eve-{n}", "eve", "orders") for n in range(4)]
        asked += [request(f"payments-{n}", "dana", "payments") for n in range(2)]
        asked += [{**request("error", "dana", "orders"), "system": "nothing"}]
        asked += [
            {**request("batch", "dana", "orders"), "evaluations": [{}, {"action": {"name": "kafka:DeleteTopic"}}]}
        ]
        self.world.send([*asked, b"no request", b"neither"])
        self._await(self.world.names.decisions, 5 + len(asked))
        self._await(dead_letters_of(self.world.names.requests[0]), 2)
        self._await(self.world.names.alerts, 1)

    def _after(self) -> None:
        self.world.send(request(f"after-{n}", "eve", "orders") for n in range(6))
        self._await(self.world.names.decisions, 5 + 11 + 6)
        self.world.publish(role("later", ORDERS))

    def _await(self, topic: str, count: int) -> None:
        self.world.reader(topic).until(lambda found: len(found) >= count, f"{count} records of {topic}")


@pytest.fixture(scope="module")
def happened(broker: TestBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Range]:
    """What one job decided for all tests here; it runs no more."""
    return Range(broker, tmp_path_factory.mktemp("report"))


@pytest.fixture
def lockkeeper(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """The command."""
    return Command(capsys, monkeypatch)


def _span(happened: Range) -> list[str]:
    return ["--from", str(happened.start), "--until", str(happened.end), "--config", str(happened.config)]


def _counts(ranking: dict[str, Any]) -> dict[str, int]:
    return {row["name"]: row["count"] for row in ranking["rows"]}


def test_the_numbers_are_those_of_the_range_and_no_others(lockkeeper: Command, happened: Range) -> None:
    shown = lockkeeper("report", *_span(happened), "--json")
    assert shown.code == 0, shown.err
    [numbers] = shown.records
    decisions, statements = numbers["decisions"], numbers["statements"]
    assert [decisions[name] for name in ("total", "allow", "deny", "error", "unreadable")] == [11, 3, 7, 1, 0]
    assert [system["system"] for system in decisions["systems"]] == ["lenses6", "other"]
    assert sum(sum(step) for system in decisions["systems"] for step in system["steps"]) == 11
    assert (numbers["denied"]["answers"], decisions["denied_answers"]) == (7, 7)
    assert numbers["denied"]["subjects"]["rows"] == [
        {"name": "user:eve", "count": 4},
        {"name": "user:dana", "count": 3},
    ]
    assert numbers["denied"]["resources"]["rows"] == [
        {"name": ORDERS, "count": 5},
        {"name": "kafka:topic:prod/main/payments", "count": 2},
    ]
    assert (statements["in_force"], statements["named"], statements["younger"]) == (4, 1, 1)
    assert [one["document"] for one in statements["unused"]] == ["lenses6/Role/carts"]
    assert [one["document"] for one in statements["redundant"]] == ["lenses6/Role/readers", "lenses6/Role/twins"]
    assert statements["replayed"] == {"requests": 11, "covered": 11, "questions": 5}
    assert [(kind["kind"], sum(kind["counts"])) for kind in numbers["alerts"]["kinds"]] == [("policy-rejected", 1)]
    changes = {change["document"]: change["manner"] for change in numbers["changes"]["newest"]}
    assert changes == {
        "lenses6/Role/carts": "refused",
        "lenses6/Role/leaver": "deleted",
        "lenses6/Role/twins": "added",
        "lenses6/Group/readers": "changed",
    }
    assert numbers["dead_letters"]["total"] == 2


def test_the_page_is_written_with_these_numbers(lockkeeper: Command, happened: Range, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    shown = lockkeeper("report", *_span(happened), "--out", str(out))
    assert (shown.code, shown.lines) == (0, [str(out)])
    cards = re.findall(r'<dt>(.*?)</dt><dd class="big">(.*?)</dd>', out.read_text())
    assert [number for _, number in cards] == ["11", "3", "7", "1", "1", "4", "1", "2"]
    assert list(tmp_path.iterdir()) == [out]


def test_a_range_without_anything_gives_a_page_that_says_so(
    lockkeeper: Command, happened: Range, tmp_path: Path
) -> None:
    out = tmp_path / "page.html"
    past = ["--from", "2020-01-01T00:00:00Z", "--until", "2020-02-01T00:00:00Z"]
    assert lockkeeper("report", *past, "--out", str(out), "--config", str(happened.config)).code == 0
    assert "Nothing was recorded in this range" in out.read_text()


def test_requests_that_are_gone_are_reported(lockkeeper: Command, happened: Range) -> None:
    """Their topic kept them for less long than the decisions."""
    topic = happened.world.names.requests[0]
    ends = [TopicPartition(topic, number, -1) for number in range(2)]
    for future in happened.world.admin.delete_records(ends).values():
        future.result(30)
    [numbers] = lockkeeper("report", *_span(happened), "--json").records
    assert (numbers["decisions"]["denied_answers"], numbers["denied"]["answers"]) == (7, 0)
    assert numbers["statements"]["replayed"]["requests"] == 0
    assert numbers["kept_from"] == {}, "the decisions are all there"


def test_decisions_that_are_gone_are_reported(lockkeeper: Command, happened: Range, tmp_path: Path) -> None:
    """Else the page says that nothing was decided then, and statements that decided are unused."""
    topic, out = happened.world.names.decisions, tmp_path / "page.html"
    [before] = lockkeeper("report", *_span(happened), "--json").records
    partitions = len(happened.world.admin.list_topics(topic).topics[topic].partitions)
    ends = [TopicPartition(topic, number, -1) for number in range(partitions)]
    for future in happened.world.admin.delete_records(ends).values():
        future.result(30)
    [numbers] = lockkeeper("report", *_span(happened), "--json", "--out", str(out)).records
    assert (before["decisions"]["total"], numbers["decisions"]["total"]) == (11, 0)
    assert numbers["kept_from"].keys() == {topic}
    assert "may have been deleted by its retention" in out.read_text()
