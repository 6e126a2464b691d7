"""A client whose broker answers, but late."""

import contextlib

import pytest

from streaming.client import Client, Connection
from streaming.kafka.clients import admin_client
from streaming.kafka.topics import create_topics
from streaming.settings import Settings
from tests.brokers import free_port
from tests.java_archive import embedded_broker
from tests.stream.kafka_proxy import HOST, SlowProxy

pytestmark = [pytest.mark.stream, pytest.mark.long, pytest.mark.timeout(400)]


def test_a_client_becomes_ready_where_each_query_takes_two_seconds() -> None:
    """Each attempt ended after 3 s, of which the group's coordinator alone takes four, and the next began anew."""
    broker_port, port, inner, controller = (free_port() for _ in range(4))
    config = {
        "listeners": f"PLAINTEXT://{HOST}:{broker_port},NEAR://{HOST}:{inner},CONTROLLER://{HOST}:{controller}",
        "advertised.listeners": f"PLAINTEXT://{HOST}:{port},NEAR://{HOST}:{inner}",
        "controller.quorum.voters": f"1@{HOST}:{controller}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,NEAR:PLAINTEXT,CONTROLLER:PLAINTEXT",
    }
    proxy = SlowProxy(port, broker_port, 1.0)
    with contextlib.closing(proxy), embedded_broker(port=broker_port, config=config):
        near = Settings(bootstrap_servers=f"{HOST}:{inner}")
        create_topics(admin_client(near), near.topics, partitions=1)
        with Client(Connection(f"{HOST}:{port}")) as client:
            assert client.ready(120)
