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
    """Each attempt ended after 3 s, of which the group's coordinator alone takes four, and the next began again."""
    near, far, through_proxy, controller = (free_port() for _ in range(4))
    config = {
        "listeners": f"PLAINTEXT://{HOST}:{near},FAR://{HOST}:{far},CONTROLLER://{HOST}:{controller}",
        "advertised.listeners": f"PLAINTEXT://{HOST}:{near},FAR://{HOST}:{through_proxy}",
        "controller.quorum.voters": f"1@{HOST}:{controller}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,FAR:PLAINTEXT,CONTROLLER:PLAINTEXT",
    }
    proxy = SlowProxy(through_proxy, far, 1.0)
    with contextlib.closing(proxy), embedded_broker(port=near, config=config) as broker:
        settings = Settings(bootstrap_servers=broker.bootstrap_servers)
        create_topics(admin_client(settings), settings.topics, partitions=1)
        with Client(Connection(f"{HOST}:{through_proxy}")) as client:
            assert client.ready(120)
