"""`lockkeeper run` as it is, which may pause at a step of a batch: for what happens to Kafka just then.

    python -m tests.stream.outage_process SETTINGS_FILE FOLDER

Where FOLDER has a file of a step's name, such as `written`, the next batch that gets to this step renames it to
`paused`, and goes on once that file is gone; so does the driver's own transaction, for `driver-written`. Where it has
`lost-answer`, the next batch is committed, but the job gets no answer that says so. Where it has `facts-not-sent`,
Spark does not take the facts of the next batch in time; and it has `facts-sent` once changes of facts were sent. Where
it has `no-idle-commits` at the start, no offset is committed for its age alone.
"""

import math
import sys
import threading
from pathlib import Path
from typing import Any

import streaming.application
from streaming.cli import main
from streaming.commit.offsets import IDLE_COMMIT_SECONDS
from streaming.commit.partitions import PartitionTransactions
from streaming.errors import CannotWrite
from streaming.snapshots.broadcasts import FactBroadcasts
from tests.waiting import wait_until


def _pause(folder: Path, step: str, batch: int) -> None:
    wanted, paused = folder / (step if batch >= 0 else f"driver-{step}"), folder / "paused"
    if wanted.exists():
        wanted.rename(paused)
        wait_until(lambda: not paused.exists(), f"{paused} is removed", 120)


def _lose_answers(folder: Path) -> None:
    commit = PartitionTransactions.commit

    def losing(transactions: PartitionTransactions, evaluated: Any, offsets: Any, committed: Any) -> Any:
        results = commit(transactions, evaluated, offsets, committed)
        if results and (folder / "lost-answer").exists():
            (folder / "lost-answer").unlink()
            raise CannotWrite("the answer to a commit was lost")
        return results

    PartitionTransactions.commit = losing  # type: ignore[method-assign]


def _fail_to_send_facts(folder: Path) -> None:
    current = FactBroadcasts.current

    def failing(broadcasts: FactBroadcasts, *facts: Any) -> Any:
        sent = current(broadcasts, *facts)
        if facts[1]:
            (folder / "facts-sent").touch()
        if threading.current_thread() is not threading.main_thread() and (folder / "facts-not-sent").exists():
            (folder / "facts-not-sent").unlink()
            raise TimeoutError("Spark did not take a broadcast in time")
        return sent

    FactBroadcasts.current = failing  # type: ignore[method-assign]


if __name__ == "__main__":
    _lose_answers(Path(sys.argv[2]))
    _fail_to_send_facts(Path(sys.argv[2]))
    run = streaming.application.run

    def run_with_pauses(settings: Any, stop: Any, on_step: Any, watch: Any) -> None:
        def step(name: Any, batch: int) -> None:
            on_step(name, batch)
            _pause(Path(sys.argv[2]), name, batch)

        idle = math.inf if (Path(sys.argv[2]) / "no-idle-commits").exists() else IDLE_COMMIT_SECONDS
        run(settings, stop, step, watch, idle)

    streaming.application.run = run_with_pauses
    main(["run", "--config", sys.argv[1]])
