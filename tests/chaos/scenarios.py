"""The scenarios: each breaks something, or sends what is hostile, while traffic goes on."""

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from streaming.monitor.rules import MonitorSettings
from tests.chaos.processes import Broker, send
from tests.chaos.run import Action, Row, Run, judge, new_row
from tests.stream.world import World


class Scenario(NamedTuple):
    """A fault in words, and what does it. `settings`: of the job, beside those of the tests' world."""

    name: str
    fault: str
    action: Action
    settings: dict[str, Any]

    def run(self, folder: Path, seed: int, **settings: Any) -> Row:
        """Run it with a broker of its own. `settings` take precedence over those of the scenario."""
        broker = Broker(folder / "kafka")
        try:
            chosen = {"spark": {}, "monitor": MonitorSettings(), **self.settings, **settings}
            world = World(broker, f"chaos-{self.name}", str(folder / "checkpoint"), **chosen)  # type: ignore[arg-type]
            run = Run(world, seed, folder, broker)
            try:
                return judge(run, self.action, new_row(self.name, self.fault, seed))
            finally:
                run.close()
        finally:
            broker.stop()


SCENARIOS: dict[str, Scenario] = {}


def scenario(fault: str, **settings: Any) -> Callable[[Action], Action]:
    """Add a function as a scenario, under its name with hyphens."""

    def add(action: Action) -> Action:
        name = action.__name__.replace("_", "-")
        SCENARIOS[name] = Scenario(name, fault, action, settings)
        return action

    return add


TIMES = 3  # a fault meets another moment each time


@scenario("SIGKILL to all processes of the job, three times")
def job_killed(run: Run) -> None:
    run.begin()
    for _ in range(TIMES):
        run.pause(1, 5)
        with run.fault():
            run.job.kill()


@scenario("SIGKILL to the Python driver, three times")
def driver_killed(run: Run) -> None:
    run.begin()
    for _ in range(TIMES):
        run.pause(1, 5)
        with run.fault():
            send({run.job.pid}, signal.SIGKILL)


@scenario("SIGKILL to Spark's JVM, three times")
def java_killed(run: Run) -> None:
    run.begin()
    for _ in range(TIMES):
        run.pause(1, 5)
        with run.fault():
            send(run.job.java(), signal.SIGKILL)


@scenario("SIGKILL to every Python worker, three times")
def workers_killed(run: Run) -> None:
    run.begin()
    for _ in range(TIMES):
        run.pause(1, 5)
        with run.fault():
            send(run.job.workers(), signal.SIGKILL)


@scenario("SIGSTOP of the job for 45 s, then SIGCONT: longer than its transactions may last")
def job_suspended(run: Run) -> None:
    run.begin()
    run.pause(1, 5)
    with run.fault():
        pids = run.job.everything()
        send(pids, signal.SIGSTOP)
        run.pause(45, 45)
        send(pids, signal.SIGCONT)


@scenario("a second instance with the same name is started beside the first")
def two_instances(run: Run) -> None:
    run.start_job(restarts=False)
    run.send()
    run.await_decisions()
    run.pause(1, 5)
    first = run.job
    with run.fault():
        run.start_job(run.elsewhere())
    run.await_end(first)


@scenario("the request topic gets a third and a fourth partition")
def partitions_added(run: Run) -> None:
    run.begin()
    for count in (3, 4):
        run.pause(1, 5)
        with run.fault():
            run.add_partitions(count)


@scenario("SIGKILL to the broker, started again at once on the same data, twice")
def broker_killed(run: Run) -> None:
    run.begin()
    for _ in range(2):
        run.pause(1, 5)
        with run.fault():
            run.broker.kill()
            run.broker.start()


@scenario("SIGSTOP of the broker for 20 s, then SIGCONT")
def broker_suspended(run: Run) -> None:
    run.begin()
    run.pause(1, 5)
    with run.fault():
        run.broker.suspend()
        run.pause(20, 20)
        run.broker.resume()


@scenario("Kafka is away for 60 s, and comes back with the same data")
def kafka_away(run: Run) -> None:
    run.begin()
    run.pause(1, 5)
    with run.fault():
        run.broker.stop()
        run.pause(60, 60)
        run.broker.start()
