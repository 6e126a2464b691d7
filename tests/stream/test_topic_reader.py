"""Reading a topic to its end gets on with every attempt, however late Kafka answers."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from streaming.errors import TopicChanged
from streaming.kafka import reader as module
from streaming.kafka.clients import log_reader, partitions_of
from streaming.kafka.committed import records_between, records_by_time
from streaming.kafka.reader import TopicReader, follow
from streaming.settings import Settings
from tests.brokers import TestBroker
from tests.java_archive import embedded_broker
from tests.stream.world import World, role
from tests.waiting import wait_until

pytestmark = pytest.mark.stream

COUNT = 50


def test_one_that_is_followed_is_read_on_by_a_new_consumer_where_the_first_gives_nothing(
    broker: TestBroker, fresh_name: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `lockkeeper tail` does after a restart of the broker; here each consumer is paused after some records."""
    monkeypatch.setattr("streaming.kafka.stalled.LOOK_SECONDS", 0.5)
    consumers: list[Consumer] = []
    monkeypatch.setattr(module, "log_reader", lambda settings: consumers.append(log_reader(settings)) or consumers[-1])
    world = World(broker, fresh_name("followed"), str(tmp_path / "checkpoint"))
    world.publish(role("role-0", "*"))
    records, read = follow(world.settings, world.policies, True, lambda: False), list[int | None]()
    for number in range(1, 4):
        read.append(next(records).offset())
        consumers[-1].pause([TopicPartition(world.policies, 0)])
        world.publish(role(f"role-{number}", "*"))
    records.close()
    assert read == [0, 1, 2]
    assert len(consumers) == 3


def test_an_attempt_whose_time_is_over_when_kafka_has_answered_still_reads_on(
    broker: TestBroker, fresh_name: Callable[[str], str], tmp_path: Path
) -> None:
    """With no time at all: as where the answer with the ends takes all of it, each time."""
    world = World(broker, fresh_name("late"), str(tmp_path / "checkpoint"))
    for number in range(COUNT):
        world.publish(role(f"role-{number}", "*"))
    read: list[int | None] = []

    def is_read() -> bool:
        with contextlib.suppress(TimeoutError):
            for message in reader.read_to_end(0.0):
                read.append(message.offset())  # noqa: PERF401  an error must lose none
            return True
        return False

    with contextlib.closing(TopicReader(world.settings, [world.policies])) as reader:
        wait_until(is_read, "the end is reached")
        assert read == list(range(COUNT)), "each once, over all attempts"


def test_a_consumer_from_which_nothing_comes_is_replaced_and_each_record_is_read_once(
    broker: TestBroker, fresh_name: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one of librdkafka's after a restart of the broker; here it is paused."""
    monkeypatch.setattr(module, "STUCK_SECONDS", 1.0)
    world = World(broker, fresh_name("stuck"), str(tmp_path / "checkpoint"))
    read: list[int | None] = []

    def is_read() -> bool:
        with contextlib.suppress(TimeoutError):
            for message in reader.read_to_end(0.2):
                read.append(message.offset())  # noqa: PERF401  an error must lose none
            return len(read) == COUNT
        return False

    with contextlib.closing(TopicReader(world.settings, [world.policies])) as reader:
        for number in range(COUNT):
            world.publish(role(f"role-{number}", "*"))
            if number == COUNT // 2:
                wait_until(lambda: is_read() or len(read) > COUNT // 2, "the first half is read")
                reader._consumer.pause([TopicPartition(world.policies, 0)])
        wait_until(is_read, "the end is reached")
        assert read == list(range(COUNT)), "each once, by both consumers"


def test_errors_of_a_client_whose_calls_succeed_do_not_pile_up(
    broker: TestBroker, fresh_name: Callable[[str], str], tmp_path: Path
) -> None:
    """As where one broker of several is away for weeks: librdkafka keeps each until it is polled."""
    world = World(broker, fresh_name("errors"), str(tmp_path / "checkpoint"))
    servers = f"127.0.0.1:1,127.0.0.1:2,127.0.0.1:3,{broker.bootstrap_servers}"  # asked in any order
    settings = msgspec.structs.replace(world.settings, bootstrap_servers=servers)
    for _ in range(20):
        with contextlib.closing(TopicReader(settings, [world.policies])) as reader:
            if len(reader._admin) > 0:
                list(reader.read_to_end())
                assert len(reader._admin) == 0
                return
    pytest.fail("no client had an error")


@pytest.mark.parametrize("read", [records_between, records_by_time])
def test_where_the_broker_goes_away_meanwhile_its_error_is_raised(
    read: Callable[..., Iterator[Message]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of `lockkeeper report` and `verify`, which printed that ends are not reached."""
    monkeypatch.setattr("streaming.kafka.committed.SECONDS", 1.0)
    with embedded_broker() as broker:
        client = {"bootstrap.servers": broker.bootstrap_servers}
        admin = AdminClient(dict(client))
        admin.create_topics([NewTopic("read", 1, 1)])["read"].result(30)
        producer = Producer(dict(client))
        producer.produce("read", b"{}")
        assert producer.flush(30) == 0
        settings = Settings(bootstrap_servers=broker.bootstrap_servers)
        records = read(settings, {("read", 0): 0}, {("read", 0): 1})
        assert [record.offset() for record in records] == [0]
        beyond = read(settings, {("read", 0): 0}, {("read", 0): 2})
        assert next(beyond).offset() == 0
        broker.stop()
        with pytest.raises(KafkaException, match="_TRANSPORT"):
            list(beyond)


def test_a_topic_that_gets_another_partition_is_not_read_on_as_if_there_were_none(
    broker: TestBroker, fresh_name: Callable[[str], str], tmp_path: Path
) -> None:
    """What a producer sends there by its key, a deny perhaps, would never be in force. A start refuses such a topic."""
    world = World(broker, fresh_name("grown"), str(tmp_path / "checkpoint"))
    world.publish(role("role", "*"))
    with contextlib.closing(TopicReader(world.settings, [world.policies])) as reader:
        assert len(list(reader.read_to_end())) == 1
        world.admin.create_partitions([NewPartitions(world.policies, 2)])[world.policies].result(30)
        wait_until(lambda: len(partitions_of(world.admin, [world.policies])) == 2, "there are two partitions")
        world.producer.list_topics(world.policies, timeout=30)
        world.producer.produce(world.policies, b"{}", b"Role/deny", partition=1)
        assert world.producer.flush(30) == 0
        with pytest.raises(TopicChanged, match=rf"^{world.policies}: got more partitions than one"):
            list(reader.read_to_end())
