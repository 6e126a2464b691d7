"""`lockkeeper run` as it is, which may pause at a step of a batch: for what happens to Kafka just then.

    python -m tests.stream.outage_process SETTINGS_FILE FOLDER

Where FOLDER has a file of a step's name, such as `written`, the next batch that gets to this step renames it to
`paused`, and goes on once that file is gone.
"""

import functools
import sys
from pathlib import Path

import streaming.application
from streaming.cli import main
from tests.waiting import wait_until


def _pause(folder: Path, step: str, batch: int) -> None:
    wanted, paused = folder / step, folder / "paused"
    if batch >= 0 and wanted.exists():
        wanted.rename(paused)
        wait_until(lambda: not paused.exists(), f"{paused} is removed", 120)


if __name__ == "__main__":
    on_step = functools.partial(_pause, Path(sys.argv[2]))
    streaming.application.run = functools.partial(streaming.application.run, on_step=on_step)
    main(["run", "--config", sys.argv[1]])
