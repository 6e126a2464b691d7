"""At the edges of windows and waiting: nobody is accused, and nothing missed, for when records are read."""

from typing import Any

import msgspec
import pytest

from policy import LAST_MS, to_text
from tests.monitor.pure import DECISIONS, T0, VERDICTS, Record, answered_lag, decision, lifecycle, verdict
from tests.monitor.test_kinds import MINUTE, UNKNOWN_SCHEMAS, kinds, watch


def test_a_denial_is_remembered_until_the_latest_access_upon_it_waits_no_longer() -> None:
    denied = decision("1", "dana", "orders", "deny", T0)
    latest = verdict("a", "dana", "orders", T0 + 300_000, known=T0 + 900_000)
    within_grace = decision("9", "other", "other", "allow", T0 + 903_000)
    assert kinds(watch([denied], [latest], [within_grace], [])) == [("denied-but-done", "dana", 1)]
    lag = answered_lag(T0 + 900_000, True)
    later = [decision(str(n), "dana", "carts", "allow", T0 + at) for n, at in enumerate((1_000_000, 1_200_000))]
    monitor = watch([denied], [lag, latest], *([one] for one in later), [])
    assert kinds(monitor) == [("denied-but-done", "dana", 1)]
    assert all(key.name != "dana" for key in monitor.states), "nothing is remembered for ever"


def test_a_decision_that_could_not_be_read_excuses_the_accesses_that_wait_whenever_time_goes_on() -> None:
    unread: Record = (DECISIONS, 0, 7, T0 + 2000, UNKNOWN_SCHEMAS["no such fingerprint"])
    event = verdict("a", "dana", "orders", T0 + 1000)
    assert kinds(watch([event], [unread])) == [], "the next that is read is of an hour later"


@pytest.mark.parametrize("ahead", [MINUTE, 59 * MINUTE])
def test_an_access_whose_clock_is_ahead_finds_its_decision(ahead: int) -> None:
    """Record timestamps are of the producers' clocks; Kafka takes them up to an hour ahead."""
    event = verdict("a", "dana", "orders", T0 + 1000 + ahead, known=T0 + 1000)
    for outcome, alerts in (("allow", []), ("deny", [("denied-but-done", "dana", 1)])):
        assert kinds(watch([decision("1", "dana", "orders", outcome, T0)], [event])) == alerts
    assert kinds(watch([event])) == [("unrequested-access", "dana", 1)]


@pytest.mark.parametrize("ahead", [MINUTE, 365 * 24 * 60 * MINUTE])
def test_an_answer_of_a_server_whose_clock_is_ahead_was_given_when_its_record_was_written(ahead: int) -> None:
    answer = decision("1", "dana", "orders", "allow", T0 + ahead, known=T0)
    answered = {"by": "pdp-1", "decision": True, "outcome": "allow", "verified": True, "agrees": True}
    value = {**msgspec.json.decode(answer[-1]), "answered": {**answered, "time": to_text(T0 + ahead)}}
    monitor = watch([(*answer[:-1], msgspec.json.encode(value))], [verdict("a", "dana", "orders", T0 + 1000)])
    assert kinds(monitor) == []
    assert monitor.states == {}, "nothing is remembered until that year"


def test_denials_whose_claimed_times_lie_ahead_are_a_burst() -> None:
    """Who is trusted with the time could spread them over the future."""
    denials = [decision(str(n), "dana", f"t{n}", "deny", T0 + n * 60 * MINUTE, known=T0 + n) for n in range(21)]
    assert kinds(watch(denials)) == [("denial-burst", "dana", 21)]


def test_an_event_that_names_no_decision_rests_on_none() -> None:
    """Of a batch that asked twice and was answered both ways, the denial is not passed on by an id."""
    one = decision("batch", "dana", "orders", "deny", T0)
    record = msgspec.json.decode(one[4])
    allowed = {"decision": True, "context": {**record["context"], "outcome": "allow"}}
    record["evaluations"] = [{"decision": False, "context": record["context"]}, allowed]
    event = verdict("e", "dana", "orders", T0 + 1000, decision_id="")
    assert kinds(watch([(*one[:4], msgspec.json.encode(record))], [event])) == []


def test_a_duplicate_at_the_end_of_an_episode_is_no_other_episode() -> None:
    """It would have the id of the first, and hide how often it occurred."""
    first, second = (verdict(name, "dana", "orders", at, "deny") for name, at in (("a", T0), ("b", T0 + MINUTE)))
    again: Record = (*first[:3], T0 + 6 * MINUTE, first[4])
    asked = decision("1", "dana", "orders", "allow", T0)
    monitor = watch([asked], [first], [second], [again])
    assert kinds(monitor) == [("unauthorized-access", "dana", 2)]


@pytest.mark.parametrize("heartbeats", [[], [T0 + 301_000]])
def test_an_episode_does_not_end_while_an_access_of_it_waits(heartbeats: list[int]) -> None:
    """It becomes known within the episode, and is called unrequested a grace later: whenever the monitor looks."""
    events = [verdict(str(n), "dana", "orders", T0 + at) for n, at in enumerate((0, 299_000))]
    between = [[decision("9", "other", "other", "allow", at)] for at in heartbeats]
    assert kinds(watch([events[0]], [events[1]], *between, [])) == [("unrequested-access", "dana", 2)]


@pytest.mark.parametrize("outcome", ["deny", "error"])
def test_a_flood_of_denials_hides_no_access_and_no_allow(outcome: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No denial that is forgotten for want of room can have allowed anything."""
    monkeypatch.setattr("streaming.monitor.state.ACCESSES_OF_A_SUBJECT", 10)
    asked = decision("a", "dana", "orders", "allow", T0)
    flood = [decision(str(n), "dana", f"t{n}", outcome, T0 + 1 + n) for n in range(30)]
    events = [verdict(name, "dana", name, T0 + 1000) for name in ("orders", "unasked", "t0", "t29")]
    alerts = [alert for alert in kinds(watch([asked, *flood], events)) if alert[0] != "denial-burst"]
    assert alerts == [("denied-but-done", "dana", 1), ("unrequested-access", "dana", 2)]


@pytest.mark.parametrize("time", [LAST_MS + 1, 10**30, -(10**13)])
@pytest.mark.parametrize("sort", ["access", "login", "start"])
def test_a_verdict_of_no_time_that_can_be_written_is_left_out(sort: str, time: int) -> None:
    """The enforcer writes none: it would end every run of the monitor."""
    strays: dict[str, Any] = {
        "access": verdict("a", "eve", "orders", time, "deny", known=T0),
        "login": lifecycle("login", time, T0, subject="eve"),
        "start": lifecycle("job.started", time, T0, resource="job:load"),
    }
    stray = strays[sort]
    assert stray[0] == VERDICTS
    monitor = watch([stray, verdict("b", "dana", "orders", T0)])
    assert kinds(monitor) == [("unrequested-access", "dana", 1)]
    assert monitor.facts == {}
