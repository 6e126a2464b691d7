"""What a scenario is, and all that there are."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from tests.chaos.run import Cluster, Place, Row, Run, evaluator, new_row

Action = Callable[[Run], None]


class Scenario(NamedTuple):
    """A fault in words, and what does it.

    `alone`: on a cluster that no other scenario uses. `brokers`: how many the cluster has. `secured`: users must log
    in to them. `needs_networks`: root alone can do it. `standalone`: the job runs on a standalone cluster of Spark.
    """

    name: str
    fault: str
    action: Action
    alone: bool
    brokers: int
    secured: bool
    needs_networks: bool
    standalone: bool

    @property
    def place(self) -> Place:
        """Where it runs, as the table of the documentation names it."""
        if self.standalone:
            return "standalone cluster"
        return "one broker" if self.brokers == 1 else "three brokers"

    def cluster(self, folder: Path, **settings: Any) -> Cluster:
        """A new cluster that it can run on."""
        return Cluster(folder, self.brokers, self.secured, self.standalone, **settings)

    def run(self, cluster: Cluster, seed: int) -> Row:
        """Run it, and return what it showed."""
        row = new_row(self.name, self.fault, seed, self.place)
        return evaluator(Run(cluster.world, seed, cluster), self.action, row)


SCENARIOS: dict[str, Scenario] = {}


def scenario(
    fault: str,
    alone: bool = False,
    brokers: int = 1,
    secured: bool = False,
    needs_networks: bool = False,
    standalone: bool = False,
) -> Callable[[Action], Action]:
    """Add a function as a scenario, under its name with hyphens."""

    def add(action: Action) -> Action:
        name = action.__name__.replace("_", "-")
        SCENARIOS[name] = Scenario(name, fault, action, alone, brokers, secured, needs_networks, standalone)
        return action

    return add
