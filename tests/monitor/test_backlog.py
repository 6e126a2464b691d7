"""A backlog read in bounded batches: partitions get ahead of each other, and nothing is invented or lost by it."""

import random
import time
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streaming.alert_kinds import KindRule
from streaming.enforcer.heartbeats import Heartbeats
from streaming.monitor.processor import Bucket
from streaming.records.audit import decode_verdict
from streaming.settings import Settings
from streaming.settings.monitor import MonitorSettings, Rules
from streaming.topics import TopicNames
from tests.bench import incidents
from tests.examples import examples
from tests.monitor.pure import (
    DECISIONS,
    LETTERS,
    T0,
    VERDICTS,
    PureMonitor,
    Record,
    answered_lag,
    decision,
    letter,
    verdict,
)

TOPICS = {incidents.DECISIONS: DECISIONS, incidents.VERDICTS: VERDICTS, incidents.DEAD_LETTERS: LETTERS}
DAY = incidents.Day(seed=7, accesses=5000, each=10)
MINUTE = 60_000


def _partitions(records: list[Record], rng: random.Random, count: int) -> list[list[Record]]:
    """Each topic's records on so many partitions, in each by when they became known."""
    found: dict[tuple[str, int], list[Record]] = defaultdict(list)
    for record in records:
        found[record[0], rng.randrange(count)].append(record)
    return [sorted(part, key=lambda record: record[3]) for part in found.values()]


def _portions(partitions: list[list[Record]], rng: random.Random, size: int) -> Iterator[tuple[list[Record], int]]:
    """Batches of up to `size` records of each partition, and until when every partition is read by then (ms)."""
    read = [0] * len(partitions)
    while any(at < len(part) for at, part in zip(read, partitions, strict=True)):
        batch: list[Record] = []
        for number, part in enumerate(partitions):
            portion = part[read[number] : read[number] + rng.randint(0, size)]
            batch += portion
            read[number] += len(portion)
        unread = [part[at][3] for at, part in zip(read, partitions, strict=True) if at < len(part)]
        yield batch, min(unread, default=2**62) - 1


@pytest.mark.parametrize("seed", range(3))
def test_whichever_partition_is_read_ahead_all_incidents_of_a_day_are_found_and_none_is_invented(seed: int) -> None:
    rng = random.Random(seed)
    records: list[Record] = [(TOPICS[r.to], 0, number, r.known, r.value) for number, r in enumerate(DAY.records)]
    monitor = PureMonitor(MonitorSettings())
    for batch, until in _portions(_partitions(records, rng, 3), rng, 500):
        monitor.batch(batch, until)
    monitor.pass_time(incidents.START + 2 * incidents.DAY)
    names = {LETTERS: incidents.DEAD_LETTERS}
    alerts = {(alert["kind"], names.get(alert["subject"], alert["subject"])) for alert in monitor.alerts.values()}
    assert alerts == DAY.incidents
    assert len(monitor.alerts) == len(DAY.incidents), "one alert for one incident"


def test_an_access_is_not_held_against_anybody_while_its_decision_may_lie_unread() -> None:
    """Accesses and heartbeats of hours are read before the decisions of the first minute."""
    monitor = PureMonitor(MonitorSettings())
    monitor.batch([verdict("1", "dana", "orders", T0 + 1000)], T0 - 1)
    monitor.batch([verdict("2", "eve", "carts", T0 + 300 * MINUTE)], T0 - 1)
    monitor.batch([], T0 - 1)
    assert monitor.reported == []
    monitor.batch([decision("d", "dana", "orders", "allow", T0)], None)
    monitor.pass_time(T0 + 600 * MINUTE)
    assert [(alert["kind"], alert["subject"]) for alert in monitor.reported] == [("unrequested-access", "eve")]


SECOND = 1000


def _accused(monitor: PureMonitor) -> list[tuple[str, str]]:
    return [(alert["kind"], alert["subject"]) for alert in monitor.reported]


@pytest.mark.parametrize("read_ahead", [False, True])
def test_an_access_waits_for_the_answered_records_that_the_enforcer_has_left(read_ahead: bool) -> None:
    """After a stop it has caught up with audit events first, and decides what they rest on much later."""
    late = decision("d", "dana", "orders", "allow", T0, known=T0 + 80 * SECOND)
    events = [verdict("1", "dana", "orders", T0 + SECOND), verdict("2", "eve", "carts", T0 + SECOND)]
    caught_up = answered_lag(T0 + 81 * SECOND, lag=False)
    ahead, behind = ([caught_up], []) if read_ahead else ([], [caught_up])
    monitor = PureMonitor(MonitorSettings())
    monitor.batch([*events, answered_lag(T0 + 2 * SECOND, lag=True), *ahead], T0 + 79 * SECOND)
    monitor.batch([], T0 + 79 * SECOND)
    assert _accused(monitor) == []
    monitor.batch([late, *behind], None)
    monitor.pass_time(T0 + 90 * SECOND)
    assert _accused(monitor) == [("unrequested-access", "eve")]
    monitor.batch([verdict("3", "mallory", "carts", T0 + 100 * SECOND)], None)
    monitor.pass_time(T0 + 106 * SECOND)
    assert _accused(monitor)[1:] == [("unrequested-access", "mallory")], "without a lag it waits for the grace alone"


def test_answered_records_that_are_never_caught_up_with_hide_no_access() -> None:
    """Whoever may write them could keep the enforcer behind for ever."""
    monitor = PureMonitor(MonitorSettings())
    monitor.batch([answered_lag(T0, lag=True), verdict("1", "eve", "carts", T0 + SECOND)], None)
    monitor.pass_time(T0 + 10 * MINUTE)
    assert _accused(monitor) == []
    monitor.pass_time(T0 + 10 * MINUTE + SECOND)
    assert _accused(monitor) == [("unrequested-access", "eve")]


def test_reports_of_one_batch_count_in_their_order() -> None:
    reports = [answered_lag(T0 + 3 * SECOND, lag=False), answered_lag(T0 + 2 * SECOND, lag=True)]
    monitor = PureMonitor(MonitorSettings())
    monitor.batch([*reports, verdict("1", "eve", "carts", T0 + SECOND)], None)
    monitor.pass_time(T0 + 7 * SECOND)
    assert _accused(monitor) == [("unrequested-access", "eve")]
    monitor = PureMonitor(MonitorSettings())
    monitor.batch([*reports, answered_lag(T0 + 4 * SECOND, lag=True), verdict("1", "eve", "carts", T0 + SECOND)], None)
    monitor.pass_time(T0 + 7 * SECOND)
    assert _accused(monitor) == []


@pytest.mark.parametrize("is_lagging", [True, False])
def test_a_monitor_that_lost_its_state_waits_for_the_next_report_of_answered_records(is_lagging: bool) -> None:
    """The one of before is lost with it."""
    monitor = PureMonitor(MonitorSettings(), Bucket.assuming_lag(T0, T0 + 10 * MINUTE))
    monitor.batch([verdict("1", "dana", "orders", T0 + SECOND)], None)
    if is_lagging:
        monitor.batch([answered_lag(T0 + 5 * MINUTE, lag=True)], None)
        monitor.pass_time(T0 + 10 * MINUTE)
        assert _accused(monitor) == []
    monitor.batch([decision("d", "dana", "orders", "allow", T0, known=T0 + 10 * MINUTE)], None)
    monitor.batch([verdict("2", "eve", "carts", T0 + 10 * MINUTE + SECOND)], None)
    monitor.pass_time(T0 + 10 * MINUTE + 7 * SECOND)
    assert _accused(monitor) == ([] if is_lagging else [("unrequested-access", "eve")])


def test_a_monitor_that_starts_anew_long_before_a_moment_knows_no_lag_after_it() -> None:
    assert Bucket.assuming_lag(T0, T0).empty
    assert not Bucket.assuming_lag(T0 - 1, T0).empty


def test_a_lag_of_answered_records_that_lasts_is_reported_again(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    heartbeats = Heartbeats(Settings(topics=TopicNames(answered=("authz.answered.v1",))))

    def reports(after: float, lag: bool) -> list[bool | None]:
        clock[0] += after
        records = [*heartbeats.note_answered_lag(lag), *heartbeats.due()]
        return [report for _, _, value, _ in records if (report := decode_verdict(value).answered_lag) is not None]

    assert [reports(0, True), reports(20, True), reports(285, True), reports(20, True)] == [[True], [], [True], []]
    assert [reports(10, False), reports(16, False), reports(400, False)] == [[], [False], []]


SMALL_BURSTS = MonitorSettings(
    rules=Rules(
        window_seconds=20,
        grace_seconds=5,
        lateness_seconds=3000,
        episode_seconds=30,
        kinds={
            "denial-burst": KindRule("medium", more_than=2, within_seconds=20),
            "malformed-burst": KindRule("medium", more_than=2, within_seconds=20),
        },
    )
)


@st.composite
def traffic(draw: st.DrawFn) -> list[Record]:
    """Within ten minutes, each known at its own millisecond, when it happens or, of an access, up to a minute later."""
    records = []
    for number, second in enumerate(draw(st.lists(st.integers(0, 600), max_size=60))):
        at = T0 + second * 1000 + number
        who, what = draw(st.sampled_from(["dana", "eve"])), draw(st.sampled_from(["orders", "carts"]))
        sort = draw(st.sampled_from("dddvl"))
        if sort == "d":
            outcome = draw(st.sampled_from(["allow", "deny", "deny"]))
            records.append(decision(str(number), who, what, outcome, at))
        elif sort == "v":
            late = draw(st.sampled_from([0, 60_000]))
            records.append(verdict(str(number), who, what, at, draw(st.sampled_from(["allow", "deny"])), at + late))
        else:
            records.append(letter(number, at))
    return sorted(records, key=lambda record: record[3])


def _alerts(batches: Iterator[tuple[list[Record], int]]) -> dict[str, tuple[str, str, dict[str, Any]]]:
    """Severity, subject and extent of each, by id, after time went on."""
    monitor = PureMonitor(SMALL_BURSTS)
    for batch, until in batches:
        monitor.batch(batch, until)
    monitor.pass_time(T0 + 24 * 60 * MINUTE)
    return {id_: (alert["severity"], alert["subject"], alert["evidence"][0]) for id_, alert in monitor.alerts.items()}


@settings(max_examples=examples(100))
@given(traffic(), st.randoms(use_true_random=False), st.integers(1, 3))
def test_the_alerts_are_those_of_records_read_one_by_one_as_they_became_known(
    records: list[Record], rng: random.Random, count: int
) -> None:
    """To the id, the count, the first and the last: episodes begin and end where they do without a backlog."""
    one_by_one = _alerts(([record], record[3]) for record in records)
    assert _alerts(_portions(_partitions(records, rng, count), rng, 10)) == one_by_one
