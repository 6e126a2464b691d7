"""A cluster with policies, and processes of `lockkeeper serve` and of the job on it, as users run them."""

import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import yaml
from confluent_kafka import Consumer, TopicPartition

from streaming.broker import EmbeddedBroker
from streaming.settings import Settings
from streaming.topics import TopicNames
from tests.bench import stream, traffic

SYSTEM = "lenses6"
ANSWERED = "authz.answered.v1"
READY = "ready: deciding at "
QUIET = {"log_level": "2"}  # the broker ends before its clients
START_SECONDS = 120.0
CATCH_UP_SECONDS = 300.0
STOP_SECONDS = 30.0


class Server(msgspec.Struct, frozen=True):
    """`lockkeeper serve`, ready. `pid`: of its first process."""

    url: str
    pid: int

    def resident(self) -> float:
        """The resident set size of its process, MiB."""
        return _mib(f"/proc/{self.pid}/status", "VmRSS:")

    def proportional(self) -> list[float]:
        """The proportional set size of each worker, MiB: what they share is divided among them."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        return [_mib(f"/proc/{child}/smaps_rollup", "Pss:") for child in children]


def _mib(path: str, field: str) -> float:
    lines = Path(path).read_text().splitlines()
    return round(next(int(line.split()[1]) for line in lines if line.startswith(field)) / 1024, 1)


class Cluster:
    """A broker with topics and policies, and a folder for what runs on it. See `cluster`."""

    def __init__(self, settings: Settings, folder: Path) -> None:
        self.settings, self.folder = settings, folder
        self._producer = stream.client_producer(settings, **{"linger.ms": "0", **QUIET})
        self._config = folder / "lockkeeper.yaml"
        written = {
            "bootstrap_servers": settings.bootstrap_servers,
            "topics": {"answered": [ANSWERED]},
            "checkpoint": str(folder / "checkpoint"),
            # Without trust in groups and facts every answer would be an error.
            "serve": {"port": 0, "default_system": SYSTEM, "record": "all", "trust": ["groups", "roles", "facts"]},
        }
        self._config.write_text(yaml.safe_dump(written))

    def publish(self, kind: str, name: str, spec: dict[str, Any]) -> None:
        """Publish a document, and wait until Kafka has it."""
        document = {"system": SYSTEM, "kind": kind, "name": name, "spec": spec}
        stream.produce_documents(self._producer, self.settings, [document])
        stream.flush(self._producer)

    @contextlib.contextmanager
    def serve(self, workers: int = 1) -> Iterator[Server]:
        """`lockkeeper serve`, ready to decide. Raises TimeoutError."""
        with self._command("serve", "--workers", str(workers)) as process:
            url = self._until_ready(process, workers)
            yield Server(url, process.pid)

    def _until_ready(self, process: "subprocess.Popen[bytes]", workers: int) -> str:
        log, end = self.folder / "serve.log", time.monotonic() + START_SECONDS
        while time.monotonic() < end and process.poll() is None:
            urls = [line.removeprefix(READY) for line in log.read_text().splitlines() if line.startswith(READY)]
            if len(urls) == workers:
                return urls[0]
            time.sleep(0.05)
        raise TimeoutError(f"lockkeeper serve was not ready within {START_SECONDS:g} s: {log.read_text()[-2000:]}")

    @contextlib.contextmanager
    def job(self) -> Iterator[None]:
        """`lockkeeper run`, once it has decided all that was recorded. Raises TimeoutError."""
        with self._command("run") as process:
            self._until_decided(process)
            yield

    def _until_decided(self, process: "subprocess.Popen[bytes]") -> None:
        end = time.monotonic() + CATCH_UP_SECONDS
        consumer = Consumer(self._client(self.settings.job_name))
        partitions = [TopicPartition(ANSWERED, number) for number in range(stream.PARTITIONS)]
        try:
            while time.monotonic() < end and process.poll() is None:
                decided = consumer.committed(partitions, 10)
                if [one.offset for one in decided] == self._ends(consumer):
                    return
                time.sleep(0.2)
        finally:
            consumer.close()
        raise TimeoutError(f"the job has not caught up: {(self.folder / 'run.log').read_text()[-2000:]}")

    def recorded(self) -> int:
        """How many answers Kafka has."""
        consumer = Consumer(self._client("bench"))
        try:
            return sum(self._ends(consumer))
        finally:
            consumer.close()

    def _client(self, group: str) -> dict[str, Any]:
        return {"bootstrap.servers": self.settings.bootstrap_servers, "group.id": group}

    def _ends(self, consumer: Consumer) -> list[int]:
        partitions = (TopicPartition(ANSWERED, number) for number in range(stream.PARTITIONS))
        return [consumer.get_watermark_offsets(one, 10)[1] for one in partitions]

    @contextlib.contextmanager
    def _command(self, name: str, *options: str) -> Iterator["subprocess.Popen[bytes]"]:
        command = [sys.executable, "-m", "streaming.cli", name, "--config", str(self._config), *options]
        with (self.folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextlib.contextmanager
def cluster(documents: Sequence[traffic.Document]) -> Iterator[Cluster]:
    """A cluster of its own, with these policies."""
    with EmbeddedBroker() as broker, tempfile.TemporaryDirectory(prefix="lockkeeper-bench-") as folder:
        topics = TopicNames(answered=(ANSWERED,))
        settings = Settings(bootstrap_servers=broker.bootstrap_servers, topics=topics)
        stream.create(settings)
        producer = stream.client_producer(settings, **QUIET)
        stream.produce_documents(producer, settings, list(documents))
        stream.flush(producer)
        yield Cluster(settings, Path(folder))
