"""Where Kafka starts, or goes away, while the reader of policies outside of the job begins."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from streaming.commit.transaction import is_unavailable
from streaming.kafka.clients import error_name, partitions_of
from streaming.pdp.follower import Follower
from tests.brokers import TestBroker, free_port
from tests.java_archive import embedded_broker
from tests.stream.kafka_proxy import HOST, StepProxy
from tests.stream.world import World
from tests.waiting import wait_until

pytestmark = [pytest.mark.stream, pytest.mark.timeout(120)]

DESCRIBE_CONFIGS = 32
CLOSED_SECONDS = 8.0  # a query that is not answered takes three


@pytest.fixture
def proxied() -> Iterator[tuple[StepProxy, TestBroker]]:
    """A broker that clients reach through the proxy alone, for it advertises that address."""
    broker_port, port = free_port(), free_port()
    proxy = StepProxy(port, broker_port)
    config = {"advertised.listeners": f"PLAINTEXT://{HOST}:{port}"}
    with contextlib.closing(proxy), embedded_broker(port=broker_port, config=config):
        yield proxy, TestBroker(f"{HOST}:{port}")


@pytest.mark.long
def test_a_topic_that_is_not_there_is_an_error_of_kafkas(proxied: tuple[StepProxy, TestBroker]) -> None:
    """Also at a broker that starts and knows none yet: who waits for Kafka goes on waiting."""
    admin = AdminClient({"bootstrap.servers": proxied[1].bootstrap_servers})
    with pytest.raises(KafkaException, match="knows no topics") as starting:
        partitions_of(admin, ["missing"])
    assert is_unavailable(starting.value)
    admin.create_topics([NewTopic("there", 2, 1)])["there"].result(30)
    wait_until(lambda: "there" in admin.list_topics(timeout=10).topics, "the topic is there")
    assert partitions_of(admin, ["there"]) == [("there", 0), ("there", 1)]
    with pytest.raises(KafkaException, match="no such topic: missing") as missing:
        partitions_of(admin, ["there", "missing"])
    assert error_name(missing.value) == "UNKNOWN_TOPIC_OR_PART"


@pytest.mark.long
def test_it_is_closed_soon_also_where_kafka_stops_answering_while_it_begins(
    proxied: tuple[StepProxy, TestBroker], fresh_name: Callable[[str], str], tmp_path: Path
) -> None:
    proxy, broker = proxied
    settings = World(broker, fresh_name("follower"), str(tmp_path)).settings
    stop, answers_again = threading.Event(), threading.Event()
    proxy.act_at(DESCRIBE_CONFIGS, b"", answered=False, on_step=lambda _process: answers_again.wait() and None)
    follower = Follower(settings, stop, lambda _read: None, stop.set)
    follower.start()
    try:
        wait_until(lambda: not proxy.waits, "it asks for the settings of the topics")
        stop.set()
        asked = time.monotonic()
        follower.close()
        assert time.monotonic() - asked < CLOSED_SECONDS
        assert follower.failure is None
    finally:
        answers_again.set()
