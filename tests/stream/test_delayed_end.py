"""A delayed EndTxn must not end a later transaction of the same producer (KIP-890; found by Jepsen in Kafka 3)."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from py4j.protocol import Py4JJavaError

from streaming.commit.protocol import FENCES_EACH_TRANSACTION, cluster_transaction_version, explain_version, java_with
from streaming.errors import RuntimeSetupError
from streaming.kafka.committed import committed_records
from streaming.runtime.jars import cache_folder, classpath, ensure, read_lock
from streaming.settings import Settings
from tests.brokers import free_port
from tests.java_archive import embedded_broker
from tests.stream.kafka_proxy import HOST, EndTxnProxy

TOPIC = "transactions"
OLDER = Path(__file__).with_name("kafka-clients-3.toml")
REQUEST_TIMEOUT_MS = 500  # after which the client repeats the request that is held back

pytestmark = pytest.mark.stream


@pytest.fixture(scope="module")
def proxied() -> Iterator[tuple[EndTxnProxy, str]]:
    """A broker that clients reach through the proxy alone, for it advertises that address; and the address."""
    broker_port, port = free_port(), free_port()
    proxy = EndTxnProxy(port, broker_port)
    advertised = {"advertised.listeners": f"PLAINTEXT://{HOST}:{port}"}
    with contextlib.closing(proxy), embedded_broker(port=broker_port, config=advertised) as broker:
        from confluent_kafka.admin import NewTopic

        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        admin.create_topics([NewTopic(TOPIC, 1, 1)])[TOPIC].result(30)
        yield proxy, f"{HOST}:{port}"


class DelayedEnds:
    """Rounds of two transactions; the EndTxn of the first arrives once more within the second, which is aborted."""

    def __init__(self, jvm: Any, proxy: EndTxnProxy, address: str, name: str) -> None:
        self._jvm, self._proxy, self._address, self._name = jvm, proxy, address, name
        self._producer = self._open()

    def _open(self) -> Any:
        properties = self._jvm.java.util.Properties()
        for name, value in {
            "bootstrap.servers": self._address,
            "transactional.id": self._name,
            "request.timeout.ms": str(REQUEST_TIMEOUT_MS),
            "delivery.timeout.ms": "30000",
        }.items():
            properties.setProperty(name, value)
        strings = self._jvm.org.apache.kafka.common.serialization.StringSerializer
        producer = self._jvm.org.apache.kafka.clients.producer.KafkaProducer(properties, strings(), strings())
        producer.initTransactions()
        return producer

    def run(self, number: int) -> None:
        self._producer.beginTransaction()
        self._send(f"{number} committed")
        self._proxy.hold_next()
        self._producer.commitTransaction()  # the client's second attempt passes
        assert self._proxy.holds
        self._producer.beginTransaction()
        self._send(f"{number} first half")
        self._proxy.release()
        try:
            self._send(f"{number} second half")
            self._producer.abortTransaction()
        except Py4JJavaError:  # its transaction was ended by the delayed request: it cannot go on
            self._producer.close(self._jvm.java.time.Duration.ZERO)
            self._producer = self._open()

    def _send(self, value: str) -> None:
        record = self._jvm.org.apache.kafka.clients.producer.ProducerRecord
        self._producer.send(record(TOPIC, self._name, value)).get()

    def visible(self) -> list[str]:
        """What readers of committed records see of this producer."""
        records = committed_records(Settings(bootstrap_servers=self._address), [TOPIC])
        return [(r.value() or b"").decode() for r in records if r.key() == self._name.encode()]


def _spark_client() -> Path:
    """The client that the job runs with."""
    [jar] = [path for path in classpath("spark") if path.name.startswith("kafka-clients-")]
    return jar


def _older_client() -> Path:
    try:
        return ensure(read_lock("client", OLDER), cache_folder())[0]
    except RuntimeSetupError as error:
        pytest.skip(f"no older client to compare with: {error}")


def _torn(jar: Path, rounds: int, proxied: tuple[EndTxnProxy, str]) -> int:
    """In how many rounds records of a transaction are visible that was aborted."""
    with java_with([jar]) as jvm:
        ends = DelayedEnds(jvm, *proxied, jar.stem)
        for number in range(rounds):
            ends.run(number)
        visible = ends.visible()
    assert [value for value in visible if value.endswith("committed")] == [f"{n} committed" for n in range(rounds)]
    return len({value.split()[0] for value in visible if not value.endswith("committed")})


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_delayed_end_does_not_end_the_next_transaction_of_the_jobs_producer(
    proxied: tuple[EndTxnProxy, str],
) -> None:
    assert _torn(_spark_client(), 100, proxied) == 0


@pytest.mark.long
@pytest.mark.timeout(900)
def test_with_an_older_client_it_does_so_that_this_test_shows_something(proxied: tuple[EndTxnProxy, str]) -> None:
    assert _torn(_older_client(), 100, proxied) > 90


@pytest.mark.long
def test_the_clusters_transaction_version_is_read(proxied: tuple[EndTxnProxy, str]) -> None:
    settings = Settings(bootstrap_servers=proxied[1])
    assert cluster_transaction_version(settings) == FENCES_EACH_TRANSACTION


@pytest.mark.parametrize(("version", "is_explained"), [(0, True), (1, True), (2, False), (3, False)])
def test_what_an_older_protocol_does_not_promise_is_explained(version: int, is_explained: bool) -> None:
    text = explain_version(version)
    assert (f"transaction.version {version}" in text) == is_explained
    assert ("transaction.version=2" in text) == is_explained
