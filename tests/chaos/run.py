"""One run of a scenario: a broker, a job, traffic, faults, and what `verify` finds in the end."""

import contextlib
import json
import random
import subprocess
import time
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import yaml
from confluent_kafka import KafkaException
from confluent_kafka.admin import NewPartitions

from streaming.bench import machine
from streaming.enforcer.kafka import log_ends, partitions_of
from streaming.settings import Settings
from streaming.verify.cluster import await_decided, verify
from streaming.verify.findings import Findings
from streaming.verify.traffic import Sent
from tests.chaos.processes import ROOT, Broker, Job
from tests.chaos.traffic import RATE, LastingTraffic, Sending, retried
from tests.stream.world import World
from tests.waiting import wait_until

START_SECONDS = 180.0
DECIDED_SECONDS = 180.0
PROBES_FROM = 1_000_000_000  # numbers of requests that traffic never reaches


class Row(msgspec.Struct, omit_defaults=False):
    """What one run showed: a line of JSON.

    `wrong`: violations of every other check of `verify`. `seconds`: from the end of each fault until a request that was
    produced then is decided, the longest; None: no fault, or not within `DECIDED_SECONDS`. `exits`: exit codes of the
    job's runs that ended. `unknown`: answers that could not be checked.
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
    exits: list[int] = []
    ok: bool = False
    why: str = ""
    at: str = ""
    commit: str = ""
    machine: dict[str, Any] = {}


class Failed(Exception):
    """A scenario does not end as it must: what was waited for, or what was found."""


class Run:
    """A running job with traffic, to which a scenario does what it does.

    `rng`: from the seed, for every choice that a scenario makes. `sample`: of which part of the answers `verify` works
    out again.
    """

    def __init__(self, world: World, seed: int, folder: Path, broker: Broker | None = None) -> None:
        self.world, self.folder, self.rng = world, folder, random.Random(seed)
        self.sample = 1.0
        self.seconds: list[float] = []
        self.traffic = LastingTraffic(world.settings, RATE)
        self.jobs: list[Job] = []
        self._broker, self._sending, self._probes = broker, None, PROBES_FROM
        self._sent: Sent | None = None

    @property
    def broker(self) -> Broker:
        """The broker, where the run has one of its own."""
        assert self._broker is not None, "this scenario needs a broker of its own"
        return self._broker

    @property
    def job(self) -> Job:
        """The newest job."""
        return self.jobs[-1]

    def start_job(self, settings: Settings | None = None, restarts: bool = True) -> Job:
        """Start `lockkeeper run`; it need not be ready when this returns."""
        number = len(self.jobs)
        config = self.folder / f"lockkeeper-{number}.yaml"
        config.write_text(yaml.safe_dump(msgspec.to_builtins(settings or self.world.settings)))
        self.jobs.append(Job(config, self.folder / f"job-{number}.log", restarts))
        return self.job

    def begin(self) -> None:
        """Start the job and the traffic, and return once requests are decided."""
        self.start_job()
        self.send()
        self.await_decisions(START_SECONDS)

    def send(self) -> None:
        """Start the traffic."""
        self._sending = Sending(self.traffic)

    def send_many(self, count: int) -> None:
        """Produce requests of the traffic's kind at once."""
        for number in range(PROBES_FROM // 2, PROBES_FROM // 2 + count):
            asked = self.traffic.request(number)
            while True:
                with contextlib.suppress(BufferError):
                    self.world.producer.produce(self.requests, msgspec.json.encode(asked), asked["id"][-2:])
                    break
                self.world.producer.poll(0.1)
        assert self.world.producer.flush(120) == 0

    @cached_property
    def requests(self) -> str:
        """The topic that traffic is sent to."""
        return self.world.names.requests[0]

    def await_decisions(self, seconds: float = DECIDED_SECONDS) -> float:
        """Produce a request for each partition, and return after how many seconds all of them are decided."""
        begun, wanted = time.monotonic(), {}
        for number in retry(lambda: partitions_of(self.world.admin, [self.requests])):
            delivered: list[Any] = []
            self._probes += 1
            asked = msgspec.json.encode(self.traffic.request(self._probes))
            self.world.producer.produce(
                self.requests, asked, partition=number[1], on_delivery=lambda *report, to=delivered: to.append(report)
            )
            assert self.world.producer.flush(60) == 0, "the broker did not take a request"
            [(error, message)] = delivered
            assert error is None, error
            wanted[number] = message.offset()
        if not await_decided(self.world.settings, wanted, seconds):
            raise Failed(f"no decision within {seconds:g} s after the fault")
        return time.monotonic() - begun

    @contextlib.contextmanager
    def fault(self) -> Iterator[None]:
        """Within it something is broken; afterwards decisions must go on, and it is measured after how long."""
        yield
        self.seconds.append(self.await_decisions())

    def elsewhere(self) -> Settings:
        """The job's settings with a checkpoint of its own, as on another machine."""
        return msgspec.structs.replace(self.world.settings, checkpoint=str(self.folder / "elsewhere"))

    def await_end(self, job: Job) -> None:
        """A job that is not started again must end by itself."""
        wait_until(lambda: bool(job.exits), "the first job ends", DECIDED_SECONDS)

    def add_partitions(self, count: int) -> None:
        """Add partitions to the request topic, up to a count."""
        [added] = self.world.admin.create_partitions([NewPartitions(self.requests, count)]).values()
        added.result(30)
        wait_until(lambda: len(partitions_of(self.world.admin, [self.requests])) == count, "the partitions are there")

    def pause(self, least: float, most: float) -> None:
        """Let traffic go on for a while: faults meet another moment of a batch each time."""
        time.sleep(self.rng.uniform(least, most))

    def end(self) -> Findings:
        """Stop the traffic, wait until all is decided, and verify; raises Failed when it is not."""
        demanded = None
        if self._sending is not None:
            self._sent = self._sending.stop()
            demanded = self._sent.demanded
        ends = retry(lambda: log_ends(self.world.admin, partitions_of(self.world.admin, self.world.names.requests)))
        last = {partition: end - 1 for partition, end in ends.items() if end}
        settled = await_decided(self.world.settings, last, DECIDED_SECONDS)
        if self._sending is not None:
            retried(self.traffic.delete)
        found = retry(lambda: verify(self.world.settings, demanded=demanded, sample=self.sample))
        if not settled and found.ok and not found.waiting:
            raise Failed(f"not all offsets were committed within {DECIDED_SECONDS:g} s")
        return found

    def close(self) -> None:
        """End the jobs."""
        if self._sending is not None and self._sent is None:
            with contextlib.suppress(Exception):
                self._sending.stop()
        for job in self.jobs:
            job.stop()


def retry(ask: Callable[[], Any], seconds: float = 60.0) -> Any:
    """The answer of the cluster; a broker that has just come back may refuse for a while."""
    found: list[Any] = []

    def answered() -> bool:
        try:
            found.append(ask())
        except KafkaException:
            return False
        return True

    wait_until(answered, "the broker answers", seconds)
    return found[0]


Action = Callable[[Run], None]


def judge(run: Run, action: Action, row: Row) -> Row:
    """Let a scenario run, and fill in its row."""
    try:
        action(run)
        fill(row, run.end())
    except Exception as failure:
        row.why = f"{type(failure).__name__}: {failure}"
        with contextlib.suppress(Exception):  # what can still be said of the topics
            fill(row, run.end())
        row.ok = False
    row.seconds = round(max(run.seconds), 1) if run.seconds else None
    row.exits = [code for job in run.jobs for code in job.exits]
    return row


def fill(row: Row, found: Findings) -> None:
    """Count what `verify` found."""
    row.requests, row.decisions, row.dead_letters = found.requests, found.decisions, found.dead_letters
    row.lost, row.doubled, row.waiting = found.counts["lost"], found.counts["doubled"], found.waiting
    row.wrong = sum(found.counts.values()) - row.lost - row.doubled
    row.unknown = sum(found.unknown.values())
    row.ok = found.ok and not found.waiting
    row.why = row.why or "; ".join(map(str, found.violations[:3])) or json.dumps(dict(found.unknown) or "")[1:-1]


def new_row(scenario: str, fault: str, seed: int) -> Row:
    """A row that says what is run, where and on which commit."""
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True)
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return Row(scenario, fault, seed, at=now, commit=commit.stdout.strip(), machine=machine())
