"""The demo's books: how long things took, which alerts came, and the checks of `streaming.verify`."""

import itertools
from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from policy import compile_documents
from policy.evaluation import reference
from policy.store.repository import read_documents
from streaming.demo import tracker as tracker_module
from streaming.demo import traffic
from streaming.demo.tracker import Change, RequestTracker, View, percentiles, show_summary
from streaming.verify import CHECKS, Findings, Violation

TOPIC = "authz.policies.lenses6.v1"
OFFSET = 9
SOUND = Findings()


def _decision(request: dict[str, Any], offset: int = OFFSET - 1) -> dict[str, Any]:
    context = {"outcome": "allow", "policy_version": "sha256:0", "policy_offsets": {TOPIC: {"0": offset}}}
    return {"request_id": request["id"], "context": context}


@pytest.fixture
def tracker() -> RequestTracker:
    """Books with one request that was sent and answered before the policies change."""
    found = RequestTracker()
    found.send(traffic.probe(1))
    found.read(_decision(traffic.probe(1)))
    return found


def test_the_change_turns_the_probe_from_allow_to_deny() -> None:
    before, change = (
        {(d["kind"], d["name"]): d for _, d in read_documents(folder)} for folder in (traffic.POLICIES, traffic.CHANGE)
    )
    after = before | change
    answers = [reference.decide(compile_documents(d.values()), traffic.probe(1)) for d in (before, after)]
    assert answers == ["allow", "deny"]


@pytest.mark.parametrize("system", traffic.SYSTEMS)
def test_the_traffic_of_each_system_is_allowed_and_denied(system: str) -> None:
    """And never an error."""
    snapshot = compile_documents(document for _, document in read_documents(traffic.POLICIES))
    asked = [request for request in itertools.islice(traffic.requests(), 400) if request["system"] == system]
    assert {reference.decide(snapshot, request) for request in asked} == {"allow", "deny"}


def test_consistent_counts_are_ok(tracker: RequestTracker) -> None:
    summary = tracker.summary(SOUND)
    assert (summary["ok"], summary["sent"], summary["decided"]) == (True, 1, 1)


def test_books_without_any_answer_are_not_ok() -> None:
    assert not RequestTracker().summary(SOUND)["ok"]


@pytest.mark.parametrize("check", CHECKS)
def test_each_check_of_the_verification_counts(tracker: RequestTracker, check: str) -> None:
    found = Findings()
    found.violated(Violation(check, "topic", 0, 0, "", ""))
    assert (tracker.summary(found)["ok"], tracker.summary(found)[check]) == (False, 1)


def test_a_request_that_is_not_decided_at_the_end_is_lost(tracker: RequestTracker) -> None:
    found = Findings()
    found.waiting = 1
    assert (tracker.summary(found)["ok"], tracker.summary(found)["lost"]) == (False, 1)


def test_it_is_complete_once_every_request_has_an_answer(tracker: RequestTracker) -> None:
    tracker.send(traffic.probe(2))
    assert not tracker.complete
    tracker.read(_decision(traffic.probe(2)))
    assert tracker.complete


def test_requests_sent_after_the_change_was_acknowledged_demand_it(tracker: RequestTracker) -> None:
    tracker.change(Change(TOPIC, OFFSET, 0.0))
    tracker.send(traffic.probe(2))
    assert tracker.demanded == {traffic.probe(2)["id"]: {TOPIC: OFFSET}}


def test_a_change_that_never_came_into_force_is_found(tracker: RequestTracker) -> None:
    tracker.change(Change(TOPIC, OFFSET, float("inf")))
    summary = tracker.summary(SOUND)
    assert (summary["ok"], summary["policy_change_in_force_ms"]) == (False, None)


def test_the_time_until_the_change_is_in_force_is_reported(tracker: RequestTracker) -> None:
    [before] = tracker.answers()
    tracker.change(Change(TOPIC, OFFSET, before.read_at))
    tracker.send(traffic.probe(2))
    tracker.read(_decision(traffic.probe(2), OFFSET))
    summary = tracker.summary(SOUND)
    assert summary["ok"]
    assert summary["policy_change_in_force_ms"] >= 0


def test_latencies_are_those_of_requests_sent_after_the_warm_up(tracker: RequestTracker) -> None:
    assert not tracker.measuring
    assert tracker.latencies_ms(tracker.answers()) == []
    tracker.send(traffic.probe(2))
    tracker.measure()
    tracker.send(traffic.probe(3))
    for number in (2, 3):
        tracker.read(_decision(traffic.probe(number)))
    [latency] = tracker.latencies_ms(tracker.answers())
    *_, last = tracker.answers()
    assert tracker.measuring
    assert tracker.latencies_ms([last]) == [latency]


def test_it_introduces_who_acts_and_says_what_each_check_counts(tracker: RequestTracker) -> None:
    """On a console of which the lines are long enough; every subject of which an alert must come is introduced."""
    console = Console(width=200, file=StringIO())
    View(tracker, console).print_participants(traffic.PARTICIPANTS)
    show_summary(console, tracker.summary(SOUND))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    planted = {subject for _, subject in traffic.planted() if subject.startswith("user:")}
    assert {who for who in planted if who in shown} == planted
    assert {name for name, counted in tracker_module.CHECKS.items() if counted not in shown} == set()
    assert tracker_module.CHECKS.keys() == {*CHECKS, "incidents_missed", "alerts_invented"}


def test_percentiles_of_a_hundred_latencies() -> None:
    assert percentiles([float(n) for n in range(101)]) == {"p50": 50.0, "p99": 99.0}
    assert percentiles([1.0]) == {"p50": None, "p99": None}


def test_a_planted_incident_without_an_alert_and_an_alert_without_an_incident_are_reported() -> None:
    """Two alerts with one id are one: the newest counts."""
    found = RequestTracker({("denial-burst", "user:mallory")})
    found.send(traffic.probe(1))
    found.read(_decision(traffic.probe(1)))
    assert (found.alarmed, found.summary(SOUND)["incidents_missed"], found.summary(SOUND)["ok"]) == (False, 1, False)
    for count in (1, 2):
        found.alert({"id": "a", "kind": "denial-burst", "subject": "user:mallory", "count": count})
    assert (found.alarmed, found.summary(SOUND)["incidents_missed"], found.summary(SOUND)["ok"]) == (True, 0, True)
    assert [alert["count"] for alert in found.alerts()] == [2]
    found.alert({"id": "b", "kind": "denial-burst", "subject": "user:dana"})
    assert (found.summary(SOUND)["alerts_invented"], found.summary(SOUND)["ok"]) == (1, False)
