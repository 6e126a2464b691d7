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
from policy.evaluation.authorize import STOPS
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
    """Good documents, refused ones and deletions of the facts topic, one by one; for queries of both generations."""
    kinds = {name for name, kind in all_systems()[system].kinds.items() if kind.fact}
    documents = [msgspec.json.decode(msgspec.json.encode(document)) for document in data.draw(dated(system))]
    for document in documents:
        document.pop("effective_at", None)
    policies, facts, overlay = DocumentStore(), DocumentStore(facts_only=True), FactOverlay()
    for order, document in enumerate(document for document in documents if document["kind"] not in kinds):
        policies.put(document, order, order)
    compiled, queries = Snapshot(policies), PreparedQueries[PreparedQuery](data.draw(st.sampled_from([2, 3, 9])))
    requests = [_at(_request(data, system), 6) for _ in range(3)]
    changes = [document for document in documents if document["kind"] in kinds]
    for order, document in enumerate([None, *changes, *map(spoiled, changes), *map(deletion, changes)], len(documents)):
        if document is not None:
            queries.end((system, lookup) for lookup in overlay.apply(change(facts, document, order)))
        snapshot = compiled.with_facts(overlay)
        for number, request in enumerate(requests):
            is_young = number in queries.queries
            query = queries.find(number, request.time)
            event("prepared" if query is None else "young" if is_young else "old")
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


@pytest.mark.parametrize("generation", ["young", "old", "found again"])
def test_a_login_ends_the_queries_of_that_user_alone(generation: str) -> None:
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
    snapshot, queries = policy.compile_documents(documents).with_facts(overlay), PreparedQueries[PreparedQuery](4)
    for user in ("dana", "nora", *(() if generation == "young" else ("x", "y", "z"))):
        subject = {"type": "user", "id": user, "properties": {"organization": "acme"}}
        resource = {"type": "pipeline", "id": "pipeline:p"}
        action = {"name": "pipeline.view"}
        asked = {"id": "r", "system": "streamsets", "subject": subject, "action": action, "resource": resource}
        request = parse_request({**asked, "time": 20})
        assert isinstance(request, Request)
        queries.add(user, PreparedQuery(snapshot, request), 1)
    if generation == "found again":
        assert queries.find("dana", 20) is not None
    assert ("dana" in queries.queries) == (generation != "old")
    login = {"system": "streamsets", "kind": "Session", "name": "dana", "spec": {"login_at": 10}}
    changed = overlay.apply(change(facts, login, 1))
    assert BOUND not in changed
    queries.end(("streamsets", lookup) for lookup in changed)
    assert queries.find("dana", 20) is None
    assert queries.find("nora", 20) is not None


def _request_of(user: str) -> Request:
    subject, resource = {"type": "user", "id": f"user:{user}"}, {"type": "lrn", "id": "kafka:topic:a/b/c"}
    asked = {"id": "r", "system": "lenses6", "subject": subject, "action": {"name": "kafka:ListTopic"}}
    request = parse_request({**asked, "resource": resource})
    assert isinstance(request, Request)
    return request


def test_a_query_that_is_found_again_and_again_stays_among_any_number_of_others() -> None:
    """Never more are kept than there is room for; those that are dropped no longer count against the budget."""
    snapshot, queries = policy.compile_documents([]), PreparedQueries[PreparedQuery](6)
    hot = PreparedQuery(snapshot, _request_of("hot"))
    queries.add("hot", hot, 1)
    held = set[int]()
    for number in range(60):
        queries.add(number, PreparedQuery(snapshot, _request_of("cold")), 1)
        assert queries.find("hot", None) is hot
        assert len(queries) <= 6
        held.add(BUDGET._held)
    assert max(held) - min(held) <= 6 * hot.weight


@pytest.mark.parametrize("most", [1, 2, 5])
def test_no_more_queries_are_kept_than_there_is_room_for(most: int) -> None:
    snapshot, queries = policy.compile_documents([]), PreparedQueries[PreparedQuery](most)
    for number in (0, 1, 2, 0, 3, 4, 1, 5, 5, 0):
        if queries.find(number, None) is None:
            queries.add(number, PreparedQuery(snapshot, _request_of("a")), 1)
        assert queries.find(number, None) is not None
        assert len(queries) <= most


def test_beyond_their_weight_all_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BUDGET, "most", 12_000)
    snapshot, queries = policy.compile_documents([]), PreparedQueries[PreparedQuery]()
    request = _request_of("a")
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


@pytest.mark.parametrize("system", WRITTEN)
@checked
@given(data=st.data())
def test_a_batch_is_decided_as_by_the_evaluator_whatever_it_has_prepared(system: str, data: st.DataObject) -> None:
    """Its items, too, with what the batch says beside them, and after the same as single requests."""
    snapshot, trust = policy.compile_documents(data.draw(dated(system))), data.draw(trusts)
    singles = [data.draw(requests_of(system)) for _ in range(3)]
    parts = ("subject", "action", "resource", "context")
    items = [
        {name: single[name] for name in data.draw(st.sets(st.sampled_from(parts))) if name in single}
        for single in singles
    ]
    odd = st.sampled_from([{}, None, {"subject": {"type": 1}}, {"context": {"x": 1}}, {"resource": {"id": ""}}])
    whole = {
        **singles[0],
        **data.draw(st.fixed_dictionaries({}, optional={"time": st.sampled_from(MOMENTS), "deadline": st.just(4)})),
        "evaluations": [*singles, *items, data.draw(odd), *items],
        "options": {"evaluations_semantic": data.draw(st.sampled_from(["execute_all", *STOPS]))},
    }
    expected = policy.answer(snapshot, parse_request(whole), trust)
    for request in (*singles, whole):
        policy.decide(snapshot, request, trust=trust)
    assert policy.decide(snapshot, whole, trust=trust) == expected
    event(expected.outcome)
