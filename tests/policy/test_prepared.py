"""A prepared query answers as the evaluator does, and as the reference does, as long as it says that it holds."""

from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

import policy
from policy.core.caching import BUDGET
from policy.core.document import Key
from policy.core.facts import BOUND
from policy.core.request import CLAIMS, Request, parse_request
from policy.evaluation import reference
from policy.evaluation.prepared import PreparedQueries, PreparedQuery
from policy.store.documents import DocumentStore
from policy.store.overlay import FactOverlay, change_of
from policy.store.snapshot import Snapshot
from policy.systems import all_systems
from tests.examples import examples
from tests.policy.test_properties import WRITTEN, dated, requests_of, trusts

UNHURRIED = [HealthCheck.too_slow, HealthCheck.filter_too_much]
checked = settings(max_examples=examples(25), deadline=None, suppress_health_check=UNHURRIED)
MOMENTS = range(8)
EVERY_ID = [
    name for name in WRITTEN if all_systems()[name].name_of_resource or not all_systems()[name].reads_resource_id
]


def _request(data: st.DataObject, system: str) -> Request:
    found = parse_request(data.draw(requests_of(system)))
    assert isinstance(found, Request)
    return found


def _at(request: Request, at: int | None, resource: str | None = None) -> Request:
    on = request.resource if resource is None else msgspec.structs.replace(request.resource, id=resource)
    return msgspec.structs.replace(request, time=at, deadline=None, resource=on)


@pytest.mark.parametrize("system", WRITTEN)
@checked
@given(data=st.data())
def test_it_answers_as_the_evaluator_at_every_moment_of_its_interval(system: str, data: st.DataObject) -> None:
    """The whole decision is the same, and its outcome is the reference's, over each edge of validity."""
    snapshot, trust = policy.compile_documents(data.draw(dated(system))), data.draw(trusts)
    request = _at(_request(data, system), data.draw(st.one_of(st.none(), st.sampled_from(MOMENTS))))
    query, id_ = PreparedQuery(snapshot, request, trust), request.resource.id
    assert query.holds(request.time if "time" in trust else None)
    held = 0
    for at in (None, *MOMENTS):
        if query.holds(at if "time" in trust else None):
            held += 1
            asked = _at(request, at)
            decision = query.answer(id_)
            assert decision == policy.answer(snapshot, asked, trust)
            assert decision.outcome == reference.answer(snapshot, asked, trust)
    event(f"held {held} moments")


@pytest.mark.parametrize("system", EVERY_ID)
@checked
@given(data=st.data())
def test_it_answers_for_every_resource_as_the_evaluator(system: str, data: st.DataObject) -> None:
    """Malformed names, too."""
    snapshot, request = policy.compile_documents(data.draw(dated(system))), _at(_request(data, system), 3)
    query = PreparedQuery(snapshot, request)
    ids = [_request(data, system).resource.id, data.draw(st.text("abk:/*", min_size=1, max_size=12)), "a\u202eb:c/d"]
    for id_ in ids if query.for_every_id else ():
        decision = query.answer(id_)
        assert decision == policy.answer(snapshot, _at(request, 3, id_))
        event(decision.outcome)


@pytest.mark.parametrize("system", WRITTEN)
@checked
@given(data=st.data())
def test_after_each_change_of_facts_what_is_left_answers_as_the_evaluator(system: str, data: st.DataObject) -> None:
    """Good documents, refused ones and deletions of the facts topic, one by one."""
    kinds = {name for name, kind in all_systems()[system].kinds.items() if kind.fact}
    documents = [msgspec.json.decode(msgspec.json.encode(document)) for document in data.draw(dated(system))]
    for document in documents:
        document.pop("effective_at", None)
    policies, facts, overlay = DocumentStore(), DocumentStore(facts_only=True), FactOverlay()
    for order, document in enumerate(document for document in documents if document["kind"] not in kinds):
        policies.put(document, order, order)
    compiled, queries = Snapshot(policies), PreparedQueries()
    requests = [_at(_request(data, system), 6) for _ in range(3)]
    changes = [document for document in documents if document["kind"] in kinds]
    for order, document in enumerate([None, *changes, *map(spoiled, changes), *map(deletion, changes)], len(documents)):
        if document is not None:
            queries.end((system, lookup) for lookup in overlay.apply(change(facts, document, order)))
        snapshot = compiled.with_facts(overlay)
        for number, request in enumerate(requests):
            query = queries.find(number, request.time)
            event("kept" if query else "prepared")
            if query is None:
                query = PreparedQuery(snapshot, request)
                queries.add(number, query, 1)
            assert query.answer(request.resource.id) == policy.answer(snapshot, request)
            assert query.answer(request.resource.id).outcome == reference.answer(snapshot, request)


def spoiled(document: dict[str, Any]) -> dict[str, Any]:
    return {**document, "spec": {"wrong": 1}}


def deletion(document: dict[str, Any]) -> dict[str, Any]:
    return {**document, "spec": None}


def change(facts: DocumentStore, document: dict[str, Any], order: int) -> Any:
    key = Key(document["system"], document["kind"], document["name"])
    if document["spec"] is None:
        facts.delete(key, order, order)
    else:
        facts.put(document, order, order)
    return change_of(key, facts.histories.get(key))


def test_a_login_ends_the_queries_of_that_user_alone() -> None:
    documents = [
        {"system": "streamsets", "kind": "Organization", "name": "acme", "spec": {"enforcement": True}},
        {
            "system": "streamsets",
            "kind": "Object",
            "name": "pipeline:p",
            "spec": {"type": "pipeline", "owner": "o", "acl": {"user:dana": ["READ"], "user:nora": ["READ"]}},
        },
    ]
    overlay, facts = FactOverlay(), DocumentStore(facts_only=True)
    snapshot, queries = policy.compile_documents(documents).with_facts(overlay), PreparedQueries()
    for user in ("dana", "nora"):
        subject = {"type": "user", "id": user, "properties": {"organization": "acme"}}
        resource = {"type": "pipeline", "id": "pipeline:p"}
        action = {"name": "pipeline.view"}
        asked = {"id": "r", "system": "streamsets", "subject": subject, "action": action, "resource": resource}
        request = parse_request({**asked, "time": 20})
        assert isinstance(request, Request)
        queries.add(user, PreparedQuery(snapshot, request), 1)
    login = {"system": "streamsets", "kind": "Session", "name": "dana", "spec": {"login_at": 10}}
    changed = overlay.apply(change(facts, login, 1))
    assert BOUND not in changed
    queries.end(("streamsets", lookup) for lookup in changed)
    assert queries.find("dana", 20) is None
    assert queries.find("nora", 20) is not None


def test_beyond_their_weight_all_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BUDGET, "most", 12_000)
    snapshot, queries = policy.compile_documents([]), PreparedQueries[PreparedQuery]()
    request = parse_request(
        {
            "id": "r",
            "system": "lenses6",
            "subject": {"type": "user", "id": "user:a"},
            "action": {"name": "kafka:ListTopic"},
            "resource": {"type": "lrn", "id": "kafka:topic:a/b/c"},
        }
    )
    assert isinstance(request, Request)
    for number in range(9):
        queries.add(number, PreparedQuery(snapshot, request, CLAIMS), 1000)
    assert 1 <= len(queries) <= 4
    assert queries.find(8, None) is not None


@pytest.mark.parametrize("system", WRITTEN)
@checked
@given(data=st.data())
def test_decide_answers_as_the_evaluator_whatever_it_has_prepared(system: str, data: st.DataObject) -> None:
    """Plain data with times, deadlines, fields that nobody knows and values of wrong types, again and again."""
    snapshot, trust = policy.compile_documents(data.draw(dated(system))), data.draw(trusts)
    more = st.dictionaries(
        st.sampled_from(["time", "deadline", "context", "unknown", "evaluations"]),
        st.one_of(st.sampled_from([*MOMENTS, -1, True, "x", "1970-01-01T00:00:00.003Z"]), st.just({}), st.none()),
        max_size=3,
    )
    asked = [{**data.draw(requests_of(system)), **data.draw(more)} for _ in range(3)]
    for request in (*asked, *asked):
        try:
            expected = policy.answer(snapshot, parse_request(request), trust)
        except policy.MalformedRequest as malformed:
            expected = policy.Decision("error", (policy.Reason("malformed-request", str(malformed)),))
        assert policy.decide(snapshot, request, trust=trust) == expected
        event(expected.outcome)
