"""Killed or suspended at each step of a partition's transaction, no process leaves anything lost, doubled or wrong."""

import collections
import contextlib
import itertools
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
import yaml
from confluent_kafka import Consumer, TopicPartition
from msgspec import to_builtins

from streaming.kafka.clients import log_ends, partitions_of
from streaming.verify.cluster import verify
from tests.brokers import TestBroker, free_port
from tests.chaos.processes import Job, send
from tests.java_archive import embedded_broker
from tests.processes import descendants, processes_naming
from tests.standalone import DRIVER, LOOPBACK, PYTHON_WORKER, Standalone
from tests.stream.kafka_proxy import END_TXN, HOST, INIT_PRODUCER_ID, PRODUCE, TXN_OFFSET_COMMIT, StepProxy
from tests.stream.world import SHORT_LIVED, World, group, request, role
from tests.waiting import wait_until

STEPS = (
    (INIT_PRODUCER_ID, False),  # before it begins
    (PRODUCE, True),  # after it has sent
    (TXN_OFFSET_COMMIT, False),
    (TXN_OFFSET_COMMIT, True),  # after the offset
    (END_TXN, False),  # before the commit
    (END_TXN, True),  # after it, when its answer is lost
)
ROUNDS = int(os.environ.get("LOCKKEEPER_TEST_ROUNDS", "1"))
pytestmark = [pytest.mark.stream, pytest.mark.long, pytest.mark.timeout(1500 + 300 * ROUNDS)]
REQUESTS = 40
SECONDS = 300.0
TIMEOUT_SECONDS, SUSPENDED_SECONDS = 5.0, 12.0


@pytest.fixture(scope="module")
def proxied() -> Iterator[tuple[StepProxy, TestBroker]]:
    """A broker that clients reach through the proxy alone, for it advertises that address."""
    broker_port, port = free_port(), free_port()
    proxy = StepProxy(port, broker_port)
    config = {
        "advertised.listeners": f"PLAINTEXT://{HOST}:{port}",
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",  # 10 s by default
    }
    with contextlib.closing(proxy), embedded_broker(port=broker_port, config=config):
        yield proxy, TestBroker(f"{HOST}:{port}")


Victims = Callable[["Asked", int], set[int]]
"""Which processes are killed, by the one that takes the step: an executor, or in local mode the driver."""


def _executor(_asked: "Asked", pid: int) -> set[int]:
    return {pid}


def _python_workers(_asked: "Asked", pid: int) -> set[int]:
    """The executor where it has none yet."""
    workers = {int(line.split()[0]) for line in processes_naming(PYTHON_WORKER)}
    return workers & descendants(pid) or {pid}


def _worker(_asked: "Asked", pid: int) -> set[int]:
    """Spark's, which has started the executor."""
    return {int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])}


def _driver(asked: "Asked", _pid: int) -> set[int]:
    return asked.job.everything()


class Kills:
    """Kills processes when a step of a partition's transaction is taken, as the proxy sees it go by."""

    def __init__(self, proxy: StepProxy, asked: "Asked") -> None:
        self._proxy, self._asked, self._ids = proxy, asked, f"{asked.job_name}/".encode()
        self.pids: set[int] = set()

    def at(self, key: int, answered: bool, victims: Victims) -> None:
        """The next time. Only a new producer is initialized: so another process is killed before."""
        self.pids.clear()

        def kill(pid: int) -> None:
            killed = victims(self._asked, pid)
            send(killed, signal.SIGKILL)
            self.pids |= killed

        def kill_later(pid: int) -> None:
            self._proxy.act_at(key, self._ids, False, kill)
            os.kill(pid, signal.SIGKILL)

        if key == INIT_PRODUCER_ID:
            self._proxy.act_at(END_TXN, self._ids, False, kill_later)
        else:
            self._proxy.act_at(key, self._ids, answered, kill)


class Deployed(NamedTuple):
    """A world where dana may read about orders, and what can be killed of a job in it."""

    world: World
    victims: tuple[Victims, ...]
    restart: Callable[[], None]


@pytest.fixture(params=["local", "standalone"])
def deployed(
    request: pytest.FixtureRequest,
    proxied: tuple[StepProxy, TestBroker],
    fresh_name: Callable[[str], str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Deployed]:
    """For a job with two executors, or none beside the driver."""
    settings: dict[str, Any] = {}
    victims, restart = (_executor, _python_workers), _nothing_ended
    with contextlib.ExitStack() as stack:
        master = "local[2,4]"
        if request.param == "standalone":
            settings = {"spark": {**SHORT_LIVED, **DRIVER, "spark.executor.memory": "512m", "spark.archives": ""}}
            for name, value in {**LOOPBACK, "PYSPARK_PYTHON": sys.executable}.items():
                monkeypatch.setenv(name, value)
            cluster = stack.enter_context(Standalone(tmp_path, workers=2, cores=1))
            master, restart, victims = cluster.url, cluster.restart_workers, (*victims, _worker, _driver)
        _, broker = proxied
        world = World(broker, fresh_name("steps"), str(tmp_path / "checkpoint"), master=master, **settings)
        world.publish(role("readers", "kafka:topic:prod/main/orders"))
        world.publish(group("readers", "user:dana"))
        yield Deployed(world, victims, restart)


def _nothing_ended() -> None:
    """There is none but the job, which starts again by itself."""


def test_over_kills_at_each_step_of_a_transaction_each_request_is_decided_once_and_in_order(
    deployed: Deployed, proxied: tuple[StepProxy, TestBroker], tmp_path: Path
) -> None:
    """In turn of each process; over as many rounds as there are processes, each of them at each step."""
    killed = collections.Counter[str]()
    with contextlib.closing(Asked(deployed.world, tmp_path)) as asked:
        kills = Kills(proxied[0], asked)
        for round_, (number, (key, answered)) in itertools.product(range(ROUNDS), enumerate(STEPS)):
            victims = deployed.victims[(round_ + number) % len(deployed.victims)]
            kills.at(key, answered, victims)
            what = f"round {round_}: step {key}, answered {answered}, {victims.__name__}"
            asked.until(lambda: bool(kills.pids), what)
            killed[victims.__name__] += 1
            deployed.restart()
            asked.ask()
            asked.await_decisions()
        asked.check()
    print(dict(killed), f"{asked.count} requests")


def test_an_executor_that_is_suspended_beyond_the_timeout_of_its_transaction_commits_nothing_of_it(
    deployed: Deployed, proxied: tuple[StepProxy, TestBroker], tmp_path: Path
) -> None:
    """The coordinator has aborted the transaction by the time it goes on, and does not take it for the next one's."""
    world = deployed.world
    world.settings = msgspec.structs.replace(world.settings, transaction_timeout_seconds=TIMEOUT_SECONDS)
    resumed: list[int] = []

    def suspend(pid: int) -> None:
        os.kill(pid, signal.SIGSTOP)
        threading.Timer(SUSPENDED_SECONDS, resume, [pid]).start()

    def resume(pid: int) -> None:
        os.kill(pid, signal.SIGCONT)
        resumed.append(pid)

    with contextlib.closing(Asked(world, tmp_path)) as asked:
        for number, key in itertools.product(range(1, ROUNDS + 1), (PRODUCE, TXN_OFFSET_COMMIT)):
            resumed.clear()
            proxied[0].act_at(key, f"{world.settings.job_name}/".encode(), True, suspend)
            asked.until(lambda: bool(resumed), f"round {number}: step {key}")
            asked.ask()
            asked.await_decisions()
        asked.check()
        aborted = _written(world, world.names.decisions) - asked.count
        assert aborted >= 2 * ROUNDS, "records of each of these transactions"


def _written(world: World, topic: str) -> int:
    """How many records a topic has with those that were aborted."""
    consumer = Consumer(
        {"bootstrap.servers": world.broker.bootstrap_servers, "group.id": topic, "isolation.level": "read_uncommitted"}
    )
    partitions = partitions_of(world.admin, [topic])
    with contextlib.closing(consumer):
        consumer.assign([TopicPartition(*partition, 0) for partition in partitions])
        ends, count = log_ends(world.admin, partitions), 0

        def is_read() -> bool:
            nonlocal count
            count += len(consumer.consume(1000, 0.2))
            positions = consumer.position([TopicPartition(*partition) for partition in partitions])
            return all(position.offset >= ends[position.topic, position.partition] for position in positions)

        wait_until(is_read, "all are read", SECONDS)
    return count


class Asked:
    """A job in a process of its own, and what is asked of it."""

    def __init__(self, world: World, folder: Path) -> None:
        config = folder / "lockkeeper.yaml"
        config.write_text(yaml.safe_dump(to_builtins(world.settings)))
        self._world, self.job, self.job_name = world, Job(config, folder / "job.log"), world.settings.job_name
        self._decisions, self.count = world.reader(world.names.decisions), 0
        self.ask()
        self.await_decisions()

    def ask(self, count: int = REQUESTS) -> None:
        numbers = range(self.count, self.count + count)
        self.count += count
        self._world.send(request(f"r-{n}", "dana", ("orders", "payments")[n % 2]) for n in numbers)

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Ask until the condition holds."""

        def asked() -> bool:
            self.ask(2)
            return condition()

        wait_until(asked, what, SECONDS)

    def await_decisions(self) -> None:
        what = f"{self.count} decisions: see {self.job.log}"
        self._decisions.until(lambda found: len(found) >= self.count, what, SECONDS)

    def check(self) -> None:
        """That each request is decided once, in order, and as the policies say."""
        findings = verify(self._world.settings)
        assert not findings.violations, findings
        assert findings.requests == findings.decisions == self.count

    def close(self) -> None:
        self.job.stop()
