"""Killed or suspended at each step of a partition's transaction, an executor leaves nothing lost, doubled or wrong."""

import contextlib
import itertools
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from msgspec import to_builtins

from streaming.broker import EmbeddedBroker
from streaming.verify.cluster import verify
from tests.brokers import TestBroker, free_port
from tests.chaos.processes import Job
from tests.standalone import DRIVER, LOOPBACK, Standalone
from tests.stream.kafka_proxy import END_TXN, HOST, INIT_PRODUCER_ID, PRODUCE, TXN_OFFSET_COMMIT, StepProxy
from tests.stream.world import SHORT_LIVED, World, group, request, role
from tests.waiting import wait_until

pytestmark = [pytest.mark.stream, pytest.mark.long, pytest.mark.timeout(1800)]

STEPS = (
    (INIT_PRODUCER_ID, False),  # before it begins
    (PRODUCE, True),  # after it has sent
    (TXN_OFFSET_COMMIT, False),
    (TXN_OFFSET_COMMIT, True),  # after the offset
    (END_TXN, False),  # before the commit
    (END_TXN, True),  # after it, when its answer is lost
)
ROUNDS = int(os.environ.get("LOCKKEEPER_TEST_ROUNDS", "1"))
REQUESTS = 40
SECONDS = 300.0


@pytest.fixture(scope="module")
def proxied() -> Iterator[tuple[StepProxy, TestBroker]]:
    """A broker that clients reach through the proxy alone, for it advertises that address."""
    broker_port, port = free_port(), free_port()
    proxy = StepProxy(port, broker_port)
    advertised = {"advertised.listeners": f"PLAINTEXT://{HOST}:{port}"}
    with contextlib.closing(proxy), EmbeddedBroker(port=broker_port, config=advertised):
        yield proxy, TestBroker(f"{HOST}:{port}", "behind a proxy")


class Kills:
    """Kills the process that takes a step of a partition's transaction, as the proxy sees it go by."""

    def __init__(self, proxy: StepProxy, job_name: str) -> None:
        self._proxy, self._ids = proxy, f"{job_name}/".encode()
        self.pids: list[int] = []

    def at(self, key: int, answered: bool) -> None:
        """The next time. Only a new producer is initialized: so another process is killed before."""
        self.pids.clear()
        if key == INIT_PRODUCER_ID:
            self._proxy.act_at(END_TXN, self._ids, False, self._then_at(key))
        else:
            self._proxy.act_at(key, self._ids, answered, self._kill)

    def _then_at(self, key: int) -> Callable[[int], None]:
        def kill(pid: int) -> None:
            self._proxy.act_at(key, self._ids, False, self._kill)
            os.kill(pid, signal.SIGKILL)

        return kill

    def _kill(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)
        self.pids.append(pid)


@pytest.fixture(params=["local", "standalone"])
def world(
    request: pytest.FixtureRequest,
    proxied: tuple[StepProxy, TestBroker],
    fresh_name: Callable[[str], str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[World]:
    """A world where dana may read about orders, for a job with two executors or none beside the driver."""
    settings = {"spark": {**SHORT_LIVED, **DRIVER, "spark.executor.memory": "512m", "spark.archives": ""}}
    with contextlib.ExitStack() as stack:
        master = "local[2,4]"
        if request.param == "standalone":
            for name, value in {**LOOPBACK, "PYSPARK_PYTHON": sys.executable}.items():
                monkeypatch.setenv(name, value)
            master = stack.enter_context(Standalone(tmp_path, workers=2, cores=1)).url
        else:
            settings = {}
        _, broker = proxied
        created = World(broker, fresh_name("steps"), str(tmp_path / "checkpoint"), master=master, **settings)
        created.publish(role("readers", "kafka:topic:prod/main/orders"))
        created.publish(group("readers", "user:dana"))
        yield created


def test_over_kills_at_each_step_of_a_transaction_each_request_is_decided_once_and_in_order(
    world: World, proxied: tuple[StepProxy, TestBroker], tmp_path: Path
) -> None:
    config = tmp_path / "lockkeeper.yaml"
    config.write_text(yaml.safe_dump(to_builtins(world.settings)))
    job, kills = Job(config, tmp_path / "job.log"), Kills(proxied[0], world.settings.job_name)
    decisions, sent = world.reader(world.names.decisions), itertools.count()

    def ask(count: int = REQUESTS) -> None:
        world.send(request(f"r-{n}", "dana", ("orders", "payments")[n % 2]) for n in itertools.islice(sent, count))

    def ask_until_killed() -> bool:
        ask(2)
        return bool(kills.pids)

    def await_decisions() -> int:
        count = next(sent)
        world.send([request(f"r-{count}", "dana", "orders")])
        decisions.until(lambda found: len(found) > count, f"{count + 1} decisions: see {job.log}", SECONDS)
        return count + 1

    try:
        ask()
        await_decisions()
        for number, (key, answered) in itertools.product(range(ROUNDS), STEPS):
            kills.at(key, answered)
            wait_until(ask_until_killed, f"round {number}: step {key}, answered {answered}", SECONDS)
            ask()
            count = await_decisions()
        findings = verify(world.settings)
    finally:
        job.stop()
    assert not findings.violations, findings
    assert findings.requests == findings.decisions == count
