"""Reaching Kafka, or saying within seconds that it is not there."""

from typing import TYPE_CHECKING

from streaming.cli.failures import Failure

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

    from streaming.settings import Settings

SECONDS = 5.0


def reach(settings: "Settings") -> "AdminClient":
    """A client of a cluster that answers. Raises Failure."""
    from confluent_kafka import KafkaException

    from streaming.enforcer.kafka import admin_client

    try:
        admin = admin_client(settings)
        admin.list_topics(timeout=SECONDS)
    except KafkaException as error:
        raise Failure(
            f"no Kafka at {settings.bootstrap_servers} ({error.args[0].str()}, waited {SECONDS:.0f} s). Start it, or "
            "name another with --bootstrap HOST:PORT, bootstrap_servers in --config, or LOCKKEEPER_BOOTSTRAP_SERVERS"
        ) from error
    return admin
