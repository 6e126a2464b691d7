"""From the acknowledgement of a change to its access changes: `python -m tests.bench.access_changes`.

The process remembers questions of five systems; then grants and revocations are published, one a second, and a
consumer notes when each record comes. The broker, the process and this run on the same machine.
"""

import contextlib
import statistics
import tempfile
import threading
import uuid
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from tests import bench
from tests.access_changes.process import await_followed, running
from tests.access_changes.traffic import Arrivals, Traffic
from tests.brokers import TestBroker, any_broker
from tests.waiting import wait_until

PORTION = 20_000
A_SECOND = 1.0  # changes
QUESTIONS = "lockkeeper_access_changes_questions"


class Measured(msgspec.Struct, frozen=True):
    """Of records, from the acknowledgement of their change to when they came (ms). `memory`: of the process, MiB."""

    questions: int
    changes: int
    records: int
    median_ms: float
    p99_ms: float
    maximum_ms: float
    memory: float


def measure(broker: TestBroker, folder: Path, questions: int, changes: int) -> Measured:
    """Latency while so many questions are remembered. `folder`: for the settings and the log of the process."""
    traffic = Traffic(broker, f"latency-{uuid.uuid4().hex[:6]}", seed=5, users=2000, resources=60)
    with running(traffic.settings, folder) as process, contextlib.closing(Arrivals(traffic.world)) as arrivals:
        while process.metric(QUESTIONS) < questions:
            traffic.ask(PORTION)
            traffic.write_late()
            wait_until(lambda: process.decisions() >= len(traffic.asked), "all decisions are read", 300)
        between = threading.Event()
        for number in range(changes):
            traffic.change(("grant", "revoke")[number % 2])
            between.wait(1 / A_SECOND)
        await_followed(traffic)
        arrivals.await_end()
        took = sorted(1000 * seconds for seconds in arrivals.seconds_after(traffic.acknowledged))
        remembered = round(process.metric(QUESTIONS))
        memory = bench.private_memory(process.process.pid)
    median, p99 = statistics.median(took), statistics.quantiles(took, n=100)[98]
    return Measured(remembered, changes, len(took), round(median), round(p99), round(took[-1]), memory)


def main(
    questions: Annotated[int, typer.Option(help="Questions that are remembered.")] = 100_000,
    changes: Annotated[int, typer.Option(help="Changes that are published.")] = 100,
) -> None:
    """Print what was measured as a line of JSON."""
    with any_broker() as broker, tempfile.TemporaryDirectory() as folder:
        found = measure(broker, Path(folder), questions, changes)
    print(msgspec.json.encode(bench.stamped({"benchmark": "access-changes", **msgspec.to_builtins(found)})).decode())


if __name__ == "__main__":
    typer.run(main)
