"""The API without its transport: requests and responses as the specification has them, decided as `policy` does."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from policy import Decision, compile_documents, decide
from policy.testing.casefile import load_cases
from policy.testing.run import scenes
from streaming.pdp.evaluation import evaluate
from streaming.pdp.reading import AnswerContext, Read, lacking, suspend_aware_clock
from streaming.pdp.recording import answered_record
from streaming.records.answered import read_answer
from streaming.serve.authzen import (
    MAX_EVALUATIONS,
    BadRequest,
    EvaluationRequest,
    Rules,
    answer,
    metadata,
    parse_evaluation,
    parse_evaluations,
    stale,
)
from streaming.settings import Limits
from tests.stream.world import SYSTEM, group, role

SCHEMAS = {
    name: Draft202012Validator(shape)
    for name, shape in json.loads((Path(__file__).parent / "authzen.json").read_text()).items()
}
NOW = 1_795_000_000_000
TOPIC = "authz.policies.lenses6.v1"
SNAPSHOT = compile_documents([role("readers", "kafka:topic:prod/main/orders"), group("readers", "user:dana")])
RULES = Rules((SYSTEM, "cdap"), SYSTEM)
DANA, EVE = {"type": "user", "id": "user:dana"}, {"type": "user", "id": "user:eve"}
READ = {"name": "kafka:GetTopicDetails"}
ORDERS, SECRETS = ({"type": "lrn", "id": f"kafka:topic:prod/main/{name}"} for name in ("orders", "secrets"))
ALLOWED = {"subject": DANA, "action": READ, "resource": ORDERS}


def read_at(offset: int = 41) -> Read:
    """Policies and facts that were read up to offsets."""
    offsets = {TOPIC: {"0": offset}}
    return Read(SNAPSHOT, suspend_aware_clock(), offsets, 7, {**offsets, "authz.facts.v1": {"0": 7}})


def _bytes(given: Any) -> bytes:
    return json.dumps(given).encode()


def _answer(asked: EvaluationRequest, rules: Rules = RULES) -> tuple[Decision, Any]:
    decision, body = answer(asked, AnswerContext(read_at(), NOW, asked.freshness, 0.012, 15.0, rules.trust), rules)
    return decision, json.loads(body)


def _one(given: Any, system: str = "", rules: Rules = RULES) -> Any:
    return _answer(parse_evaluation(_bytes(given), "r-1", system, rules), rules)[1]


def _several(given: Any, rules: Rules = RULES) -> Any:
    assert SCHEMAS["evaluations-request"].is_valid(given)
    found = _answer(parse_evaluations(_bytes(given), "r-1", "", rules), rules)[1]
    assert SCHEMAS["evaluations-response"].is_valid(found)
    return found


def test_an_evaluation_is_answered_with_what_the_decision_rests_on() -> None:
    found = _one(ALLOWED)
    assert SCHEMAS["evaluation-request"].is_valid(ALLOWED)
    assert SCHEMAS["evaluation-response"].is_valid(found)
    assert found["decision"] is True
    context = found["context"]
    assert context["reasons"][0]["document"] == "lenses6/Role/readers"
    assert context["policy_version"] == SNAPSHOT.version
    assert (context["policy_offsets"], context["facts_offset"]) == ({TOPIC: {"0": 41}}, 7)
    assert context["freshness"] == {"kind": "bounded", "age_ms": 12, "max_ms": 15000}
    assert "enforced" not in context


@pytest.mark.parametrize("change", [{"subject": EVE}, {"resource": SECRETS}, {"action": {"name": "kafka:DeleteTopic"}}])
def test_what_no_statement_allows_is_denied(change: dict[str, Any]) -> None:
    found = _one({**ALLOWED, **change})
    assert (found["decision"], found["context"]["outcome"]) == (False, "deny")


def test_in_shadow_mode_the_answer_says_that_it_is_not_enforced() -> None:
    rules = Rules((SYSTEM,), SYSTEM, enforced=False)
    assert _one(ALLOWED, rules=rules)["context"]["enforced"] is False
    for limits in (Limits(), Limits(record_out=700)):  # an answer beyond the limit is one error for each
        rules = msgspec.structs.replace(rules, limits=limits)
        given = {**ALLOWED, "evaluations": [{}, {"subject": EVE}, {"subject": 5}]}
        found = _answer(parse_evaluations(_bytes(given), "r", "", rules), rules)[1]
        assert SCHEMAS["evaluations-response"].is_valid(found)
        contexts = [found["context"], *(item["context"] for item in found["evaluations"])]
        assert [context["enforced"] for context in contexts] == [False] * 4, "a client may read each by itself"


def test_unknown_fields_and_what_the_server_reads_of_a_context_change_no_decision() -> None:
    given = {**ALLOWED, "time": 1, "id": 5, "system": "of the caller", "evaluations": 3}
    assert _one(given)["decision"] is True
    read = parse_evaluation(
        _bytes({**ALLOWED, "context": {"freshness": "full", "system": SYSTEM, "a": 1}}), "r", "", RULES
    )
    assert read == EvaluationRequest({**ALLOWED, "id": "r", "system": SYSTEM, "context": {"a": 1}}, "full")


@pytest.mark.parametrize("parse", [parse_evaluation, parse_evaluations])
def test_a_request_of_the_stream_is_not_decided_by_another_system(parse: Any) -> None:
    rules = Rules((SYSTEM, "cdap"), SYSTEM)
    assert parse(_bytes({**ALLOWED, "system": "cdap"}), "r", "cdap", rules).body["system"] == "cdap"
    for path, named in (("", "cdap"), (SYSTEM, "cdap"), ("cdap", SYSTEM)):
        with pytest.raises(BadRequest, match=f"system: {named}, but the request is for"):
            parse(_bytes({**ALLOWED, "system": named}), "r", path, rules)


def test_an_evaluation_of_several_has_no_system_and_no_deadline_of_its_own() -> None:
    rules = Rules((SYSTEM, "cdap"), SYSTEM)
    with pytest.raises(BadRequest, match="system: cdap, but the request is for"):
        parse_evaluations(_bytes({**ALLOWED, "evaluations": [{}, {"system": "cdap"}]}), "r", "", rules)
    batch = {**ALLOWED, "evaluations": [{"deadline": 1}, {"evaluations": [{"resource": SECRETS}]}, {"system": "mine"}]}
    assert [item["decision"] for item in _several(batch)["evaluations"]] == [False, False, True]


@pytest.mark.parametrize("parse", [parse_evaluation, parse_evaluations])
def test_nor_where_the_caller_or_the_server_does_not_have_the_system_that_it_names(parse: Any) -> None:
    rules = Rules((SYSTEM,), SYSTEM)
    for path in ("", SYSTEM):
        with pytest.raises(BadRequest, match="system: cdap, but the request is for"):
            parse(_bytes({**ALLOWED, "system": "cdap"}), "r", path, rules)
        for named in ("nonesuch", ["cdap"], None, 5):
            assert parse(_bytes({**ALLOWED, "system": named}), "r", path, rules).body["system"] == SYSTEM


@pytest.mark.parametrize("parse", [parse_evaluation, parse_evaluations])
def test_what_is_nested_too_deep_is_refused_wherever_it_is(parse: Any) -> None:
    """As in the stream, also in fields that are left out."""
    deep = json.loads("[" * 40 + "]" * 40)
    for asked in ({**ALLOWED, "unknown": deep}, {**ALLOWED, "evaluations": [{"unknown": deep}]}):
        with pytest.raises(BadRequest, match="nested deeper than 32"):
            parse(_bytes(asked), "r", "", RULES)
    flat = {**ALLOWED, "unknown": [{} for _ in range(40)]}
    assert parse(_bytes(flat), "r", "", RULES).body == {**ALLOWED, "id": "r", "system": SYSTEM}


def test_the_path_names_the_system_and_a_context_does_not_change_it() -> None:
    asked = parse_evaluation(_bytes({**ALLOWED, "context": {"system": "cdap"}}), "r", SYSTEM, RULES)
    assert (asked.body["system"], asked.body["context"]) == (SYSTEM, {"system": "cdap"})


@pytest.mark.parametrize(
    ("given", "outcome"),
    [({"system": "cdap"}, "error"), ({"system": "nonesuch"}, "error"), ({"system": SYSTEM}, "allow")],
)
def test_a_context_names_the_system_of_a_plain_path(given: dict[str, Any], outcome: str) -> None:
    assert _one({**ALLOWED, "context": given})["context"]["outcome"] == outcome


def test_callers_are_trusted_with_no_claim_unless_a_setting_says_so() -> None:
    claiming = {**ALLOWED, "subject": {**EVE, "properties": {"groups": ["readers"]}}}
    assert _one(claiming)["decision"] is False
    assert _one(claiming, rules=Rules((SYSTEM,), SYSTEM, frozenset({"groups"})))["decision"] is True


@pytest.mark.parametrize(
    ("semantic", "decisions"),
    [
        ("execute_all", [True, False, True]),
        ("deny_on_first_deny", [True, False]),
        ("permit_on_first_permit", [True]),
        (None, [True, False, True]),
    ],
)
def test_the_semantics_of_several_evaluations(semantic: str | None, decisions: list[bool]) -> None:
    given: dict[str, Any] = {**ALLOWED, "evaluations": [{}, {"resource": SECRETS}, {"subject": DANA}]}
    if semantic:
        given["options"] = {"evaluations_semantic": semantic}
    assert [one["decision"] for one in _several(given)["evaluations"]] == decisions


def test_an_item_replaces_whole_objects_and_an_incomplete_one_is_an_error_by_itself() -> None:
    given = {"subject": DANA, "action": READ, "evaluations": [{"resource": ORDERS}, {"resource": SECRETS}, {}]}
    found = _several(given)["evaluations"]
    assert [one["decision"] for one in found] == [True, False, False]
    assert found[2]["context"]["reasons"][0]["code"] == "incomplete-evaluation"


@pytest.mark.parametrize(("context", "outcome"), [(None, "allow"), (5, "error"), ([], "error"), ("", "error")])
def test_a_context_of_an_item_that_is_none_counts_for_this_item_alone(context: object, outcome: str) -> None:
    """As in the stream, and as with each other part of an item."""
    given = {**ALLOWED, "evaluations": [{"context": context}, {}]}
    read = parse_evaluations(_bytes(given), "r-1", "", RULES)
    items = _answer(read)[1]["evaluations"]
    assert [item["context"]["outcome"] for item in items] == [outcome, "allow"]
    expected = decide(SNAPSHOT, {"id": "r-1", "system": SYSTEM, **given})
    assert [item["decision"] for item in items] == [item.allowed for item in expected.evaluations]


@pytest.mark.parametrize("items", [{}, {"evaluations": []}])
@pytest.mark.parametrize("options", [{}, {"options": {"evaluations_semantic": "execute_all", "of the caller": 1}}])
def test_without_evaluations_it_is_a_single_one(items: dict[str, Any], options: dict[str, Any]) -> None:
    assert _several({**ALLOWED, **items, **options})["decision"] is True


def test_a_single_one_has_no_options() -> None:
    assert _one({**ALLOWED, "options": []})["decision"] is True


def test_min_policy_offsets_that_were_not_read_are_an_error_for_each_evaluation() -> None:
    context = {"min_policy_offsets": {TOPIC: {"0": 42}}}
    asked = parse_evaluation(_bytes({**ALLOWED, "context": context}), "r", "", RULES)
    assert asked.freshness == "min_policy_offsets"
    assert lacking(asked.body, read_at(42).all_offsets) is None
    assert "beyond the newest, 41" in (lacking(asked.body, read_at().all_offsets) or "")
    decision, _ = _answer(asked)
    assert (decision.outcome, decision.reasons[0].code) == ("error", "policies-behind")
    several = _several({**ALLOWED, "evaluations": [{}, {"context": context}]})["evaluations"]
    assert [(one["decision"], one["context"]["outcome"]) for one in several] == [(False, "error")] * 2


OTHERS, FACTS = "authz.policies.cdap.v1", "authz.facts.v1"


def _read_of_both() -> Read:
    offsets = {TOPIC: {"0": 41}, OTHERS: {"0": 97}}
    return Read(SNAPSHOT, suspend_aware_clock(), offsets, 7, {**offsets, FACTS: {"0": 7}})


def _restricted(unseen: set[str], **fields: Any) -> tuple[Read, Decision, dict[str, Any]]:
    """What a caller is answered that may not see some topics."""
    rules = Rules((SYSTEM,), SYSTEM, unseen=frozenset(unseen))
    asked = parse_evaluation(_bytes({**ALLOWED, **fields}), "r", "", rules)
    read = _read_of_both()
    decision, body = answer(asked, AnswerContext(read, NOW, asked.freshness, 0.012, 15.0, rules.trust), rules)
    return read, decision, json.loads(body)


@pytest.mark.parametrize(
    ("unseen", "shown"),
    [
        (set(), ({TOPIC: {"0": 41}, OTHERS: {"0": 97}}, 7)),
        ({OTHERS}, ({TOPIC: {"0": 41}}, 7)),
        ({OTHERS, FACTS}, ({TOPIC: {"0": 41}}, -1)),
    ],
)
def test_a_caller_sees_the_offsets_of_its_own_systems_and_the_record_has_all(
    unseen: set[str], shown: tuple[Any, int]
) -> None:
    """Those of others say how many changes, or logins, these have. The job decides again by all that was read."""
    read, decision, found = _restricted(unseen)
    assert found["decision"] is True
    assert (found["context"]["policy_offsets"], found["context"]["facts_offset"]) == shown
    recorded = json.loads(
        answered_record(ALLOWED, decision, AnswerContext(read, NOW, "bounded", 0, 15, frozenset()), "b")
    )
    assert recorded["answered"]["policy_offsets"] == {TOPIC: {"0": 41}, OTHERS: {"0": 97}}
    assert recorded["answered"]["facts_offset"] == 7


@pytest.mark.parametrize("topic", [OTHERS, FACTS])
@pytest.mark.parametrize("offset", [0, 7, 97, 98])
def test_min_policy_offsets_of_another_system_are_answered_as_those_of_no_topic(topic: str, offset: int) -> None:
    """Else they say whether there is such a topic, and how far it is."""
    context = {"min_policy_offsets": {topic: {"0": offset}}}
    _, decision, found = _restricted({OTHERS, FACTS}, context=context)
    nonesuch = {"min_policy_offsets": {"nonesuch": {"0": offset}}}
    _, _, expected = _restricted({OTHERS, FACTS}, context=nonesuch)
    assert decision.reasons[0].code == "policies-behind"
    assert found == json.loads(json.dumps(expected).replace("nonesuch", topic))


def test_min_policy_offsets_of_each_system_of_the_caller_count() -> None:
    both = {"min_policy_offsets": {TOPIC: {"0": 41}, OTHERS: {"0": 97}}}
    assert _restricted(set(), context=both)[1].outcome == "allow"
    behind = {"min_policy_offsets": {TOPIC: {"0": 41}, OTHERS: {"0": 98}}}
    assert _restricted(set(), context=behind)[1].reasons[0].code == "policies-behind"


@pytest.mark.parametrize(("deadline", "in_time"), [(NOW - 1, False), (1, False), (NOW, True), (None, True)])
def test_after_its_deadline_a_request_is_an_error_and_so_is_each_of_its_evaluations(
    deadline: int | None, in_time: bool
) -> None:
    """As in the stream: contracts, "Access request"."""
    given = {**ALLOWED, "deadline": deadline}
    answers = [_one(given), *_several({**given, "evaluations": [{}, {}]})["evaluations"]]
    expected = (True, "allow", "allowed") if in_time else (False, "error", "deadline-exceeded")
    found = [(one["decision"], one["context"]["outcome"], one["context"]["reasons"][0]["code"]) for one in answers]
    assert found == [expected] * 3


@pytest.mark.parametrize("change", [{"action": "read"}, {"subject": {**DANA, "id": ""}}, {"resource": None}])
def test_what_is_no_request_is_refused_after_its_deadline_too(change: dict[str, Any]) -> None:
    """Its record would be a dead letter, where the job is to decide what a server has answered."""
    with pytest.raises(BadRequest, match="not a request"):
        _one({**ALLOWED, "deadline": 1, **change})


@pytest.mark.parametrize("extra", [{"Answered": 1}, {"ANSWERED": {}, "answered": None}, {"sid": [{}]}])
def test_what_a_decision_ignores_makes_no_record_a_dead_letter(extra: dict[str, Any]) -> None:
    """Whoever asks through an application could keep what is allowed to him out of the decisions."""
    request = {**ALLOWED, "id": "r-1", "system": SYSTEM, **extra}
    answer_context = AnswerContext(read_at(), NOW, "bounded", 0.012, 15.0, frozenset())
    decision = evaluate(request, answer_context)
    assert decision.allowed
    record = answered_record(request, decision, answer_context, "shop")
    assert read_answer(record).outcome == "allow"
    assert json.loads(record).keys() == {*ALLOWED, "id", "system", "answered"}


@pytest.mark.parametrize("time_", ["tomorrow", 1.5, True, {}, -1, 1_795_000_000])
def test_a_time_that_is_no_moment_is_malformed_in_an_application_as_in_the_stream(time_: object) -> None:
    """Its record would be a dead letter, and what was done upon its allow would not have been requested."""
    request = {**ALLOWED, "id": "r-1", "system": SYSTEM}
    answer_context = AnswerContext(read_at(), NOW, "bounded", 0.012, 15.0, frozenset())
    assert evaluate({**request, "time": NOW}, answer_context).allowed
    decision = evaluate({**request, "time": time_}, answer_context)
    assert (decision.outcome, decision.reasons[0].code) == ("error", "malformed-request")


@pytest.mark.parametrize("deadline", ["tomorrow", "2026-11-21T10:00:00", -1, 1_795_000_000, True, 1.5, {}])
def test_a_deadline_that_is_no_moment_is_refused(deadline: object) -> None:
    with pytest.raises(BadRequest):
        _one({**ALLOWED, "deadline": deadline})


def test_an_answer_beyond_the_limit_is_an_error() -> None:
    rules = Rules((SYSTEM,), SYSTEM, limits=Limits(record_out=700))
    given = {**ALLOWED, "evaluations": [{}, {}, {}]}
    decision, _ = _answer(parse_evaluations(_bytes(given), "r", "", rules), rules)
    assert decision.reasons[0].code == "answer-too-large"


DEEP = b"[" * 100_000 + b"]" * 100_000
NESTED: Any = 1
for _ in range(40):
    NESTED = {"a": NESTED}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"text"',
        b"\xff{}",
        b"{}",
        DEEP,
        _bytes({**ALLOWED, "context": NESTED}),
        _bytes({**ALLOWED, "context": []}),
        _bytes({**ALLOWED, "context": None}),
        _bytes({**ALLOWED, "context": {"freshness": "old"}}),
        _bytes({**ALLOWED, "context": {"freshness": ["full"]}}),
        _bytes({**ALLOWED, "context": {"system": 1}}),
        _bytes({**ALLOWED, "context": {"system": ""}}),
        _bytes({**ALLOWED, "subject": {"type": "user"}}),
        _bytes({**ALLOWED, "subject": {"type": "user", "id": ""}}),
        _bytes({**ALLOWED, "subject": {"type": "user", "id": 5}}),
        _bytes({**ALLOWED, "action": "read"}),
        _bytes({**ALLOWED, "resource": {**ORDERS, "properties": []}}),
    ],
)
def test_what_is_not_a_request_is_refused(body: bytes) -> None:
    for parse in (parse_evaluation, parse_evaluations):
        with pytest.raises(BadRequest):
            _answer(parse(body, "r", "", RULES))


@pytest.mark.parametrize(
    "change",
    [
        {"evaluations": {}},
        {"evaluations": [{}] * (MAX_EVALUATIONS + 1)},
        {"evaluations": [{}], "options": {"evaluations_semantic": "first"}},
        {"evaluations": [{}], "options": []},
        {"evaluations": [], "options": {"evaluations_semantic": "first"}},
        {"options": {"evaluations_semantic": "first"}},
        {"options": []},
        {"evaluations": [{"context": {"system": "cdap"}}, {"context": {"system": SYSTEM}}]},
    ],
)
def test_several_evaluations_of_another_form_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(BadRequest):
        _answer(parse_evaluations(_bytes({**ALLOWED, **change}), "r", "", RULES))


def test_without_any_system_the_request_is_refused() -> None:
    with pytest.raises(BadRequest, match=r"ask at /SYSTEM/access/v1/evaluation, with SYSTEM one of lenses6"):
        parse_evaluation(_bytes(ALLOWED), "r", "", Rules((SYSTEM,)))


def test_stale_policies_are_no_allow() -> None:
    response = json.loads(stale("why"))
    assert SCHEMAS["evaluation-response"].is_valid(response)
    assert (response["decision"], response["context"]["outcome"]) == (False, "error")


def test_the_metadata_of_a_system_has_its_paths() -> None:
    assert metadata("https://pdp.example.com/", "lenses6") == {
        "policy_decision_point": "https://pdp.example.com/lenses6",
        "access_evaluation_endpoint": "https://pdp.example.com/lenses6/access/v1/evaluation",
        "access_evaluations_endpoint": "https://pdp.example.com/lenses6/access/v1/evaluations",
    }
    assert metadata("http://localhost:8080", "")["policy_decision_point"] == "http://localhost:8080"


_CASES = Path(__file__).parents[1] / "cases"


@pytest.mark.parametrize("system", ["lenses5", "lenses6", "ververica", "streamsets", "cdap", "kafka-acls"])
def test_the_answers_to_the_cases_of_all_rules_are_those_of_the_library(system: str) -> None:
    outcomes = set()
    for scene in scenes(load_cases(_CASES / f"{system}.yaml")):
        rules, read = Rules((system,), trust=scene.trust), Read(scene.snapshot, 0.0, {}, -1, {})
        for expectation in scene.stage.expect:
            given = scene.request(expectation)
            if "evaluations" in given:  # whose items are not answered one by one after it
                given.pop("deadline", None)
            expected = decide(scene.snapshot, {**given, "time": NOW}, trust=scene.trust | {"time"})
            if expected.reasons[0].code == "malformed-request":
                continue
            parse = parse_evaluations if "evaluations" in given else parse_evaluation
            answer_context = AnswerContext(read, NOW, "bounded", 0.0, 15.0, rules.trust)
            decision, body = answer(parse(_bytes(given), given["id"], system, rules), answer_context, rules)
            assert decision == expected, given
            found = body_of(body)
            assert [one["decision"] for one in found] == [one.allowed for one in expected.evaluations or (expected,)]
            outcomes.add(expected.outcome)
    assert outcomes == {"allow", "deny", "error"}


def body_of(body: bytes) -> list[Any]:
    """The answers in a response."""
    response = json.loads(body)
    found: list[Any] = response.get("evaluations", [response])
    return found


_PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
_REQUESTS = st.fixed_dictionaries(
    {},
    optional={
        "subject": st.just(DANA) | _PLAIN,
        "action": st.just(READ) | _PLAIN,
        "resource": st.just(ORDERS) | st.just(SECRETS) | _PLAIN,
        "context": st.fixed_dictionaries(
            {}, optional={"freshness": _PLAIN, "system": _PLAIN, "min_policy_offsets": _PLAIN}
        )
        | _PLAIN,
        "evaluations": st.lists(_PLAIN | st.just({"resource": ORDERS}), max_size=3) | _PLAIN,
        "options": _PLAIN,
    },
)


@given(_REQUESTS)
def test_whatever_is_asked_is_refused_or_answered_as_the_library_does(given: dict[str, Any]) -> None:
    try:
        asked = parse_evaluations(_bytes(given), "r", "", RULES)
        decision, body = _answer(asked)
    except BadRequest:
        return
    assert SCHEMAS["evaluations-response"].is_valid(body)
    if lacking(asked.body, read_at()) is None:
        expected = decide(SNAPSHOT, {**asked.body, "time": NOW}, trust=frozenset({"time"}))
        assert decision == expected
    answers = body.get("evaluations", [body])
    allows = [one for one in answers if one["decision"]]
    assert all(one["context"]["reasons"][0]["document"] == "lenses6/Role/readers" for one in allows)
