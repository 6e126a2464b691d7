"""The Kafka broker that tests run against: the best there is."""

import contextlib
import os
import random
import socket
import subprocess
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from confluent_kafka.admin import AdminClient

from streaming.broker import JVM_OPTIONS, QUICK_START, BrokerError, EmbeddedBroker, java_command
from streaming.kafka.clients import last_stable_offsets, log_ends
from streaming.runtime.java import CONSOLE_LOG
from tests.waiting import wait_until

GIVEN = "KAFKA_BOOTSTRAP_SERVERS"
_IMAGE = "confluentinc/cp-kafka:7.9.1"
_ALONE = {
    "KAFKA_AUTO_CREATE_TOPICS_ENABLE": "false",
    "KAFKA_TRANSACTION_STATE_LOG_REPLICATION_FACTOR": "1",
    "KAFKA_TRANSACTION_STATE_LOG_MIN_ISR": "1",
}

CONSUMER_GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
"""Shows and changes consumer groups: their offsets and their lag."""

_SHOWN_CHARACTERS = 2000


@dataclass(frozen=True, slots=True)
class TestBroker:
    """A broker that tests may use."""

    __test__ = False

    bootstrap_servers: str
    origin: str

    def kafka_tool(self, class_name: str, *arguments: str) -> str:
        """Run one of Kafka's command-line tools against this broker and return what it printed."""
        return run_kafka_tool(class_name, "--bootstrap-server", self.bootstrap_servers, *arguments)


@contextlib.contextmanager
def any_broker() -> Iterator[TestBroker]:
    """Yield the broker that KAFKA_BOOTSTRAP_SERVERS names, else one in a container, else an embedded one."""
    given = os.environ.get(GIVEN)
    if given:
        yield TestBroker(given, f"given by {GIVEN}")
    elif docker_answers():
        with _in_container() as address:
            yield TestBroker(address, f"in a container of {_IMAGE}")
    else:
        options = (*JVM_OPTIONS, *QUICK_START)
        with EmbeddedBroker(config={"log.cleaner.backoff.ms": "1000"}, jvm_options=options) as embedded:
            yield TestBroker(embedded.bootstrap_servers, "embedded")


def await_transaction_markers(admin: AdminClient, partitions: Collection[tuple[str, int]]) -> None:
    """Wait until no transaction is open in the partitions: Kafka confirms a commit before it writes its markers."""
    wait_until(
        lambda: last_stable_offsets(admin, partitions) == log_ends(admin, partitions), "the transactions' markers"
    )


def docker_answers() -> bool:
    """Whether there is a Docker engine here."""
    import docker

    try:
        client = docker.from_env(timeout=5)
    except docker.errors.DockerException:
        return False
    with contextlib.closing(client):
        return bool(client.ping())


@contextlib.contextmanager
def _in_container() -> Iterator[str]:
    from testcontainers.kafka import KafkaContainer

    container = KafkaContainer(_IMAGE).with_kraft()
    for name, value in _ALONE.items():
        container.with_env(name, value)
    with container:
        yield container.get_bootstrap_server()


def free_port(host: str = "127.0.0.1") -> int:
    """A port of an address on which nobody listens.

    It is below those that systems give to outgoing connections, of which one could take it before it is used.
    """
    for port in random.SystemRandom().sample(range(20_000, 32_000), 100):
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as one, contextlib.suppress(OSError):
            one.bind((host, port))
            return port
    raise OSError("of 100 ports none is free")


def run_kafka_tool(class_name: str, *arguments: str, timeout_seconds: float = 60.0) -> str:
    """Run one of Kafka's command-line tools against whichever broker the arguments name.

    Args:
        class_name: the tool's class, such as `CONSUMER_GROUPS`.
        arguments: what the tool takes, such as `--bootstrap-server`, `--describe`, `--group`.
        timeout_seconds: how long the tool may take.

    Returns:
        What the tool printed to standard output.

    Raises:
        BrokerError: the tool failed, or took too long; the message carries what it printed.
    """
    command = java_command(class_name, *arguments, jvm_options=QUICK_START, log_config=CONSOLE_LOG)
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout_seconds
        )
    except subprocess.TimeoutExpired as error:
        raise BrokerError(f"{class_name} took longer than {timeout_seconds} s; is the broker up?") from error
    if done.returncode != 0:
        printed = (done.stdout + done.stderr).strip()[-_SHOWN_CHARACTERS:]
        raise BrokerError(f"{class_name} {' '.join(arguments)} ended with {done.returncode}: {printed}")
    return done.stdout
