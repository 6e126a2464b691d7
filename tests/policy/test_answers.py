"""What is kept answers as the evaluator does, and as the reference does, as long as it is found."""

from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

import policy
from policy.core.caching import BUDGET
from policy.core.decision import Decision
from policy.core.document import Key
from policy.core.facts import BOUND
from policy.core.request import CLAIMS, MAX_CLAIMED_GROUPS, Request, parse_request
from policy.evaluation import reference
from policy.evaluation.answers import ID, Answer, AnswerCache, ByState
from policy.evaluation.authorize import STOPS, Answers, decision_for, kept
from policy.store.documents import DocumentStore
from policy.store.overlay import FactOverlay, change_of
from policy.store.snapshot import Snapshot
from policy.systems import all_systems
from policy.systems.kit import query
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


def _cache(snapshot: Snapshot, trust: frozenset[str] = CLAIMS, **more: int) -> Answers:
    return AnswerCache(snapshot.policy_sets, trust, kept, **more)


def _add(cache: Answers, content: str, request: Request) -> Answer[Any]:
    return cache.add(content.encode(), request)


def _find(cache: Answers, content: str, request: Request) -> Decision | None:
    id_ = request.resource.id
    answer = cache.find(content.encode(), id_, request.time if "time" in cache.trust else None)
    return None if answer is None else decision_for(answer, id_)


@pytest.mark.parametrize("system", WRITTEN)
@checked
@given(data=st.data())
def test_it_answers_as_the_evaluator_at_every_moment_of_its_interval(system: str, data: st.DataObject) -> None:
    """The whole decision is the same, and its outcome is the reference's, over each edge of validity."""
    snapshot, trust = policy.compile_documents(data.draw(dated(system))), data.draw(trusts)
    request = _at(_request(data, system), data.draw(st.one_of(st.none(), st.sampled_from(MOMENTS))))
    cache = _cache(snapshot, trust)
    assert decision_for(_add(cache, "c", request), request.resource.id) == policy.answer(snapshot, request, trust)
    assert _find(cache, "c", request) is not None
    held = 0
    for at in (None, *MOMENTS):
        asked = _at(request, at)
        decision = _find(cache, "c", asked)
        if decision is not None:
            held += 1
            assert decision == policy.answer(snapshot, asked, trust)
            assert decision.outcome == reference.answer(snapshot, asked, trust)
    event(f"held {held} moments")


@pytest.mark.parametrize("system", EVERY_ID)
@checked
@given(data=st.data())
def test_it_answers_for_every_resource_as_the_evaluator(system: str, data: st.DataObject) -> None:
    """Malformed names are not answered by what is kept."""
    snapshot, request = policy.compile_documents(data.draw(dated(system))), _at(_request(data, system), 3)
    cache = _cache(snapshot)
    _add(cache, "c", request)
    ids = [_request(data, system).resource.id, data.draw(st.text("abk:/*", min_size=1, max_size=12)), "a\u202eb:c/d"]
    for id_ in ids:
        asked = _at(request, 3, id_)
        for _ in range(2):
            decision = _find(cache, "c", asked)
            event("not found" if decision is None else decision.outcome)
            assert decision is None or decision == policy.answer(snapshot, asked)
            assert decision_for(_add(cache, "c", asked), id_) == policy.answer(snapshot, asked)


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
    compiled = Snapshot(policies)
    cache = _cache(compiled.with_facts(overlay), most=data.draw(st.sampled_from([2, 3, 9])))
    requests = [_at(_request(data, system), 6) for _ in range(3)]
    changes = [document for document in documents if document["kind"] in kinds]
    for order, document in enumerate([None, *changes, *map(spoiled, changes), *map(deletion, changes)], len(documents)):
        changed = [] if document is None else overlay.apply(change(facts, document, order))
        snapshot = compiled.with_facts(overlay)
        cache.follow(snapshot.policy_sets, [(system, lookup) for lookup in changed])
        for number, request in enumerate(requests):
            decision = _find(cache, str(number), request)
            event("evaluated" if decision is None else "found")
            if decision is None:
                decision = decision_for(_add(cache, str(number), request), request.resource.id)
            assert decision == policy.answer(snapshot, request)
            assert decision.outcome == reference.answer(snapshot, request)


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


def _viewing(user: str) -> Request:
    subject = {"type": "user", "id": user, "properties": {"organization": "acme"}}
    asked = {"id": "r", "system": "streamsets", "subject": subject, "action": {"name": "pipeline.view"}, "time": 20}
    request = parse_request({**asked, "resource": {"type": "pipeline", "id": "pipeline:p"}})
    assert isinstance(request, Request)
    return request


@pytest.mark.parametrize("generation", ["young", "old", "found again"])
def test_a_login_ends_the_answers_to_that_user_alone(generation: str) -> None:
    """Also one that looked the session up and found none."""
    acl = {"user:dana": ["READ"], "user:nora": ["READ"]}
    documents = [
        {"system": "streamsets", "kind": "Organization", "name": "acme", "spec": {"enforcement": True}},
        {
            "system": "streamsets",
            "kind": "Object",
            "name": "pipeline:p",
            "spec": {"type": "pipeline", "owner": "o", "acl": acl},
        },
    ]
    overlay, facts = FactOverlay(), DocumentStore(facts_only=True)
    compiled = policy.compile_documents(documents)
    cache = _cache(compiled.with_facts(overlay), most=6)
    for user in ("dana", "nora", *(() if generation == "young" else ("x", "y", "z"))):
        _add(cache, user, _viewing(user))
    if generation == "found again":
        assert _find(cache, "dana", _viewing("dana")) is not None
    assert bool([key for key in cache._queries if "dana" in str(key)]) == (generation != "old")
    login = {"system": "streamsets", "kind": "Session", "name": "dana", "spec": {"login_at": 10}}
    changed = overlay.apply(change(facts, login, 1))
    assert BOUND not in changed
    cache.follow(compiled.with_facts(overlay).policy_sets, [("streamsets", lookup) for lookup in changed])
    assert _find(cache, "dana", _viewing("dana")) is None
    assert _find(cache, "nora", _viewing("nora")) is not None


def test_a_refused_fact_ends_the_answers_to_all_whom_it_may_affect() -> None:
    """Also where they have looked up nothing of its kind, and its deletion ends those that it made."""
    overlay, facts, compiled = FactOverlay(), DocumentStore(facts_only=True), policy.compile_documents([])
    cache, request = _cache(compiled.with_facts(overlay)), _request_of("dana")
    for order, (spec, outcome) in enumerate([({}, "error"), (None, "deny")]):
        _add(cache, "c", request)
        changed = overlay.apply(change(facts, {"system": "lenses6", "kind": "Rolle", "name": "r", "spec": spec}, order))
        snapshot = compiled.with_facts(overlay)
        cache.follow(snapshot.policy_sets, [("lenses6", lookup) for lookup in changed])
        assert _find(cache, "c", request) is None
        assert policy.answer(snapshot, request).outcome == outcome


def _request_of(user: str, topic: str = "a/b/c") -> Request:
    subject, resource = {"type": "user", "id": f"user:{user}"}, {"type": "lrn", "id": f"kafka:topic:{topic}"}
    asked = {"id": "r", "system": "lenses6", "subject": subject, "action": {"name": "kafka:ListTopic"}}
    request = parse_request({**asked, "resource": resource, "time": 1})
    assert isinstance(request, Request)
    return request


def test_an_answer_that_is_found_again_and_again_stays_among_any_number_of_others() -> None:
    """Never more are kept than there is room for; those that are dropped no longer count against the budget."""
    cache, held = _cache(policy.compile_documents([]), most=6), set[int]()
    _add(cache, "hot", _request_of("hot"))
    weight = next(iter(cache._queries.values())).weight
    for number in range(60):
        _add(cache, str(number), _request_of("cold"))
        assert _find(cache, "hot", _request_of("hot")) is not None
        assert len(cache) <= 6
        held.add(BUDGET._held)
    assert max(held) - min(held) <= 7 * weight


@pytest.mark.parametrize("most", [1, 2, 5])
def test_no_more_queries_are_kept_than_there_is_room_for(most: int) -> None:
    cache = _cache(policy.compile_documents([]), most=most)
    for number in (0, 1, 2, 0, 3, 4, 1, 5, 5, 0):
        if _find(cache, str(number), _request_of("a")) is None:
            _add(cache, str(number), _request_of("a"))
        assert _find(cache, str(number), _request_of("a")) is not None
        assert len(cache) <= most


def test_beyond_their_weight_all_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BUDGET, "most", 20_000)
    cache = _cache(policy.compile_documents([]))
    for number in range(19):
        _add(cache, str(number), _request_of("a"))
    assert 1 <= len(cache) <= 4
    assert _find(cache, "18", _request_of("a")) is not None


def test_an_answer_to_as_many_groups_as_may_be_claimed_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory puts hundreds into a token, by long names: worked out each time, an answer took 0.15 to 0.9 ms."""
    monkeypatch.setattr(BUDGET, "_held", 0)
    snapshot = policy.compile_documents([])
    names = [f"CN={number:04},OU=Groups,DC=example,DC=com".ljust(100, "x") for number in range(MAX_CLAIMED_GROUPS)]
    asked = msgspec.to_builtins(_request_of("dana"))
    del asked["max_claimed_groups"]  # no member of a request
    asked["subject"]["properties"] = {"groups": names}
    first = policy.decide(snapshot, asked)
    assert policy.decide(snapshot, asked) is first
    assert BUDGET._held > 2 * len(str(names))


def test_resources_that_were_never_asked_for_are_answered_where_the_same_patterns_match() -> None:
    """With their own names, and nothing is worked out again."""
    role = {"statements": [{"effect": "allow", "action": "*", "resource": "kafka:topic:a/b/c*"}]}
    documents = [
        {"system": "lenses6", "kind": "Role", "name": "r", "spec": role},
        {"system": "lenses6", "kind": "Group", "name": "g", "spec": {"roles": ["r"], "members": ["user:dana"]}},
    ]
    snapshot = policy.compile_documents(documents)
    cache = _cache(snapshot)
    _add(cache, "c", _request_of("dana", "a/b/c1"))
    _add(cache, "d", _request_of("eve", "a/b/c1"))
    [query, other] = cache._queries.values()
    assert isinstance(query, ByState)
    assert isinstance(other, ByState)
    answers = set(map(id, query._answers.values()))
    for topic in ("a/b/c2", "a/b/c-3"):
        for user, content in (("dana", "c"), ("eve", "d")):
            assert _find(cache, content, _request_of(user, topic)) == policy.answer(snapshot, _request_of(user, topic))
    assert set(map(id, query._answers.values())) == answers


def test_after_a_change_of_policies_no_state_of_the_tries_before_it_is_left() -> None:
    """Of resources that were asked for before it, and of others that begin like them."""
    group = {"system": "lenses6", "kind": "Group", "name": "g", "spec": {"roles": ["r"], "members": ["user:dana"]}}
    role = {"system": "lenses6", "kind": "Role", "name": "r"}
    statements = [[{"effect": "allow", "action": "*", "resource": f"kafka:topic:a/b/{name}"}] for name in ("c*", "d")]
    before, after = (policy.compile_documents([group, {**role, "spec": {"statements": of}}]) for of in statements)
    cache, topics = _cache(before), ("a/b/c1", "a/b/c2", "a/b/c3")
    for snapshot, asked in ((before, topics[:2]), (after, topics)):
        cache.follow(snapshot.policy_sets, [])
        _add(cache, "c", _request_of("dana", topics[0]))
        for topic in asked:
            assert _find(cache, "c", _request_of("dana", topic)) == policy.answer(snapshot, _request_of("dana", topic))


@pytest.mark.parametrize("place", ["action", "context", "subject", "type"])
def test_texts_that_are_the_one_which_stands_for_ids_are_answered_as_they_are(place: str) -> None:
    """A client may write it anywhere."""
    asked = msgspec.to_builtins(_request_of("dana"))
    asked["resource"]["properties"] = {"connection": ID, "dataset": "kafka:topic:a/b/c"}
    asked |= {"system": "lenses5", "action": {"name": "kafka.topic.show"}, "subject": {"type": "user", "id": "dana"}}
    odd = {
        "action": {"action": {"name": ID}},
        "context": {"context": {"connection": ID}},
        "subject": {"subject": {"type": "user", "id": ID}},
        "type": {"resource": {**asked["resource"], "type": ID}},
    }
    snapshot = policy.compile_documents([])
    for request in (asked, {**asked, **odd[place]}) * 2:
        assert policy.decide(snapshot, request) == policy.answer(snapshot, parse_request(request))


def test_which_property_is_the_id_keeps_requests_apart() -> None:
    """Where another one is null: both lack a property, and not the same."""
    asked = msgspec.to_builtins(_request_of("dana"))
    asked |= {"system": "lenses5", "action": {"name": "kafka.topic.show"}, "subject": {"type": "user", "id": "dana"}}
    snapshot, id_ = policy.compile_documents([]), asked["resource"]["id"]
    for properties in ({"dataset": id_, "connection": None}, {"dataset": None, "connection": id_}):
        request = {**asked, "resource": {**asked["resource"], "properties": properties}}
        assert policy.decide(snapshot, request) == policy.answer(snapshot, parse_request(request))


@pytest.mark.parametrize("nothing", [..., None, StopIteration])
@pytest.mark.parametrize("place", ["context", "properties"])
def test_what_could_stand_for_a_field_that_is_not_given_is_malformed(place: str, nothing: object) -> None:
    """An Ellipsis did, where answers are kept: it got that of the request without the field."""
    topic = {"type": "lrn", "id": "kafka:topic:a/b/c"}
    asked: dict[str, Any] = {"id": "r", "system": "lenses6", "subject": {"type": "user", "id": "user:dana"}}
    asked |= {"action": {"name": "kafka:ListTopics"}, "resource": topic}
    given = {"context": nothing} if place == "context" else {"resource": {**topic, "properties": nothing}}
    snapshot = policy.compile_documents([])
    for _ in range(2):
        assert policy.decide(snapshot, asked).outcome == "deny"
        assert policy.decide(snapshot, {**asked, **given}).reasons[0].code == "malformed-request"


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


PLAIN = st.dictionaries(
    st.sampled_from(["host", "ip", "mode", "version", "via", "impersonate", "partitions", "x"]),
    st.one_of(st.sampled_from(["10.0.0.7", "user:dana", "kerberos-principal:d", "SEND"]), st.integers(), st.none()),
)


@pytest.mark.parametrize("system", WRITTEN)
@checked
@given(data=st.data())
def test_of_a_context_a_system_needs_no_more_than_it_is_shown(system: str, data: st.DataObject) -> None:
    """Beside it anything may stand: the whole decision is the same, kept or not."""
    snapshot, trust = policy.compile_documents(data.draw(dated(system))), data.draw(trusts)
    asked = data.draw(requests_of(system))
    contexts = [{**data.draw(PLAIN), **asked.get("context", {}), **data.draw(PLAIN)} for _ in range(3)]
    for context in (*contexts, *contexts):
        other = {**asked, "context": context}
        decision = policy.decide(snapshot, other, trust=trust)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(query, "with_context_fields", lambda request, _system: request)
            whole = parse_request(other)
            assert isinstance(whole, Request)
            assert decision == policy.answer(snapshot, whole, trust)
            assert decision.outcome == reference.answer(snapshot, whole, trust)


def test_a_decision_for_another_resource_keeps_what_does_not_name_it() -> None:
    """Also a field that it gets one day: one that was left out here was in the stream's decisions and not in these."""
    decision = Decision("deny", claims=("groups",), evaluations=(Decision("deny"),))
    answer = Answer(kept(_request_of("dana"), decision, True)[0], frozenset())
    assert decision_for(answer, "kafka:topic:prod/main/orders") == decision
