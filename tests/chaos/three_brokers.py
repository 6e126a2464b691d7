"""Three brokers that are one cluster, each a process of its own that can be killed, cut off and started again."""

import contextlib
import itertools
import re
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from streaming.broker import HOST, EmbeddedBroker, stored_or_new_cluster_id
from streaming.runtime.supervisor import Order
from tests.brokers import free_port, run_kafka_tool
from tests.chaos.networks import Networks, can_make_namespaces
from tests.chaos.processes import Broker
from tests.java_archive import broker_java_options
from tests.stream.certificates import Authority
from tests.stream.secured_broker import LISTENERS, SecuredBroker, security
from tests.waiting import wait_until

COUNT = 3
REPLICATED_SECONDS = 180.0
QUORUM = "org.apache.kafka.tools.MetadataQuorumCommand"
TRANSACTIONS = "org.apache.kafka.tools.TransactionsCommand"
DISK_BYTES = 192 << 20
CONTROLLER = "CONTROLLER"

REPLICATED = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "share.coordinator.state.topic.replication.factor": "3",
    "share.coordinator.state.topic.min.isr": "2",
    "unclean.leader.election.enable": "false",
    "log.cleaner.backoff.ms": "1000",
}


class _Embedded(EmbeddedBroker):
    """A broker at an address of its own: on a network namespace's, where a command leads there."""

    def __init__(self, host: str, ports: dict[str, int], command: list[str], **options: object) -> None:
        super().__init__(port=ports["PLAINTEXT"], **options)  # type: ignore[arg-type]
        self._address, self._command = f"{host}:{ports['PLAINTEXT']}", command

    @property
    def bootstrap_servers(self) -> str:
        return self._address

    def _order(self, folder: Path) -> Order:
        order = super()._order(folder)
        return {**order, "commands": [[*self._command, *command] for command in order["commands"]]}


class ThreeBrokers:
    """Brokers numbered from 0, which are the controllers, too; Kafka's ids are one more.

    `networks`: where root makes them, each broker is in a network of its own; None: all on this machine's.
    `secured`: users log in by SCRAM or with certificates, and may do what ACLs allow.
    `small_disk`: the folder of the last one's data, where root mounts a small file system there (`disks`); None: it has
    none.
    """

    def __init__(self, folder: Path, secured: bool = False, disks: bool = True) -> None:
        disk, self._authority = folder / f"kafka-{COUNT - 1}", Authority(folder) if secured else None
        # The certificates name the tests' usual host.
        self.networks = Networks(COUNT) if not secured and can_make_namespaces() else None
        self._hosts = [self.networks.address(number) if self.networks else HOST for number in range(COUNT)]
        names = [*(LISTENERS if secured else ["PLAINTEXT"]), CONTROLLER]
        self._ports = [dict(zip(names, ports, strict=True)) for ports in _ports(len(names))]
        self._cluster_id = stored_or_new_cluster_id()
        self.small_disk = disk if disks and _mount(disk) else None
        self.brokers = [Broker(self._embedded(number, folder / f"kafka-{number}")) for number in range(COUNT)]

    def secured(self) -> SecuredBroker:
        """How users log in."""
        assert self._authority is not None
        plain, scram, mtls = map(self.addresses, LISTENERS)
        return SecuredBroker(self._admin(), self._authority, plain, scram, mtls)

    @property
    def bootstrap_servers(self) -> str:
        """The addresses, which stay the same over restarts, for those who need not log in."""
        return self.addresses("PLAINTEXT")

    def addresses(self, listener: str) -> str:
        """Those of a listener of all brokers."""
        return ",".join(f"{host}:{ports[listener]}" for host, ports in zip(self._hosts, self._ports, strict=True))

    def kafka_tool(self, class_name: str, *arguments: str) -> str:
        """Run one of Kafka's command-line tools and return what it printed."""
        return run_kafka_tool(class_name, "--bootstrap-server", self.bootstrap_servers, *arguments)

    def start(self) -> None:
        """Start all at once, for one alone is no quorum; return when each answers."""
        with ThreadPoolExecutor(COUNT) as starts:
            list(starts.map(Broker.start, self.brokers))

    def stop(self) -> None:
        """End them, with their networks and disks."""
        for broker in self.brokers:  # in order would need a quorum to the end
            with contextlib.suppress(ProcessLookupError):
                broker.kill()
        if self.networks is not None:
            self.networks.close()
        if self.small_disk is not None:
            subprocess.run(["umount", "--lazy", str(self.small_disk)], check=True)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop()

    def leader(self, topic: str, partition: int = 0) -> int:
        """The broker that leads a partition; -1: none does, or it is too new for the broker that was asked."""
        metadata = self._admin().list_topics(topic, timeout=30).topics[topic].partitions.get(partition)
        return -1 if metadata is None else max(-1, int(metadata.leader) - 1)

    def in_sync(self, topic: str, partition: int = 0) -> set[int]:
        """The brokers that are in sync with a partition's leader."""
        metadata = self._admin().list_topics(topic, timeout=30).topics[topic].partitions[partition]
        return {int(id_) - 1 for id_ in metadata.isrs}

    def controller(self) -> int:
        """The controller that leads the quorum."""
        return self._number(r"LeaderId:\s+(\d+)", QUORUM, "describe", "--status")

    def coordinator(self, transactional_id: str) -> int:
        """The coordinator of the transactions of an id."""
        return self._number(
            rf"(?m)^(\d+)\s+{re.escape(transactional_id)}\s",
            TRANSACTIONS,
            "describe",
            "--transactional-id",
            transactional_id,
        )

    def await_replicated(self) -> None:
        """Return when each partition is in sync on all brokers that have it."""
        wait_until(self._is_replicated, "each replica is in sync", REPLICATED_SECONDS)

    def _is_replicated(self) -> bool:
        with contextlib.suppress(KafkaException):
            cluster = self._admin().list_topics(timeout=5)
            partitions = [found for topic in cluster.topics.values() for found in topic.partitions.values()]
            return len(cluster.brokers) == COUNT and all(len(p.isrs) == len(p.replicas) for p in partitions)
        return False

    def _admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.bootstrap_servers, "log_level": 0})

    def _number(self, pattern: str, class_name: str, *arguments: str) -> int:
        printed = self.kafka_tool(class_name, *arguments)
        found = re.search(pattern, printed)
        assert found is not None, printed
        return int(found[1]) - 1

    def _embedded(self, number: int, data: Path) -> EmbeddedBroker:
        host, ports = self._hosts[number], self._ports[number]
        listeners = [f"{name}://{host}:{port}" for name, port in ports.items()]
        voters = [f"{other + 1}@{self._hosts[other]}:{self._ports[other][CONTROLLER]}" for other in range(COUNT)]
        config = {
            **REPLICATED,
            **(security(self._authority) if self._authority else {}),
            "node.id": str(number + 1),
            "listeners": ",".join(listeners),
            "advertised.listeners": ",".join(one for one in listeners if not one.startswith(CONTROLLER)),
            "controller.quorum.voters": ",".join(voters),
        }
        command = self.networks.command(number) if self.networks else []
        options = {"config": config, "jvm_options": broker_java_options(), "cluster_id": self._cluster_id}
        return _Embedded(host, ports, command, data_dir=data, **options)


def _ports(count: int) -> Iterator[tuple[int, ...]]:
    """For each broker so many ports, all different."""
    ports: set[int] = set()
    while len(ports) < COUNT * count:
        ports.add(free_port())
    numbers = iter(ports)
    return (tuple(itertools.islice(numbers, count)) for _ in range(COUNT))


def _mount(folder: Path) -> bool:
    """Mount a small file system at a folder; returns whether that was permitted."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "lockkeeper-chaos", str(folder)]
    with contextlib.suppress(OSError):
        return subprocess.run(command, capture_output=True).returncode == 0
    return False
