"""`make chaos`: faults in a loop, each judged by `lockkeeper verify`, a line of JSON for each.

    python -m tests.chaos [--minutes N] [--seed N] [--only NAME …] [--output FILE] [--keep FOLDER]

Every scenario in an order that the seed gives, again and again until the minutes are over; exit code 1 when one failed.
The seed of a line, with `--only` its scenario, makes the same choices again; the moments at which faults meet the job
differ. Without `--minutes` each is run once.
"""

import argparse
import random
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from tests.chaos.run import Row
from tests.chaos.scenarios import SCENARIOS, Scenario


def main(arguments: list[str]) -> int:
    """Run scenarios and print their rows; returns the exit code."""
    options = _options().parse_args(arguments)
    seed = secrets.randbits(32) if options.seed is None else options.seed
    print(f"seed {seed}: {options.only or 'every scenario'}", file=sys.stderr, flush=True)
    failed, end = 0, time.monotonic() + 60 * options.minutes
    least = 1 if options.minutes else len(options.only or SCENARIOS)
    for number, (scenario, own) in enumerate(_order(options.only, seed)):
        if number >= least and time.monotonic() > end:
            break
        row = _run(scenario, own, options.keep)
        failed += not row.ok
        _tell(row, options.output)
    return 1 if failed else 0


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("chaos", description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=0, help="go on for so long; default: each scenario once")
    parser.add_argument("--seed", type=int, help="default: a random one, which is printed")
    parser.add_argument("--only", nargs="+", choices=sorted(SCENARIOS), help="these scenarios alone")
    parser.add_argument("--output", type=Path, help="add the lines to this file, too")
    parser.add_argument("--keep", type=Path, help="keep logs, settings and data of failed runs in this folder")
    return parser


def _order(only: list[str] | None, seed: int) -> Iterator[tuple[Scenario, int]]:
    """Scenarios without end, each with a seed of its own; the first has the seed that was given."""
    rng, own = random.Random(seed), seed
    while True:
        names = sorted(only or SCENARIOS)
        rng.shuffle(names)
        for name in names:
            yield SCENARIOS[name], own
            own = rng.getrandbits(32)


def _run(scenario: Scenario, seed: int, keep: Path | None) -> Row:
    folder = Path(tempfile.mkdtemp(prefix="lockkeeper-chaos-"))
    try:
        row = scenario.run(folder, seed)
        if not row.ok and keep is not None:
            shutil.copytree(folder, keep / f"{scenario.name}-{seed}", ignore_dangling_symlinks=True)
        return row
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _tell(row: Row, output: Path | None) -> None:
    line = msgspec.json.encode(row)
    print(line.decode(), flush=True)
    if output is not None:
        with output.open("ab") as lines:
            lines.write(line + b"\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
