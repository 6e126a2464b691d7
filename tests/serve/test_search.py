"""Searches find what evaluations allow, page after page, and say where there may be others."""

import json
from pathlib import Path
from typing import Any

import pytest

from policy import compile_documents, decide
from policy.analysis import who_can
from policy.testing.casefile import load_cases
from policy.testing.run import scenes
from streaming.pdp.reading import AnswerContext, Read, suspend_aware_clock
from streaming.serve.authzen import BadRequest, Rules
from streaming.serve.search import KINDS, Kind, answer, parse_search
from tests.stream.world import SYSTEM, group, role

NOW = 1_795_000_000_000
READ_IT = {"name": "kafka:GetTopicDetails"}
DANA = {"type": "user", "id": "user:dana"}
ORDERS = {"type": "lrn", "id": "kafka:topic:prod/main/orders"}
DOCUMENTS = [
    role("readers", ORDERS["id"], "kafka:topic:prod/main/red*"),
    group("readers", "user:dana", "user:erik"),
    role("others", "kafka:topic:prod/main/other"),
    group("others", "user:eve"),
]
RULES = Rules((SYSTEM,), SYSTEM)


def _read(documents: list[dict[str, Any]]) -> Read:
    return Read(compile_documents(documents), suspend_aware_clock(), {}, -1, {})


READ = _read(DOCUMENTS)


def _found(kind: Kind, body: dict[str, Any], read: Read = READ, rules: Rules = RULES, system: str = SYSTEM) -> Any:
    search = parse_search(kind, json.dumps(body).encode(), "r-1", system, rules)
    return json.loads(
        answer(search, AnswerContext(read, NOW, search.evaluation.freshness, 0.0, 15.0, rules.trust), rules)
    )


def test_subjects_are_those_who_are_allowed() -> None:
    found = _found("subject", {"subject": {"type": "user", "id": "ignored"}, "action": READ_IT, "resource": ORDERS})
    assert found["results"] == [{"type": "user", "id": f"user:{name}"} for name in ("dana", "erik")]
    assert found["page"] == {"next_token": "", "count": 2, "total": 2}
    assert found["context"]["complete"] is True


def test_subjects_may_be_others_where_claims_are_trusted() -> None:
    body = {"subject": {"type": "user"}, "action": READ_IT, "resource": ORDERS}
    trusting = Rules((SYSTEM,), SYSTEM, frozenset({"groups"}))
    assert _found("subject", body, rules=trusting)["context"]["complete"] is False


def test_resources_are_those_that_documents_name_and_never_all() -> None:
    body = {"subject": DANA, "action": READ_IT, "resource": {"type": "lrn"}}
    found = _found("resource", body)
    assert (found["results"], found["context"]["complete"]) == ([ORDERS], False)
    assert _found("resource", {**body, "resource": {"type": "table"}})["results"] == []


def test_actions_are_those_of_the_catalogue() -> None:
    found = _found("action", {"subject": DANA, "resource": ORDERS})
    assert (found["results"], found["context"]["complete"]) == ([READ_IT], True)
    everything = {**role("readers", "*"), "spec": {"statements": [{"effect": "allow", "action": "*", "resource": "*"}]}}
    found = _found("action", {"subject": DANA, "resource": ORDERS}, _read([everything, DOCUMENTS[1]]))
    assert found["page"]["total"] > 20


def test_pages_follow_each_other_and_are_together_what_there_is() -> None:
    members = [f"user:u{number}{'x' * 7000 * (number == 2)}" for number in range(7)]  # as long as names may be
    read = _read([role("readers", ORDERS["id"]), group("readers", *members)])
    body: dict[str, Any] = {"subject": {"type": "user"}, "action": READ_IT, "resource": ORDERS, "page": {"limit": 3}}
    ids, sizes = [], []
    while True:
        found = _found("subject", body, read)
        ids += [one["id"] for one in found["results"]]
        sizes.append(found["page"]["count"])
        if not found["page"]["next_token"]:
            break
        body["page"] = {"limit": 3, "token": found["page"]["next_token"]}
    assert (ids, sizes) == (members, [3, 3, 1])


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("subject", {"subject": "user"}),
        ("subject", {"subject": {}}),
        ("subject", {"action": None}),
        ("resource", {"resource": {}}),
        ("resource", {"subject": {"type": "user"}}),
        ("action", {"resource": {"type": "lrn"}}),
        ("action", {"page": []}),
        ("action", {"page": {"limit": 0}}),
        ("action", {"page": {"limit": True}}),
        ("action", {"page": {"token": "?"}}),
        ("action", {"page": {"token": 1}}),
        *((kind, {"context": {"min_policy_offsets": {"t": {"0": 1}}}}) for kind in KINDS),
        *((kind, {"deadline": NOW - 1}) for kind in KINDS),
    ],
)
def test_what_is_not_a_search_is_refused(kind: Kind, change: dict[str, Any]) -> None:
    body = {"subject": DANA, "action": READ_IT, "resource": ORDERS, **change}
    with pytest.raises(BadRequest):
        _found(kind, body)


def test_an_unknown_system_is_refused() -> None:
    for kind in KINDS:
        with pytest.raises(BadRequest):
            _found(kind, {"subject": DANA, "action": READ_IT, "resource": ORDERS}, system="nonesuch")


_CASES = Path(__file__).parents[1] / "cases"


CEDAR = Rules(("cedar",), "cedar")
SEARCHES = json.loads((Path(__file__).parent / "searches.json").read_text())["search"]


@pytest.mark.parametrize("wanted", SEARCHES, ids=lambda wanted: wanted["id"])
def test_the_searches_of_authzens_certification_find_what_they_expect_by_cedar_policies(wanted: dict[str, Any]) -> None:
    """No property of a request is trusted. Others may be allowed that no document names: it is never complete."""
    *_, scene = scenes(load_cases(_CASES / "cedar-authzen.yaml"))
    read = Read(scene.snapshot, 0.0, {}, -1, {})
    found = _found(wanted["search"], wanted["request"], read, CEDAR, "cedar")
    assert all(one in found["results"] for one in wanted["at_least"]), found
    assert found["context"]["complete"] is False
    for one in found["results"]:
        asked = {**wanted["request"], wanted["search"]: {**wanted["request"].get(wanted["search"], {}), **one}}
        assert decide(scene.snapshot, {"id": "r", "system": "cedar", **asked}, trust=frozenset()).allowed


def test_a_search_in_cedar_asks_for_every_entity_and_action_that_documents_name() -> None:
    """Also for those that are named by an attribute, a condition or a schema alone; types are compared exactly."""
    spec = {
        "PolicySet": {
            "policies": "permit (principal is User, action, resource is Doc) when { resource.owner == principal };"
            'permit (principal, action == Action::"list", resource) when { principal == App::Bot::"bot" };'
        },
        "Entities": {
            "entities": [
                {"uid": {"type": "Doc", "id": "plan"}, "attrs": {"owner": {"__entity": {"type": "User", "id": "dana"}}}}
            ]
        },
        "Schema": {
            "schema": "entity User; namespace App { entity Bot; } entity Doc {owner: User};"
            'action read, "hand over" appliesTo {principal: User, resource: Doc};'
            "action list appliesTo {principal: [User, App::Bot], resource: Doc};"
        },
    }
    read = _read([{"system": "cedar", "kind": kind, "name": "n", "spec": one} for kind, one in spec.items()])
    assert not read.snapshot.rejected
    plan, dana = {"type": "Doc", "id": "plan"}, {"type": "User", "id": "dana"}

    def found(kind: Kind, **query: Any) -> list[dict[str, str]]:
        results: list[dict[str, str]] = _found(kind, query, read, CEDAR, "cedar")["results"]
        return results

    assert found("subject", subject={"type": "User"}, action={"name": "read"}, resource=plan) == [dana]
    assert found("subject", subject={"type": "App::Bot"}, action={"name": "list"}, resource=plan) == [
        {"type": "App::Bot", "id": "bot"}
    ]
    assert found("subject", subject={"type": "user"}, action={"name": "read"}, resource=plan) == []
    assert found("resource", subject=dana, action={"name": "read"}, resource={"type": "Doc"}) == [plan]
    assert found("action", subject=dana, resource=plan) == [{"name": name} for name in ("hand over", "list", "read")]


@pytest.mark.parametrize("system", ["lenses6", "ververica", "streamsets", "cdap", "kafka-acls"])
def test_in_the_cases_of_all_rules_a_search_finds_what_is_allowed_and_nothing_else(system: str) -> None:
    """The first few scenes: what a case says is allowed is found, where a document names it; each result is allowed."""
    found_in, rules = dict.fromkeys(KINDS, 0), Rules((system,))
    for scene in list(scenes(load_cases(_CASES / f"{system}.yaml")))[:25]:
        read = Read(scene.snapshot, 0.0, {}, -1, {})
        for expectation in scene.stage.expect[:3]:
            body = scene.request(expectation)
            request = {**body, "time": NOW}
            request.pop("deadline", None)
            if "evaluations" in body or decide(scene.snapshot, request, trust=frozenset({"time"})).outcome != "allow":
                continue
            for kind in KINDS:
                results = _found(kind, body, read, rules, system)["results"]
                for one in results:
                    asked = {**request, kind: {**request[kind], **one}}
                    assert decide(scene.snapshot, asked, trust=frozenset({"time"})).allowed, (kind, asked)
                found_in[kind] += {"name": body["action"]["name"]} in results if kind == "action" else bool(results)
    assert found_in["action"] > 0
    assert found_in["subject"] > 0


def test_who_can_is_the_code_that_is_asked() -> None:
    body = {"subject": DANA, "action": READ_IT, "resource": ORDERS}
    reach = who_can(READ.snapshot, {"id": "1", "system": SYSTEM, **body}, trust=frozenset({"time"}))
    found = _found("subject", body)["results"]
    assert [one["id"] for one in found] == sorted(who.name for who in reach.allowed)
