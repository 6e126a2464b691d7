"""The demo's books find every way in which the stream could break its promises."""

from typing import Any

import pytest

from policy import Snapshot, compile_documents, reference
from policy.files import read_documents
from streaming.demo import scenario
from streaming.demo.ledger import Change, Ledger, percentiles

TOPIC = "authz.policies.lenses6.v1"
AFTER_OFFSET = 9


def _policies(*folders: Any) -> Snapshot:
    documents = {(d["kind"], d["name"]): d for folder in folders for _, d in read_documents(folder)}
    return compile_documents(documents.values())


BEFORE = _policies(scenario.POLICIES)
AFTER = _policies(scenario.POLICIES, scenario.CHANGE)


def _decision(request: dict[str, Any], snapshot: Snapshot = BEFORE, outcome: str | None = None) -> dict[str, Any]:
    offset = AFTER_OFFSET if snapshot is AFTER else AFTER_OFFSET - 1
    return {
        "request_id": request["id"],
        "context": {
            "outcome": outcome or reference.decide(snapshot, request),
            "policy_version": snapshot.version,
            "policy_offsets": {TOPIC: {"0": offset}},
        },
    }


@pytest.fixture
def ledger() -> Ledger:
    """Books with one request that was sent, answered rightly before the policies change."""
    found = Ledger(BEFORE)
    found.send(scenario.probe(1))
    found.read(_decision(scenario.probe(1)))
    return found


def test_the_change_turns_the_probe_from_allow_to_deny() -> None:
    assert reference.decide(BEFORE, scenario.probe(1)) == "allow"
    assert reference.decide(AFTER, scenario.probe(1)) == "deny"


def test_books_that_agree_are_ok(ledger: Ledger) -> None:
    summary = ledger.summary()
    assert (summary["ok"], summary["sent"], summary["decided"]) == (True, 1, 1)


def test_books_without_any_answer_are_not_ok() -> None:
    assert not Ledger(BEFORE).summary()["ok"]


def test_a_request_without_a_decision_is_lost(ledger: Ledger) -> None:
    ledger.send(scenario.probe(2))
    assert not ledger.complete
    assert (ledger.summary()["ok"], ledger.summary()["lost"]) == (False, 1)


def test_a_second_decision_is_doubled(ledger: Ledger) -> None:
    ledger.read(_decision(scenario.probe(1)))
    assert (ledger.summary()["ok"], ledger.summary()["doubled"]) == (False, 1)


def test_a_decision_nobody_asked_for_is_found(ledger: Ledger) -> None:
    ledger.read(_decision(scenario.probe(7)))
    assert (ledger.summary()["ok"], ledger.summary()["unasked"]) == (False, 1)


def test_a_decision_unlike_the_reference_evaluator_is_found(ledger: Ledger) -> None:
    ledger.send(scenario.probe(2))
    ledger.read(_decision(scenario.probe(2), outcome="deny"))
    assert (ledger.summary()["ok"], ledger.summary()["unlike_reference"]) == (False, 1)


def test_a_request_sent_after_the_change_and_judged_by_the_older_policies_is_found(ledger: Ledger) -> None:
    ledger.change(Change(TOPIC, AFTER_OFFSET, 0.0, AFTER))
    ledger.send(scenario.probe(2))
    ledger.read(_decision(scenario.probe(2)))
    assert (ledger.summary()["ok"], ledger.summary()["judged_by_older_policy"]) == (False, 2)


def test_a_change_that_never_came_into_force_is_found(ledger: Ledger) -> None:
    ledger.change(Change(TOPIC, AFTER_OFFSET, float("inf"), AFTER))
    summary = ledger.summary()
    assert (summary["ok"], summary["policy_change_in_force_ms"]) == (False, None)


def test_the_time_until_the_change_is_in_force_is_told(ledger: Ledger) -> None:
    [before] = ledger.answers()
    ledger.change(Change(TOPIC, AFTER_OFFSET, before.read_at, AFTER))
    ledger.send(scenario.probe(2))
    ledger.read(_decision(scenario.probe(2), AFTER))
    assert ledger.summary()["ok"]
    assert ledger.summary()["policy_change_in_force_ms"] >= 0


def test_percentiles_of_a_hundred_latencies() -> None:
    assert percentiles([float(n) for n in range(101)]) == {"p50": 50.0, "p99": 99.0}
    assert percentiles([1.0]) == {"p50": None, "p99": None}


def test_a_planted_incident_without_an_alert_and_an_alert_without_an_incident_are_told() -> None:
    """Two alerts with one id are one: the newest counts."""
    found = Ledger(BEFORE, {("denial-burst", "user:mallory")})
    found.send(scenario.probe(1))
    found.read(_decision(scenario.probe(1)))
    assert (found.alarmed, found.summary()["incidents_missed"], found.summary()["ok"]) == (False, 1, False)
    for count in (1, 2):
        found.alert({"id": "a", "kind": "denial-burst", "subject": "user:mallory", "count": count})
    assert (found.alarmed, found.summary()["incidents_missed"], found.summary()["ok"]) == (True, 0, True)
    assert [alert["count"] for alert in found.alerts()] == [2]
    found.alert({"id": "b", "kind": "denial-burst", "subject": "user:dana"})
    assert (found.summary()["alerts_invented"], found.summary()["ok"]) == (1, False)
