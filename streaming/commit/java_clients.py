"""The settings of Kafka's clients in Java, which connect and authenticate with those of Spark's reader."""

from collections.abc import Mapping
from typing import Any

from streaming.records.size_gate import largest
from streaming.settings import Settings
from streaming.topics import ROOM

KAFKA = "kafka."
BATCH_BYTES = 256 << 10
ANSWER_SECONDS = 10.0  # what was evaluated longer ago is evaluated again


def producer_settings(jvm: Any, settings: Settings) -> Mapping[str, str]:
    """Of the transactional producer."""
    limit = max(largest(settings).values())
    return {
        "linger.ms": "5",
        "batch.size": str(min(BATCH_BYTES, limit)),
        "buffer.memory": str(max(64 << 20, 2 * limit)),
        # Decisions are alike: far fewer bytes, and the commit waits a third as long for them.
        "compression.type": "lz4",
        "max.block.ms": str(int(ANSWER_SECONDS * 1000)),
        **shared_settings(settings, jvm.org.apache.kafka.clients.producer.ProducerConfig, jvm),
        "bootstrap.servers": settings.bootstrap_servers,
        "transactional.id": settings.job_name,
        "transaction.timeout.ms": str(int(settings.transaction_timeout_seconds * 1000)),
        "max.request.size": str(limit + ROOM),
    }


def admin_settings(jvm: Any, settings: Settings) -> Any:
    """Of the admin client, as Properties."""
    seconds = str(int(ANSWER_SECONDS * 1000))
    return properties(
        jvm,
        {
            **shared_settings(settings, jvm.org.apache.kafka.clients.admin.AdminClientConfig, jvm),
            "bootstrap.servers": settings.bootstrap_servers,
            "request.timeout.ms": seconds,
            "default.api.timeout.ms": seconds,
        },
    )


def shared_settings(settings: Settings, config: Any, jvm: Any) -> dict[str, str]:
    """Of the settings of Spark's reader those that another client takes."""
    ours, readers = config.configNames(), jvm.org.apache.kafka.clients.consumer.ConsumerConfig.configNames()
    shared = {name.removeprefix(KAFKA): value for name, value in settings.source.items() if name.startswith(KAFKA)}
    # What neither knows is for whom they load, such as a login of one's own.
    return {name: value for name, value in shared.items() if ours.contains(name) or not readers.contains(name)}


def properties(jvm: Any, values: Mapping[str, str]) -> Any:
    """As Java's Properties."""
    properties = jvm.java.util.Properties()
    for name, value in values.items():
        properties.setProperty(name, value)
    return properties
