"""Kafka's own producer in Spark's JVM, where what the workers made of a batch is already."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from streaming.records.size_gate import largest
from streaming.runtime.spark import new_instance
from streaming.settings import Settings
from streaming.topics import ROOM

SOURCE = Path(__file__).with_name("Sender.java")
KAFKA = "kafka."
BATCH_BYTES = 256 << 10
ANSWER_SECONDS = 10.0  # what was evaluated longer ago is evaluated again


def open_sender(spark: SparkSession, settings: Settings) -> Any:
    """An instance of the class in `Sender.java`, whose producer has the job's transactional id.

    Raises Py4JJavaError when the producer does not take its settings.
    """
    gateway: Any = spark.sparkContext._gateway
    return new_instance(gateway, SOURCE, _properties(gateway.jvm, _producer_settings(gateway.jvm, settings)))


def _producer_settings(jvm: Any, settings: Settings) -> Mapping[str, str]:
    """The producer connects and authenticates with the same settings as Spark's reader."""
    limit = max(largest(settings).values())
    return {
        "linger.ms": "5",
        "batch.size": str(min(BATCH_BYTES, limit)),
        "buffer.memory": str(max(64 << 20, 2 * limit)),
        # Decisions are alike: far fewer bytes, and the commit waits a third as long for them.
        "compression.type": "lz4",
        "max.block.ms": str(int(ANSWER_SECONDS * 1000)),
        **_shared(settings, jvm.org.apache.kafka.clients.producer.ProducerConfig, jvm),
        "bootstrap.servers": settings.bootstrap_servers,
        "transactional.id": settings.job_name,
        "transaction.timeout.ms": str(int(settings.transaction_timeout_seconds * 1000)),
        "max.request.size": str(limit + ROOM),
    }


def admin_settings(jvm: Any, settings: Settings) -> Any:
    """Of Java's admin client, as Properties."""
    seconds = str(int(ANSWER_SECONDS * 1000))
    return _properties(
        jvm,
        {
            **_shared(settings, jvm.org.apache.kafka.clients.admin.AdminClientConfig, jvm),
            "bootstrap.servers": settings.bootstrap_servers,
            "request.timeout.ms": seconds,
            "default.api.timeout.ms": seconds,
        },
    )


def _shared(settings: Settings, config: Any, jvm: Any) -> dict[str, str]:
    """Of the settings of Spark's reader those that another client of Java's takes."""
    ours, readers = config.configNames(), jvm.org.apache.kafka.clients.consumer.ConsumerConfig.configNames()
    shared = {name.removeprefix(KAFKA): value for name, value in settings.source.items() if name.startswith(KAFKA)}
    # What neither knows is for whom they load, such as a login of one's own.
    return {name: value for name, value in shared.items() if ours.contains(name) or not readers.contains(name)}


def _properties(jvm: Any, values: Mapping[str, str]) -> Any:
    properties = jvm.java.util.Properties()
    for name, value in values.items():
        properties.setProperty(name, value)
    return properties
