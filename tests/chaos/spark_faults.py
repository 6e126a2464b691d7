"""What a job on a standalone cluster of Spark survives: a master and two workers, each with an executor."""

import signal
import time
from collections.abc import Callable

from tests.chaos.processes import send
from tests.chaos.run import SPARK_WORKERS, START_SECONDS, Run
from tests.chaos.scenario import Action, scenario
from tests.standalone import Standalone, end
from tests.waiting import wait_until

AWAY_SECONDS = 10.0
SUSPENDED_SECONDS = 20.0


def _standalone(fault: str) -> Callable[[Action], Action]:
    return scenario(f"standalone cluster: {fault}", standalone=True)


@_standalone("SIGKILL to an executor")
def executor_killed(run: Run) -> None:
    _begin(run)
    with run.fault():
        send(run.spark.executors(_any(run)), signal.SIGKILL)
    _await_executors(run)


@_standalone("SIGSTOP of an executor for 20 s, then SIGCONT")
def executor_suspended(run: Run) -> None:
    _begin(run)
    with run.fault():
        _suspend(run.spark.executors(_any(run)))


@_standalone("SIGKILL to the Python workers of an executor")
def python_worker_killed(run: Run) -> None:
    _begin(run)
    with run.fault():
        send(run.spark.python_workers(_any(run)), signal.SIGKILL)


@_standalone("SIGSTOP of the Python workers of an executor for 20 s, then SIGCONT")
def python_worker_suspended(run: Run) -> None:
    _begin(run)
    with run.fault():
        _suspend(run.spark.python_workers(_any(run)))


@_standalone("SIGKILL to a worker, started again after 10 s")
def worker_killed(run: Run) -> None:
    _begin(run)
    number = _any(run)
    with run.fault():
        end(run.spark.workers[number])
        time.sleep(AWAY_SECONDS)
        run.spark.start_worker(number)
    _await_executors(run)


@_standalone("SIGSTOP of a worker for 20 s, then SIGCONT")
def worker_suspended(run: Run) -> None:
    _begin(run)
    with run.fault():
        _suspend({run.spark.workers[_any(run)].pid})


@_standalone("a node is decommissioned: SIGPWR to its worker; another one is started")
def node_decommissioned(run: Run) -> None:
    _begin(run)
    number = _any(run)
    before = run.spark.executors(number)
    with run.fault():
        run.spark.workers[number].send_signal(signal.SIGPWR)
        wait_until(lambda: not before & run.spark.executors(number), "its executor ends", START_SECONDS)
        end(run.spark.workers[number])
        run.spark.start_worker(number)
    _await_executors(run)


@_standalone("SIGKILL to the master, started again after 10 s")
def master_killed(run: Run) -> None:
    _begin(run)
    with run.fault():
        end(run.spark.master)
        time.sleep(AWAY_SECONDS)
        run.spark.start_master()


@_standalone("SIGSTOP of the master for 20 s, then SIGCONT")
def master_suspended(run: Run) -> None:
    _begin(run)
    with run.fault():
        _suspend({run.spark.master.pid})


def _begin(run: Run) -> None:
    run.begin()
    _await_executors(run)


def _await_executors(run: Run) -> None:
    """The next fault must meet both."""
    spark: Standalone = run.spark
    wait_until(
        lambda: all(spark.executors(number) for number in range(SPARK_WORKERS)), "each has an executor", START_SECONDS
    )


def _any(run: Run) -> int:
    return run.rng.randrange(SPARK_WORKERS)


def _suspend(pids: set[int]) -> None:
    assert pids
    send(pids, signal.SIGSTOP)
    try:
        time.sleep(SUSPENDED_SECONDS)
    finally:
        send(pids, signal.SIGCONT)
