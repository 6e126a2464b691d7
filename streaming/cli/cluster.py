"""Reaching Kafka, or saying within seconds that it is not there."""

from typing import TYPE_CHECKING

from streaming.cli.failures import Failure

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

    from streaming.settings import Settings

SECONDS = 5.0


def reach(settings: "Settings", *topics: str) -> "AdminClient":
    """A client of a cluster that answers and has the topics. Raises Failure."""
    from confluent_kafka import KafkaException

    from streaming.enforcer.kafka import admin_client

    try:
        admin = admin_client(settings)
        there = admin.list_topics(timeout=SECONDS).topics
    except KafkaException as error:
        raise Failure(
            f"no Kafka at {settings.bootstrap_servers} ({error.args[0].str()}, waited {SECONDS:g} s). Start it, or "
            "name another with --bootstrap HOST:PORT, bootstrap_servers in --config, or LOCKKEEPER_BOOTSTRAP_SERVERS"
        ) from error
    if missing := sorted(set(topics) - there.keys()):
        raise Failure(
            f"{', '.join(missing)}: no such topic at {settings.bootstrap_servers}. Run `lockkeeper topics create`, "
            "or name other topics in the settings"
        )
    return admin
