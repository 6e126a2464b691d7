"""Prepared queries answer as requests that are decided one by one, byte for byte; and they are used."""

import contextlib
import itertools
import json
from collections.abc import Iterator
from functools import partial
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

import policy
from policy import compile_documents
from policy.core.caching import BUDGET
from policy.evaluation import AnswerCache, reference
from policy.evaluation.answers import ID, ID_BYTES, ByState
from policy.store import compiler as compiling
from policy.store.compiler import Compiler
from policy.store.documents import DocumentStore
from policy.store.overlay import FactOverlay
from policy.store.snapshot import Snapshot
from policy.systems import all_systems
from streaming.enforcer import evaluator as evaluator_module
from streaming.enforcer.evaluator import EvaluationContext, Evaluator, PartitionEvaluator, Source
from streaming.enforcer.process_cache import HeldFacts, NewestEvaluator
from streaming.enforcer.source import Records
from streaming.records.packing import Outgoing, Packed
from streaming.settings import DEFAULT_TRUST, Limits
from tests.bench import workload
from tests.examples import examples
from tests.policy.strategies import lenses6
from tests.policy.test_answers import MOMENTS, UNHURRIED, change, deletion, spoiled
from tests.policy.test_properties import WRITTEN as WRITTEN_FOR
from tests.policy.test_properties import dated, requests_of
from tests.stream.arrow import AT, Sent, records_at, records_batch
from tests.stream.packed import decisions_of, read_headers
from tests.stream.world import group, role

DOCUMENTS = [
    role("open", "kafka:topic:prod/main/*"),
    role("narrow", "kafka:topic:prod/*/orders-*", "kafka:topic:*"),
    role("closed", "kafka:topic:prod/main/secret*", effect="deny"),
    group("open", "user:dana"),
    group("narrow", "user:dana", "user:eve"),
    group("closed", "user:eve"),
]
SNAPSHOT = compile_documents(DOCUMENTS)
LIMITS = Limits()


def _for_partition(evaluator: Evaluator) -> PartitionEvaluator:
    source = Source("requests", 3, "topic-id", DEFAULT_TRUST, 1)
    return evaluator.for_partition(source, EvaluationContext(SNAPSHOT.version, {"policies": {"0": 41}}, 7, {}, AT))


def _in_order(packed: Packed) -> list[Outgoing]:
    """All records by their positions, which are ascending in each columns: as the sender merges them."""
    found: list[tuple[int, Outgoing]] = []
    for topic, columns in packed.batches():
        positions = range(len(columns.keys)) if columns.positions is None else columns.positions.tolist()
        assert list(positions) == sorted(positions)
        headers = (encoded and read_headers(encoded) for encoded in columns.headers.to_pylist())
        outgoing = zip(
            itertools.repeat(topic), columns.keys.to_pylist(), columns.values.to_pylist(), headers, strict=False
        )
        found += zip(positions, outgoing, strict=True)
    return [record for _, record in sorted(found, key=lambda pair: pair[0])]


def _values(packed: Packed) -> list[bytes]:
    return sorted(decisions_of(packed))


@contextlib.contextmanager
def unprepared() -> Iterator[None]:
    """While it is open, no query is prepared: each request is decided by itself."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(PartitionEvaluator, "_answer", lambda *_: None)
        yield


def _compare(sent: list[Sent], evaluator: Evaluator, limits: Limits = LIMITS, at: int = AT) -> None:
    """Records together, and one by one, beside those of an evaluator with empty caches that prepares nothing."""
    records = Records(records_batch(sent, at))
    rows = [(key, value, records.headers(number), number, at) for number, (key, value, _) in enumerate(sent)]
    with unprepared():
        careful = [_for_partition(Evaluator(evaluator.snapshot, limits)).decide(*row) for row in rows]
    assert _in_order(_for_partition(evaluator).decide_all(records)) == careful
    assert [_for_partition(evaluator).decide(*row) for row in rows] == careful


def _request(id_: str = "r-1", user: str = "dana", topic: str = "prod/main/orders-1", **more: Any) -> dict[str, Any]:
    return {
        "id": id_,
        "system": "lenses6",
        "subject": {"type": "user", "id": f"user:{user}"},
        "action": {"name": "kafka:GetTopicDetails"},
        "resource": {"type": "lrn", "id": f"kafka:topic:{topic}"},
        **more,
    }


def _shared(evaluator: Evaluator) -> int:
    """The queries that are kept for all ids."""
    return sum(isinstance(key, bytes) for key in evaluator.answers(DEFAULT_TRUST)._queries)


def _taught() -> Evaluator:
    """An evaluator with prepared queries for what dana and eve ask."""
    evaluator = Evaluator(SNAPSHOT, LIMITS)
    for user in ("dana", "eve"):
        value = json.dumps(_request("t", user, "prod/main/taught")).encode()
        _for_partition(evaluator).decide_all(Records(records_batch([(None, value, None)])))
    return evaluator


def test_long_names_of_resources_are_answered_and_not_kept() -> None:
    """Their producers choose how long they are, and what is kept lasts as long as the policies."""
    evaluator = _taught()
    for length in (ID_BYTES // 2 + 1, ID_BYTES + 1):
        for topic in (f"prod/main/{'x' * length}", f"prod/{'x' * length}/orders"):
            _compare([(None, json.dumps(_request(topic=topic)).encode(), None)], evaluator)
    [states] = evaluator.answers(DEFAULT_TRUST)._states.values()
    assert ID_BYTES // 2 < max(map(len, states.by_id)) <= ID_BYTES


def test_names_of_systems_that_clients_invent_are_not_kept_beyond_the_bound_of_the_cache() -> None:
    evaluator = Evaluator(SNAPSHOT, LIMITS, 2)
    for n in range(20):
        _compare([(None, json.dumps(_request(system=f"invented-{n}")).encode(), None)], evaluator)
    answers = evaluator.answers(DEFAULT_TRUST)
    assert len(answers) <= 2


def test_requests_of_a_prepared_query_are_answered_in_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    evaluator = _taught()
    monkeypatch.setattr(PartitionEvaluator, "decide", None)  # a request that is decided by itself would fail
    sent = [(b"k", json.dumps(_request(f"r-{n}", topic=f"prod/main/t-{n}")).encode(), None) for n in range(100)]
    assert len(_values(_for_partition(evaluator).decide_all(Records(records_batch(sent))))) == 100


FAULTY = ("orders-1 ", " orders-1", "orders-1\xa0", "ord\u200bers-1", "e\u0301", "\u0301", "\xe9", "secret-1 ", "a: b")


@pytest.mark.parametrize("name", FAULTY)
@pytest.mark.parametrize("place", ["prod/main/{}", "prod/{}/orders-1", "{}/main/orders-1"])
def test_a_name_that_may_be_taken_for_another_gets_no_other_answer(name: str, place: str) -> None:
    """Written as it is, between requests whose query is prepared, and twice."""
    asked = [_request("r-2"), *[_request(f"r-{n}", topic=place.format(name)) for n in (3, 4)], _request("r-5")]
    sent = [(None, json.dumps(request, ensure_ascii=False).encode(), None) for request in asked]
    evaluator = _taught()
    for _ in range(2):
        _compare(sent, evaluator)


def test_where_the_id_is_not_read_one_query_answers_for_all_but_those_at_fault() -> None:
    """Ververica decides by workspace and namespace: the resource's id is only repeated."""
    entry = {"userId": "dana", "workspaceId": "w", "namespaceId": "n", "role": "VIEWER"}
    document = {"system": "ververica", "kind": "InitialAccess", "name": "w", "spec": {"initialAccess": [entry]}}
    evaluator, scope = Evaluator(compile_documents([document]), LIMITS), {"workspaceId": "w", "namespaceId": "n"}
    sent: list[Sent] = []
    for number, name in enumerate(["orders", "payments", *FAULTY, "payments", "last"]):
        request = {**_request(f"r-{number}"), "system": "ververica", "subject": {"type": "user", "id": "dana"}}
        request |= {"action": {"name": "read"}, "resource": {"type": "Deployment", "id": name}}
        request["resource"]["properties"] = {**scope, "note": ID} if name == "last" else scope
        sent.append((None, json.dumps(request, ensure_ascii=False).encode(), None))
    _compare(sent, evaluator)
    decided = [
        json.loads(value)["decision"]
        for value in _values(_for_partition(evaluator).decide_all(Records(records_batch(sent))))
    ]
    assert decided.count(True) == 4 + FAULTY.count("\xe9") + FAULTY.count("a: b")
    assert _shared(evaluator) == 1


REPEATING = (
    # id, properties as they are written
    ("orders", '{"connection":"kafka","dataset":"orders"}'),
    ("billing", '{"connection":"kafka","dataset":"billing"}'),
    ("secret", '{"connection":"kafka","dataset":"secret"}'),
    ("secret", '{"connection":"kafka","dataset":"orders"}'),  # the dataset counts, not the id
    ("orders", '{"connection":"kafka","dataset":"secret"}'),
    ("kafka", '{"connection":"kafka","dataset":"secret"}'),  # the id is the connection
    ("kafka", '{"connection":"kafka","dataset":"kafka"}'),
    ("orders", '{"connection":"orders","dataset":"orders"}'),
    ("other", '{"connection":"other","dataset":"secret"}'),
    ("secret", '{"connection":"secret","dataset":"orders"}'),
    ("orders", '{"connection":"kafka","dataset":"\\u006frders"}'),  # another way of writing it
    ("kafka", '{"connection":"kafka","dataset":"\\u006bafka"}'),
    ("secret", '{"connection":"secret","dataset":"\\u006bafka"}'),
    ("orders", '{"connection":"kafka","dataset":"orders","dataset":"secret"}'),  # refused
    ("orders", '{"connection":"kafka","dataset":"secret","dataset":"orders"}'),
    ("secret", '{"connection":"kafka","dataset":"orders","dataset":"secret"}'),
    ("dataset", '{"connection":"kafka","dataset":"orders"}'),
    ("dataset", '{"connection":"kafka","dataset":"dataset"}'),
    (",", '{"connection":"kafka","dataset":","}'),
    (",", '{"connection":"kafka","dataset":"orders"}'),
    (":", '{"connection":"kafka","dataset":":"}'),
    ("orders", '{"connection":{"a":"orders"},"dataset":"secret"}'),
    ("orders", '"orders"'),
    ("orders", '["orders"]'),
    ("orders", "null"),
    ("orders ", '{"connection":"kafka","dataset":"orders "}'),  # a name at fault
    ("e\u0301", '{"connection":"kafka","dataset":"e\u0301"}'),
    ("a/b", '{"connection":"kafka","dataset":"a/b"}'),
    ("a/", '{"connection":"kafka","dataset":"a/"}'),
    ("orders*", '{"connection":"kafka","dataset":"orders*"}'),
    ("*", '{"connection":"kafka","dataset":"*"}'),
    ("x" * 300, '{"connection":"kafka","dataset":"%s"}' % ("x" * 300)),
)


def _repeating(number: int, id_: str, properties: str, more: dict[str, Any]) -> bytes:
    request = {**_request(f"r-{number}"), "subject": {"type": "user", "id": "dana"}, **more}
    request["resource"] = {**request["resource"], "id": id_, "properties": "PROPERTIES"}
    return json.dumps(request, ensure_ascii=False).replace('"PROPERTIES"', properties).encode()


@pytest.mark.parametrize("order", [1, -1], ids=["in order", "reversed"])
def test_a_property_that_repeats_the_id_stands_for_it_where_the_system_says_so_and_nowhere_else(order: int) -> None:
    """Lenses 5 decides by the dataset, which mostly is the id; Ververica by a namespace, which it may be."""
    namespace = {"connection": "kafka", "type": "Kafka", "datasets": ["orders", "bill*", "a/*"]}
    lenses5 = {"namespaces": [{**namespace, "permissions": ["Show Topic"]}], "members": ["dana"]}
    entry = {"userId": "dana", "workspaceId": "orders", "namespaceId": "kafka", "role": "VIEWER"}
    evaluator = Evaluator(
        compile_documents(
            [
                {"system": "lenses5", "kind": "Group", "name": "g", "spec": lenses5},
                {"system": "ververica", "kind": "InitialAccess", "name": "w", "spec": {"initialAccess": [entry]}},
            ]
        ),
        LIMITS,
    )
    show = {"system": "lenses5", "action": {"name": "kafka.topic.show"}, "resource": {"type": "topic"}}
    read = {"system": "ververica", "action": {"name": "read"}, "resource": {"type": "Deployment"}}
    scopes = [
        (id_, json.dumps({"workspaceId": scope[0], "namespaceId": scope[1]}))
        for id_ in ("orders", "kafka", "secret", "x")
        for scope in (("orders", "kafka"), ("orders", "secret"), ("secret", "kafka"), ("x", "kafka"), ("orders", "x"))
    ]
    asked = [*((*pair, show) for pair in REPEATING), *((*pair, read) for pair in scopes)][::order]
    sent: list[Sent] = [(None, _repeating(number, *one), None) for number, one in enumerate(asked)]
    for _ in range(2):
        _compare(sent, evaluator)
        for number, one in enumerate(asked):
            with contextlib.suppress(ValueError):  # properties of another type are no request
                request = json.loads(_repeating(number, *one))
                assert policy.decide(evaluator.snapshot, request).outcome == reference.decide(
                    evaluator.snapshot, request
                )


def test_a_malformed_request_never_has_the_key_of_another() -> None:
    """Its properties are the id, and its context the other one's id."""
    plain = {**_request("r-1"), "system": "lenses5", "action": {"name": "kafka-consumers.view"}}
    plain |= {"subject": {"type": "user", "id": "dana"}, "resource": {"type": "consumer-group", "id": "billing"}}
    malformed = {**plain, "resource": {"type": "consumer-group", "id": "x", "properties": "x"}, "context": "billing"}
    sent: list[Sent] = [(None, json.dumps(request).encode(), None) for request in (plain, malformed, plain)]
    _compare(sent, Evaluator(compile_documents([]), LIMITS))


def test_datasets_of_lenses_5_are_answered_by_one_query() -> None:
    evaluator = Evaluator(compile_documents([]), LIMITS)
    show = {"system": "lenses5", "action": {"name": "kafka.topic.show"}, "resource": {"type": "topic"}}
    written = '{"connection":"kafka","dataset":"t-%d"}'
    sent: list[Sent] = [(None, _repeating(n, f"t-{n}", written % n, show), None) for n in range(50)]
    _compare(sent, evaluator)
    assert _shared(evaluator) == 1


def test_a_workload_gets_the_same_answers() -> None:
    documents = workload.documents(100)
    snapshot = compile_documents(documents)
    evaluator, lone = Evaluator(snapshot, LIMITS), Evaluator(snapshot, LIMITS)
    values = [msgspec.json.encode(request) for request in workload.requests(documents, 3000)]
    made = _for_partition(evaluator).decide_all(Records(records_batch((value[:16], value, None) for value in values)))
    with unprepared():
        careful = [_for_partition(lone).decide(value[:16], value, None, n, AT) for n, value in enumerate(values)]
    assert (len(made.columnar[0].keys), len(made.others)) == (3000, 0)
    assert _in_order(made) == careful


TEXTS = st.one_of(
    st.sampled_from(
        [
            "r-1",
            "",
            "prod/main/orders-1",
            "prod//orders",
            "prod/main/secret-1",
            "a%sb%%",
            "→ü",
            "\x7f",
            'x","subject":{"type":"user","id":"user:eve"},"x":"',
            '","resource":{"type":"lrn","id":"kafka:topic:prod/main/orders-1',
            'x\\","id":"y',
            "\\",
            "\\u0041",
            '"},"deadline":1,"x":{"y":"',
            '"},"evaluations":[{}],"x":{"y":"',
            "line\nbreak",
        ]
    ),
    st.text(alphabet='ab/:*"\\{}[],→\x00\n', max_size=12),
)
WRITTEN = st.sampled_from(
    [
        lambda request: json.dumps(request),
        lambda request: json.dumps(request, separators=(",", ":")),
        lambda request: json.dumps(request, sort_keys=True),
        lambda request: json.dumps(request, indent=1),
        lambda request: json.dumps(request, ensure_ascii=False, separators=(",", ":")),
    ]
)
MORE = st.sampled_from(
    [
        {},
        {},
        {},
        {"context": {}},
        {"context": {"ip": "10.0.0.7", "attempt": 2}},
        {"context": {"ip": "@resource@", "is_retry": False}},
        {"context": {"min_policy_offsets": 1, "ip": "10.0.0.7"}},
        {"context": {"min_policy_offsets": {"x": {"0": 1}}}},
        {"time": AT},
        {"time": "2026-11-21T10:00:00+01:00"},
        {"time": "yesterday"},
        {"deadline": 1},
        {"deadline": AT},
        {"deadline": AT - 1},
        {"deadline": -1},
        {"deadline": True},
        {"deadline": "2100-01-01T00:00:00Z", "time": "2026-11-21T10:00:00.25Z"},
        {"deadline": "2100-01-01"},
        {"evaluations": []},
        {"unknown": {"a": [1]}},
    ]
)


@st.composite
def _sent(draw: st.DrawFn) -> Sent:
    """A record: its ids written properly, or put into the text as they are, whatever JSON that makes."""
    request = _request("@id@", draw(st.sampled_from(["dana", "eve", "zoe"])), "@resource@", **draw(MORE))
    text = draw(WRITTEN)(request)
    id_, resource = draw(TEXTS), draw(TEXTS)
    if draw(st.booleans()):
        id_, resource = json.dumps(id_)[1:-1], json.dumps(resource)[1:-1]
    value = text.replace("@id@", id_).replace("@resource@", resource).encode()
    broken = draw(st.sampled_from([b"", b"", b"", b"\xff", b" "]))
    headers = draw(st.sampled_from([None, None, [("traceparent", b"00-1")], [("other", b"x")]]))
    return draw(st.sampled_from([None, b"key", b"\xff"])), draw(st.sampled_from([value + broken, value, None])), headers


@settings(max_examples=150, deadline=None)
@given(st.lists(_sent(), min_size=1, max_size=12))
def test_a_prepared_query_answers_as_a_request_that_is_decided_by_itself(sent: list[Sent]) -> None:
    """Also where records were made to look like those of a prepared query, and in a batch with any others."""
    evaluator = _taught()
    _compare(sent, evaluator)
    _compare(sent, evaluator)


@settings(max_examples=100, deadline=None)
@given(lenses6.documents(), st.lists(lenses6.requests(), min_size=1, max_size=4), st.integers(0, 4))
def test_prepared_queries_answer_so_whatever_the_policies_are(
    documents: list[dict[str, Any]], asked: list[dict[str, Any]], at: int
) -> None:
    """In the epochs of documents that are valid for a time only, too."""
    evaluator = Evaluator(compile_documents(documents), LIMITS)
    for batch in range(3):
        renamed = ({**request, "id": f"{batch}-{n}", "time": None} for n, request in enumerate(asked))
        plain = ({name: value for name, value in request.items() if value is not None} for request in renamed)
        sent: list[Sent] = [(None, json.dumps(request).encode(), None) for request in plain]
        _compare(sent, evaluator, at=at)


def test_what_is_forgotten_is_prepared_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """With room for next to nothing it is forgotten again and again, also within a batch."""
    monkeypatch.setattr(BUDGET, "most", 20_000)
    evaluator = _taught()
    for batch in range(6):
        users = ("dana", "eve", "zoe")[: 1 + batch % 3]
        asked = (_request(f"r-{batch}", user, f"prod/main/t-{n}") for user in users for n in range(9))
        _compare([(None, json.dumps(request).encode(), None) for request in asked], evaluator)


@pytest.mark.parametrize("step", ["add", "answer", "work_out"])
def test_where_a_step_fails_the_next_answer_is_not_taken_for_it(monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    evaluator = Evaluator(SNAPSHOT, LIMITS)

    def ask(user: str, topic: str) -> None:
        _compare([(None, json.dumps(_request("r", user, f"prod/main/{topic}")).encode(), None)], evaluator)

    with monkeypatch.context() as patched:
        patched.setattr(AnswerCache if step == "add" else ByState, step, None)
        for n in range(2):
            ask("eve", f"secret-{n}")
    for n in range(2):
        ask("dana", f"secret-{n}")
    ask("eve", "secret-2")


LONG = "x" * 200


@pytest.mark.parametrize("missing", [0, 1])
@pytest.mark.parametrize(
    ("user", "topic", "tag"), [("dana", "t-1", ""), ("dana", LONG, ""), (LONG, "t-1", ""), ("dana", "t-1", LONG)]
)
def test_an_answer_is_as_large_as_it_may_be_and_no_larger(user: str, topic: str, tag: str, missing: int) -> None:
    """Beside one that is smaller and fits: each gets its own."""
    snapshot = compile_documents(
        [role("open", "kafka:topic:prod/main/*"), group("open", "user:u", "user:dana", f"user:{LONG}")]
    )

    def ask(id_: str, user: str, topic: str, tag: str) -> Sent:
        request = _request(id_, user, f"prod/main/{topic}")
        request["resource"]["properties"] = {"tag": tag}
        return b"key", json.dumps(request).encode(), None

    evaluator = Evaluator(snapshot, LIMITS)
    small, large = ask("small", "u", "t", ""), ask("large", user, topic, tag)
    [(_, key, value, _)] = _in_order(_for_partition(evaluator).decide_all(Records(records_batch([large]))))
    evaluator.limits = Limits(record_out=len(key or b"") + len(value or b"") - missing)
    _compare([large, small], evaluator, evaluator.limits)
    made = _for_partition(evaluator).decide_all(Records(records_batch([large, small])))
    said = [json.loads(value or b"") for _, _, value, _ in _in_order(made)]
    decided = {answer["request_id"]: answer["decision"] for answer in said}
    assert decided == {"small": True, "large": missing == 0}


@pytest.mark.parametrize("hidden", ["id", "resource"])
def test_texts_that_only_look_like_slots_are_not_taken_for_them(hidden: str) -> None:
    """An id of something else, which stands before the real one, and says the same at first."""
    evaluator = Evaluator(SNAPSHOT, LIMITS)
    for looks in ("same", "same", "same", "other"):
        request = _request("r-1", "dana", "prod/main/secret-1" if hidden == "resource" else "prod/main/orders-1")
        if hidden == "id":
            request = {"more": {"id": "r-1" if looks == "same" else "r-2"}, **request}
        else:
            resource = request["resource"]
            shown = {"id": resource["id"] if looks == "same" else "kafka:topic:prod/main/orders-1"}
            request = {**request, "resource": {"properties": shown, **resource}}
        _compare([(None, json.dumps(request).encode(), None)], evaluator)


def test_a_decision_that_is_too_large_for_the_column_is_decided_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Sent] = [(None, json.dumps(_request()).encode(), None)]
    assert len(_for_partition(_taught()).decide_all(Records(records_batch(sent))).columnar) == 1
    monkeypatch.setattr(evaluator_module, "COLUMN_BYTES", 10)
    made = _for_partition(_taught()).decide_all(Records(records_batch(sent)))
    assert (len(made.columnar), len(made.others)) == (0, 1)


def test_records_beyond_the_limits_are_refused_as_ever() -> None:
    sent: list[Sent] = [(b"k" * 90, json.dumps(_request(f"r-{n}" + "x" * n)).encode(), None) for n in range(0, 400, 20)]
    limits = Limits(record_in=400, record_out=1000)
    evaluator = Evaluator(SNAPSHOT, limits)
    for _ in range(3):
        _compare(sent, evaluator, limits)


def test_a_document_ceases_to_be_valid_within_a_batch() -> None:
    ending = {**role("open", "kafka:topic:prod/main/*"), "valid_until": AT + 5}
    evaluator = Evaluator(compile_documents([ending, group("open", "user:dana")]), LIMITS)
    values = [(None, json.dumps(_request(f"r-{n}")).encode(), None) for n in range(10)]
    crossing = records_at((*value, AT + n) for n, value in enumerate(values))
    for _ in range(3):
        made = _for_partition(evaluator).decide_all(Records(crossing))
        assert [json.loads(value)["decision"] for value in _values(made)] == [True] * 5 + [False] * 5
        for at, allowed in ((AT, True), (AT + 5, False)):
            made = _for_partition(evaluator).decide_all(Records(records_batch(values, at)))
            assert [json.loads(value)["decision"] for value in _values(made)] == [allowed] * 10


def test_a_bug_in_the_fast_path_costs_time_alone_and_is_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not what it says, in which a request's secrets may be."""
    evaluator = _taught()
    sent: list[Sent] = [
        (b"k", json.dumps(_request(f"r-{n}", topic=f"prod/main/t-{n}")).encode(), None) for n in range(3)
    ]

    def fail(*_: Any) -> Any:
        raise KeyError("secret")

    monkeypatch.setattr(AnswerCache, "find", fail)
    with capture_logs() as logged:
        _compare(sent, evaluator)
    assert len(logged) <= 1 + len(sent)  # once by each evaluator of a partition
    assert {(line["log_level"], line["error"]) for line in logged} == {("warning", "KeyError")}
    assert "secret" not in repr(logged)


def test_each_decision_reports_its_own_requests_time_and_offset_where_others_are_decided_by_themselves() -> None:
    values = [b"{", *(json.dumps(_request(f"r-{n}")).encode() for n in range(3))]
    sent = [(b"k", value, None, AT + 1000 * late) for value, late in zip(values, (0, 3, 1, 2), strict=True)]
    made = _for_partition(_taught()).decide_all(Records(records_at(sent)))
    assert (len(made.columnar), len(made.others)) == (1, 1)
    with unprepared():
        careful = [
            _for_partition(Evaluator(SNAPSHOT, LIMITS)).decide(key, value, None, n, at)
            for n, (key, value, _, at) in enumerate(sent)
        ]
    assert _in_order(made) == careful


@pytest.mark.parametrize("system", WRITTEN_FOR)
@settings(max_examples=examples(8), deadline=None, suppress_health_check=UNHURRIED)
@given(data=st.data())
def test_answers_follow_the_facts_that_change(system: str, data: st.DataObject) -> None:
    """After each change, what is kept in a worker answers as what knows nothing: in all systems, over edges of time."""
    kinds = {name for name, kind in all_systems()[system].kinds.items() if kind.fact}
    documents = [msgspec.json.decode(msgspec.json.encode(document)) for document in data.draw(dated(system))]
    asked = [{**data.draw(requests_of(system)), "id": str(number)} for number in range(3)]
    plain = ({name: part for name, part in one.items() if name not in ("time", "deadline")} for one in asked)
    sent: list[Sent] = [(None, json.dumps(request).encode(), None) for request in plain]
    policies, facts, overlay = DocumentStore(), DocumentStore(facts_only=True), FactOverlay()
    for order, document in enumerate(documents):
        document.pop("effective_at", None)
        if document["kind"] not in kinds:
            policies.put(document, order, order)
    compiled, held, newest = Snapshot(policies), HeldFacts(0, FactOverlay()), NewestEvaluator()
    changes = [document for document in documents if document["kind"] in kinds]
    steps = [None, *changes, *map(spoiled, changes), *map(deletion, changes)]
    for order, document in enumerate(steps, len(documents)):
        if document is not None:
            changed = change(facts, document, order)
            overlay.apply(changed)
            held._apply(held.applied, [changed])
        evaluator = newest.get(0, held, lambda: compiled, LIMITS)
        for at in (data.draw(st.sampled_from(MOMENTS)), 6):
            records = Records(records_batch(sent, at))
            with unprepared():
                fresh = _in_order(_for_partition(Evaluator(compiled.with_facts(overlay), LIMITS)).decide_all(records))
            assert _in_order(_for_partition(evaluator).decide_all(records)) == fresh


@pytest.mark.parametrize("system", WRITTEN_FOR)
@settings(max_examples=examples(6), deadline=None, suppress_health_check=UNHURRIED)
@given(data=st.data())
def test_answers_follow_the_policies_that_change(system: str, data: st.DataObject) -> None:
    """After each change of any system's documents, what is kept in a worker answers as what knows nothing.

    With room for all queries, or for some.
    """
    most = data.draw(st.sampled_from([2, 50]))
    other = data.draw(st.sampled_from(WRITTEN_FOR))
    documents = [
        msgspec.json.decode(msgspec.json.encode({**document, "effective_at": 0}))
        for of in (system, other)
        for document in data.draw(dated(of))
    ]
    asked = [{**data.draw(requests_of(of)), "id": str(number)} for number, of in enumerate((system, other, system))]
    plain = ({name: part for name, part in one.items() if name not in ("time", "deadline")} for one in asked)
    sent: list[Sent] = [(None, json.dumps(request).encode(), None) for request in plain]
    store, held, newest = DocumentStore(), HeldFacts(0, FactOverlay()), NewestEvaluator()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(compiling, "WHOLE", 0)
        patched.setattr("streaming.enforcer.process_cache.Evaluator", partial(Evaluator, most=most))
        compiler = Compiler(store)
        for order, document in enumerate([*documents, *map(spoiled, documents), *map(deletion, documents)]):
            document.pop("effective_at", None)
            change(store, document, order)
            compiler.compile()
            evaluator = newest.get(order, held, lambda: compiler.snapshot, LIMITS)
            assert evaluator.snapshot.version == compiler.snapshot.version
            for at in (data.draw(st.sampled_from(MOMENTS)), 6):
                records = Records(records_batch(sent, at))
                with unprepared():
                    fresh = _in_order(_for_partition(Evaluator(Snapshot(store), LIMITS)).decide_all(records))
                assert _in_order(_for_partition(evaluator).decide_all(records)) == fresh


def test_queries_of_systems_whose_policies_do_not_change_stay_prepared() -> None:
    """And those of the others end."""
    store = DocumentStore()
    for order, document in enumerate([*DOCUMENTS, *({**_grant("n"), "name": f"g{number}"} for number in range(20))]):
        store.put(document, order, order)
    compiler, held, newest = Compiler(store), HeldFacts(0, FactOverlay()), NewestEvaluator()
    records, kept = Records(records_batch([(None, json.dumps(_request()).encode(), None)])), list[dict[Any, Any]]()
    for number, changed in enumerate([{**_grant("m"), "name": "g3"}, {**_grant("o"), "name": "g4"}, role("open", "*")]):
        evaluator = newest.get(number, held, lambda: compiler.snapshot, LIMITS)
        _for_partition(evaluator).decide_all(records)
        kept.append(dict(evaluator.answers(DEFAULT_TRUST)._queries))
        store.put(changed, 50 + number, 50 + number)
        assert compiler.compile() is not None
    evaluator = newest.get(3, held, lambda: compiler.snapshot, LIMITS)
    assert kept[0]
    assert kept[0] == kept[1] == kept[2]
    assert not len(evaluator.answers(DEFAULT_TRUST))


def _grant(namespace: str) -> dict[str, Any]:
    spec = {"user": "dana", "entity": f"namespace:{namespace}", "privileges": ["GET"]}
    return {"system": "cdap", "kind": "Grant", "name": "g", "spec": spec}


TRACED = [
    *([(name, bytes(range(length)))] for name in ("traceparent", "tracestate", "other") for length in range(0, 60, 7)),
    [("traceparent", b"x" * 1023)],
    [("traceparent", b"x" * 1024)],
    [("traceparent", b"x" * 1025)],
    [("tracestate", b"a=1"), ("traceparent", b"00-1")],
    [("traceparent", b"00-1"), ("traceparent", b"00-2")],
    [('traceparent","value":"AAAA"},{"key":"traceparent', b"00-1")],
]


@pytest.mark.parametrize("headers", TRACED)
def test_a_header_that_is_alone_is_carried_over_as_among_others(headers: list[tuple[str, bytes]]) -> None:
    """Most requests have a trace parent alone, which is read without JSON."""
    _compare([(b"k", json.dumps(_request()).encode(), headers)], Evaluator(SNAPSHOT, LIMITS))
