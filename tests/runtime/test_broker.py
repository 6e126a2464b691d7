"""The embedded broker: a real Kafka, ready in seconds, gone without a trace."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

from streaming.broker import HOST, EmbeddedBroker
from streaming.errors import BrokerError
from tests.brokers import CONSUMER_GROUPS, free_port, run_kafka_tool
from tests.java_archive import embedded_broker
from tests.processes import processes_naming
from tests.waiting import wait_until

pytestmark = pytest.mark.stream


@pytest.fixture(scope="module")
def embedded() -> Iterator[EmbeddedBroker]:
    """A broker for the tests that only use one."""
    with embedded_broker() as broker:
        yield broker


def _create(broker: EmbeddedBroker, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(10)


def _produce(broker: EmbeddedBroker, topic: str, *values: str) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(10) == 0


def _read(broker: EmbeddedBroker, topic: str, count: int) -> list[str]:
    """Read `count` committed records from a topic's start."""
    settings = {"bootstrap.servers": broker.bootstrap_servers, "isolation.level": "read_committed"}
    consumer = Consumer({**settings, "group.id": f"reader-of-{topic}", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, 0)])
    try:
        return [_text(message) for message in consumer.consume(count, 20)]
    finally:
        consumer.close()


def _text(message: Message) -> str:
    value = message.value()
    assert message.error() is None
    assert isinstance(value, bytes)
    return value.decode()


def _config_of(broker: EmbeddedBroker) -> dict[str, str]:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    resource = ConfigResource(ResourceType.BROKER, "1")
    return {name: entry.value for name, entry in admin.describe_configs([resource])[resource].result(10).items()}


@pytest.mark.long
def test_it_leaves_neither_folder_nor_process() -> None:
    with EmbeddedBroker() as broker:
        folder = broker.folder
        assert processes_naming(str(folder)), "the broker's command line names its folder"
    assert not folder.exists()
    assert processes_naming(str(folder)) == []


def test_what_is_produced_to_a_created_topic_is_consumed(embedded: EmbeddedBroker) -> None:
    _create(embedded, "plain")
    _produce(embedded, "plain", "one", "two")
    assert _read(embedded, "plain", 2) == ["one", "two"]


def test_a_topic_nobody_created_does_not_come_into_being(embedded: EmbeddedBroker) -> None:
    admin = AdminClient({"bootstrap.servers": embedded.bootstrap_servers})
    assert admin.list_topics("misspelt", 10).topics["misspelt"].error is not None
    assert "misspelt" not in admin.list_topics(timeout=10).topics


def test_a_committed_transaction_is_read_and_an_aborted_one_is_not(embedded: EmbeddedBroker) -> None:
    _create(embedded, "transactional")
    producer = Producer({"bootstrap.servers": embedded.bootstrap_servers, "transactional.id": "t"})
    producer.init_transactions(20)
    for value, end in (("aborted", producer.abort_transaction), ("committed", producer.commit_transaction)):
        producer.begin_transaction()
        producer.produce("transactional", value)
        producer.flush(10)
        end(10)
    assert _read(embedded, "transactional", 1) == ["committed"]


def test_kafkas_own_tool_shows_the_lag_of_a_group(embedded: EmbeddedBroker) -> None:
    _create(embedded, "lagging")
    _produce(embedded, "lagging", "1", "2", "3")
    consumer = Consumer({"bootstrap.servers": embedded.bootstrap_servers, "group.id": "behind"})
    consumer.commit(offsets=[TopicPartition("lagging", 0, 1)], asynchronous=False)
    consumer.close()
    printed = run_kafka_tool(
        CONSUMER_GROUPS, "--bootstrap-server", embedded.bootstrap_servers, "--describe", "--group", "behind"
    )
    group, topic, partition, committed, end, lag = printed.strip().splitlines()[-1].split()[:6]
    assert (group, topic, partition) == ("behind", "lagging", "0")
    assert (committed, end, lag) == ("1", "3", "2")


def test_a_tool_that_fails_is_an_error_with_what_it_printed(embedded: EmbeddedBroker) -> None:
    with pytest.raises(BrokerError, match="no-such-option"):
        run_kafka_tool(CONSUMER_GROUPS, "--bootstrap-server", embedded.bootstrap_servers, "--no-such-option")


@pytest.mark.long
def test_port_and_config_are_passed_and_data_outlives_the_broker_in_a_given_folder(tmp_path: Path) -> None:
    port, data = free_port(), tmp_path / "data"
    with EmbeddedBroker(port=port, data_dir=data, config={"message.max.bytes": "4321"}) as broker:
        assert broker.bootstrap_servers == f"{HOST}:{port}"
        assert _config_of(broker)["message.max.bytes"] == "4321"
        _create(broker, "kept")
        _produce(broker, "kept", "still here")
    with EmbeddedBroker(data_dir=data) as later:
        assert _read(later, "kept", 1) == ["still here"]


def test_a_broker_that_ends_while_starting_is_an_error_with_the_end_of_its_log() -> None:
    broker = EmbeddedBroker(config={"num.io.threads": "none"})
    with pytest.raises(BrokerError, match=r"ended while starting.*\n.*num\.io\.threads"):
        broker.start()


def test_a_started_broker_refuses_a_second_start(embedded: EmbeddedBroker) -> None:
    with pytest.raises(BrokerError, match="already runs"):
        embedded.start()


@pytest.mark.long
def test_no_orphan_is_left_when_the_parent_is_killed() -> None:
    """`kill -9` of the process that opened the broker ends the broker and removes its folder."""
    program = (
        "from streaming.broker import EmbeddedBroker\n"
        "with EmbeddedBroker() as broker:\n"
        "    print(broker.bootstrap_servers, broker.folder, flush=True)\n"
        "    input()\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with parent:
        assert parent.stdout is not None
        address, folder = parent.stdout.readline().split()
        admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
        assert admin.list_topics(timeout=10).brokers
        assert len(processes_naming(folder)) == 1
        os.kill(parent.pid, signal.SIGKILL)
        wait_until(lambda: processes_naming(folder) == [], "the broker has ended")
        wait_until(lambda: not Path(folder).exists(), "its folder is removed")
    with pytest.raises(KafkaException):
        admin.list_topics(timeout=1)
