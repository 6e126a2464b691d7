"""Five systems, types at random, a backlog, changes and logins in between: all incidents are found, none invented."""

from collections import Counter

import pytest

from streaming.settings.monitor import MonitorSettings
from tests.monitor.five_systems import DAY_MS, START, SYSTEMS, Day, kinds_of
from tests.monitor.pure import VERDICTS, PureMonitor


@pytest.mark.parametrize("seed", [1, 2])
def test_all_incidents_of_five_systems_are_found_and_none_is_invented(seed: int) -> None:
    day = Day(seed)
    assert day.cluster.changes > 8 * len(SYSTEMS)
    assert day.accesses > len(day.incidents)
    monitor = PureMonitor(MonitorSettings())
    for start in range(0, len(day.records), 50):
        monitor.batch(day.records[start : start + 50])
    monitor.pass_time(START + DAY_MS)
    found = kinds_of(monitor.alerts.values())
    assert found - day.incidents == set(), "invented"
    assert day.incidents - found == set(), "missed"
    counts = Counter(kind for kind, _ in found)
    assert all(counts[kind] >= 3 * len(SYSTEMS) for kind in ("unauthorized-access", "unrequested-access"))
    assert not any(b'"outcome":"unknown"' in record[4] for record in day.records if record[0] == VERDICTS)
