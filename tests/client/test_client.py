"""The client against a running job."""

import asyncio
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import NewPartitions

from streaming.client import (
    AccessDenied,
    AlertConsumer,
    AsyncClient,
    Client,
    Connection,
    DeadLetter,
    Decision,
    DecisionConsumer,
    PolicyPublisher,
    acting_as,
)
from streaming.client.connection import TopicConsumer
from streaming.client.records import request_record
from streaming.kafka.topics import create_topics
from streaming.topics import dead_letters_of
from tests.client.conftest import PATIENCE
from tests.stream.world import World, request, role
from tests.waiting import wait_until

pytestmark = pytest.mark.stream

DETAILS = "kafka:GetTopicDetails"
ORDERS = "kafka:topic:prod/main/orders"


def _short(user: str, **more: Any) -> Any:
    return {"system": "lenses6", "subject": f"user:{user}", "action": DETAILS, "resource": ORDERS, **more}


def test_a_decision_is_the_one_on_this_request(world: World, client: Client, user: str) -> None:
    offset = world.publish(role(user, ORDERS))
    allow = client.authorize(**_short(user, id=f"mine-{user}"))
    assert allow.allowed
    assert (allow.request_id, allow.system) == (f"mine-{user}", "lenses6")
    assert allow.reasons[0].document == f"lenses6/Role/{user}"
    assert allow.policy_offsets[world.policies]["0"] >= offset
    assert allow.source is not None
    assert allow.id.endswith(f"-{allow.source.partition}-{allow.source.offset}")
    deny = client.authorize(**_short(user, resource="kafka:topic:prod/main/other"))
    assert (deny.outcome, bool(deny)) == ("deny", False)
    assert deny.missing


def test_many_are_in_flight_at_once_and_each_gets_its_own_answer(world: World, client: Client, user: str) -> None:
    """From many threads with one id, and in one call: every second topic is allowed."""
    world.publish(role(user, *(f"kafka:topic:prod/main/{number}" for number in range(0, 100, 2))))
    topics = [f"kafka:topic:prod/main/{number}" for number in range(100)]
    many = client.authorize_many(({"resource": topic} for topic in topics), **_short(user))
    with ThreadPoolExecutor(20) as pool:
        one_id = list(pool.map(lambda topic: client.authorize(**_short(user, id="same", resource=topic)), topics))
    for decisions in (many, one_id):
        assert [decision.allowed for decision in decisions] == [number % 2 == 0 for number in range(100)]
        assert len({decision.source for decision in decisions}) == 100


def test_asyncio_has_many_in_flight_too(world: World, connection: Connection, user: str) -> None:
    world.publish(role(user, ORDERS))

    async def ask() -> list[Decision]:
        async with AsyncClient(connection, timeout=PATIENCE) as client:
            topics = [ORDERS, "kafka:topic:prod/main/other"] * 50
            first = await client.authorize(**_short(user))
            return [first, *await asyncio.gather(*(client.authorize(**_short(user, resource=t)) for t in topics))]

    assert [decision.allowed for decision in asyncio.run(ask())] == [True, *[True, False] * 50]


def test_several_questions_in_one_record_are_answered_in_order(world: World, client: Client, user: str) -> None:
    world.publish(role(user, ORDERS))
    items = [{}, {"resource": "kafka:topic:prod/main/other"}, {}]
    every = client.authorize(**_short(user, evaluations=items))
    assert [item.allowed for item in every.evaluations] == [True, False, True]
    assert not every
    first = client.authorize(**_short(user, evaluations=items, options={"evaluations_semantic": "deny_on_first_deny"}))
    assert [item.outcome for item in first.evaluations] == ["allow", "deny", "error"]


def test_what_the_job_refuses_is_an_error_that_says_why(client: Client) -> None:
    """A request that is none becomes a dead letter, and that is an answer."""
    decision = client.authorize({"system": "lenses6"})
    assert (decision.outcome, decision.code) == ("error", "dead-letter")
    assert "not a request" in str(decision)
    assert decision.source is not None


def test_an_answer_after_the_deadline_is_not_an_allow(world: World, client: Client, user: str) -> None:
    """The deadline is the timeout: the job itself says no to what it judges later."""
    world.publish(role(user, ORDERS))
    record = request_record(world.names.requests[0], None, 0.0, _short(user))
    pending = client._exchange.send(record)  # and wait longer for it than was said
    late = pending.future.result(PATIENCE)
    assert (late.outcome, late.code) == ("error", "deadline-exceeded")


def test_a_trace_is_carried(world: World, client: Client, user: str) -> None:
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    decision = client.authorize(**_short(user), traceparent=trace)
    found = world.reader(world.names.decisions).until(
        lambda seen: any(json.loads(m.value())["id"] == decision.id for m in seen), "the decision"
    )
    headers = next(dict(m.headers()) for m in found if json.loads(m.value())["id"] == decision.id)
    assert headers["traceparent"] == trace.encode()


def test_guarded_functions_and_blocks_run_when_allowed_alone(world: World, client: Client, user: str) -> None:
    world.publish(role(user, ORDERS))

    @client.requires(system="lenses6", action=DETAILS, resource=lambda call: f"kafka:topic:prod/main/{call['topic']}")
    def details(topic: str, *, more: bool = False) -> str:
        return f"{topic} {more}"

    with acting_as(f"user:{user}"):
        assert details("orders", more=True) == "orders True"
        with pytest.raises(AccessDenied) as raised:
            details("other")
        assert raised.value.decision.outcome == "deny"
        with client.allowed(system="lenses6", action=DETAILS, resource=ORDERS) as decision:
            assert decision.allowed


def test_guarded_coroutines_run_when_allowed_alone(world: World, connection: Connection, user: str) -> None:
    world.publish(role(user, ORDERS))

    async def serve() -> None:
        async with AsyncClient(connection, timeout=PATIENCE) as client:

            @client.requires(system="lenses6", action=DETAILS, resource=lambda call: call["topic"])
            async def details(topic: str) -> str:
                return topic

            async def two(user: str) -> list[Any]:
                with acting_as(f"user:{user}"):
                    return await asyncio.gather(details(ORDERS), details("kafka:topic:a/b/c"), return_exceptions=True)

            known, unknown = await asyncio.gather(two(user), two("nobody"))
            assert known[0] == ORDERS
            assert all(isinstance(refused, AccessDenied) for refused in (known[1], *unknown))
            with acting_as(f"user:{user}"):
                async with client.allowed(system="lenses6", action=DETAILS, resource=ORDERS) as decision:
                    assert decision.allowed

    asyncio.run(serve())


def test_what_was_published_judges_the_next_question(world: World, client: Client, user: str) -> None:
    publisher = PolicyPublisher(Connection.of(world.settings), world.settings.job_name)
    for effect, allowed in (("allow", True), ("deny", False)):
        offsets = publisher.publish([role(user, ORDERS, effect=effect)])
        decision = client.authorize(**_short(user), min_policy_offsets=offsets)
        assert decision.allowed is allowed
        assert decision.policy_offsets[world.policies]["0"] >= offsets[world.policies]["0"]
    offsets = publisher.publish([role(user, ORDERS)], [f"lenses6/Group/{user}"])
    assert client.authorize(**_short(user), min_policy_offsets=offsets).outcome == "deny"
    ahead = {world.policies: {"0": offsets[world.policies]["0"] + 1000}}
    assert client.authorize(**_short(user), min_policy_offsets=ahead).code == "policies-behind"


def test_an_audit_event_is_on_its_topic_when_report_returns(world: World, client: Client, user: str) -> None:
    event = request(f"done-{user}", user, "orders")
    place = client.report({**event, "outcome": "success"}, decision_id="decision-1")
    [message] = world.reader(world.names.audit[0]).until(lambda seen: len(seen) > 0, "the event")[-1:]
    assert (message.topic(), message.partition(), message.offset()) == (place.topic, place.partition, place.offset)
    assert message.key() == f"user:{user}".encode()
    event = json.loads(message.value())
    assert (event["decision_id"], event["outcome"], event["id"]) == ("decision-1", "success", f"done-{user}")


def test_a_decision_consumer_goes_on_where_its_group_was_and_gets_again_what_was_not_handled(
    world: World, client: Client, user: str, fresh_name: Callable[[str], str]
) -> None:
    """At least once: what the loop did not come back from is handed out anew; what it did is not."""
    group, connection = fresh_name("group"), Connection.of(world.settings)
    asked = [f"{number}-{user}" for number in range(6)]
    for id_ in asked:
        client.authorize(**_short(user, id=id_))
    client.authorize({"id": f"bad-{user}", "system": "lenses6"})
    handled: list[str] = []
    letters: list[DeadLetter] = []

    def stop_at_the_end() -> None:
        if set(asked) <= set(handled) and any(user.encode() in (letter.value or b"") for letter in letters):
            consumer.stop()

    def take(letter: DeadLetter) -> None:
        letters.append(letter)
        stop_at_the_end()  # it may be the last to come, and no decision after it

    with DecisionConsumer(connection, group, take) as consumer:
        for decision in consumer:
            if decision.request_id == asked[3]:
                break
            handled.append(decision.request_id)
    assert asked[3] not in handled
    with DecisionConsumer(connection, group, take) as consumer:
        for decision in consumer:
            assert decision.request_id not in asked or decision.request_id not in handled
            handled.append(decision.request_id)
            stop_at_the_end()
    mine = [id_ for id_ in handled if id_ in asked]
    assert mine == asked


def test_a_consumer_is_stopped_from_another_thread(connection: Connection, fresh_name: Callable[[str], str]) -> None:
    with AlertConsumer(connection, fresh_name("group")) as consumer:
        threading.Timer(0.2, consumer.stop).start()
        assert [alert for alert in consumer if alert.kind == "never"] == []


def test_alerts_are_handed_out_typed(world: World, user: str, fresh_name: Callable[[str], str]) -> None:
    world.publish({**role(user, ORDERS), "enforcment": False})
    with AlertConsumer(Connection.of(world.settings), fresh_name("group")) as consumer:
        alert = next(alert for alert in consumer if user in alert.message or user in str(alert.subject))
    assert alert.kind == "policy-rejected"
    assert "enforcment" in alert.message


@pytest.fixture
def elsewhere(world: World, fresh_name: Callable[[str], str]) -> Connection:
    """Other topics on the same broker, which no job reads and which are not there yet."""
    name = fresh_name("elsewhere")
    topics = msgspec.structs.replace(world.names, requests=(f"{name}.requests",), decisions=f"{name}.decisions")
    return Connection(world.settings.bootstrap_servers, topics)


def test_a_client_waits_for_topics_that_are_not_there_yet_and_says_which(world: World, elsewhere: Connection) -> None:
    with Client(elsewhere, timeout=0.2) as client:
        wait_until(lambda: "does not exist" in str(client.authorize(**_short("x"))), "it knows what is missing", 10)
        create_topics(world.admin, elsewhere.topics, partitions=1)
        wait_until(lambda: "no decision within 0.2 s for offset" in str(client.authorize(**_short("x"))), "sent", 10)


def test_answers_on_a_partition_that_was_added_later_are_read(
    world: World, elsewhere: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streaming.kafka.stalled.LOOK_SECONDS", 0.2)
    create_topics(world.admin, elsewhere.topics, partitions=1)
    topic, requests = elsewhere.topics.decisions, elsewhere.topics.requests[0]
    consumer = TopicConsumer(elsewhere, [topic, dead_letters_of(requests)], [requests])
    consumer.seek_to_end()
    world.admin.create_partitions([NewPartitions(topic, 2)])[topic].result(10)
    wait_until(lambda: len(world.admin.list_topics(topic).topics[topic].partitions) == 2, "the partition is there")
    world.producer.produce(topic, b"{}", partition=1)
    assert world.producer.flush(10) == 0
    found: list[Any] = []
    wait_until(lambda: bool(found.extend(consumer.receive()) or found), "the record is read", 15)
    assert found[0].partition() == 1
    consumer.close()


def test_a_consumer_from_which_nothing_comes_is_replaced_and_no_answer_is_missed(
    world: World, elsewhere: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one of librdkafka's after a restart of the broker; here it is paused."""
    monkeypatch.setattr("streaming.kafka.stalled.LOOK_SECONDS", 0.5)
    create_topics(world.admin, elsewhere.topics, partitions=1)
    topic, requests = elsewhere.topics.decisions, elsewhere.topics.requests[0]
    consumer, found = TopicConsumer(elsewhere, [topic, dead_letters_of(requests)], [requests]), list[Any]()
    consumer.seek_to_end()
    for number in range(20):
        world.producer.produce(topic, b"%d" % number, partition=0)
        assert world.producer.flush(10) == 0
        if number == 9:
            wait_until(lambda: found.extend(consumer.receive()) or len(found) == 10, "the first half is read", 15)
            consumer._consumer.pause([TopicPartition(topic, 0)])
    wait_until(lambda: found.extend(consumer.receive()) or len(found) >= 20, "the others are read", 15)
    assert [message.value() for message in found] == [b"%d" % number for number in range(20)]
    consumer.close()


def test_a_member_of_a_group_to_which_nothing_comes_joins_it_anew_and_each_item_is_handled_once(
    world: World, elsewhere: Connection, fresh_name: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a restart of the broker (confluentinc/librdkafka#4492); here the partition is paused. Once before its
    first record, when librdkafka says no position, and once in the middle.
    """
    monkeypatch.setattr("streaming.kafka.stalled.LOOK_SECONDS", 0.5)
    topic, handled = fresh_name("alerts"), list[str]()
    connection = replace(elsewhere, topics=msgspec.structs.replace(elsewhere.topics, alerts=topic))
    create_topics(world.admin, connection.topics, partitions=1)
    with AlertConsumer(connection, fresh_name("group")) as consumer:
        consumers = [consumer._consumer]
        wait_until(lambda: consumers[0].poll(0.1) is not None or bool(consumers[0].assignment()), "it is a member")
        for number in range(3):
            consumer._consumer.pause([TopicPartition(topic, 0)])
            value = {"id": str(number), "kind": "k", "severity": "high", "time": "", "message": ""}
            world.producer.produce(topic, json.dumps(value).encode(), partition=0)
            assert world.producer.flush(10) == 0
            handled.append(next(consumer).id)
            consumers.append(consumer._consumer)
    assert handled == ["0", "1", "2"]
    assert len(set(map(id, consumers))) == 4, "each time a new one"


def test_when_the_topic_of_answers_is_made_anew_those_who_wait_are_notified(
    world: World, elsewhere: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Answers may have been missed: an error at once, and afterwards the client works again."""
    monkeypatch.setattr("streaming.kafka.stalled.LOOK_SECONDS", 0.2)
    create_topics(world.admin, elsewhere.topics, partitions=1)
    topic = elsewhere.topics.decisions
    with Client(elsewhere, timeout=0.2) as client, ThreadPoolExecutor(1) as pool:
        wait_until(lambda: "no decision within 0.2 s for offset" in str(client.authorize(**_short("x"))), "sent", 10)
        waiting = pool.submit(lambda: client.authorize(**_short("x"), timeout=60))
        wait_until(lambda: len(client._exchange) == 1, "it waits")
        world.admin.delete_topics([topic])[topic].result(10)
        assert waiting.result(30).code == "answers-lost"
        wait_until(lambda: "does not exist" in str(client.authorize(**_short("x"))), "it knows what is missing", 10)
        create_topics(world.admin, elsewhere.topics, partitions=1)
        wait_until(lambda: "no decision within 0.2 s for offset" in str(client.authorize(**_short("x"))), "sent", 10)


def test_the_client_closes_within_moments(connection: Connection) -> None:
    begun = time.monotonic()
    Client(connection).close()
    assert time.monotonic() - begun < 10


CLOSED_BEFORE_A_FORK = """
import os, sys
from streaming.client import Client

client = Client(sys.argv[1])
client.ready(2)  # there are no such topics; what counts is that Kafka was reached
client.close()
forked = os.fork()
if not forked:
    sys.exit(3)
print(os.waitstatus_to_exitcode(os.waitpid(forked, 0)[1]))
"""


def test_a_process_that_is_forked_after_a_client_was_closed_ends_as_it_wants(connection: Connection) -> None:
    """librdkafka's handles live until Python frees them, and in a forked process that ended it by a signal."""
    arguments = [sys.executable, "-c", CLOSED_BEFORE_A_FORK, connection.bootstrap_servers]
    ended = subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout == "3\n"
