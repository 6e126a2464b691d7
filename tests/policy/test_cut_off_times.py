"""Moments that are finer than a millisecond: none is cut off so that something is allowed before its start or later."""

from typing import Any

import pytest

import policy
from policy.core.times import to_ms, to_whole_ms
from policy.evaluation import reference
from tests.policy.importers.test_cdap_csv import HEAD, reads, run

TEN = "2026-11-21T10:00:00"
ROLE = {
    "system": "lenses6",
    "kind": "Role",
    "name": "r",
    "spec": {"statements": [{"effect": "allow", "action": "kafka:*", "resource": "kafka:*"}]},
}
GROUP = {"system": "lenses6", "kind": "Group", "name": "g", "spec": {"roles": ["r"], "members": ["user:dana"]}}
ASK = {
    "id": "r",
    "system": "lenses6",
    "subject": {"type": "user", "id": "user:dana"},
    "action": {"name": "kafka:ListTopic"},
    "resource": {"type": "lrn", "id": "kafka:topic:a/b/c"},
}


def outcome(snapshot: policy.Snapshot, request: dict[str, Any]) -> str:
    """The answer of both evaluators, and that of a batch with this item."""
    item = {name: request[name] for name in ("subject", "action", "resource")}
    batch = policy.decide(snapshot, {**request, "evaluations": [item]})
    [answer] = {
        policy.decide(snapshot, request).outcome,
        reference.decide(snapshot, request),
        batch.evaluations[0].outcome if batch.evaluations else batch.outcome,
    }
    return str(answer)


@pytest.mark.parametrize("digits", ["0001", "9999999", "123456", "000000000001", f"{'0' * 1000}1"])
@pytest.mark.parametrize("field", ["valid_from", "valid_until", "effective_at"])
@pytest.mark.parametrize("document", [ROLE, GROUP])
def test_a_document_whose_edge_is_finer_is_refused(document: dict[str, Any], field: str, digits: str) -> None:
    """Whether it allows or denies, an edge that is cut off is early: an allow begins early, and a deny ends so."""
    dated = {**document, field: f"{TEN}.{digits}Z"}
    snapshot = policy.compile_documents([*(other for other in (ROLE, GROUP) if other is not document), dated])
    [rejected] = snapshot.rejected
    [error] = rejected.errors
    assert error.startswith(f"{field}: ")
    assert error.endswith("is finer than a millisecond: write three digits after the point at most")


@pytest.mark.parametrize("digits", ["", ".5", ".123", ".123000", f".{'0' * 1000}"])
def test_zeros_are_not_finer(digits: str) -> None:
    assert to_whole_ms(f"{TEN}{digits}+01:00") == to_ms(f"{TEN}{digits}+01:00")


@pytest.mark.parametrize(
    ("time", "expected"),
    [("59.9999", "deny"), ("00", "allow"), ("00.0009", "allow"), ("00.9999999", "allow"), ("01", "deny")],
)
def test_the_time_of_a_request_is_on_its_side_of_an_edge(time: str, expected: str) -> None:
    window = {"valid_from": f"{TEN}Z", "valid_until": "2026-11-21T10:00:01Z"}
    minute = "2026-11-21T09:59:" if time.startswith("59") else "2026-11-21T10:00:"
    assert (
        outcome(policy.compile_documents([{**ROLE, **window}, GROUP]), {**ASK, "time": f"{minute}{time}Z"}) == expected
    )


@pytest.mark.parametrize(
    ("time", "deadline", "expected"),
    [
        ("00.0001", "00", "error"),
        ("00.0009", "00.0001", "error"),
        ("00.0001", "00.0009", "error"),  # in time: that it is not allowed is the safe side
        ("00", "00.0001", "allow"),
        ("00", "00", "allow"),
        ("00.000", "00.000", "allow"),
        ("00.0009", "00.001", "allow"),
    ],
)
def test_after_its_deadline_nothing_is_allowed(time: str, deadline: str, expected: str) -> None:
    moments = {"time": f"2026-11-21T10:00:{time}Z", "deadline": f"2026-11-21T10:00:{deadline}Z"}
    assert outcome(policy.compile_documents([ROLE, GROUP]), {**ASK, **moments}) == expected


@pytest.mark.parametrize(("kind", "field"), [("Session", "login_at"), ("ActiveJob", "started_at")])
def test_a_login_does_not_count_before_its_moment(kind: str, field: str) -> None:
    """Platforms date logins as finely as they like: such a document is valid."""
    name = {"Session": "dana", "ActiveJob": "job:j"}[kind]
    document = {"system": "streamsets", "kind": kind, "name": name, "spec": {field: f"{TEN}.0005Z"}}
    snapshot = policy.compile_documents([document])
    assert not snapshot.rejected
    facts, ten = snapshot.policy_sets["streamsets"].facts, to_ms(f"{TEN}Z")
    assert facts.at(ten).get(kind, name) is None
    assert facts.at(ten + 1).get(kind, name) is not None


@pytest.mark.parametrize("field", ["valid_from", "valid_until"])
def test_a_grant_of_cdap_whose_edge_is_finer_is_not_imported(field: str) -> None:
    found = run(f"user,dana,dataset:shop.orders,READ,{TEN}.0005Z", head=f"{HEAD},{field}")
    assert found.findings
    assert not reads(found)
