"""Commands whose broker answers, and then does not."""

import contextlib
from threading import Event

import pytest

from tests.brokers import free_port
from tests.cli.lockkeeper import Command
from tests.java_archive import embedded_broker
from tests.stream.kafka_proxy import HOST, METADATA, StepProxy

pytestmark = [pytest.mark.stream, pytest.mark.timeout(300)]


def test_a_broker_that_answers_the_first_query_alone_is_not_called_absent(lockkeeper: Command) -> None:
    """It said that there is no Kafka, after 5 s, where it had waited for 15 s for what topics there are."""
    broker_port, port = free_port(), free_port()
    proxy, end = StepProxy(port, broker_port), Event()
    config = {"advertised.listeners": f"PLAINTEXT://{HOST}:{port}"}
    with contextlib.closing(proxy), embedded_broker(port=broker_port, config=config):
        proxy.act_at(METADATA, b"authz.decisions.v1", False, lambda _: end.wait() and None)
        shown = lockkeeper("decisions", "--bootstrap", f"{HOST}:{port}")
        end.set()
    assert shown.code == 1
    assert f"Kafka at {HOST}:{port} answers, but does not say in time which topics" in shown.err
    assert "no Kafka" not in shown.err
