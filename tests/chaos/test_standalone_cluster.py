"""A job on a standalone cluster of Spark, of which one part at a time fails: nothing is lost, doubled or wrong."""

from collections.abc import Iterator

import pytest

from tests.chaos.run import Cluster
from tests.chaos.scenarios import SCENARIOS
from tests.chaos.shared_cluster import assert_holds, cluster_of

pytestmark = [pytest.mark.stream, pytest.mark.long]

NAMES = sorted(name for name, scenario in SCENARIOS.items() if scenario.standalone)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A master, two workers without any Python package, and a job, for all faults in turn."""
    with cluster_of(NAMES[0], tmp_path_factory.mktemp("spark")) as cluster:
        yield cluster


@pytest.mark.parametrize("name", NAMES)
def test_over_a_fault_of_the_cluster_nothing_is_lost_doubled_or_wrong(name: str, cluster: Cluster) -> None:
    """Nor does the job end: Spark goes on with what is left."""
    row = assert_holds(name, cluster)
    assert row.exits == [], row
