"""One run of a scenario on a cluster: traffic, faults, and what `verify` finds in the end."""

import contextlib
import json
import os
import random
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec
import yaml
from confluent_kafka import KafkaException
from confluent_kafka.admin import NewPartitions

from streaming.broker import EmbeddedBroker
from streaming.history.span import Span
from streaming.kafka.clients import log_ends, partitions_of
from streaming.settings import Settings
from streaming.settings.monitor import MonitorSettings
from streaming.verify import Findings
from streaming.verify.cluster import Sent, await_decided, verify
from tests.bench import machine
from tests.chaos.processes import ROOT, Broker, Job
from tests.chaos.silence import Silence
from tests.chaos.three_brokers import ThreeBrokers
from tests.chaos.traffic import RATE, LastingTraffic, Sending, retried
from tests.standalone import DRIVER, Standalone
from tests.stream.world import World
from tests.waiting import wait_until

START_SECONDS = 240.0
DECIDED_SECONDS = 240.0
Place = Literal["one broker", "three brokers", "standalone cluster", "compose"]
SPARK_WORKERS = 2  # with a core each
PROBES_FROM, MANY_FROM = 1_000_000_000, 500_000_000  # numbers of requests that traffic never reaches


class Failed(Exception):
    """A scenario does not end as it must: what was waited for, or what was found."""


class Row(msgspec.Struct):
    """What one run showed: a line of JSON.

    `wrong`: violations of every other check of `verify`. `seconds`: from the end of the fault until a request that was
    produced then is decided; None: not within `DECIDED_SECONDS`. `silence`: the longest time between two decisions that
    a consumer of committed records saw, in seconds. `exits`: exit codes of the job's runs that ended.
    `unknown`: answers that could not be checked.
    """

    scenario: str
    fault: str
    seed: int
    requests: int = 0
    decisions: int = 0
    dead_letters: int = 0
    lost: int = 0
    doubled: int = 0
    wrong: int = 0
    waiting: int = 0
    unknown: int = 0
    seconds: float | None = None
    silence: float | None = None
    exits: list[int] = []
    ok: bool = False
    why: str = ""
    at: str = ""
    commit: str = ""
    machine: dict[str, Any] = {}
    place: Place = "one broker"


class Cluster:
    """Brokers with topics, and the jobs that were started for them; several scenarios may use it in turn.

    `brokers`: one broker, or the three of a cluster. `secured`: users must log in to the three, but for this process.
    `standalone`: the job runs on a standalone cluster of Spark, whose workers have Java and Python alone.
    """

    def __init__(
        self, folder: Path, brokers: int = 1, secured: bool = False, standalone: bool = False, **settings: Any
    ) -> None:
        self.folder = folder
        self.jobs: list[Job] = []
        self._mounted: list[Path] = []
        self.brokers: Broker | ThreeBrokers = _single_broker(folder) if brokers == 1 else ThreeBrokers(folder, secured)
        self.spark: Standalone | None = None
        try:
            self.brokers.start()
            chosen = {"spark": {}, "monitor": MonitorSettings(), **settings}
            if standalone:
                self.spark = _standalone(folder)
                chosen |= {"master": self.spark.url, "spark": {**chosen["spark"], **DRIVER, **EXECUTORS}}
            self.world = World(self.brokers, f"chaos-{folder.name}", str(folder / "checkpoint"), **chosen)  # type: ignore[arg-type]
        except BaseException:
            self.close()
            raise

    def start_job(self, settings: Settings) -> Job:
        """Start `lockkeeper run`; it need not be ready when this returns."""
        number = len(self.jobs)
        config = self.folder / f"lockkeeper-{number}.yaml"
        config.write_text(yaml.safe_dump(msgspec.to_builtins(settings)))
        self.jobs.append(Job(config, self.folder / f"job-{number}.log"))
        return self.jobs[-1]

    def mount_small(self, folder: Path) -> bool:
        """Mount a file system of 8 MiB at a folder; returns whether that was permitted."""
        command = ["mount", "-t", "tmpfs", "-o", "size=8m", "lockkeeper-chaos", str(folder)]
        permitted = shutil.which("mount") is not None and subprocess.run(command, capture_output=True).returncode == 0
        if permitted:
            self._mounted.append(folder)
        return permitted

    def close(self) -> None:
        """End all processes."""
        for job in self.jobs:
            job.stop()
        for folder in self._mounted:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)
        if self.spark is not None:
            self.spark.stop()
        self.brokers.stop()


EXECUTORS = {"spark.executor.memory": "512m", "spark.decommission.enabled": "true"}


def _standalone(folder: Path) -> Standalone:
    """As the guide has it: the master recovers its applications, and nodes may be decommissioned."""
    cores = 1
    options = ("-Dspark.decommission.enabled=true",)
    return Standalone(folder, workers=SPARK_WORKERS, cores=cores, recovery=True, options=options, bare=True)


def _single_broker(folder: Path) -> Broker:
    return Broker(EmbeddedBroker(data_dir=folder / "kafka", config={"log.cleaner.backoff.ms": "1000"}))


class Run:
    """A job with traffic, to which a scenario does what it does.

    `rng`: from the seed, for every choice that a scenario makes. `sample`: of which part of the answers `verify` works
    out again.
    """

    def __init__(self, world: World, seed: int, cluster: Cluster | None = None) -> None:
        self.world, self.rng = world, random.Random(seed)
        self.settings = world.settings
        self.sample = 1.0
        self.seconds: float | None = None
        self.method = ""  # by what it was done, where that depends on the machine
        self.remarks: list[str] = []
        self.traffic = LastingTraffic(world.settings, RATE)
        self.requests = world.names.requests[0]
        self._cluster, self._begun = cluster, time.time_ns() // 1_000_000
        self._exits = {id(job): len(job.exits) for job in (cluster.jobs if cluster else ())}
        self._sending: Sending | None = None
        self._silence: Silence | None = None
        self._sent: Sent | None = None
        self._probes = PROBES_FROM

    @property
    def cluster(self) -> Cluster:
        """The cluster, where the run may break it."""
        assert self._cluster is not None, "this scenario needs a cluster of its own"
        return self._cluster

    @property
    def broker(self) -> Broker:
        """The broker, where there is one."""
        assert isinstance(self.cluster.brokers, Broker)
        return self.cluster.brokers

    @property
    def three(self) -> ThreeBrokers:
        """The brokers, where there are three."""
        assert isinstance(self.cluster.brokers, ThreeBrokers)
        return self.cluster.brokers

    @property
    def spark(self) -> Standalone:
        """The cluster of Spark, where there is one."""
        assert self.cluster.spark is not None
        return self.cluster.spark

    @property
    def job(self) -> Job:
        """The newest job."""
        return self.cluster.jobs[-1]

    def begin(self) -> None:
        """Start the traffic, and the job if none runs; return once requests are decided."""
        if self._cluster is not None and not self._cluster.jobs:
            self._cluster.start_job(self.settings)
        self.send()
        self.await_decisions(START_SECONDS)
        self._silence = Silence(self.settings)

    def send(self) -> None:
        """Start the traffic."""
        self._sending = Sending(self.traffic)

    def stop_sending(self) -> None:
        """Return when the broker has acknowledged all traffic."""
        if self._silence is not None:
            self._silence.stop()
        if self._sending is not None and self._sent is None:
            self._sent = self._sending.stop()

    @property
    def silence(self) -> float | None:
        """The longest time between two decisions under traffic, in seconds; None: there was no traffic."""
        return round(self._silence.longest, 1) if self._silence is not None else None

    def produce(self, values: Iterable[bytes | None], topic: str = "") -> None:
        """Produce records, and return when the broker has acknowledged them."""
        for number, value in enumerate(values):
            while True:
                with contextlib.suppress(BufferError):
                    self.world.producer.produce(topic or self.requests, value, f"key-{number % 50}")
                    break
                self.world.producer.poll(0.1)
        assert self.world.producer.flush(300) == 0, "the broker did not take the records"

    def many(self, count: int) -> Iterator[bytes]:
        """Good requests."""
        return (msgspec.json.encode(self.traffic.request(MANY_FROM + number)) for number in range(count))

    def await_decisions(self, seconds: float = DECIDED_SECONDS) -> float:
        """Produce a request for each partition, and return after how many seconds all of them are decided."""
        begun, last = time.monotonic(), {}
        for topic, partition in retry(lambda: partitions_of(self.world.admin, [self.requests])):
            self._probes += 1
            asked = msgspec.json.encode(self.traffic.request(self._probes))
            last[topic, partition] = self._acknowledged(partition, asked)
        if not await_decided(self.settings, last, seconds):
            raise Failed(f"no decision within {seconds:g} s")
        return time.monotonic() - begun

    def _acknowledged(self, partition: int, value: bytes) -> int:
        delivered: list[Any] = []
        produce = self.world.producer.produce
        produce(self.requests, value, partition=partition, on_delivery=lambda *report: delivered.append(report))
        assert self.world.producer.flush(60) == 0, "the broker did not take a request"
        [(error, message)] = delivered
        assert error is None, error
        return int(message.offset())

    @contextlib.contextmanager
    def fault(self) -> Iterator[None]:
        """Within it something is broken; afterwards decisions must go on, and it is measured after how long."""
        self.pause(1, 5)
        yield
        self.seconds = max(self.seconds or 0, self.await_decisions())

    def pause(self, least: float, most: float) -> None:
        """Let traffic go on for a while: a fault meets another moment of a batch each time."""
        time.sleep(self.rng.uniform(least, most))

    def add_partitions(self) -> None:
        """Add a partition to the request topic."""
        count = len(partitions_of(self.world.admin, [self.requests])) + 1
        [added] = self.world.admin.create_partitions([NewPartitions(self.requests, count)]).values()
        added.result(30)
        for client in (self.world.admin, self.world.producer):  # each knows what it has asked for last

            def is_there(client: Any = client) -> bool:
                return len(client.list_topics(self.requests, timeout=30).topics[self.requests].partitions) == count

            wait_until(is_there, "the partition is there")

    def await_end(self, job: Job) -> None:
        """A job that is not started again must end by itself."""
        before = self._exits.get(id(job), 0)  # of other scenarios on this cluster
        wait_until(lambda: len(job.exits) > before, "the job ends by itself", DECIDED_SECONDS)

    def end(self) -> Findings:
        """Stop the traffic, wait until all is decided, and verify what came in since the run began."""
        self.stop_sending()
        ends = retry(lambda: log_ends(self.world.admin, partitions_of(self.world.admin, [self.requests])))
        settled = await_decided(self.settings, {at: end - 1 for at, end in ends.items() if end}, DECIDED_SECONDS)
        if self._sending is not None:
            retried(self.traffic.delete)
        span = Span(self._begun, time.time_ns() // 1_000_000 + 60_000)
        demanded = self._sent.demanded if self._sent is not None else None
        found = retry(lambda: verify(self.settings, span, demanded, sample=self.sample))
        if not settled:
            self.remarks.append(f"not all was decided within {DECIDED_SECONDS:g} s")
        return found

    @property
    def exits(self) -> list[int]:
        """The exit codes of the jobs since the run began."""
        jobs = self._cluster.jobs if self._cluster else []
        return [code for job in jobs for code in job.exits[self._exits.get(id(job), 0) :]]


def retry(ask: Callable[[], Any], seconds: float = 120.0) -> Any:
    """The answer of the cluster; a broker that has just come back may refuse for a while."""
    found: list[Any] = []

    def answered() -> bool:
        try:
            found.append(ask())
        except (KafkaException, TimeoutError):
            return False
        return True

    wait_until(answered, "the broker answers", seconds)
    return found[0]


def evaluator(run: Run, action: Callable[[Run], None], row: Row) -> Row:
    """Let a scenario run, and fill in its row."""
    try:
        action(run)
    except Exception as failure:
        run.remarks.append(f"{type(failure).__name__}: {failure}")
    try:
        _fill(row, run.end())
    except Exception as failure:
        run.remarks.append(f"{type(failure).__name__}: {failure}")
    row.seconds = run.seconds and round(run.seconds, 1)
    row.silence, row.exits = run.silence, run.exits
    row.fault += f" ({run.method})" if run.method else ""
    row.why = "; ".join([*run.remarks, *([row.why] if row.why else [])])
    row.ok = not run.remarks and not (row.lost or row.doubled or row.wrong or row.waiting)
    return row


def _fill(row: Row, found: Findings) -> None:
    row.requests, row.decisions, row.dead_letters = found.requests, found.decisions, found.dead_letters
    row.lost, row.doubled, row.waiting = found.counts["lost"], found.counts["doubled"], found.waiting
    row.wrong = sum(found.counts.values()) - row.lost - row.doubled
    row.unknown = sum(found.unknown.values())
    row.why = "; ".join(map(str, found.violations[:3])) or (json.dumps(found.unknown) if found.unknown else "")


def new_row(scenario: str, fault: str, seed: int, place: Place = "one broker") -> Row:
    """A row that says what is run, where and on which commit."""
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True)
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return Row(scenario, fault, seed, at=now, commit=commit.stdout.strip(), machine=machine(), place=place)


def keep_row(row: Row) -> None:
    """Print the row of a scenario that ran as a test; LOCKKEEPER_TEST_ROWS: a file which it is also appended to."""
    file = os.environ.get("LOCKKEEPER_TEST_ROWS")
    write_line(row, Path(file) if file else None)


def write_line(record: object, output: Path | None) -> None:
    """Print a record as a line of JSON, and append it to a file."""
    line = msgspec.json.encode(record)
    print(line.decode(), flush=True)
    if output is not None:
        with output.open("ab") as lines:
            lines.write(line + b"\n")
