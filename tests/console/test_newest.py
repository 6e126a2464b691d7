"""The newest decisions first: walking back page by page leaves none out and shows none twice."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition

from policy import compile_documents, to_text
from streaming.console import records
from streaming.console.console import FILTERS, _row
from streaming.console.listing import Listing
from streaming.console.pages import Pages, StaticFiles
from streaming.console.records import NoSuchDecision, Records
from streaming.console.viewer import EVERYTHING, Viewer
from streaming.decision_log.newest import FIRST_READ, NewestDecisions, newest
from streaming.decision_log.replay import find_by_id
from streaming.decision_log.search import Query
from streaming.history.span import Span
from streaming.kafka.clients import topic_ids
from tests.brokers import TestBroker
from tests.stream.world import SYSTEM, World, request

pytestmark = pytest.mark.stream

COUNT = 3000
BEGIN = 1_700_000_000_000


def _decision(number: int) -> dict[str, Any]:
    outcome = "deny" if number % 100 == 0 else "allow"
    subject, resource = {"type": "user", "id": f"user:{number}"}, {"type": "topic", "id": "t"}
    reason = {"code": "granted", "message": "", "document": f"lenses6/Role/r{number % 2}"}
    asked = {"subject": subject, "action": {"name": "read"}, "resource": resource}
    context = {"outcome": outcome, "request": asked, "reasons": [reason]}
    at = to_text(BEGIN + number)
    return {"id": f"d-{number}", "request_id": f"r-{number}", "system": "lenses6", "time": at, "context": context}


@pytest.fixture(scope="module")
def world(broker: TestBroker, tmp_path_factory: pytest.TempPathFactory) -> World:
    """Decisions over two partitions, three of them in each millisecond."""
    found = World(broker, f"newest-{time.time_ns()}", (tmp_path_factory.mktemp("job") / "checkpoint").as_uri())
    for number in range(COUNT):
        value = json.dumps(_decision(number)).encode()
        at = BEGIN + number // 3
        found.producer.produce(found.names.decisions, value, partition=number % 7 % 2, timestamp=at)
    assert found.producer.flush(30) == 0
    return found


def _page(world: World, limit: int, end: int = BEGIN + COUNT, **wanted: str) -> NewestDecisions:
    return newest(world.settings, world.admin, Query(Span(0, end), limit=limit, **wanted), seconds=30.0)


def test_pages_have_every_decision_once_newest_first(world: World) -> None:
    seen: list[str] = []
    end: int | None = BEGIN + COUNT
    while end is not None:
        page = _page(world, 400, end)
        moments = [one.record.at for one in page.found]
        assert moments == sorted(moments, reverse=True)
        seen += [one.decision["id"] for one in page.found]
        assert page.read_from is None or page.read_from < end
        end = page.read_from
    assert len(seen) == COUNT
    assert set(seen) == {f"d-{number}" for number in range(COUNT)}


def test_what_a_page_has_no_room_for_of_one_moment_is_counted_and_said(
    world: World, broker: TestBroker, fresh_name: Callable[[str], str], tmp_path: Path
) -> None:
    """A batch is written in some milliseconds; the next page begins before the moment, so nobody would miss them."""
    crowded = World(broker, fresh_name("crowded"), str(tmp_path / "checkpoint"))
    for number in range(40):
        value = json.dumps(_decision(number)).encode()
        crowded.producer.produce(crowded.names.decisions, value, partition=number % 2, timestamp=BEGIN)
    assert crowded.producer.flush(30) == 0
    page = _page(crowded, 3)
    assert (len(page.found), page.left_out, page.read_from) == (30, 10, BEGIN)
    assert _page(world, 400).left_out == 0
    listing = Listing(list(page.found), to_text(BEGIN), "/decisions", left_out=page.left_out)
    values = listing.values(dict.fromkeys(FILTERS, ""), lambda entry: _row(entry.decision))
    shown = Pages(StaticFiles()).render(
        "decisions.html.j2", here="/decisions", viewer=EVERYTHING, systems=[], old=None, **values
    )
    assert "10 more of the same millisecond" in shown


def test_what_is_rare_is_found_further_back(world: World) -> None:
    denied = Query(Span(0, BEGIN + COUNT), outcome="deny", limit=20)
    found = newest(world.settings, world.admin, denied, seconds=30.0).found
    assert [one.decision["id"] for one in found] == [f"d-{2900 - 100 * number}" for number in range(20)]


def test_the_fields_beside_the_query_count(world: World) -> None:
    assert [one.decision["id"] for one in _page(world, 5, request_id="r-7").found] == ["d-7"]
    assert {one.decision["id"][-1] for one in _page(world, 50, document="lenses6/Role/r1").found} == set("13579")
    assert _page(world, 5, system="cdap").found == ()


def test_a_reading_that_takes_too_long_ends_and_says_how_far_it_came(world: World) -> None:
    page = newest(world.settings, world.admin, Query(Span(0, BEGIN + COUNT), subject="nobody"), seconds=0.0)
    assert page.found == ()
    assert page.read_from is not None
    assert BEGIN < page.read_from < BEGIN + COUNT // 3


def test_what_lies_before_an_aborted_batch_is_found(
    broker: TestBroker, fresh_name: Callable[[str], str], tmp_path: Path
) -> None:
    aborted = World(broker, fresh_name("aborted"), str(tmp_path / "checkpoint"))
    servers, topic = {"bootstrap.servers": aborted.settings.bootstrap_servers}, aborted.names.decisions
    producer = Producer({**servers, "transactional.id": fresh_name("aborts")})
    producer.init_transactions(30)
    producer.begin_transaction()
    for number in range(300):
        value = json.dumps(_decision(number)).encode()
        producer.produce(topic, value, partition=number // 150, timestamp=BEGIN + number)
    producer.commit_transaction(30)
    producer.begin_transaction()
    for _ in range(3 * FIRST_READ):
        producer.produce(topic, b"{}", partition=1, timestamp=BEGIN + 999)
    producer.flush(30)
    producer.abort_transaction(30)
    page = newest(aborted.settings, aborted.admin, Query(Span(0, 2 * BEGIN), limit=20), seconds=0.0)
    assert [one.decision["id"] for one in page.found] == [f"d-{number}" for number in range(299, 279, -1)]


def _pages(world: World, limit: int, end: int) -> list[str]:
    """The decisions of all pages, as somebody sees them who goes back to the beginning."""
    seen: list[str] = []
    until: int | None = end
    while until is not None:
        page = newest(world.settings, world.admin, Query(Span(0, until), limit=limit), seconds=0.3)
        seen += [one.decision["id"] for one in page.found]
        assert page.read_from is None or page.read_from < until
        until = page.read_from
    return seen


@pytest.mark.parametrize("late", [5, 120])
def test_pages_have_every_decision_also_where_records_are_late(
    broker: TestBroker, fresh_name: Callable[[str], str], tmp_path: Path, late: int
) -> None:
    """Two tasks write into one partition in turns: the second's records are older than the first's before them."""
    disordered = World(broker, fresh_name("late"), str(tmp_path / "checkpoint"))
    count = 2400
    turns = [(number // late * late + late - 1 - number % late) for number in range(count)]
    for number in turns:
        value = json.dumps(_decision(number)).encode()
        disordered.producer.produce(disordered.names.decisions, value, partition=0, timestamp=BEGIN + number)
    assert disordered.producer.flush(30) == 0
    seen = _pages(disordered, 50, BEGIN + count)
    assert sorted(seen) == sorted(f"d-{number}" for number in range(count))


def test_what_retention_has_deleted_is_said_and_what_cannot_be_read_is_counted(
    broker: TestBroker, fresh_name: Callable[[str], str], tmp_path: Path
) -> None:
    cut = World(broker, fresh_name("cut"), str(tmp_path / "checkpoint"))
    assert newest(cut.settings, cut.admin, Query(Span(0, 2 * BEGIN))) == NewestDecisions(())
    for number in range(10):
        value = json.dumps(_decision(number)).encode()
        cut.producer.produce(cut.names.decisions, value, partition=0, timestamp=BEGIN + number)
    cut.producer.produce(cut.names.decisions, b"\x00\x00\x00\x00\x07avro", partition=0, timestamp=BEGIN + 10)
    assert cut.producer.flush(30) == 0
    whole = newest(cut.settings, cut.admin, Query(Span(0, 2 * BEGIN)))
    assert (len(whole.found), whole.kept_from, whole.unreadable) == (10, None, 1)
    [deleted] = cut.admin.delete_records([TopicPartition(cut.names.decisions, 0, 4)]).values()
    deleted.result(30)
    asked = Query(Span(0, 2 * BEGIN), subject="user:1")
    assert newest(cut.settings, cut.admin, asked) == NewestDecisions((), None, BEGIN + 4, 1)
    assert newest(cut.settings, cut.admin, Query(Span(BEGIN + 4, 2 * BEGIN))).kept_from is None


def test_a_decision_is_found_by_its_id_where_the_clock_of_the_job_is_late(
    broker: TestBroker, fresh_name: Callable[[str], str], tmp_path: Path
) -> None:
    """It dates its decisions, and the broker their requests. What is no id of a decision is not looked for at all."""
    late = World(broker, fresh_name("clock"), str(tmp_path / "checkpoint"))
    [topic] = late.names.requests[:1]
    late.send([request("r", "dana", "orders")], partition=0)
    id_ = f"{topic_ids(late.admin, [topic])[topic]}-0-0"
    ten_minutes_ago = time.time_ns() // 1_000_000 - 600_000
    value = json.dumps({**_decision(1), "id": id_}).encode()
    late.producer.produce(late.names.decisions, value, timestamp=ten_minutes_ago)
    late.producer.produce(late.names.decisions, json.dumps(_decision(2)).encode())
    assert late.producer.flush(30) == 0
    decided = find_by_id(late.settings, late.admin, id_).entry
    assert decided is not None
    assert decided.decision["id"] == id_
    assert find_by_id(late.settings, late.admin, f"{id_}9").entry is None
    with pytest.raises(NoSuchDecision):
        Records(late.settings, late.admin).explained("d-2", compile_documents([]), EVERYTHING)


@pytest.fixture
def decisions_by_id(broker: TestBroker, fresh_name: Callable[[str], str], tmp_path: Path) -> World:
    """A request, its decision among others, and decisions of a topic that is no longer there."""
    world = World(broker, fresh_name("by-id"), str(tmp_path / "checkpoint"))
    world.send([request("r", "dana", "orders")], partition=0)
    now = time.time_ns() // 1_000_000
    for number in range(100):
        value = json.dumps({**_decision(number), "id": _of_other_topic(number)}).encode()
        world.producer.produce(world.names.decisions, value, partition=number % 2, timestamp=now - 600_000 + number)
    value = json.dumps({**_decision(1), "id": _id_of(world)}).encode()
    world.producer.produce(world.names.decisions, value, partition=0, timestamp=now + 1000)
    assert world.producer.flush(30) == 0
    return world


def _id_of(world: World) -> str:
    [topic] = world.names.requests[:1]
    return f"{topic_ids(world.admin, [topic])[topic]}-0-0"


def _of_other_topic(number: int) -> str:
    return f"{'A' * 22}-0-{number}"


@pytest.mark.parametrize(("number", "most", "is_found", "is_whole"), [(0, 20, 0, 0), (99, 20, 1, 0), (0, 500, 1, 1)])
def test_of_a_topic_that_is_not_there_the_newest_decisions_are_looked_through(
    decisions_by_id: World, number: int, most: int, is_found: int, is_whole: int
) -> None:
    """When its request came is not known: else the whole topic was read, while other pages waited."""
    lookup = find_by_id(decisions_by_id.settings, decisions_by_id.admin, _of_other_topic(number), most)
    assert (lookup.entry is not None, lookup.is_whole, lookup.is_dated) == (bool(is_found), bool(is_whole), False)
    assert find_by_id(decisions_by_id.settings, decisions_by_id.admin, _of_other_topic(number)).entry is not None


def test_each_decision_is_looked_at_once(decisions_by_id: World) -> None:
    read = list[str]()

    def is_seen(system: str) -> bool:
        read.append(system)
        return False

    lookup = find_by_id(decisions_by_id.settings, decisions_by_id.admin, _id_of(decisions_by_id), None, is_seen)
    assert (lookup.entry, lookup.is_whole, lookup.is_dated) == (None, True, True)
    assert read == [SYSTEM]


def test_what_was_not_searched_is_said_and_the_same_of_a_decision_that_is_not_seen(
    decisions_by_id: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "MOST_BY_ID", 20)

    def message_for(id_: str, viewer: Viewer) -> str:
        with pytest.raises(NoSuchDecision) as error:
            Records(decisions_by_id.settings, decisions_by_id.admin).explained(id_, compile_documents([]), viewer)
        return str(error.value).replace(id_, "ID")

    of_others = Viewer("carl", frozenset({"cdap"}))
    not_there = message_for(_of_other_topic(1000), EVERYTHING)
    assert "not among the newest 20 decisions" in not_there
    assert "`lockkeeper explain --decision ID`" in not_there
    assert {message_for(_of_other_topic(number), of_others) for number in (99, 1000)} == {not_there}
    assert "next to its request" in message_for(_id_of(decisions_by_id), of_others)
