"""Ranges are read by consumers that Spark keeps: also when fewer partitions are left, and when there are more."""

from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic
from pyspark.sql import SparkSession

from streaming.enforcer.source import read_range
from streaming.kafka.clients import Partition
from streaming.runtime.spark import start_session
from streaming.settings import Settings
from streaming.topics import TopicNames
from tests.brokers import TestBroker
from tests.stream.world import SHORT_LIVED
from tests.waiting import wait_until

pytestmark = pytest.mark.stream


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    """A session in which numbers may be cast to bytes, as in the job's."""
    session = start_session("ranges", {**SHORT_LIVED, "spark.sql.ansi.enabled": "false"}, "local[2]")
    yield session
    session.stop()


class Requests:
    """A topic with one record on each of its partitions."""

    def __init__(self, broker: TestBroker, spark: SparkSession, name: str, count: int) -> None:
        self._spark, self._name = spark, name
        topics = TopicNames(requests=(name,))
        self._settings = Settings(job_name=name, bootstrap_servers=broker.bootstrap_servers, topics=topics)
        client = {"bootstrap.servers": broker.bootstrap_servers}
        self._admin, self._producer = AdminClient(dict(client)), Producer(dict(client))
        self._admin.create_topics([NewTopic(name, count, 1)])[name].result(30)
        self.count = 0
        self._fill(count)

    def _fill(self, count: int) -> None:
        wait_until(
            lambda: len(self._producer.list_topics(self._name, timeout=30).topics[self._name].partitions) == count,
            f"{count} partitions",
        )
        for number in range(self.count, count):
            self._producer.produce(self._name, b"{}", partition=number)
        assert self._producer.flush(30) == 0
        self.count = count

    def grow(self, count: int) -> None:
        """To so many partitions."""
        self._admin.create_partitions([NewPartitions(self._name, count)])[self._name].result(30)
        self._fill(count)

    def read(self, left: int) -> int:
        """How many records there are of the first partitions, when only these are left to read."""
        starts: dict[Partition, int] = {(self._name, number): 0 for number in range(self.count)}
        ends = dict.fromkeys(list(starts)[:left], 1)
        return read_range(self._spark, self._settings, starts, ends).count()


@pytest.mark.parametrize("count", [6, 24, pytest.param(200, marks=pytest.mark.long)])
def test_partitions_are_read_however_many_are_left_and_when_the_topic_has_more(
    broker: TestBroker, fresh_name: Callable[[str], str], spark: SparkSession, count: int
) -> None:
    """It ended with: Kafka parameters for same cache key should be equal."""
    requests = Requests(broker, spark, fresh_name("range"), count)
    for left in (count, count // 2, 1, count):
        assert requests.read(left) == left
    requests.grow(count + 3)
    for left in (1, count + 3):
        assert requests.read(left) == left
