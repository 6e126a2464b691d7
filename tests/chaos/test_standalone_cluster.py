"""A job on a standalone cluster of Spark, of which one part at a time fails: nothing is lost, doubled or wrong."""

import secrets
from collections.abc import Iterator

import pytest

from tests.chaos.run import Cluster
from tests.chaos.scenarios import SCENARIOS
from tests.stream.world import SHORT_LIVED

pytestmark = [pytest.mark.stream, pytest.mark.long]

NAMES = sorted(name for name, scenario in SCENARIOS.items() if scenario.standalone)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A master, two workers without any Python package, and a job, for all faults in turn."""
    made = SCENARIOS[NAMES[0]].cluster(tmp_path_factory.mktemp("spark"), spark=SHORT_LIVED)
    try:
        yield made
    finally:
        made.close()


@pytest.mark.parametrize("name", NAMES)
def test_over_a_fault_of_the_cluster_nothing_is_lost_doubled_or_wrong(name: str, cluster: Cluster) -> None:
    """Nor does the job end: Spark goes on with what is left."""
    row = SCENARIOS[name].run(cluster, secrets.randbits(32))
    print(row)
    assert row.ok, row
    assert row.requests > 0
    assert row.exits == [], row
