"""A short round of `make chaos`: one job and one broker for all of it."""

from collections.abc import Iterator

import pytest

from tests.chaos.run import Cluster
from tests.chaos.shared_cluster import assert_holds, cluster_of

pytestmark = [pytest.mark.stream, pytest.mark.long]

SHORT = ("job-killed", "broker-killed")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A broker of its own, since it is killed."""
    with cluster_of(SHORT[0], tmp_path_factory.mktemp("chaos")) as cluster:
        yield cluster


@pytest.mark.parametrize("name", SHORT)
def test_over_a_fault_nothing_is_lost_doubled_or_wrong(name: str, cluster: Cluster) -> None:
    assert_holds(name, cluster)


def test_every_answer_over_http_is_decided_once_whatever_is_killed(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Its own cluster: the job reads another topic."""
    with cluster_of("answering-killed", tmp_path_factory.mktemp("answering")) as cluster:
        assert_holds("answering-killed", cluster)
