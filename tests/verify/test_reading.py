"""Reading several topics as one, on a broker: in the order of time, and never far ahead of the slowest partition."""

import itertools
import time
from collections.abc import Callable

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic

from streaming.kafka import committed
from streaming.kafka.clients import (
    admin_client,
    first_offsets,
    last_stable_offsets,
    offsets_since,
    partitions_of,
)
from streaming.settings import Settings
from tests.brokers import TestBroker, await_transaction_markers

pytestmark = pytest.mark.stream


def test_records_of_all_partitions_come_in_the_order_of_time(
    broker: TestBroker, fresh_name: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One partition is full of old records, one of new ones, one has aborted records at its end, one is empty."""
    monkeypatch.setattr(committed, "READ_AHEAD", 20)
    monkeypatch.setattr(committed, "FETCH", 7)
    began = time.time_ns() // 1_000_000 - 3_600_000
    settings = Settings(bootstrap_servers=broker.bootstrap_servers, job_name=fresh_name("reading"))
    admin, topic = admin_client(settings), fresh_name("by-time")
    admin.create_topics([NewTopic(topic, 4, 1)])[topic].result(30)
    times = {0: range(300), 1: range(300, 600), 2: range(1, 600, 6)}
    client = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": topic})
    client.init_transactions(30)
    for end in (client.commit_transaction, client.abort_transaction):
        client.begin_transaction()
        for partition, moments in times.items():
            for moment in moments if end == client.commit_transaction else (700,):
                client.produce(topic, b"%d" % moment, partition=partition, timestamp=began + moment)
        end(30)
    partitions = partitions_of(admin, [topic])
    await_transaction_markers(admin, partitions)
    ends = last_stable_offsets(admin, partitions)
    read = list(committed.records_by_time(settings, first_offsets(admin, partitions), ends))
    found = [int(message.value() or b"") for message in read]
    assert found == sorted(itertools.chain(*times.values()))
    since = offsets_since(admin, ends, began + 590)
    later = [int(message.value() or b"") for message in committed.records_by_time(settings, since, ends)]
    assert later == [moment for moment in found if moment >= 590]
    assert offsets_since(admin, ends, -900_000) == offsets_since(admin, ends, -1) == first_offsets(admin, partitions)
