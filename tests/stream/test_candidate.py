"""A candidate is tried on live requests: its answers are counted beside the live ones, and decide nothing."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from policy import compile_documents
from policy.store.documents import DocumentStore
from policy.store.snapshot import Snapshot
from streaming.enforcer.evaluator import EvaluationContext, Evaluator, Source
from streaming.records.packing import Packed
from streaming.settings import DEFAULT_TRUST, Limits, MetricsSettings
from streaming.snapshots.candidate import Candidate, compare, with_documents
from streaming.topics import DEFAULT_SYSTEMS
from tests.brokers import TestBroker, free_port
from tests.stream.test_observability import Observed
from tests.stream.world import World, group, request, role
from tests.waiting import wait_until

ORDERS, PAYMENTS = (f"kafka:topic:prod/main/{name}" for name in ("orders", "payments"))
LIVE = [role("readers", ORDERS), group("readers", "user:dana")]
READ = 'permit (principal is User, action == Action::"read", resource is Document);'
HOLD = 'forbid (principal, action, resource in Folder::"legal-hold");'
HELD = {
    "system": "cedar",
    "kind": "Entities",
    "name": "documents",
    "spec": {
        "entities": [
            {"uid": {"type": "Document", "id": "contract"}, "parents": [{"type": "Folder", "id": "legal-hold"}]}
        ]
    },
}
COUNTED = {
    "cedar allow allow": 1,
    "cedar allow deny": 1,
    "lenses6 allow deny": 1,
    "lenses6 deny allow": 1,
    "lenses6 deny deny": 1,
}


def _policies(text: str) -> dict[str, Any]:
    return {"system": "cedar", "kind": "PolicySet", "name": "documents", "spec": {"policies": text}}


def _reading(id_: str, document: str) -> dict[str, Any]:
    return {
        "id": id_,
        "system": "cedar",
        "subject": {"type": "User", "id": "dana"},
        "action": {"name": "read"},
        "resource": {"type": "Document", "id": document},
    }


def _store(*documents: dict[str, Any]) -> DocumentStore:
    store = DocumentStore()
    for document in documents:
        assert store.put(document) is None
    return store


def _packed(*asked: dict[str, Any], documents: Any) -> Packed:
    evaluator, packed = Evaluator(compile_documents(documents), Limits()), Packed([], [])
    partition_evaluator = evaluator.for_partition(
        Source("t", 0, "id", DEFAULT_TRUST, 2), EvaluationContext("", {}, 0, {}, 1)
    )
    for offset, body in enumerate(asked):
        headers = [{"key": "traceparent", "value": b"00"}] if offset % 2 else None
        packed.others.append(partition_evaluator.decide(None, json.dumps(body).encode(), headers, offset, 1))
    return packed


def test_decisions_are_counted_by_system_and_both_outcomes_and_some_that_differ_are_kept() -> None:
    asked = [request(str(n), "dana", name) for n, name in enumerate(("orders", "orders", "payments", "other"))]
    asked.append({**asked[0], "system": "stranger"})
    live = _packed(*asked, {"no": "request"}, documents=LIVE)
    candidate = _packed(*asked, {"no": "request"}, documents=[role("readers", PAYMENTS), LIVE[1]])
    compared = compare(live, candidate)
    assert sorted(compared.counts) == [
        ("lenses6", "allow", "deny", 2),
        ("lenses6", "deny", "allow", 1),
        ("lenses6", "deny", "deny", 1),
        ("other", "error", "error", 1),
    ]
    outcomes = [[json.loads(record)["context"]["outcome"] for record in pair] for pair in compared.samples]
    assert sorted(outcomes) == [["allow", "deny"], ["allow", "deny"], ["deny", "allow"]]


def test_decisions_are_held_against_those_on_the_same_request_in_whatever_order_they_come() -> None:
    asked = [request(str(n), "dana", name) for n, name in enumerate(("orders", "payments", "other"))]
    live = _packed(*asked, documents=LIVE)
    candidate = _packed(*asked, documents=LIVE)
    candidate.others.reverse()
    assert compare(live, candidate) == compare(live, live)


def test_a_document_stands_in_the_place_of_the_live_one_and_the_others_stay() -> None:
    live = _store(*LIVE)
    before = Snapshot(live).version
    tried = Snapshot(with_documents(live, [role("readers", PAYMENTS)], 1))
    assert tried.version == compile_documents([role("readers", PAYMENTS), LIVE[1]]).version
    assert Snapshot(live).version == before


def test_a_folder_is_followed_and_a_broken_one_leaves_the_last_good_candidate(tmp_path: Path) -> None:
    sent: list[Snapshot] = []
    candidate = Candidate(tmp_path, 1 << 20, lambda snapshot: sent.append(snapshot) or snapshot)
    live = _store(*LIVE)
    snapshot, file = Snapshot(live), tmp_path / "role.json"
    candidate.follow(live, snapshot)
    assert (candidate.number, sent) == (0, []), "an empty folder is no candidate"
    file.write_text(json.dumps(role("readers", PAYMENTS)))
    for _ in range(2):
        candidate.follow(live, snapshot)
    assert (candidate.number, len(sent)) == (1, 1), "what did not change is not sent again"
    file.write_text("{broken")
    candidate.follow(live, snapshot)
    assert (candidate.number, len(sent)) == (1, 1)
    candidate.follow(live, Snapshot(live))
    assert len(sent) == 2, "the live policies changed below it"
    file.write_text(json.dumps(role("readers", ORDERS, PAYMENTS)))
    candidate.follow(live, candidate._live)  # type: ignore[arg-type]
    assert len(sent) == 3
    assert len({one.version for one in sent}) == 2


@pytest.mark.stream
def test_in_the_stream_the_live_policies_decide_and_the_candidate_is_counted(
    broker: TestBroker, fresh_name: Callable[[str], str], tmp_path: Path
) -> None:
    """In shadow mode, as a team would try it; the differences stand in the log. Of a system with an engine, too."""
    folder = tmp_path / "candidate"
    folder.mkdir()
    (folder / "role.json").write_text(json.dumps(role("readers", PAYMENTS)))
    (folder / "cedar.json").write_text(json.dumps(_policies(f"{READ} {HOLD}")))
    more: dict[str, Any] = {"mode": "shadow", "candidate": str(folder), "metrics": MetricsSettings(free_port())}
    world = World(
        broker, fresh_name("tried"), str(tmp_path / "checkpoint"), systems=(*DEFAULT_SYSTEMS, "cedar"), **more
    )
    for document in LIVE:
        world.publish(document)
    for document in (_policies(READ), HELD):
        key = f"{document['kind']}/{document['name']}"
        world.publish_to(world.names.policies["cedar"], key, document)
    answers = world.reader(world.names.decisions)
    world.send([request("1", "dana", "orders"), request("2", "dana", "payments"), request("3", "dana", "other")])
    world.send([_reading("4", "plan"), _reading("5", "contract")])
    job = Observed(world, tmp_path / "log")
    try:
        found = answers.until(lambda seen: len(seen) == 5, "all are decided", 120)
        wait_until(lambda: _counted(job) == COUNTED, "all are counted")
        differing = [event for event in job.log() if event["event"] == "the candidate differs"]
    finally:
        job.process.kill()
        job.process.wait()
    decisions = {d["request_id"]: d["context"] for d in (json.loads(message.value()) for message in found)}
    outcomes = {id_: context["outcome"] for id_, context in decisions.items()}
    assert outcomes == {"1": "allow", "2": "deny", "3": "deny", "4": "allow", "5": "allow"}
    assert all(context["enforced"] is False for context in decisions.values())
    assert sorted((event["live"], event["candidate"]) for event in differing) == [
        ("allow", "deny"),
        ("allow", "deny"),
        ("deny", "allow"),
    ]


def _counted(job: Observed) -> dict[str, float]:
    """How many requests of a system had which live and candidate outcome, where there were any."""
    found: dict[str, float] = {}
    for (name, labels), value in job.samples().items():
        if name == "lockkeeper_candidate_decisions_total" and value:
            named = dict(labels)
            found[f"{named['system']} {named['live']} {named['candidate']}"] = value
    return found
