"""A generated day with planted incidents: all of them are found, and nothing is invented."""

import pytest

from streaming.settings.monitor import MonitorSettings
from tests.bench import incidents
from tests.monitor.pure import DECISIONS, LETTERS, VERDICTS, PureMonitor

TOPICS = {incidents.DECISIONS: DECISIONS, incidents.VERDICTS: VERDICTS, incidents.DEAD_LETTERS: LETTERS}


@pytest.mark.parametrize("size", [50, 5000])
def test_all_planted_incidents_are_found_and_none_is_invented(size: int) -> None:
    """In batches of about a second's and of some minutes' traffic."""
    day = incidents.Day(seed=size, accesses=5000, each=10)
    monitor = PureMonitor(MonitorSettings())
    records = [(TOPICS[r.to], 0, number, r.known, r.value) for number, r in enumerate(day.records)]
    for start in range(0, len(records), size):
        monitor.batch(records[start : start + size])
    monitor.pass_time(incidents.START + 2 * incidents.DAY)
    names = {LETTERS: incidents.DEAD_LETTERS}
    alerts = {(alert["kind"], names.get(alert["subject"], alert["subject"])) for alert in monitor.alerts.values()}
    assert alerts == day.incidents
    assert len(monitor.alerts) == len(day.incidents), "one alert for one incident"
