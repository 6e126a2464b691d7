"""A short round of `make chaos`: one job and one broker for all of it."""

import secrets
from collections.abc import Iterator

import pytest

from tests.chaos.run import Cluster
from tests.chaos.scenarios import SCENARIOS
from tests.stream.world import SHORT_LIVED

pytestmark = [pytest.mark.stream, pytest.mark.long]

SHORT = ("job-killed", "broker-killed")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A broker of its own, since it is killed."""
    made = Cluster(tmp_path_factory.mktemp("chaos"), spark=SHORT_LIVED)
    try:
        yield made
    finally:
        made.close()


@pytest.mark.parametrize("name", SHORT)
def test_over_a_fault_nothing_is_lost_doubled_or_wrong(name: str, cluster: Cluster) -> None:
    row = SCENARIOS[name].run(cluster, secrets.randbits(32))
    print(row)
    assert row.ok, row
    assert row.requests > 0


def test_every_answer_over_http_is_decided_once_whatever_is_killed(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Its own cluster: the job reads another topic."""
    made = Cluster(tmp_path_factory.mktemp("answering"), spark=SHORT_LIVED)
    try:
        row = SCENARIOS["answering-killed"].run(made, secrets.randbits(32))
    finally:
        made.close()
    print(row)
    assert row.ok, row
