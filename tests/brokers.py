"""The Kafka broker that tests run against: the best there is."""

import contextlib
import os
import random
import socket
import subprocess
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from confluent_kafka.admin import AdminClient

from streaming.broker import QUICK_START, BrokerError, java_command
from streaming.kafka.clients import is_reachable, last_stable_offsets, log_ends
from streaming.runtime.java import CONSOLE_LOG
from tests.java_archive import embedded_broker
from tests.waiting import wait_until

GIVEN = "KAFKA_BOOTSTRAP_SERVERS"
IMAGE = "apache/kafka:4.2.0"
"""The version that docker-compose.yml starts, and whose jars the embedded broker runs."""

_PULL_SECONDS = 600
_START_SECONDS = 120.0
_LISTENER_PORT = 9092
_SINGLE_BROKER = {
    "KAFKA_NODE_ID": "1",
    "KAFKA_PROCESS_ROLES": "broker,controller",
    "KAFKA_LISTENERS": f"PLAINTEXT://:{_LISTENER_PORT},CONTROLLER://:9093",
    "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "KAFKA_CONTROLLER_LISTENER_NAMES": "CONTROLLER",
    "KAFKA_CONTROLLER_QUORUM_VOTERS": "1@localhost:9093",
    "KAFKA_AUTO_CREATE_TOPICS_ENABLE": "false",
    "KAFKA_OFFSETS_TOPIC_REPLICATION_FACTOR": "1",
    "KAFKA_TRANSACTION_STATE_LOG_REPLICATION_FACTOR": "1",
    "KAFKA_TRANSACTION_STATE_LOG_MIN_ISR": "1",
    "KAFKA_GROUP_INITIAL_REBALANCE_DELAY_MS": "0",
    "KAFKA_LOG_CLEANER_BACKOFF_MS": "1000",
}

CONSUMER_GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
"""Shows and changes consumer groups: their offsets and their lag."""

_SHOWN_CHARACTERS = 2000


@dataclass(frozen=True, slots=True)
class TestBroker:
    """A broker that tests may use."""

    __test__ = False

    bootstrap_servers: str

    def kafka_tool(self, class_name: str, *arguments: str) -> str:
        """Run one of Kafka's command-line tools against this broker and return what it printed."""
        return run_kafka_tool(class_name, "--bootstrap-server", self.bootstrap_servers, *arguments)


@contextlib.contextmanager
def any_broker() -> Iterator[TestBroker]:
    """Yield the broker that KAFKA_BOOTSTRAP_SERVERS names, else one in a container, else an embedded one."""
    given = os.environ.get(GIVEN)
    if given:
        yield TestBroker(given)
    elif has_image(IMAGE):
        with _in_container() as address:
            yield TestBroker(address)
    else:
        with embedded_broker(config={"log.cleaner.backoff.ms": "1000"}) as embedded:
            yield TestBroker(embedded.bootstrap_servers)


def await_transaction_markers(admin: AdminClient, partitions: Collection[tuple[str, int]]) -> None:
    """Wait until no transaction is open in the partitions: Kafka confirms a commit before it writes its markers."""
    wait_until(
        lambda: last_stable_offsets(admin, partitions) == log_ends(admin, partitions), "the transactions' markers"
    )


def docker_answers() -> bool:
    """Whether there is a Docker engine here."""
    return _engine() is not None


def has_image(name: str) -> bool:
    """Whether a Docker engine has the image, or can pull it: an engine without a registry answers, and runs nothing."""
    import docker

    client = _engine()
    if client is None:
        return False
    with contextlib.closing(client):
        try:
            client.images.get(name)
        except docker.errors.ImageNotFound:
            try:
                client.images.pull(name)
            except (docker.errors.DockerException, OSError):
                return False
        return True


def _engine() -> Any:
    """A client of the Docker engine; None: there is none."""
    import docker

    try:
        client = docker.from_env(timeout=_PULL_SECONDS)
        client.ping()
    except (docker.errors.DockerException, OSError):
        return None
    return client


@contextlib.contextmanager
def _in_container() -> Iterator[str]:
    """A broker whose port on this machine is chosen beforehand, since it advertises the port to clients."""
    from testcontainers.core.config import testcontainers_config
    from testcontainers.core.container import DockerContainer

    # Ryuk removes the containers of tests that were killed. Without its image testcontainers starts no container.
    testcontainers_config.ryuk_disabled = not has_image(testcontainers_config.ryuk_image)
    port = free_port()
    address = f"127.0.0.1:{port}"
    container = DockerContainer(IMAGE)
    container.ports[f"{_LISTENER_PORT}/tcp"] = ("127.0.0.1", port)  # `with_bind_ports` takes no address
    container.with_envs(**_SINGLE_BROKER, KAFKA_ADVERTISED_LISTENERS=f"PLAINTEXT://{address}")
    with container:
        admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
        wait_until(lambda: is_reachable(admin), "the broker in the container", _START_SECONDS)
        yield address


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
