"""Audit events that are evaluated by prepared queries get the verdicts of those that are evaluated one by one."""

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from policy import compile_documents
from policy.core.document import SINCE_EVER
from policy.store.documents import DocumentStore
from policy.store.overlay import FactOverlay
from policy.store.snapshot import Snapshot
from policy.systems import all_systems
from streaming.enforcer import auditing
from streaming.enforcer.auditing import AuditAnswers, AuditEvaluator
from streaming.enforcer.evaluator import Source
from streaming.records.packing import Outgoing
from streaming.settings import DEFAULT_TRUST, Limits
from tests.examples import examples
from tests.policy.test_answers import UNHURRIED, change, deletion, spoiled
from tests.policy.test_properties import WRITTEN, dated, requests_of
from tests.stream.test_auditing import AT, GRANTED
from tests.stream.world import request

MOMENTS = st.integers(0, 12)
IDS = st.sampled_from(["e-1", "e-1", "", 'a"b', "→", "a\\b", 7])


@contextlib.contextmanager
def unprepared() -> Iterator[None]:
    """While it is open, each event is evaluated by itself."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(AuditEvaluator, "_kept", lambda *_: None)
        yield


def _for_partition(answers: AuditAnswers) -> AuditEvaluator:
    return AuditEvaluator(Source("audit", 3, "topic-id", DEFAULT_TRUST, 2), 1, lambda _at: answers, Limits())


def _evaluated(partition_evaluator: AuditEvaluator, events: list[tuple[bytes, int]]) -> list[Outgoing]:
    return [partition_evaluator.decide(b"key", value, None, number, at) for number, (value, at) in enumerate(events)]


def _compare(events: list[tuple[bytes, int]], kept: AuditAnswers, fresh: AuditAnswers) -> AuditEvaluator:
    """The kept answers twice beside those that know nothing and prepare nothing. Returns the last evaluator."""
    with unprepared():
        lone = _for_partition(fresh)
        expected = _evaluated(lone, events)
    for _ in range(2):
        partition_evaluator = _for_partition(kept)
        assert _evaluated(partition_evaluator, events) == expected
        assert partition_evaluator.counts == lone.counts
    return partition_evaluator


@st.composite
def _events(draw: st.DrawFn, system: str) -> list[tuple[bytes, int]]:
    found = []
    for asked in draw(st.lists(requests_of(system), min_size=1, max_size=3)):
        more = {"id": draw(IDS), "outcome": draw(st.sampled_from(["success", "failure", "failure", None, "x"]))}
        more |= draw(st.sampled_from([{}, {}, {"decision_id": "d"}, {"decision_id": None}, {"decision_id": 'a"'}]))
        more |= draw(st.sampled_from([{}, {}, {}, {"event": "login"}, {"event": None}, {"evaluations": [1]}]))
        plain = {name: part for name, part in asked.items() if name not in ("time", "deadline")}
        moments = draw(st.lists(MOMENTS, min_size=1, max_size=4))
        found += [(json.dumps({**plain, **more}).encode(), at) for at in moments]
        found += [(json.dumps({**plain, **more, "time": at}).encode(), 6) for at in moments]
    return found


@pytest.mark.parametrize("system", WRITTEN)
@settings(max_examples=examples(18), deadline=None, suppress_health_check=UNHURRIED)
@given(data=st.data())
def test_at_every_moment_by_what_was_in_force_and_known_of_it(system: str, data: st.DataObject) -> None:
    """Over validity windows and changes of facts: good ones, refused ones, deletions, some reported late."""
    kinds = {name for name, kind in all_systems()[system].kinds.items() if kind.fact}
    documents = [msgspec.json.decode(msgspec.json.encode(document)) for document in data.draw(dated(system))]
    policies, facts, overlay = (
        DocumentStore(),
        DocumentStore(facts_only=True),
        FactOverlay(all_held_after=SINCE_EVER - 1),
    )
    for order, document in enumerate(documents):
        document.pop("effective_at", None)
        if document["kind"] not in kinds:
            policies.put(document, order, order)
    overlay.sees_all_from_now(data.draw(st.sampled_from([SINCE_EVER, 3])))
    changes = [document for document in documents if document["kind"] in kinds]
    steps = data.draw(st.permutations([*changes, *map(spoiled, changes), *map(deletion, changes), *changes]))
    moments = sorted(data.draw(st.lists(MOMENTS, min_size=len(steps), max_size=len(steps))))
    compiled, events = Snapshot(policies), data.draw(_events(system))
    kept = AuditAnswers(compiled, DEFAULT_TRUST, 100, overlay)
    for at, document in [(0, None), *zip(moments, steps, strict=True)]:
        if document is not None:
            kept.follow_facts([(system, lookup) for lookup in overlay.apply(change(facts, document, at))])
        _compare(events, kept, AuditAnswers(compiled, DEFAULT_TRUST, 100, overlay))
        event(f"prepared {len(kept)}")


def _event(**changes: Any) -> bytes:
    return json.dumps({**request("e-1", "dana", "orders"), "outcome": "success", **changes}).encode()


def test_events_that_are_alike_are_evaluated_by_a_prepared_query(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = AuditAnswers(GRANTED, DEFAULT_TRUST, 9)
    events = [(_event(id=f"e-{number}", time=AT - number), AT) for number in range(5)]
    _compare(events, answers, AuditAnswers(GRANTED, DEFAULT_TRUST, 9))
    monkeypatch.setattr(auditing, "read_event", None)  # an event that is evaluated by itself would fail
    assert [number for number, *_ in _evaluated(_for_partition(answers), events)] == [1] * 5


@pytest.mark.parametrize(
    "value",
    [
        b'{"resource":7,' + _event()[1:],
        _event().replace(b'"type":', b'"type": 7, "type":'),
        _event() + b"\xff",
        _event(unknown="\udcff").replace(b"\\udcff", b"\xff"),
        _event(context=[[[[]]]]),
        _event(context=json.loads("[" * 40 + "]" * 40)),
        _event(time="yesterday"),
        _event(system=""),
        b"\xc3\x01rest",
        b"\xc3\x01of no release",
    ],
)
def test_what_only_looks_like_an_event_of_a_prepared_query_gets_what_it_would_get_alone(value: bytes) -> None:
    answers = AuditAnswers(GRANTED, DEFAULT_TRUST, 9)
    with capture_logs() as logs:
        _compare([(_event(), AT), (value, AT), (_event(), AT)], answers, AuditAnswers(GRANTED, DEFAULT_TRUST, 9))
    assert logs == [], "a fault of the event is none of lockkeeper's"


def test_a_bug_costs_time_alone_and_is_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = AuditAnswers(GRANTED, DEFAULT_TRUST, 9)
    monkeypatch.setattr(AuditAnswers, "find", None)
    with capture_logs() as logs:
        _compare([(_event(), AT)] * 2, answers, AuditAnswers(GRANTED, DEFAULT_TRUST, 9))
    assert {(line["log_level"], line["error"]) for line in logs} == {("warning", "TypeError")}


def test_what_is_not_known_any_more_of_a_moment_is_not_answered_by_what_is_known_of_a_later_one() -> None:
    acl = {"user:dana": ["READ"]}
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
    overlay.sees_all_from_now(5)
    login = {"system": "streamsets", "kind": "Session", "name": "nora", "spec": {"login_at": 9}}
    overlay.apply(change(facts, login, 9))
    asked = {
        "subject": {"type": "user", "id": "dana", "properties": {"organization": "acme"}},
        "action": {"name": "pipeline.view"},
        "resource": {"type": "pipeline", "id": "pipeline:p"},
    }
    events = [(_event(system="streamsets", **asked), at) for at in (6, 4, 7)]
    kept, fresh = (AuditAnswers(compile_documents(documents), DEFAULT_TRUST, 9, overlay) for _ in range(2))
    _compare(events, kept, fresh)
    assert [json.loads(value or b"")["outcome"] for _, _, value, _ in _evaluated(_for_partition(kept), events)] == [
        "allow",
        "unknown",
        "allow",
    ]
