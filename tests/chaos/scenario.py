"""What a scenario is, and all that there are."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from tests.chaos.run import Cluster, Row, Run, evaluator, new_row

Action = Callable[[Run], None]


class Scenario(NamedTuple):
    """A fault in words, and what does it.

    `alone`: on a cluster that no other scenario uses. `brokers`: how many the cluster has. `secured`: users must log
    in to them. `needs_networks`: root alone can do it.
    """

    name: str
    fault: str
    action: Action
    alone: bool
    brokers: int
    secured: bool
    needs_networks: bool

    def cluster(self, folder: Path, **settings: Any) -> Cluster:
        """A new cluster that it can run on."""
        return Cluster(folder, self.brokers, self.secured, **settings)

    def run(self, cluster: Cluster, seed: int) -> Row:
        """Run it, and return what it showed."""
        return evaluator(Run(cluster.world, seed, cluster), self.action, new_row(self.name, self.fault, seed))


SCENARIOS: dict[str, Scenario] = {}


def scenario(
    fault: str, alone: bool = False, brokers: int = 1, secured: bool = False, needs_networks: bool = False
) -> Callable[[Action], Action]:
    """Add a function as a scenario, under its name with hyphens."""

    def add(action: Action) -> Action:
        name = action.__name__.replace("_", "-")
        SCENARIOS[name] = Scenario(name, fault, action, alone, brokers, secured, needs_networks)
        return action

    return add
