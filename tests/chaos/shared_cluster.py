"""Scenarios of `make chaos` as tests: several in turn on one cluster, each judged by its row.

With LOCKKEEPER_TEST_ROWS=FILE each adds its row to FILE.
"""

import contextlib
import secrets
from pathlib import Path

from tests.chaos.run import Cluster, Row, keep_row
from tests.chaos.scenarios import SCENARIOS
from tests.stream.world import SHORT_LIVED


def cluster_of(name: str, folder: Path) -> contextlib.closing[Cluster]:
    """A context with the cluster that a scenario needs, and no other program of the machine's user."""
    return contextlib.closing(SCENARIOS[name].cluster(folder, spark=SHORT_LIVED))


def assert_holds(name: str, cluster: Cluster) -> Row:
    """Run a scenario; fails with its row unless all was decided, and nothing lost, doubled or wrong."""
    row = SCENARIOS[name].run(cluster, secrets.randbits(32))
    keep_row(row)
    assert row.ok, row
    assert row.requests > 0
    return row
