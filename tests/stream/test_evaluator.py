"""The evaluator's records say what `policy.decide` says, whatever its caches hold; a malformed one is never decided."""

import gc
import json
import random
from typing import Any

import msgspec
import pytest

from policy import compile_documents, decide
from policy.evaluation import ANSWERS_KEPT
from streaming.enforcer.evaluator import EvaluationContext, Evaluator, PartitionEvaluator, Source
from streaming.enforcer.source import Records
from streaming.settings import DEFAULT_TRUST, Limits
from tests.bench import workload
from tests.stream.arrow import records_batch

AT = 1_795_000_000_123
TIME = "2026-11-18T11:06:40.123Z"
READ = {"policies": {"0": 41}}
DOCUMENTS = workload.documents(100)
SNAPSHOT = compile_documents(DOCUMENTS)
BATCH_FIELDS = ("policy_version", "policy_offsets", "facts_offset", "source")
RECORD_FIELDS = (*BATCH_FIELDS, "request", "enforced")


def _for_partition(
    snapshot: Any = SNAPSHOT, trust: frozenset[str] = DEFAULT_TRUST, most: int = ANSWERS_KEPT, **limits: int
) -> PartitionEvaluator:
    source = Source("requests", 3, "topic-id", trust, 1)
    context = EvaluationContext(snapshot.version, READ, 7, {**READ, "facts": {"0": 7}}, AT)
    return Evaluator(snapshot, Limits(**limits), most).for_partition(source, context)


def _decide(partition_evaluator: PartitionEvaluator, request: Any, at: int = AT) -> dict[str, Any]:
    """The decision record for a request."""
    value = request if isinstance(request, bytes) else json.dumps(request).encode()
    number, _, made, _ = partition_evaluator.decide(b"key", value, None, 17, at)
    assert number == 0, made
    return dict(json.loads(made or b""))


def _some_request(**changes: Any) -> dict[str, Any]:
    return {**next(workload.requests(DOCUMENTS, 1)), **changes}


def _said(record: dict[str, Any]) -> dict[str, Any]:
    """What a decision record says of the decision alone."""
    context = {name: value for name, value in record["context"].items() if name not in RECORD_FIELDS}
    items = {"evaluations": [_said(item) for item in record["evaluations"]]} if "evaluations" in record else {}
    return {"decision": record["decision"], "context": context, **items}


def _expected(request: dict[str, Any], **more: Any) -> Any:
    return json.loads(json.dumps(decide(SNAPSHOT, request, **more).to_record()))


@pytest.mark.parametrize("held", [1, 7, 50_000])
def test_every_answer_is_that_of_decide_with_caches_of_any_size(held: int) -> None:
    """Twice in random order, so that most answers come from the cache the second time."""
    partition_evaluator, asked = _for_partition(most=held), list(workload.requests(DOCUMENTS, 300))
    random.Random(1).shuffle(asked)
    for request in asked + asked:
        assert _said(_decide(partition_evaluator, request)) == _expected(request)


def test_a_record_names_its_request_its_source_and_what_it_rests_on() -> None:
    record = _decide(_for_partition(), _some_request(id='"ü\n'))
    assert record["id"] == "topic-id-3-17"
    assert (record["request_id"], record["system"], record["time"]) == ('"ü\n', "lenses6", TIME)
    assert {name: record["context"][name] for name in BATCH_FIELDS} == {
        "policy_version": SNAPSHOT.version,
        "policy_offsets": READ,
        "facts_offset": 7,
        "source": {"topic": "requests", "partition": 3, "offset": 17},
    }


def test_a_record_says_who_asked_for_what_without_secrets_and_unknown_fields() -> None:
    """Also from the cache, in answers that are errors, and for each item of a batch."""
    asked = _some_request()
    asked["subject"]["properties"] = {"token": {"sub": "secret"}}
    echoed = {
        "subject": {"type": asked["subject"]["type"], "id": asked["subject"]["id"]},
        "action": {"name": asked["action"]["name"]},
        "resource": {"properties": {"a": 1}, **asked["resource"]},
    }
    asked["resource"] = {**echoed["resource"], "unknown": "secret"}
    partition_evaluator = _for_partition()
    late = {**asked, "deadline": AT - 1}
    for request in (asked, asked, late):
        record = _decide(partition_evaluator, request)
        assert record["context"]["request"] == echoed
        assert "secret" not in json.dumps(record)
    items = _decide(partition_evaluator, {**asked, "evaluations": [{}, {"action": {"name": "other"}}, {"subject": 1}]})[
        "evaluations"
    ]
    assert [item["context"].get("request") for item in items] == [echoed, {**echoed, "action": {"name": "other"}}, None]


@pytest.mark.parametrize("enforced", [True, False])
def test_in_shadow_mode_every_decision_says_that_it_is_not_enforced(enforced: bool) -> None:
    """Batches and errors too; the answer itself is the same."""
    evaluator, source = Evaluator(SNAPSHOT, Limits()), Source("requests", 3, "topic-id", DEFAULT_TRUST, 1)
    partition_evaluator = evaluator.for_partition(
        source, EvaluationContext(SNAPSHOT.version, READ, 7, {}, AT, enforced)
    )
    for request in (_some_request(), _some_request(evaluations=[{}]), _some_request(deadline=AT - 1)):
        record = _decide(partition_evaluator, request)
        assert record["context"].get("enforced", True) is enforced
        assert _said(record) == _said(_decide(_for_partition(), request))


@pytest.mark.parametrize("field", ["subject", "action", "resource"])
def test_the_cache_distinguishes_requests_by_every_field_that_a_decision_reads(field: str) -> None:
    """One request after another that differs in one field, both of which the cache must keep apart."""
    partition_evaluator, first = _for_partition(), _some_request()
    others = [request for request in workload.requests(DOCUMENTS, 50) if request[field] != first[field]]
    for other in others:
        changed = {**first, field: other[field]}
        assert _said(_decide(partition_evaluator, first)) == _expected(first)
        assert _said(_decide(partition_evaluator, changed)) == _expected(changed)


def test_a_cached_answer_ends_where_the_validity_of_a_document_does() -> None:
    role, group = (
        {
            "system": "lenses6",
            "kind": "Role",
            "name": "r",
            "valid_until": AT,
            "spec": {"statements": [{"effect": "allow", "action": "kafka:*", "resource": "kafka:topic:a/b/c"}]},
        },
        {"system": "lenses6", "kind": "Group", "name": "g", "spec": {"roles": ["r"], "members": ["user:dana"]}},
    )
    partition_evaluator = _for_partition(compile_documents([role, group]))
    request = _some_request(
        subject={"type": "user", "id": "user:dana"},
        action={"name": "kafka:GetTopicDetails"},
        resource={"type": "lrn", "id": "kafka:topic:a/b/c"},
    )
    assert [_decide(partition_evaluator, request, at)["decision"] for at in (AT - 1, AT, AT - 1)] == [True, False, True]


def test_time_is_the_brokers_unless_the_topic_is_trusted_to_claim_it() -> None:
    request = _some_request(time="2026-01-01T00:00:00Z")
    assert _decide(_for_partition(), request)["time"] == TIME
    assert _decide(_for_partition(trust=frozenset({"time"})), request)["time"] == "2026-01-01T00:00:00.000Z"


def test_after_the_deadline_it_is_an_error_also_when_the_answer_was_cached() -> None:
    partition_evaluator = _for_partition()
    outcomes = [
        _decide(partition_evaluator, _some_request(deadline=deadline))["context"]["reasons"][0]["code"]
        == "deadline-exceeded"
        for deadline in (AT, AT - 1, AT)
    ]
    assert outcomes == [False, True, False]


@pytest.mark.parametrize(
    ("wanted", "behind"),
    [
        ({"policies": {"0": 41}}, False),
        ({"facts": {"0": 7}}, False),
        ({"policies": {"0": 42}}, True),
        ({"policies": {"1": 0}}, True),
        ({"policies": {"0": "41"}}, True),
        ({"policies": {"0": True}}, True),
        ({"policies": 41}, True),
        ({"unknown": {"0": 0}}, True),
        ([], True),
    ],
)
def test_min_policy_offsets_are_held_against_what_was_read(wanted: Any, behind: bool) -> None:
    """Also with the field's name written in escapes, and within a batch of evaluations."""
    plain = json.dumps(_some_request(context={"min_policy_offsets": wanted})).encode()
    escaped = plain.replace(b"min_policy", rb"min\u005fpolicy")
    batch = json.dumps(_some_request(evaluations=[{"context": {"min_policy_offsets": wanted}}])).encode()
    for value in (plain, escaped, batch):
        record = _decide(_for_partition(), value)
        assert (record["context"]["reasons"][0]["code"] == "policies-behind") is behind
        assert not (behind and record["decision"])


@pytest.mark.parametrize("semantic", ["execute_all", "deny_on_first_deny", "permit_on_first_permit"])
def test_a_batch_gets_the_answers_of_decide(semantic: str) -> None:
    items = [{"resource": request["resource"]} for request in workload.requests(DOCUMENTS, 20)]
    batch = _some_request(evaluations=[*items, {"subject": 1}], options={"evaluations_semantic": semantic})
    assert _said(_decide(_for_partition(), batch)) == _expected(batch)


def test_claims_of_a_topic_that_is_not_trusted_are_not_used() -> None:
    no_trust = frozenset[str]()
    answers = [_said(_decide(_for_partition(trust=no_trust), request)) for request in workload.requests(DOCUMENTS, 50)]
    expected = [_expected(request, trust=no_trust) for request in workload.requests(DOCUMENTS, 50)]
    assert answers == expected
    assert not any(answer["decision"] for answer in answers)


def test_an_answer_that_is_too_large_becomes_an_error() -> None:
    batch = _some_request(evaluations=[{}] * 100)
    record = _decide(_for_partition(record_out=4096), batch)
    assert record["decision"] is False
    assert record["context"]["reasons"][0]["code"] == "answer-too-large"
    assert "evaluations" not in record


DEEP = json.loads('{"a":' * 40 + "1" + "}" * 40)
MALFORMED: dict[str, Any] = {
    "nothing": b"",
    "not JSON": b"{",
    "not UTF-8": json.dumps(_some_request()).encode().replace(b"user:", b"\xff\xfe"),
    "not an object": b"[]",
    "Avro, single object": b"\xc3\x01\x00",
    "Avro, Confluent": b"\x00\x00\x00\x00\x01",
    "no id": _some_request(id=None),
    "empty id": _some_request(id=""),
    "empty system": _some_request(system=""),
    "no subject": _some_request(subject=None),
    "subject of a wrong type": _some_request(subject="dana"),
    "empty subject": _some_request(subject={"type": "user", "id": ""}),
    "empty action": _some_request(action={"name": ""}),
    "empty resource": _some_request(resource={"type": "lrn", "id": ""}),
    "groups outside of properties are ignored, but properties must be an object": _some_request(
        subject={"type": "user", "id": "user:u1", "properties": []}
    ),
    "context of a wrong type": _some_request(context=[]),
    "number for a context": _some_request(context=12),
    "wrong time": _some_request(time="yesterday"),
    "wrong deadline": _some_request(deadline="soon"),
    "nested too deep": _some_request(context=DEEP),
    "nested too deep in an unread field": _some_request(other=DEEP),
    "options of a wrong type": _some_request(options=5),
    "options that are null": _some_request(options=None),
    "options of an unknown semantic": _some_request(options={"evaluations_semantic": "any"}),
    "not UTF-8 in an unread field": json.dumps(_some_request(other="@")).encode().replace(b"@", b"\xff"),
    "not UTF-8 in what is echoed": json.dumps(_some_request(id="@")).encode().replace(b"@", b"\xff"),
    "too big": _some_request(padding="x" * (1 << 20)),
}


@pytest.mark.parametrize("value", MALFORMED.values(), ids=MALFORMED.keys())
def test_what_is_no_request_is_a_dead_letter_also_when_its_like_was_cached(value: Any) -> None:
    partition_evaluator = _for_partition()
    _decide(partition_evaluator, _some_request())
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    number, _, _, headers = partition_evaluator.decide(b"key", data, None, 17, AT)
    assert number == 1
    fields = dict(headers or ())
    assert fields["__connect.errors.exception.message"].startswith(b"not a request: ")
    assert fields["__connect.errors.offset"] == b"17"


def test_a_record_without_a_value_is_a_dead_letter() -> None:
    assert _for_partition().decide(None, None, None, 17, AT)[0] == 1


def test_only_trace_headers_are_carried_over() -> None:
    headers: list[dict[str, Any]] = [
        {"key": "traceparent", "value": b"00-1"},
        {"key": "tracestate", "value": b"x" * 2000},
        {"key": "authorization", "value": b"Bearer x"},
        {"key": "traceparent", "value": None},
    ]
    carried = _for_partition().decide(b"k", msgspec.json.encode(_some_request()), headers, 17, AT)[3]
    assert carried == [("content-type", b"application/json"), ("traceparent", b"00-1")]


def test_what_is_refused_leaves_no_cycle_that_holds_it() -> None:
    """Workers set what is there after a task aside from the search for cycles: a cycle would keep a record for long."""
    partition_evaluator, value = _for_partition(), json.dumps(_some_request(deadline=AT - 1)).encode()
    refused = (
        b"\x00" * 1000,
        b"{",
        b"\xff",
        None,
        value[:-1],
        b'{"id":""}',
        json.dumps(_some_request(time="x")).encode(),
    )
    for packed in (refused, (value,), (json.dumps(_some_request(evaluations=[{}] * 3)).encode(),)):
        records = Records(records_batch([(b"k", one, None) for one in packed]))
        partition_evaluator.decide_all(records)
        # Threads of other tests may leave some meanwhile; what records leave, they leave each time.
        assert min(_cycles_of(partition_evaluator, records) for _ in range(3)) == 0


def _cycles_of(partition_evaluator: PartitionEvaluator, records: Records) -> int:
    """How many objects are in cycles after the records are decided."""
    gc.freeze()  # a search through all that other tests have left takes seconds
    gc.disable()
    try:
        partition_evaluator.decide_all(records)
        return gc.collect()
    finally:
        gc.enable()
        gc.unfreeze()
