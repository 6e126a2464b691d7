"""The short way says what the careful way says, byte for byte, whatever is sent; and it is taken."""

import itertools
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from policy import compile_documents
from streaming import workload
from streaming.enforcer import judge as judging
from streaming.enforcer import matching, plans
from streaming.enforcer.judge import Basis, Judge, Sitting, Source
from streaming.enforcer.matching import RESOURCE_BYTES
from streaming.enforcer.plans import Plans
from streaming.enforcer.records import Records
from streaming.enforcer.wire import Outgoing, Packed
from streaming.settings import DEFAULT_TRUST, Limits
from tests.policy.strategies import lenses6
from tests.stream.arrow import AT, Sent, records_at, records_batch
from tests.stream.lots import read_headers
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


def _sit(judge: Judge) -> Sitting:
    source = Source("requests", 3, "topic-id", DEFAULT_TRUST, 1)
    return judge.sit(source, Basis(SNAPSHOT.version, {"policies": {"0": 41}}, 7, {}, AT))


def _in_order(packed: Packed) -> list[Outgoing]:
    """All records by their positions, which are ascending in each lot: as the sender merges the lots."""
    found: list[tuple[int, Outgoing]] = []
    for topic, lot in packed.lots():
        positions = range(len(lot.keys)) if lot.positions is None else lot.positions.tolist()
        assert list(positions) == sorted(positions)
        headers = (told and read_headers(told) for told in lot.headers.to_pylist())
        outgoing = zip(itertools.repeat(topic), lot.keys.to_pylist(), lot.values(), headers, strict=False)
        found += zip(positions, outgoing, strict=True)
    return [record for _, record in sorted(found, key=lambda pair: pair[0])]


def _values(packed: Packed) -> list[bytes]:
    return sorted(packed.decisions())


def _compare(sent: list[Sent], judge: Judge, limits: Limits = LIMITS, at: int = AT) -> None:
    """What a judge with plans answers, who tries the short way again and again, and one who has never seen anything."""
    records = Records(records_batch(sent, at))
    careful = []
    for number, (key, value, _) in enumerate(sent):
        careful.append(_sit(Judge(judge.snapshot, limits)).decide(key, value, records.headers(number), number, at))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(judging, "CAREFUL_AT_FIRST", 2)
        assert _in_order(_sit(judge).decide_all(records)) == careful


def _request(id_: str = "r-1", user: str = "dana", topic: str = "prod/main/orders-1", **more: Any) -> dict[str, Any]:
    return {
        "id": id_,
        "system": "lenses6",
        "subject": {"type": "user", "id": f"user:{user}"},
        "action": {"name": "kafka:GetTopicDetails"},
        "resource": {"type": "lrn", "id": f"kafka:topic:{topic}"},
        **more,
    }


def _taught() -> Judge:
    """A judge with plans for what dana and eve ask."""
    judge = Judge(SNAPSHOT, LIMITS)
    for user in ("dana", "eve"):
        for number in range(2):
            value = json.dumps(_request("t", user, f"prod/main/taught-{number}")).encode()
            _sit(judge).decide_all(Records(records_batch([(None, value, None)])))
    return judge


def test_long_names_of_resources_are_answered_and_not_kept() -> None:
    """Their producers choose how long they are, and what is kept lasts as long as the policies."""
    judge = _taught()
    for length in (RESOURCE_BYTES // 2 + 1, RESOURCE_BYTES + 1):
        for topic in (f"prod/main/{'x' * length}", f"prod/{'x' * length}/orders"):
            _compare([(None, json.dumps(_request(topic=topic)).encode(), None)], judge)
    resources = judge._plans[DEFAULT_TRUST]._families["lenses6"]._resources
    for parts in (resources._beginnings, resources._endings):
        assert RESOURCE_BYTES // 2 < max(map(len, parts)) <= RESOURCE_BYTES


def test_requests_of_a_plan_take_the_short_way(monkeypatch: pytest.MonkeyPatch) -> None:
    judge = _taught()
    monkeypatch.setattr(Sitting, "decide", None)  # whoever took the careful way now would fail
    sent = [(b"k", json.dumps(_request(f"r-{n}", topic=f"prod/main/t-{n}")).encode(), None) for n in range(100)]
    assert len(_values(_sit(judge).decide_all(Records(records_batch(sent))))) == 100


FAULTY = ("orders-1 ", " orders-1", "orders-1\xa0", "ord\u200bers-1", "e\u0301", "\u0301", "\xe9", "secret-1 ", "a: b")


@pytest.mark.parametrize("name", FAULTY)
@pytest.mark.parametrize("place", ["prod/main/{}", "prod/{}/orders-1", "{}/main/orders-1"])
def test_a_name_that_may_be_taken_for_another_gets_no_other_answer(name: str, place: str) -> None:
    """Written as it is, between requests that have a plan, and twice."""
    asked = [_request("r-2"), *[_request(f"r-{n}", topic=place.format(name)) for n in (3, 4)], _request("r-5")]
    sent = [(None, json.dumps(request, ensure_ascii=False).encode(), None) for request in asked]
    judge = _taught()
    for _ in range(2):
        _compare(sent, judge)


def test_a_workload_gets_the_same_answers() -> None:
    documents = workload.documents(100)
    snapshot = compile_documents(documents)
    judge, lone = Judge(snapshot, LIMITS), Judge(snapshot, LIMITS)
    values = [msgspec.json.encode(request) for request in workload.requests(documents, 3000)]
    made = _sit(judge).decide_all(Records(records_batch((value[:16], value, None) for value in values)))
    careful = [_sit(lone).decide(value[:16], value, None, n, AT) for n, value in enumerate(values)]
    assert _in_order(made) == careful


def test_a_first_batch_learns_from_its_first_records_and_decides_the_others_the_short_way() -> None:
    judge, first = Judge(SNAPSHOT, LIMITS), judging.CAREFUL_AT_FIRST
    sent: list[Sent] = [
        (b"k", json.dumps(_request(f"r-{n}", topic=f"prod/main/t-{n}")).encode(), None) for n in range(3 * first)
    ]
    made = _sit(judge).decide_all(Records(records_batch(sent)))
    assert ([len(lot.keys) for lot in made.shortly], len(made.others)) == ([2 * first], first)
    offsets = (json.loads(value)["context"]["source"]["offset"] for value in made.decisions())
    assert sorted(offsets) == list(range(3 * first))


def test_where_nothing_can_be_learnt_each_try_is_for_twice_as_many(monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[int] = []
    monkeypatch.setattr(judging, "CAREFUL_AT_FIRST", 10)
    monkeypatch.setattr(Plans, "answer", lambda _, __, left: tries.append(int(left.sum())) or iter(()))
    made = _sit(Judge(SNAPSHOT, LIMITS)).decide_all(Records(records_batch([(b"k", b"{", None)] * 100)))
    assert (tries, len(made.others)) == ([100, 90, 70, 30], 100)


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
    [{}, {}, {}, {"context": {}}, {"context": {"min_policy_offsets": {"x": {"0": 1}}}}, {"time": AT}, {"deadline": 1}]
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
def test_the_short_way_says_what_the_careful_way_says(sent: list[Sent]) -> None:
    """Also of records that were made to look like one of a plan, and in a batch with any others."""
    judge = _taught()
    _compare(sent, judge)
    _compare(sent, judge)


@settings(max_examples=100, deadline=None)
@given(lenses6.documents(), st.lists(lenses6.requests(), min_size=1, max_size=4), st.integers(0, 4))
def test_the_short_way_says_so_whatever_the_policies_are(
    documents: list[dict[str, Any]], asked: list[dict[str, Any]], at: int
) -> None:
    """In the epochs of documents that are valid for a time only, too; the third batch has plans for all of them."""
    judge = Judge(compile_documents(documents), LIMITS)
    for batch in range(3):
        told = ({**request, "id": f"{batch}-{n}", "time": None} for n, request in enumerate(asked))
        plain = ({name: value for name, value in request.items() if value is not None} for request in told)
        sent: list[Sent] = [(None, json.dumps(request).encode(), None) for request in plain]
        _compare(sent, judge, at=at)


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("PLANS_HELD", plans),
        ("ANSWERS_HELD", plans),
        ("PAIRS_HELD", plans),
        ("OBJECTS_HELD", matching),
        ("RESOURCES_HELD", matching),
    ],
)
def test_what_is_forgotten_is_learnt_anew(monkeypatch: pytest.MonkeyPatch, name: str, module: Any) -> None:
    """With room for next to nothing every batch forgets what the one before has learnt, and says the same."""
    monkeypatch.setattr(module, name, 2)
    judge = _taught()
    family = judge._plans[DEFAULT_TRUST]._families["lenses6"]
    for batch in range(6):
        users = ("dana", "eve", "zoe")[: 1 + batch % 3]
        asked = (_request(f"r-{batch}", user, f"prod/main/t-{n}") for user in users for n in range(3))
        _compare([(None, json.dumps(request).encode(), None) for request in asked], judge)
        family.make_room()
        held = {
            "PLANS_HELD": [family._keys],
            "ANSWERS_HELD": [family._told, family._numbers],
            "PAIRS_HELD": [family._grants, family._answers_of],
            "OBJECTS_HELD": [family._resources._members, family._holdings.grants],
            "RESOURCES_HELD": [family._resources._known, family._resources._beginnings, family._resources._endings],
        }
        assert all(len(one) <= 2 for one in held[name])


def test_where_no_plan_could_be_made_the_next_one_made_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    judge = Judge(SNAPSHOT, LIMITS)

    def ask(user: str, topic: str) -> None:
        _compare([(None, json.dumps(_request("r", user, f"prod/main/{topic}")).encode(), None)], judge)

    with monkeypatch.context() as patched:
        patched.setattr(matching.Holdings, "number", None)
        for n in range(2):
            ask("eve", f"secret-{n}")
    for n in range(2):
        ask("dana", f"secret-{n}")
    ask("eve", "secret-2")


def test_where_no_answer_could_be_kept_the_next_one_made_is_not_taken_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    judge = _taught()
    asked = [
        [(None, json.dumps(_request("r", user, "prod/main/secret-1")).encode(), None)]
        for user in ("eve", "dana", "eve")
    ]
    with monkeypatch.context() as patched:
        patched.setattr(plans, "label", None)
        _compare(asked[0], judge)
    for sent in asked[1:]:
        _compare(sent, judge)


LONG = "x" * 200


@pytest.mark.parametrize("missing", [0, 1])
@pytest.mark.parametrize(
    ("user", "topic", "tag"), [("dana", "t-1", ""), ("dana", LONG, ""), (LONG, "t-1", ""), ("dana", "t-1", LONG)]
)
def test_an_answer_of_the_short_way_is_as_large_as_it_may_be_and_no_larger(
    user: str, topic: str, tag: str, missing: int
) -> None:
    """Beside one that is smaller and fits: each gets its own."""
    snapshot = compile_documents(
        [role("open", "kafka:topic:prod/main/*"), group("open", "user:u", "user:dana", f"user:{LONG}")]
    )

    def ask(id_: str, user: str, topic: str, tag: str) -> Sent:
        request = _request(id_, user, f"prod/main/{topic}")
        request["resource"]["properties"] = {"tag": tag}
        return b"key", json.dumps(request).encode(), None

    taught = Judge(snapshot, LIMITS)
    for number in range(2):
        for name, said in (("u", ""), (user, tag)):
            _sit(taught).decide_all(Records(records_batch([ask("t", name, f"taught-{number}", said)])))
    small, large = ask("small", "u", "t", ""), ask("large", user, topic, tag)
    [(_, key, value, _)] = _in_order(_sit(taught).decide_all(Records(records_batch([large]))))
    taught.limits = Limits(record_out=len(key or b"") + len(value or b"") - missing)
    _compare([large, small], taught, taught.limits)
    made = _sit(taught).decide_all(Records(records_batch([large, small])))
    answers = (json.loads(value or b"") for _, _, value, _ in _in_order(made))
    decided = {answer["request_id"]: answer["decision"] for answer in answers}
    assert decided == {"small": True, "large": missing == 0}


@pytest.mark.parametrize("hidden", ["id", "resource"])
def test_texts_that_only_look_like_slots_are_not_taken_for_them(hidden: str) -> None:
    """An id of something else, which stands before the real one and says the same while a plan could be made of it."""
    judge = Judge(SNAPSHOT, LIMITS)
    for looks in ("same", "same", "same", "other"):
        request = _request("r-1", "dana", "prod/main/secret-1" if hidden == "resource" else "prod/main/orders-1")
        if hidden == "id":
            request = {"more": {"id": "r-1" if looks == "same" else "r-2"}, **request}
        else:
            resource = request["resource"]
            shown = {"id": resource["id"] if looks == "same" else "kafka:topic:prod/main/orders-1"}
            request = {**request, "resource": {"properties": shown, **resource}}
        judge._caches.clear()  # an answer that is remembered makes no plan
        _compare([(None, json.dumps(request).encode(), None)], judge)


def test_answers_too_large_for_columns_are_given_with_care(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, module, bytes_ in (("TOLD_BYTES", plans, 10), ("TEXT_BYTES", judging, 10)):
        with monkeypatch.context() as patched:
            patched.setattr(module, name, bytes_)
            judge = _taught()
            made = _sit(judge).decide_all(Records(records_batch([(None, json.dumps(_request()).encode(), None)])))
            assert (len(made.shortly), len(made.others)) == (0, 1)
    assert len(
        _sit(_taught()).decide_all(Records(records_batch([(None, json.dumps(_request()).encode(), None)]))).shortly
    )


def test_records_beyond_the_limits_are_refused_as_ever() -> None:
    sent: list[Sent] = [(b"k" * 90, json.dumps(_request(f"r-{n}" + "x" * n)).encode(), None) for n in range(0, 400, 20)]
    limits = Limits(record_in=400, record_out=1000)
    judge = Judge(SNAPSHOT, limits)
    for _ in range(3):
        _compare(sent, judge, limits)


def test_a_batch_in_which_a_document_ceases_to_be_valid_is_decided_with_care() -> None:
    ending = {**role("open", "kafka:topic:prod/main/*"), "valid_until": AT + 5}
    judge = Judge(compile_documents([ending, group("open", "user:dana")]), LIMITS)
    values = [(None, json.dumps(_request(f"r-{n}")).encode(), None) for n in range(10)]
    crossing = records_at((*value, AT + n) for n, value in enumerate(values))
    for _ in range(3):
        made = _sit(judge).decide_all(Records(crossing))
        assert [json.loads(value)["decision"] for value in _values(made)] == [True] * 5 + [False] * 5
        for at, allowed in ((AT, True), (AT + 5, False)):
            made = _sit(judge).decide_all(Records(records_batch(values, at)))
            assert [json.loads(value)["decision"] for value in _values(made)] == [allowed] * 10


def test_a_bug_in_the_short_way_costs_time_alone_and_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not what it says, in which a request's secrets may be."""
    judge = _taught()
    sent: list[Sent] = [
        (b"k", json.dumps(_request(f"r-{n}", topic=f"prod/main/t-{n}")).encode(), None) for n in range(3)
    ]

    def fail(*_: Any) -> Any:
        raise ValueError("secret")

    monkeypatch.setattr(judging, "lot_of", fail)
    with capture_logs() as told:
        _compare(sent, judge)
    assert [(line["log_level"], line["error"]) for line in told] == [("warning", "ValueError")]
    assert "secret" not in repr(told)


def test_each_decision_tells_its_own_requests_time_and_offset_where_others_go_the_careful_way() -> None:
    values = [b"{", *(json.dumps(_request(f"r-{n}")).encode() for n in range(3))]
    sent = [(b"k", value, None, AT + 1000 * late) for value, late in zip(values, (0, 3, 1, 2), strict=True)]
    made = _sit(_taught()).decide_all(Records(records_at(sent)))
    assert (len(made.shortly), len(made.others)) == (1, 1)
    careful = [
        _sit(Judge(SNAPSHOT, LIMITS)).decide(key, value, None, n, at) for n, (key, value, _, at) in enumerate(sent)
    ]
    assert _in_order(made) == careful
