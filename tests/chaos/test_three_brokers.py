"""A job on three brokers, of which one at a time fails: nothing is lost, doubled or wrong."""

from collections.abc import Iterator

import pytest

from tests.chaos.networks import can_make_namespaces
from tests.chaos.run import Cluster
from tests.chaos.scenarios import SCENARIOS
from tests.chaos.shared_cluster import assert_holds, cluster_of

MONITOR_FAILED = "the monitor failed"

pytestmark = [pytest.mark.stream, pytest.mark.long]

SHARED = sorted(name for name, scenario in SCENARIOS.items() if scenario.brokers == 3 and not scenario.alone)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three brokers and a job, for all faults in turn."""
    with cluster_of(SHARED[0], tmp_path_factory.mktemp("three")) as cluster:
        yield cluster


@pytest.mark.parametrize("name", SHARED)
def test_over_a_fault_of_a_broker_nothing_is_lost_doubled_or_wrong(name: str, cluster: Cluster) -> None:
    if SCENARIOS[name].needs_networks and not can_make_namespaces():
        pytest.skip("only root can make network namespaces, with iproute2")
    _run(name, cluster)


def test_with_logins_and_acls_it_is_the_same(tmp_path_factory: pytest.TempPathFactory) -> None:
    name = "secured-brokers-killed"
    with cluster_of(name, tmp_path_factory.mktemp("secured")) as cluster:
        _run(name, cluster)


def _run(name: str, cluster: Cluster) -> None:
    """No run of the job may end: with exit code 3 it would take a failed coordinator for another instance."""
    row = assert_holds(name, cluster)
    assert row.exits == ([3] if name == "secured-brokers-killed" else []), row
    failures = [line for job in cluster.jobs for line in job.log.read_text().splitlines() if MONITOR_FAILED in line]
    assert failures == [], "what passes is no failure of the monitor's, either"
