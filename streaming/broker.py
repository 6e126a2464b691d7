"""A Kafka broker of one's own: one KRaft process, ready in seconds, gone without a trace."""

import contextlib
import os
import re
import secrets
import shutil
import socket
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from streaming.errors import BrokerError
from streaming.runtime.jars import classpath
from streaming.runtime.java import CONSOLE_LOG, find_java
from streaming.runtime.supervisor import Order, Supervised

HOST = "127.0.0.1"
JVM_OPTIONS = ("-Xmx512m", "-XX:+UseSerialGC", "-Xshare:auto")
QUICK_START = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto")
"""For a Java that does little: optimizing compilation would take more of the processors than it saves."""
START_SECONDS = 120.0  # beside eight other Javas on two cores 60 were not enough (2026-11-28); alone it takes 3

_POLL_SECONDS = 0.2
_GRACE_SECONDS = 15.0
_SHOWN_LINES = 30
_BROKER_LOG = Path(__file__).parent / "log4j2-broker.properties"

_ALONE_AND_QUICK = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    # One broker can hold one replica.
    "default.replication.factor": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    # Creating 50 partitions for the first group and the first transaction takes seconds.
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
    "group.initial.rebalance.delay.ms": "0",
    # Kept data may lie for long until they are wanted again; after a week Kafka would forget what a job has decided.
    "offsets.retention.minutes": str(365 * 24 * 60),
    # A misspelt topic is an error, not a new topic.
    "auto.create.topics.enable": "false",
    # Sized for a small heap.
    "log.cleaner.dedupe.buffer.size": str(16 * 1024 * 1024),
}


def usual_data_folder() -> Path:
    """The per-user folder of `lockkeeper broker`: `lockkeeper/kafka` in XDG_DATA_HOME or `~/.local/share`."""
    base = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local/share"
    return Path(base) / "lockkeeper" / "kafka"


class EmbeddedBroker:
    """A broker that lives as long as this object is open, and no longer than this process.

    Its settings, log and (without `data_dir`) data are in a temporary folder, which goes with it. If this
    process is killed, a supervisor ends the broker and removes the folder.

        with EmbeddedBroker() as broker:
            Producer({"bootstrap.servers": broker.bootstrap_servers})
    """

    def __init__(
        self,
        *,
        port: int | None = None,
        data_dir: Path | None = None,
        config: Mapping[str, str] | None = None,
        jvm_options: Sequence[str] = JVM_OPTIONS,
        cluster_id: str | None = None,
    ) -> None:
        """Describe a broker; `start` or `with` starts it.

        Args:
            port: the port to listen on at 127.0.0.1; a free one by default.
            data_dir: where to keep the data and the cluster id, to be found again by a later broker; by default both
                are new, and are deleted.
            config: broker settings (`server.properties`) that go before the built-in ones.
            jvm_options: options of the broker's Java.
            cluster_id: of several brokers that form a cluster, by `config`; by default a new broker is its own.
        """
        self._ports = _free_ports(port)
        self._data_dir = data_dir
        self._config = dict(config or {})
        self._jvm_options = tuple(jvm_options)
        self._cluster_id = cluster_id
        self._folder: Path | None = None
        self._process: Supervised | None = None

    @property
    def bootstrap_servers(self) -> str:
        """The address for `bootstrap.servers`."""
        return f"{HOST}:{self._ports[0]}"

    @property
    def folder(self) -> Path:
        """The temporary folder, with `server.properties`, `broker.log` and `data`.

        Raises:
            BrokerError: the broker has not been started.
        """
        if self._folder is None:
            raise BrokerError("the embedded broker is not running: call start() or use it in a `with`")
        return self._folder

    def start(self, seconds: float = START_SECONDS) -> None:
        """Start the broker and return when it answers.

        Raises:
            BrokerError: another process listens at its port; or it ended, or did not answer within so many
                seconds: then the message carries the end of its log.
        """
        if self._folder is not None:
            raise BrokerError(f"this embedded broker already runs, at {self.bootstrap_servers}")
        if _listened_at(self._ports[0]):
            raise BrokerError(f"another process listens at {self.bootstrap_servers}; use it, or choose another port")
        self._folder = Path(tempfile.mkdtemp(prefix="lockkeeper-broker-"))
        try:
            self._process = Supervised(self._order(self._folder))
            self._poll_until_ready(self._process, seconds)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop the broker and remove its folder; without effect when it does not run."""
        process, folder, self._process, self._folder = self._process, self._folder, None, None
        if process is not None:
            process.stop()
        if folder is not None:
            # The supervisor has removed it, unless it never came to run.
            shutil.rmtree(folder, ignore_errors=True)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def _order(self, folder: Path) -> Order:
        log, properties = folder / "broker.log", folder / "server.properties"
        properties.write_text("".join(f"{key}={value}\n" for key, value in self._properties().items()))
        cluster_id = self._cluster_id or stored_or_new_cluster_id(self._data_dir)
        storage = ("format", "--ignore-formatted", "-t", cluster_id, "-c", str(properties))  # leaves what is there
        format_storage = java_command(
            "kafka.tools.StorageTool", *storage, jvm_options=QUICK_START, log_config=CONSOLE_LOG
        )
        options = (f"-Djava.io.tmpdir={folder}", *self._jvm_options, f"-Dlockkeeper.log={log}")
        serve = java_command("kafka.Kafka", str(properties), jvm_options=options, log_config=_BROKER_LOG)
        # What is deleted anyway need not be closed in order.
        grace_seconds = _GRACE_SECONDS if self._data_dir else 0.0
        return {
            "commands": [format_storage, serve],
            "log": str(log),
            "folder": str(folder),
            "grace_seconds": grace_seconds,
        }

    def _properties(self) -> dict[str, str]:
        port, controller_port = self._ports
        places = {
            "listeners": f"PLAINTEXT://{HOST}:{port},CONTROLLER://{HOST}:{controller_port}",
            "advertised.listeners": f"PLAINTEXT://{HOST}:{port}",
            "controller.quorum.voters": f"1@{HOST}:{controller_port}",
            "log.dirs": str(self._data_dir or self.folder / "data"),
        }
        return {**_ALONE_AND_QUICK, **places, **self._config}

    def _poll_until_ready(self, process: Supervised, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        client = AdminClient({"bootstrap.servers": self.bootstrap_servers, **_QUIET_AND_EAGER})
        while not _answers(client):
            if process.ended:
                raise BrokerError(f"the embedded broker ended while starting. {self.end_of_log()}")
            if time.monotonic() > deadline:
                raise BrokerError(f"no answer in {seconds} s from the broker. {self.end_of_log()}")

    @property
    def ended(self) -> bool:
        """Whether it ran and has ended without `stop`."""
        return self._process is not None and self._process.ended

    def end_of_log(self) -> str:
        """What it said last."""
        log = self.folder / "broker.log"
        lines = log.read_text(errors="replace").splitlines() if log.exists() else []
        return "The end of its log:\n" + "\n".join(lines[-_SHOWN_LINES:])


_QUIET_AND_EAGER = {"log_level": 0, "reconnect.backoff.ms": 50, "reconnect.backoff.max.ms": 100}


def stored_or_new_cluster_id(data: Path | None = None) -> str:
    """The id that the storage is formatted with; for new storage a random one, in the form of Kafka's own."""
    properties = data / "meta.properties" if data else None
    if properties and properties.exists():
        found = re.search(r"^cluster\.id=(\S+)", properties.read_text(), re.MULTILINE)
        if found:
            return found[1]
    return secrets.token_urlsafe(16).replace("-", "_")  # Kafka's tools take an id with a hyphen first for an option


def _answers(client: AdminClient) -> bool:
    with contextlib.suppress(KafkaException):
        return bool(client.list_topics(timeout=_POLL_SECONDS).brokers)
    return False


def _listened_at(port: int) -> bool:
    with socket.socket() as asker:
        return asker.connect_ex((HOST, port)) == 0


def _free_ports(port: int | None) -> tuple[int, int]:
    """Return a port for clients, the given one if any, and one for the controller."""
    with socket.socket() as first, socket.socket() as second:
        first.bind((HOST, 0))
        second.bind((HOST, 0))
        return port or first.getsockname()[1], second.getsockname()[1]


def java_command(class_name: str, *arguments: str, jvm_options: Sequence[str], log_config: Path) -> list[str]:
    """Return the command line that runs a class of the broker's jars."""
    jars = os.pathsep.join(str(path) for path in classpath("broker"))
    logging = f"-Dlog4j2.configurationFile={log_config}"
    return [str(find_java()), *jvm_options, logging, "-cp", jars, class_name, *arguments]
