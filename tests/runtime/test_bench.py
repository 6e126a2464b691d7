"""The benchmark ends in order: what it has sent is delivered before its producer ends."""

from collections.abc import Callable

import msgspec
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from streaming import bench
from streaming.settings import Settings
from streaming.topics import TopicNames
from tests.brokers import TestBroker


@pytest.mark.stream
def test_the_producer_ends_with_an_empty_queue(
    broker: TestBroker, fresh_name: Callable[[str], str], capfd: pytest.CaptureFixture[str]
) -> None:
    """librdkafka warns of it on standard error. The answers are there beforehand, so nothing is waited for."""
    topic = fresh_name("slow")
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(15)
    topics = msgspec.structs.replace(TopicNames(), requests=(topic,))
    settings = Settings(bootstrap_servers=broker.bootstrap_servers, topics=topics)
    answered = {f"req-{number:08d}".encode(): 0.0 for number in range(6)}
    sent = bench._send_steadily(settings, statements=20, rate=50, seconds=0.1, arrived=answered)
    assert sent.keys() < answered.keys()
    assert "still in queue" not in capfd.readouterr().err
