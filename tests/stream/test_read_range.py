"""Ranges are read by consumers that Spark keeps: also when fewer partitions are left, and when there are more."""

from collections.abc import Callable, Iterable, Iterator

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic
from pyspark.sql import SparkSession

from streaming.enforcer.source import connection_options, read_range, rows_for_workers, session_settings
from streaming.kafka.clients import Partition
from streaming.runtime.spark import start_session
from streaming.settings import Settings
from streaming.topics import TopicNames
from tests.brokers import TestBroker
from tests.stream.arrow import AT, Sent, records_at
from tests.stream.world import SHORT_LIVED
from tests.waiting import wait_until

pytestmark = pytest.mark.stream


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    session = start_session("ranges", SHORT_LIVED, "local[2]")
    yield session
    session.stop()


class Requests:
    """A topic with one record on each of its partitions."""

    def __init__(self, broker: TestBroker, spark: SparkSession, name: str, count: int) -> None:
        self._spark, self.name = spark, name
        topics = TopicNames(requests=(name,))
        self._settings = Settings(job_name=name, bootstrap_servers=broker.bootstrap_servers, topics=topics)
        client = {"bootstrap.servers": broker.bootstrap_servers}
        self._admin, self._producer = AdminClient(dict(client)), Producer(dict(client))
        self._admin.create_topics([NewTopic(name, count, 1)])[name].result(30)
        self.count = 0
        self._fill(count)

    def _fill(self, count: int) -> None:
        wait_until(
            lambda: len(self._producer.list_topics(self.name, timeout=30).topics[self.name].partitions) == count,
            f"{count} partitions",
        )
        for number in range(self.count, count):
            self._producer.produce(self.name, b"{}", partition=number)
        assert self._producer.flush(30) == 0
        self.count = count

    def grow(self, count: int) -> None:
        """To so many partitions."""
        self._admin.create_partitions([NewPartitions(self.name, count)])[self.name].result(30)
        self._fill(count)

    def send(self, partition: int, records: Iterable[tuple[Sent, int]]) -> None:
        """Each with its time (ms)."""
        for (key, value, headers), at in records:
            self._producer.produce(self.name, value, key, partition, timestamp=at, headers=headers)
        assert self._producer.flush(30) == 0

    def rows(self, partition: int, end: int) -> list[tuple[bytes | None, bytes]]:
        """What workers get of the records of a partition before an offset."""
        starts: dict[Partition, int] = {(self.name, number): 0 for number in range(self.count)}
        records = read_range(self._spark, self._settings, starts, {(self.name, partition): end})
        return [
            (None if row.value is None else bytes(row.value), bytes(row.beside))
            for row in rows_for_workers(self._spark, records).collect()
        ]

    def read(self, left: int) -> int:
        """How many records there are of the first partitions, when only these are left to read."""
        starts: dict[Partition, int] = {(self.name, number): 0 for number in range(self.count)}
        ends = dict.fromkeys(list(starts)[:left], 1)
        return read_range(self._spark, self._settings, starts, ends).count()


def test_no_option_of_the_source_lets_a_range_begin_or_end_elsewhere_or_splits_a_partition() -> None:
    """For Spark those that name times have precedence over those that name offsets."""
    ours = connection_options(Settings())
    for name in ("startingTimestamp", "startingOffsetsByTimestamp", "endingTimestamp", "endingOffsetsByTimestamp"):
        assert connection_options(Settings(source={name: "1", name.lower(): "1"})) == ours
    for name in ("minPartitions", "maxRecordsPerPartition"):
        assert connection_options(Settings(source={name: "16"})) == ours
    assert connection_options(Settings(source={"minOffsetsPerTrigger": "9"})) == {**ours, "minOffsetsPerTrigger": "9"}


def test_no_setting_of_spark_starts_a_second_attempt_beside_the_first() -> None:
    """It would fence the first, and the first what it has sent."""
    asked = Settings(spark={"spark.speculation": "true", "spark.locality.wait": "1s"})
    settings = session_settings(asked)
    assert (settings["spark.speculation"], settings["spark.locality.wait"]) == ("false", "1s")


@pytest.mark.long
@pytest.mark.parametrize("count", [6, 200])
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


SENT: list[Sent] = [
    (b"key", b"value", None),
    (None, b"{}", [("traceparent", b"00-1-2-01")]),
    (b"", None, [("traceparent", None)]),
    (b"k" * 300, b"\x00\xff", [("traceparent", b""), ("traceparent", b"second"), ("", b"no name")]),
    ("клю́ч".encode(), b"v" * 70_000, [("имя", b"\x00" * 200), ("null", None), ("[", b"[")]),
]


def test_workers_get_each_record_as_it_was_sent(
    broker: TestBroker, fresh_name: Callable[[str], str], spark: SparkSession
) -> None:
    """Written by Java, as the tests of what reads it write it."""
    requests = Requests(broker, spark, fresh_name("sent"), 2)
    times = [AT + number for number in range(len(SENT))]
    requests.send(1, zip(SENT, times, strict=True))
    rows = requests.rows(1, 1 + len(SENT))[1:]
    sent = [(None, b"{}", None, AT), *((*record, at) for record, at in zip(SENT, times, strict=True))]
    expected = records_at(sent, requests.name, 1)
    values, besides = (expected[name].to_pylist()[1:] for name in ("value", "beside"))
    assert rows == list(zip(values, besides, strict=True))
