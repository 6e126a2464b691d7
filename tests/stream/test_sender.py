"""What Java hands to Kafka is what was packed; a transaction of the driver is visible whole or not at all."""

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from typing import Any, cast

import msgspec
import pyarrow as pa
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession

from streaming.commit.evaluation import POOL, SCHEMA, Evaluation
from streaming.commit.protocol import REQUEST_TIMEOUT_MS
from streaming.commit.transaction import (
    LAST_EPOCH,
    Output,
    Owner,
    Transaction,
    describe_transaction,
)
from streaming.errors import CannotWrite, Fenced, JobStopped
from streaming.records.formats import JSON_HEADERS
from streaming.records.packing import ColumnarBatch, encode_headers, pack
from streaming.runtime.spark import start_session
from streaming.settings import Limits, Settings
from tests.brokers import TestBroker
from tests.stream.packed import read_packed
from tests.stream.world import SHORT_LIVED, Reader
from tests.waiting import wait_until

pytestmark = pytest.mark.stream

TRACE = [("traceparent", b"00-1"), ("→", b""), ("traceparent", b"\xff")]


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    session = start_session("sender", SHORT_LIVED, "local[1]")
    yield session
    session.stop()


class Place:
    """A topic of two partitions, and who writes to it."""

    def __init__(self, broker: TestBroker, spark: SparkSession, name: str) -> None:
        self.topic, self._spark = name, spark
        self._client = {"bootstrap.servers": broker.bootstrap_servers}
        self._admin = AdminClient(dict(self._client))
        self._admin.create_topics([NewTopic(name, 2, 1)])[name].result(30)
        limits = Limits(record_out=100_000, document=50_000)
        self.settings = Settings(job_name=name, bootstrap_servers=broker.bootstrap_servers, limits=limits)
        self.output = self.another()

    def another(self, **settings: Any) -> Output:
        return Output(msgspec.structs.replace(self.settings, **settings), self._spark)

    def there(self, least: int = 0) -> list[Any]:
        """The committed records, once there are so many: markers are written after a commit is confirmed."""
        reader = Reader(self._client, self.topic, self._admin)
        reader.until(lambda messages: len(messages) >= least, f"{least} committed records")
        return reader.to_the_end()

    def offset(self) -> tuple[int, str | None]:
        """What the group has committed for the first partition, and beside it."""
        consumer = Consumer({**self._client, "group.id": self.settings.job_name})
        [found] = consumer.committed([TopicPartition(self.topic, 0)], timeout=30)
        consumer.close()
        return found.offset, found.metadata

    def metadata(self) -> list[str]:
        """The same beside it, as Java reads it."""
        jvm: Any = self._spark._jvm
        properties = jvm.java.util.Properties()
        properties.setProperty("bootstrap.servers", self.settings.bootstrap_servers)
        admin = jvm.org.apache.kafka.clients.admin.Admin.create(properties)
        offsets = admin.listConsumerGroupOffsets(self.settings.job_name).partitionsToOffsetAndMetadata().get()
        metadata = [offset.metadata() for offset in offsets.values()]
        admin.close()
        return metadata

    def place_of(self, keys: list[bytes]) -> dict[bytes | None, int]:
        """Where librdkafka puts these keys as Java does."""
        producer, found = Producer({**self._client, "partitioner": "murmur2_random"}), {}
        for key in keys:
            producer.produce(
                self.topic, b"", key, on_delivery=lambda _, delivered: found.update({delivered.key(): delivered})
            )
        assert producer.flush(30) == 0
        return {key: message.partition() for key, message in found.items()}


@pytest.fixture
def place(broker: TestBroker, spark: SparkSession, fresh_name: Callable[[str], str]) -> Iterator[Place]:
    made = Place(broker, spark, fresh_name("sender"))
    yield made
    made.output.close()


def _texts(*texts: bytes | None) -> Any:
    return pa.array(texts, pa.binary())


def _columns(*values: bytes | None) -> ColumnarBatch:
    return ColumnarBatch(_texts(*[b"k"] * len(values)), _texts(*[None] * len(values)), _texts(*values))


def _manifold() -> ColumnarBatch:
    """All that a columns may have."""
    keys = _texts(None, b"", b"k", "→".encode(), b"k")
    headers = _texts(None, encode_headers(TRACE), encode_headers([]), None, None)
    return ColumnarBatch(keys, headers, _texts(b"x" * 50_000, b"", None, "ü".encode(), b"\0"))


def _offsets(place: Place, offset: int) -> list[TopicPartition]:
    return [TopicPartition(place.topic, 0, offset, '{"checkpoint":"c","batch":1}')]


def test_java_reads_every_columnar_batch_as_it_was_packed(place: Place) -> None:
    batches = [_manifold(), _columns(b"1", None, b"2"), _columns(*(b"%d" % n for n in range(20_000)))]

    def send() -> None:
        for columns in batches:
            place.output._sender.send(pack(place.topic, JSON_HEADERS, columns))

    place.output.publish([], _offsets(place, 7), before_commit=send)
    sent = [record for columns in batches for record in read_packed(pack(place.topic, JSON_HEADERS, columns))[2]]
    came = [(message.key(), message.value(), message.headers() or []) for message in place.there(len(sent))]
    expected = [(key, value, JSON_HEADERS if headers is None else headers) for key, value, headers in sent]
    assert sorted(came, key=repr) == sorted(expected, key=repr)
    assert place.offset() == (7, '{"checkpoint":"c","batch":1}')


def test_offsets_are_committed_as_librdkafka_commits_them_which_reads_them_back(place: Place) -> None:
    """Up to a NUL: without one it would read on, into whatever follows in memory."""
    place.output.publish([], _offsets(place, 7))
    assert place.offset()[0] == 7  # which waits for the transaction's marker
    by_java = place.metadata()
    consumer = Consumer({"bootstrap.servers": place.settings.bootstrap_servers, "group.id": place.settings.job_name})
    consumer.commit(offsets=_offsets(place, 8), asynchronous=False)
    consumer.close()
    assert by_java == place.metadata() == ['{"checkpoint":"c","batch":1}\0']


def test_records_with_one_key_stay_in_order_where_other_clients_put_them(place: Place) -> None:
    keys = [b"", b"k", b"user:dana", "→".encode(), *(b"%d" % n for n in range(20))]
    results = [(place.topic, key, b"%d" % n, JSON_HEADERS) for n in range(50) for key in keys]
    place.output.publish(results, _offsets(place, 1))
    came = place.there(len(results))
    for key in keys:
        assert [message.value() for message in came if message.key() == key] == [b"%d" % n for n in range(50)]
    assert {message.key(): message.partition() for message in came} == place.place_of(keys)


def test_what_a_transaction_has_is_visible_together_or_not_at_all(place: Place) -> None:
    def fail() -> None:
        raise ValueError("before the commit")

    results = [(place.topic, None, None, JSON_HEADERS), (place.topic, None, b"made", JSON_HEADERS)]
    for offset, before_commit in ((3, fail), (5, lambda: None)):
        try:
            place.output.publish(results, _offsets(place, offset), before_commit)
        except ValueError:
            assert (place.there(), place.offset()[0]) == ([], -1001)
    assert sorted(message.value() or b"" for message in place.there(2)) == [b"", b"made"]
    assert place.offset()[0] == 5


def test_a_record_that_kafka_refuses_leaves_nothing_and_says_why(place: Place) -> None:
    beyond = b"x" * (place.settings.limits.record_out + 100_000)
    packed = pack(place.topic, JSON_HEADERS, _columns(b"fine", beyond))
    with pytest.raises(JobStopped, match=r"nothing is visible.*max\.request\.size"):
        place.output.publish([], _offsets(place, 3), before_commit=lambda: place.output._sender.send(packed))
    assert (place.there(), place.offset()[0]) == ([], -1001)


def test_a_transaction_fails_by_its_first_record_that_cannot_be_sent(place: Place) -> None:
    """Kafka's producer waits max.block.ms for the metadata of a topic, and once more for each further record."""
    results, began = [("not-there", b"k", b"value", JSON_HEADERS)] * 20, time.monotonic()
    with (
        contextlib.closing(place.another(source={"kafka.max.block.ms": "2000"})) as output,
        pytest.raises((CannotWrite, JobStopped), match="not-there not present in metadata"),
    ):
        output.publish(results, _offsets(place, 3))
    assert time.monotonic() - began < 20, "20 records would wait 40 s"


def test_a_result_of_the_driver_that_kafka_would_refuse_is_left_out_and_the_batch_goes_on(place: Place) -> None:
    beyond = b"x" * (place.settings.limits.record_out + 100_000)
    small, large = (place.topic, b"k", b"fine", JSON_HEADERS), (place.topic, b"k", beyond, JSON_HEADERS)
    place.output.publish([small, large, small], _offsets(place, 3))
    assert [message.value() for message in place.there(2)] == [b"fine"] * 2
    assert place.offset()[0] == 3


def test_who_is_fenced_says_so_and_what_it_had_begun_is_not_visible(place: Place) -> None:
    successors: list[Output] = []

    def succeed() -> None:
        successors.append(place.another())

    with pytest.raises(Fenced, match=rf"another instance of job '{place.topic}' took over"):
        place.output.publish([(place.topic, b"k", b"first", JSON_HEADERS)], _offsets(place, 3), succeed)
    [successor] = successors
    successor.publish([(place.topic, b"k", b"second", JSON_HEADERS)], _offsets(place, 4))
    with pytest.raises(Fenced):
        place.output.publish([], _offsets(place, 9))
    successor.close()
    assert [message.value() for message in place.there(1)] == [b"second"]
    assert place.offset()[0] == 4


def test_after_trouble_a_new_producer_ends_what_was_left_open_and_writes_on(place: Place) -> None:
    """As when Kafka does not answer a commit: the transaction is open, and its producer is given up."""
    place.output._producer.beginTransaction()
    place.output._sender.send(pack(place.topic, JSON_HEADERS, _columns(b"given up")))
    place.output._producer.flush()
    place.output.reopen()
    place.output.publish([(place.topic, b"k", b"again", JSON_HEADERS)], _offsets(place, 4))
    assert [message.value() for message in place.there(1)] == [b"again"]
    assert place.offset()[0] == 4


@pytest.mark.parametrize(
    ("owner", "later", "is_next"),
    [
        (Owner(7, 3), Owner(7, 4), True),
        (Owner(7, 3), Owner(7, 5), False),
        (Owner(7, 3), Owner(7, 3), False),
        (Owner(7, 3), Owner(8, 0), False),
        (Owner(7, LAST_EPOCH), Owner(8, 0), True),
        (Owner(7, LAST_EPOCH), Owner(8, 1), False),
    ],
)
def test_the_end_of_a_transaction_gives_the_next_epoch_or_after_the_last_one_a_new_producer_id(
    owner: Owner, later: Owner, is_next: bool
) -> None:
    """KIP-890; `Short.MAX_VALUE` itself is for fencing."""
    assert owner.precedes(later) == is_next


def test_many_transactions_raise_the_epoch_and_the_id_is_still_ours(place: Place) -> None:
    for offset in range(1, 4):
        place.output.publish([], _offsets(place, offset))
    place.output.reopen()
    place.output.publish([], _offsets(place, 4))
    assert place.offset()[0] == 4


def test_a_coordinator_that_answers_with_an_earlier_owner_does_not_make_another_instance_of_this_one(
    place: Place,
) -> None:
    """As a broker does that is cut off from the others, and takes itself for the coordinator still."""
    for offset in range(1, 4):
        place.output.publish([], _offsets(place, offset))
    producer_id, epoch = place.output._owner = Owner(*place.output._sender.owner())
    for state in ("Ongoing", "PrepareCommit", "CompleteCommit", "Empty"):
        assert place.output._is_owner(Transaction(Owner(producer_id, epoch - 1), state))
        assert place.output._is_owner(Transaction(Owner(producer_id, 0), state))
        assert not place.output._is_owner(Transaction(Owner(producer_id, epoch + 1), state))


def test_an_aborted_transaction_that_took_too_long_raises_the_epoch_once_or_in_kafka_4_0_twice(place: Place) -> None:
    """KAFKA-19367; an epoch more, or a transaction that is open, is another instance's."""
    place.output.publish([], _offsets(place, 1))
    producer_id, epoch = Owner(*place.output._sender.owner())
    place.output._began -= place.settings.transaction_timeout_seconds
    taken = {more: Transaction(Owner(producer_id, epoch + more), "CompleteAbort") for more in (1, 2, 3)}
    assert [place.output._is_owner(transaction) for transaction in taken.values()] == [True, True, False]
    assert not place.output._is_owner(taken[1]._replace(state="Ongoing"))


def test_brokers_of_the_older_protocol_get_a_new_epoch_after_a_commit_that_was_slow(place: Place) -> None:
    """A request that was repeated may still be under way, and would end the next transaction."""
    place.output.publish([], _offsets(place, 3))
    place.output.transaction_version, place.output._last_commit_ms = 1, REQUEST_TIMEOUT_MS
    with pytest.raises(CannotWrite, match=r"longer than request\.timeout\.ms"):
        place.output.publish([], _offsets(place, 4))
    place.output.reopen()
    place.output.publish([], _offsets(place, 4))
    assert place.offset()[0] == 4


@pytest.mark.parametrize("writes", [False, True])
def test_after_trouble_the_transactional_id_is_not_taken_back_from_another_instance(place: Place, writes: bool) -> None:
    """Which goes on undisturbed, whether it had time to write or not."""
    with contextlib.closing(place.another()) as successor:
        if writes:
            successor.publish([], _offsets(place, 1))
        with pytest.raises(Fenced, match="took over"):
            place.output.reopen()
        successor.publish([(place.topic, b"k", b"the successor's", JSON_HEADERS)], _offsets(place, 2))
    assert [message.value() for message in place.there(1)] == [b"the successor's"]


@pytest.mark.long
def test_a_transaction_that_the_coordinator_aborted_for_its_length_is_no_other_instance(place: Place) -> None:
    """It raises the epoch as a successor does. The coordinator looks every ten seconds."""
    output, jvm = place.another(transaction_timeout_seconds=1), cast(Any, place.output._jvm)

    def aborted() -> bool:
        found = describe_transaction(jvm, place.settings)
        return found is not None and found.state == "CompleteAbort"

    with contextlib.closing(output):
        with pytest.raises(CannotWrite):
            output.publish(
                [(place.topic, b"k", b"late", JSON_HEADERS)],
                _offsets(place, 3),
                before_commit=lambda: wait_until(aborted, "the coordinator aborts the transaction", 60),
            )
        output.reopen()
        output.publish([(place.topic, b"k", b"again", JSON_HEADERS)], _offsets(place, 4))
    assert [message.value() for message in place.there(1)] == [b"again"]


def test_what_may_pass_is_distinguished_from_what_kafka_refuses(place: Place, spark: SparkSession) -> None:
    errors = cast(Any, spark._jvm).org.apache.kafka.common.errors
    unavailable = place.output._java.Failures.isUnavailable
    within = cast(Any, spark._jvm).java.lang.RuntimeException
    config = cast(Any, spark._jvm).org.apache.kafka.common.config.ConfigException
    for passing in (
        errors.TimeoutException("Topic x not present in metadata"),
        errors.DisconnectException(),
        errors.TransactionAbortableException("x"),
        config("No resolvable bootstrap urls given in bootstrap.servers"),
    ):
        assert unavailable(within("a task failed", passing))
    for lasting in (errors.RecordTooLargeException("x"), errors.UnknownTopicOrPartitionException("x")):
        assert not unavailable(within("a task failed", lasting))


def test_the_writer_takes_the_settings_of_sparks_reader(place: Place) -> None:
    """Security above all; what only readers know is left out."""
    settings = {
        "kafka.security.protocol": "SSL",
        "kafka.ssl.truststore.location": "/not/there",
        "kafka.fetch.min.bytes": "1",
    }
    with pytest.raises(CannotWrite, match=r"does not let job .* write: .*KafkaException.*/not/there"):
        place.another(source=settings)
    place.another(source={"kafka.compression.type": "gzip", "kafka.transactional.id": "not-ours"}).close()


def test_a_kafka_that_does_not_answer_is_no_reason_to_stop_for_good(place: Place, spark: SparkSession) -> None:
    """The monitor, which writes beside decisions, tries again later; of this try nothing is left."""
    closed_port = "127.0.0.1:1"
    with pytest.raises(CannotWrite, match=r"TimeoutException") as refused:
        place.another(bootstrap_servers=closed_port, job_name="alone", source={"kafka.max.block.ms": "500"})
    assert not isinstance(refused.value, JobStopped)
    jvm: Any = spark._jvm
    threads = [thread.getName() for thread in jvm.Thread.getAllStackTraces().keySet()]
    assert any(place.settings.job_name in name for name in threads)
    assert not any("alone" in name for name in threads)


def test_the_workers_of_the_enforcer_are_its_own(spark: SparkSession) -> None:
    """The monitor's, in which Spark would else run its tasks too, then hold neither policies nor prepared queries."""

    def process(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            cells = [b"%d" % os.getpid()], [os.environ.get(POOL, "").encode()], [None]
            yield pa.RecordBatch.from_arrays([pa.array(cell, pa.binary()) for cell in cells], SCHEMA.fieldNames())

    records, evaluation = spark.range(0, 1, 1, 1), Evaluation(spark)
    evaluation.warm_up()
    [(own, pool, _)] = evaluation.collect(evaluation.plan(records, process))
    [(other, no_pool, _)] = records.mapInArrow(process, SCHEMA).collect()
    evaluation.close()
    assert (bytes(pool), bytes(no_pool)) == (b"enforcer", b"")
    assert bytes(own) != bytes(other)
    [(again, *_)] = evaluation.collect(evaluation.plan(records, process))
    assert bytes(again) == bytes(own), "it is used again"


def test_the_plan_made_for_a_batch_makes_what_spark_s_own_planner_makes(spark: SparkSession) -> None:
    sent = spark.sparkContext.broadcast(b"!")

    def echo(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            cells = [None if cell is None else cell + sent.value for cell in batch.column(1).to_pylist()]
            columns = batch.column(0), pa.array(cells, pa.binary()), batch.column(2)
            yield pa.RecordBatch.from_arrays(list(columns), SCHEMA.fieldNames())

    rows = [(b"%d" % number, None if number % 3 else b"x" * number, None) for number in range(100)]
    handed_over = spark.createDataFrame(spark.sparkContext.parallelize(rows, 3), SCHEMA)  # an RDD, as a micro-batch is
    evaluation = Evaluation(spark)
    for records in (handed_over, handed_over.selectExpr("packed", "side", "known"), handed_over.limit(0)):
        found = [tuple(row) for row in evaluation.collect(evaluation.plan(records, echo))]
        assert found == [tuple(row) for row in records.mapInArrow(echo, SCHEMA).collect()]


def test_offsets_of_more_partitions_than_one_batch_of_the_coordinator_has_are_committed_together(
    place: Place, broker: TestBroker, fresh_name: Callable[[str], str]
) -> None:
    """It refuses a request whose offsets, with what is written beside them, are more than 1 MiB."""
    topic, count, beside = fresh_name("wide"), 300, "x" * 4_000
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.create_topics([NewTopic(topic, count, 1)])[topic].result(60)
    offsets = [TopicPartition(topic, number, number, beside) for number in range(count)]
    place.output.publish([], offsets)
    found = place.output.group.committed([TopicPartition(topic, number) for number in range(count)], timeout=30)
    assert [(tp.offset, tp.metadata) for tp in found] == [(tp.offset, beside) for tp in offsets]
