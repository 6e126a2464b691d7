"""Who may do what with a resource is what `who_can` answers for each action; each row has the path of its actions."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from policy import CLAIMS, Snapshot, compile_documents, decide
from policy.analysis import AccessPath, ResourceAccess, ResourceQuestion, Who, who_can
from policy.core.request import Batch, parse_request
from tests.examples import examples
from tests.policy.test_changes_reported import pool_of
from tests.policy.test_properties import WRITTEN, documents_of
from tests.policy.test_widening import group, role

SYSTEM = "lenses6"
ORDERS = "kafka:topic:prod/main/orders"
ACTIONS = ("kafka:GetTopicDetails", "kafka:DeleteTopic", "kafka:UpdateTopicDetails")


def _requests(resource: str = ORDERS, actions: Iterable[str] = ACTIONS) -> list[dict[str, Any]]:
    shared = {"id": "r", "system": SYSTEM, "subject": {"type": "user", "id": "any"}, "time": 5}
    return [{**shared, "action": {"name": name}, "resource": {"type": "lrn", "id": resource}} for name in actions]


def _rows(snapshot: Snapshot, requests: list[dict[str, Any]]) -> list[ResourceAccess]:
    question = ResourceQuestion(snapshot, requests[0]["system"], requests)
    steps = list(question.answers())
    assert len(steps) == 1 + question.principals
    return [row for step in steps for row in step]


def _allowed(rows: list[ResourceAccess]) -> dict[str, set[Who | None]]:
    found: dict[str, set[Who | None]] = {}
    for row in rows:
        for action in row.actions if row.effect == "allow" else ():
            found.setdefault(action, set()).add(row.who)
    return found


@pytest.mark.parametrize("system", WRITTEN)
def test_they_are_those_of_who_can(system: str) -> None:
    pool, seen = [one for one in pool_of(system) if not isinstance(parse_request(one), Batch)], Counter[str]()

    @settings(
        max_examples=max(examples(40), 40 if system == "cedar" else 0),  # with fewer nothing is allowed
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.explicit, Phase.generate],
    )
    @given(documents_of(system), st.lists(st.sampled_from(pool), min_size=1, max_size=4), st.data())
    def check(documents: list[Any], others: list[dict[str, Any]], data: st.DataObject) -> None:
        snapshot, subject = compile_documents(documents), {"type": "user", "id": "any"}
        allowed = [one for one in pool if decide(snapshot, one).allowed]
        asked = data.draw(st.sampled_from(allowed or pool))
        actions = {str(one["action"]): one["action"] for one in (asked, *others)}
        requests = [{**asked, "subject": subject, "action": action} for action in actions.values()]
        found = _allowed(_rows(snapshot, requests))
        for request in requests:
            reach, who = who_can(snapshot, request), found.get(request["action"]["name"], set())
            assert who == ({None} if reach.everyone else set(reach.allowed)), request
            seen["everyone" if reach.everyone else "some" if reach.allowed else "nobody"] += 1

    check()
    assert seen["some"] + seen["everyone"], seen


def _documents() -> list[dict[str, Any]]:
    return [
        role("readers", "kafka:topic:prod/*", action="kafka:*"),
        role("frozen", ORDERS, "deny", "kafka:DeleteTopic"),
        group("readers", ["readers"], "user:dana"),
        group("frozen", ["frozen"], "user:dana", "user:erik"),
    ]


def test_each_has_the_path_by_which_it_may_or_is_denied() -> None:
    snapshot = compile_documents(_documents())
    assert snapshot.rejected == ()
    rows = {(row.who, row.effect): row for row in _rows(snapshot, _requests())}
    dana, route = Who("user:dana"), "user:dana → group:readers → role:readers"
    allowed, denied = rows[dana, "allow"], rows[dana, "deny"]
    assert set(allowed.actions) == {"kafka:GetTopicDetails", "kafka:UpdateTopicDetails"}
    assert allowed.paths == (AccessPath("lenses6/Role/readers", 0, route),)
    assert denied.actions == ("kafka:DeleteTopic",)
    assert [str(path) for path in denied.paths] == ["lenses6/Role/frozen statement 0"]
    assert rows[Who("user:erik"), "deny"].actions == ("kafka:DeleteTopic",)
    assert (Who("readers", "groups"), "allow") in rows
    assert {who.name for who, _ in rows if who is not None} == {"user:dana", "user:erik", "readers", "frozen"}


def test_names_that_a_matching_statement_reaches_come_first() -> None:
    crowd = [group(f"g{number}", ["other"], f"user:{number}") for number in range(200)]
    other = role("other", "kafka:topic:dev/*", action="kafka:*")
    question = ResourceQuestion(compile_documents([*_documents(), *crowd, other]), SYSTEM, _requests())
    assert question.actions == ACTIONS
    assert 0 < question.reached < 50 < question.principals
    steps = list(question.answers())
    assert any(steps[1 : 1 + question.reached])
    assert not any(steps[1 + question.reached :])


def test_a_resource_of_which_nothing_can_be_answered_says_why() -> None:
    snapshot = compile_documents(_documents())
    question = ResourceQuestion(snapshot, SYSTEM, _requests("no resource"))
    assert (question.actions, question.principals) == ((), 0)
    assert question.why
    assert decide(snapshot, _requests("no resource")[0], trust=CLAIMS).outcome == "error"


@pytest.mark.parametrize("actions", [("namespace.get", "namespace.create"), ("namespace.create", "namespace.get")])
def test_who_may_do_one_thing_is_named_also_after_what_he_may_not(actions: tuple[str, ...]) -> None:
    """What Dana's `get` needs is another thing than that of others: the one entity below that his grant names."""
    documents = [
        {"system": "cdap", "kind": "Entity", "name": "namespace:a", "spec": {}},
        {"system": "cdap", "kind": "Entity", "name": "dataset:a.d", "spec": {"parent": "namespace:b"}},
        {
            "system": "cdap",
            "kind": "Grant",
            "name": "g",
            "spec": {"user": "dana", "entity": "dataset:a.x", "privileges": ["READ"]},
        },
    ]
    shared = {"id": "r", "system": "cdap", "subject": {"type": "user", "id": "any"}}
    resource = {"type": "namespace", "id": "namespace:a"}
    requests = [{**shared, "action": {"name": action}, "resource": resource} for action in actions]
    assert _allowed(_rows(compile_documents(documents), requests)) == {"namespace.get": {Who("dana")}}
