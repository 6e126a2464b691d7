"""What released versions left behind is taken up by today's job: nothing lost, doubled or judged otherwise.

`tests/released/VERSION` holds what the job of that version left; `tests.stream.record_release` makes it.
"""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.brokers import TestBroker
from tests.stream.releases import RELEASES, requests
from tests.stream.restore_release import restore
from tests.stream.running import running

pytestmark = pytest.mark.stream


@pytest.mark.parametrize("version", sorted(path.name for path in RELEASES.iterdir()))
def test_what_a_release_left_is_taken_up(
    version: str, broker: TestBroker, fresh_name: Callable[[str], str], tmp_path: Path
) -> None:
    """Its decisions stand, also of a batch that Spark plays again; what it left waiting is decided, by its history."""
    world = restore(broker, fresh_name("released"), RELEASES / version, tmp_path / "checkpoint")
    with running(world.settings):
        world.send(requests("new"))
        world.await_no_lag()
    decided = world.everything(world.names.decisions)
    asked = [asked["id"] for prefix in ("decided", "replayed", "waiting", "new") for asked in requests(prefix)]
    assert Counter(decision["request_id"] for decision in decided) == Counter(asked)
    for decision in decided:
        assert decision["context"]["outcome"] == decision["request_id"].split("-")[1], decision
    assert len(world.everything(f"{world.names.requests[1]}.dlq")) == 1
    alerts = [alert["kind"] for alert in world.everything(world.names.alerts)]
    assert alerts.count("policy-rejected") == 1
