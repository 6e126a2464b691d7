"""`LocalClient` and `AsyncLocalClient`: decided in the application, recorded, and decided again by the job."""

import asyncio
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest
from confluent_kafka import Producer

from streaming.client import AccessDenied, AsyncLocalClient, ClientError, Connection, Decision, LocalClient, acting_as
from streaming.kafka.topics import create_topics
from tests.brokers import TestBroker
from tests.java_archive import embedded_broker
from tests.stream.running import running
from tests.stream.world import SYSTEM, World, group, role
from tests.waiting import wait_until

pytestmark = [pytest.mark.stream, pytest.mark.timeout(200)]

ACTION, ORDERS, OTHER = "kafka:GetTopicDetails", "kafka:topic:prod/main/orders", "kafka:topic:prod/main/payments"


def _world(broker: TestBroker, name: str, folder: Path) -> World:
    """Topics with a role that dana has, and a topic of answered requests."""
    made = World(broker, name, str(folder / "checkpoint"))
    topic = made.names.requests[0].replace("requests", "answered")
    made.names = msgspec.structs.replace(made.names, answered=(topic,))
    made.settings = msgspec.structs.replace(made.settings, topics=made.names)
    create_topics(made.admin, made.names, partitions=2)
    made.publish(role("readers", ORDERS))
    made.publish(group("readers", "user:dana"))
    return made


@pytest.fixture
def world(broker: TestBroker, fresh_name: Callable[[str], str], tmp_path: Path) -> World:
    """A world on the broker of all tests."""
    return _world(broker, fresh_name("local"), tmp_path)


def _authorize(client: LocalClient) -> Decision:
    return client.authorize(system=SYSTEM, subject="user:dana", action=ACTION, resource=ORDERS)


def _may(client: LocalClient, resource: str = ORDERS, **fields: Any) -> bool:
    return bool(client.authorize(system=SYSTEM, subject="user:dana", action=ACTION, resource=resource, **fields))


@pytest.mark.long
def test_decisions_follow_the_policies_and_the_job_decides_each_record_alike(world: World) -> None:
    with LocalClient(Connection.of(world.settings), name="shop") as client:
        assert client.ready(60)
        assert _may(client)
        assert not _may(client, OTHER)
        offset = world.publish(role("readers", OTHER))
        assert _may(client, OTHER, min_policy_offsets={world.policies: {"0": offset}})
        beyond = client.authorize(
            system=SYSTEM,
            subject="user:dana",
            action=ACTION,
            resource=OTHER,
            min_policy_offsets={world.policies: {"0": offset + 9}},
        )
        assert (beyond.outcome, beyond.code) == ("error", "policies-behind")
        items = [{"resource": {"type": "lrn", "id": name}} for name in (ORDERS, OTHER)]
        many = client.authorize(system=SYSTEM, subject="user:dana", action=ACTION, evaluations=items)
        assert [item.allowed for item in many.evaluations] == [False, True]
        claimed = client.authorize(system=SYSTEM, subject="user:eve", action=ACTION, resource=OTHER, groups=["readers"])
        assert claimed.allowed
        assert claimed.policy_offsets[world.policies] == {"0": offset}
        with acting_as("user:dana"), client.allowed(system=SYSTEM, action=ACTION, resource=OTHER):
            pass
        with (
            pytest.raises(AccessDenied),
            acting_as("user:dana"),
            client.allowed(system=SYSTEM, action=ACTION, resource=ORDERS),
        ):
            raise AssertionError("entered")
        late = client.authorize(
            {
                "system": SYSTEM,
                "subject": {"type": "user", "id": "user:dana"},
                "action": {"name": ACTION},
                "resource": {"type": "lrn", "id": OTHER},
                "deadline": 1,
            }
        )
        assert (late.allowed, late.code) == (False, "deadline-exceeded")
        sent = 9
    assert not client.authorize(system=SYSTEM, subject="user:dana", action=ACTION, resource=OTHER), "it is closed"
    with running(world.settings):
        decisions = world.reader(world.names.decisions)
        decisions.until(lambda found: len(found) >= sent, "a decision of each")
        world.await_no_lag()
    decided = world.everything(world.names.decisions)
    assert len(decided) == sent
    assert [one for one in decided if one["answered"].get("agrees") is not True] == []
    assert {one["answered"]["by"] for one in decided} == {"shop"}


def test_asyncio_and_full_freshness_and_durable_records(world: World) -> None:
    async def ask() -> None:
        async with AsyncLocalClient(Connection.of(world.settings), freshness="full", record="durable") as client:
            assert await client.ready(60)
            fields: dict[str, Any] = {"system": SYSTEM, "subject": "user:dana", "action": ACTION}
            assert (await client.authorize(**fields, resource=ORDERS)).allowed
            await asyncio.to_thread(world.publish, role("readers", ORDERS, effect="deny"))
            assert not (await client.authorize(**fields, resource=ORDERS)).allowed
            recorded = await asyncio.to_thread(world.everything, world.names.answered[0])
            assert [one["answered"]["freshness"]["kind"] for one in recorded] == ["full", "full"]

    asyncio.run(ask())


@pytest.mark.long
def test_nothing_is_allowed_by_policies_that_cannot_be_read(fresh_name: Callable[[str], str], tmp_path: Path) -> None:
    with embedded_broker() as broker:
        world = _world(TestBroker(broker.bootstrap_servers), fresh_name("stale"), tmp_path)
        with LocalClient(Connection.of(world.settings), max_staleness=2.0) as client:
            assert client.ready(60)
            wait_until(lambda: _may(client), "it may")
            producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "open-one"})
            producer.init_transactions(30)
            producer.begin_transaction()
            producer.produce(world.policies, b"{}", "Role/x")
            producer.flush(30)
            wait_until(lambda: not _may(client), "the open transaction is noticed")
            producer.abort_transaction(30)
            wait_until(lambda: _may(client), "it is ended")
            broker.stop()
            wait_until(lambda: not _may(client), "the policies are stale")
            decision = client.authorize(system=SYSTEM, subject="user:dana", action=ACTION, resource=ORDERS)
            assert (decision.outcome, decision.code) == ("error", "policies-stale")
            client._exchange._recorder.close(0.1)  # type: ignore[attr-defined]  # what is queued cannot be sent


def test_no_request_waits_for_policies_that_cannot_be_followed_any_more(world: World) -> None:
    """Of a topic that was re-created. Each would hold a thread of the service for its whole timeout, for good."""
    with LocalClient(Connection.of(world.settings), freshness="full", record="none", timeout=100) as client:
        assert client.ready(60)
        assert _may(client)
        world.recreate(world.policies)
        with ThreadPoolExecutor(4) as pool:
            decisions = [future.result(60) for future in [pool.submit(_authorize, client) for _ in range(4)]]
        assert {decision.code for decision in [*decisions, _authorize(client)]} == {"policies-stale"}
        assert "was deleted" in str(_authorize(client))


def test_a_topic_that_is_not_there_is_an_error_and_none_a_mistake(world: World) -> None:
    with LocalClient(Connection.of(world.settings), answered=f"{world.names.facts}.nonesuch") as client:
        assert not client.ready(2)
        wait_until(
            lambda: (
                "does not exist"
                in str(client.authorize(system=SYSTEM, subject="user:dana", action=ACTION, resource=ORDERS))
            ),
            "the missing topic is named",
        )
    names = msgspec.structs.replace(world.names, answered=())
    with pytest.raises(ClientError, match="no topic is named"):
        LocalClient(Connection(world.settings.bootstrap_servers, names))
    with LocalClient(Connection(world.settings.bootstrap_servers, names), record="none") as client:
        assert client.ready(60)
        assert _may(client)


def test_it_needs_neither_spark_nor_numpy() -> None:
    heavy = ("pyspark", "py4j", "pyarrow", "pandas", "numpy", "prometheus_client", "uvicorn")
    program = f"import sys; from streaming.client import LocalClient; print([n for n in {heavy} if n in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"
