"""Three brokers without a job: a transaction that all have, and offsets whose leader has gone."""

import time
from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from streaming.errors import TopicChanged
from streaming.kafka.clients import (
    RETRIED_SECONDS,
    admin_client,
    check_reachable,
    last_stable_offsets,
    log_ends,
    log_state,
    partitions_of,
)
from streaming.kafka.committed import committed_records
from streaming.settings import Settings
from tests.brokers import await_transaction_markers
from tests.chaos.three_brokers import COUNT, ThreeBrokers
from tests.waiting import wait_until

pytestmark = [pytest.mark.stream, pytest.mark.long]

TOPIC, RECORDS = "transactions", 10
ASKED_SECONDS = 10.0
CLIENTS = 5


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThreeBrokers]:
    """A cluster of this module's own."""
    with ThreeBrokers(tmp_path_factory.mktemp("three")) as made:
        yield made


@pytest.fixture
def admin(brokers: ThreeBrokers) -> AdminClient:
    """A client of the product's."""
    return admin_client(Settings(bootstrap_servers=brokers.bootstrap_servers))


def _create(brokers: ThreeBrokers, admin: AdminClient, topic: NewTopic) -> None:
    admin.create_topics([topic])[topic.topic].result(60)
    wait_until(lambda: brokers.leader(topic.topic) >= 0, "the topic is there", 60)


def _leaders_answer(client: AdminClient, partitions: list[tuple[str, int]]) -> bool:
    """Whether all of these empty partitions have leaders that answer: one that was just chosen may not know yet.

    Nor may a broker know of a topic that was just created: the client takes it for deleted.
    """
    try:
        return set(log_state(client, partitions, [partitions[0][0]], RETRIED_SECONDS).ends.values()) == {0}
    except (KafkaException, TimeoutError, TopicChanged):
        return False


def test_a_transaction_is_replicated(brokers: ThreeBrokers, admin: AdminClient) -> None:
    _create(brokers, admin, NewTopic(TOPIC, COUNT, COUNT))
    producer = Producer({"bootstrap.servers": brokers.bootstrap_servers, "transactional.id": TOPIC})
    producer.init_transactions(60)
    producer.begin_transaction()
    for number in range(RECORDS):
        producer.produce(TOPIC, b"%d" % number, partition=number % COUNT)
    producer.commit_transaction(60)
    brokers.await_replicated()
    await_transaction_markers(admin, [(TOPIC, partition) for partition in range(COUNT)])
    assert {brokers.leader(TOPIC, partition) for partition in range(COUNT)} == set(range(COUNT))
    assert all(brokers.in_sync(TOPIC, partition) == set(range(COUNT)) for partition in range(COUNT))
    settings = Settings(bootstrap_servers=brokers.bootstrap_servers)
    assert sorted(int(record.value() or b"") for record in committed_records(settings, [TOPIC])) == list(range(RECORDS))


def test_when_a_leader_has_gone_the_next_one_is_asked_by_each_client(brokers: ThreeBrokers) -> None:
    """Without the first one coming back. Which of the brokers a client asks for the ids of topics is chance."""
    topic, settings = "replicated", Settings(bootstrap_servers=brokers.bootstrap_servers)
    clients = [admin_client(settings) for _ in range(CLIENTS)]
    _create(brokers, clients[0], NewTopic(topic, COUNT, COUNT))
    partitions = [(topic, partition) for partition in range(COUNT)]

    def is_answered(client: AdminClient) -> bool:
        return _leaders_answer(client, partitions)

    for client in clients:
        wait_until(lambda client=client: is_answered(client), "all leaders answer", 60)  # type: ignore[misc]
    brokers.brokers[-1].kill()
    try:
        for client in clients:
            wait_until(lambda client=client: is_answered(client), "the next leaders answer", 60)  # type: ignore[misc]
    finally:
        brokers.brokers[-1].start()
    brokers.await_replicated()


def test_topics_are_described_at_once_also_where_a_broker_has_gone(brokers: ThreeBrokers) -> None:
    """librdkafka would go on asking that one. Which of the brokers a client asks is chance."""
    topic, settings = "described", Settings(bootstrap_servers=brokers.bootstrap_servers)
    clients = [admin_client(settings) for _ in range(CLIENTS)]
    _create(brokers, clients[0], NewTopic(topic, COUNT, COUNT))
    partitions = [(topic, partition) for partition in range(COUNT)]
    assert [partitions_of(client, [topic]) for client in clients] == [partitions] * CLIENTS
    brokers.brokers[-1].kill()
    try:
        for client in clients:
            began = time.monotonic()
            assert partitions_of(client, [topic]) == partitions
            check_reachable(client)
            assert time.monotonic() - began < ASKED_SECONDS
    finally:
        brokers.brokers[-1].start()
    brokers.await_replicated()


def test_an_offset_whose_leader_has_gone_is_an_error_and_no_offset(brokers: ThreeBrokers, admin: AdminClient) -> None:
    """librdkafka answers -1001 for some of the partitions: taken for an end, nothing would be left to read."""
    topic = "single"
    _create(brokers, admin, NewTopic(topic, COUNT, replica_assignment=[[id_ + 1] for id_ in range(COUNT)]))
    partitions = [(topic, partition) for partition in range(COUNT)]
    wait_until(lambda: _leaders_answer(admin, partitions), "all leaders answer", 60)
    brokers.brokers[-1].kill()
    refused, deadline = 0, time.monotonic() + ASKED_SECONDS
    while time.monotonic() < deadline:
        for ask in (log_ends, last_stable_offsets):
            try:
                assert set(ask(admin, partitions, 3.0).values()) == {0}
            except (KafkaException, TimeoutError):
                refused += 1
    assert refused
    brokers.brokers[-1].start()
    brokers.await_replicated()
