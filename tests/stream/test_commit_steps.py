"""Killed or suspended at each step of a partition's transaction, an executor leaves nothing lost, doubled or wrong."""

import contextlib
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


def _kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


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
    proxy, _ = proxied
    config = tmp_path / "lockkeeper.yaml"
    config.write_text(yaml.safe_dump(to_builtins(world.settings)))
    job = Job(config, tmp_path / "job.log")
    decisions, sent = world.reader(world.names.decisions), 0

    def ask(count: int = REQUESTS) -> None:
        nonlocal sent
        topics = ("orders", "payments")
        numbers = range(sent, sent + count)
        world.send([request(f"r-{n}", "dana", topics[n % 2]) for n in numbers])
        sent += count

    def await_decisions() -> None:
        decisions.until(lambda found: len(found) >= sent, f"{sent} decisions\n{job.log.read_text()[-2000:]}", SECONDS)

    try:
        ask()
        await_decisions()
        for number in range(ROUNDS):
            for key, answered in STEPS:
                killed: list[int] = []
                text = f"{world.settings.job_name}/".encode()
                proxy.act_at(key, text, answered, lambda pid, killed=killed: (killed.append(pid), _kill(pid))[0])
                if key == INIT_PRODUCER_ID:  # of a producer that has none yet: after another executor was killed
                    proxy.act_at(
                        END_TXN,
                        text,
                        False,
                        lambda pid, key=key, killed=killed, text=text: (
                            _kill(pid),
                            proxy.act_at(key, text, False, lambda next_: (killed.append(next_), _kill(next_))[0]),
                        )[0],
                    )
                wait_until(
                    lambda: ask(2) or not proxy.waits, f"round {number}: step {key}, answered {answered}", SECONDS
                )
                assert killed
                ask()
                await_decisions()
        findings = verify(world.settings)
    finally:
        job.stop()
    assert not findings.violations, findings
    assert findings.requests == findings.decisions == sent
