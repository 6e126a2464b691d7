"""`make chaos`: faults in a loop, each judged by `lockkeeper verify`, a line of JSON for each.

    python -m tests.chaos [--minutes N] [--seed N] [--only NAME …] [--output FILE] [--keep FOLDER]

Every scenario in an order that the seed gives, again and again until the minutes are over; exit code 1 when one failed.
The seed of a line, with `--only` its scenario, makes the same choices again; the moments at which faults meet the job
differ. Without `--minutes` each is run once.
"""

import argparse
import contextlib
import random
import secrets
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.chaos.networks import can_make_namespaces
from tests.chaos.run import Cluster, Row, write_line
from tests.chaos.scenario import Scenario
from tests.chaos.scenarios import SCENARIOS


def main(arguments: list[str]) -> int:
    """Run scenarios and print their rows; returns the exit code."""
    options = _options().parse_args(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends what was started, as Ctrl-C does
    signal.signal(signal.SIGINT, signal.default_int_handler)
    seed = secrets.randbits(32) if options.seed is None else options.seed
    names = options.only or _possible()
    print(f"seed {seed}: {' '.join(names)}", file=sys.stderr, flush=True)
    failed, end = 0, time.monotonic() + 60 * options.minutes
    least = 1 if options.minutes else len(names)
    with contextlib.closing(Clusters(options.keep)) as clusters:
        for number, (scenario, own) in enumerate(_order(names, seed)):
            if number >= least and time.monotonic() > end:
                break
            row = clusters.run(scenario, own)
            failed += not row.ok
            write_line(row, options.output)
    return 1 if failed else 0


class Clusters:
    """A cluster that scenarios share until one fails, and one for each that needs its own."""

    def __init__(self, keep: Path | None) -> None:
        self._keep = keep
        self._shared: Cluster | None = None
        self._place = "one broker"

    def run(self, scenario: Scenario, seed: int) -> Row:
        """Run a scenario on a cluster that is whole."""
        if scenario.alone:
            self.close()  # two jobs at once would be slower than one after the other
        if self._place != scenario.place:
            self.close()
        cluster = self._shared or scenario.cluster(Path(tempfile.mkdtemp(prefix="lockkeeper-chaos-")))
        self._shared, self._place = cluster, scenario.place
        row = scenario.run(cluster, seed)
        if scenario.alone or not row.ok:
            self.close(None if row.ok else f"{scenario.name}-{seed}")
        return row

    def close(self, kept_as: str | None = None) -> None:
        """End the shared cluster. `kept_as`: its folder stays, under this name."""
        cluster, self._shared = self._shared, None
        if cluster is None:
            return
        cluster.close()
        if kept_as is not None and self._keep is not None:
            for file in (
                *cluster.folder.glob("*.log"),
                *cluster.folder.glob("*.yaml"),
                *cluster.folder.glob("work-*/*/*/stderr"),
            ):
                (self._keep / kept_as).mkdir(parents=True, exist_ok=True)
                name = str(file.relative_to(cluster.folder)).replace("/", "-")
                shutil.copy(file, self._keep / kept_as / name)
        shutil.rmtree(cluster.folder, ignore_errors=True)


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("chaos", description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=0, help="go on for so long; default: each scenario once")
    parser.add_argument("--seed", type=int, help="default: a random one, which is printed")
    parser.add_argument("--only", nargs="+", choices=sorted(SCENARIOS), help="these scenarios alone")
    parser.add_argument("--output", type=Path, help="add the lines to this file, too")
    parser.add_argument("--keep", type=Path, help="keep logs and settings of failed runs in this folder")
    return parser


def _possible() -> list[str]:
    """All scenarios that this user may run."""
    left_out = {name for name, scenario in SCENARIOS.items() if scenario.needs_networks and not can_make_namespaces()}
    if left_out:
        print(f"left out, for only root can make network namespaces: {' '.join(left_out)}", file=sys.stderr, flush=True)
    return sorted(SCENARIOS.keys() - left_out)


def _order(chosen: list[str], seed: int) -> Iterator[tuple[Scenario, int]]:
    """Scenarios without end, each with a seed of its own; the first has the seed that was given."""
    rng, own = random.Random(seed), seed
    while True:
        names = sorted(chosen)
        rng.shuffle(names)
        for name in sorted(names, key=lambda name: SCENARIOS[name][3:]):  # fewer clusters have to start
            yield SCENARIOS[name], own
            own = rng.getrandbits(32)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
