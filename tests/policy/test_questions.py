"""Remembered questions: what a change answers otherwise is what the reference evaluator does, and nothing else."""

import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from policy import CLAIMS, Snapshot, compile_documents
from policy.analysis import Affected, Answer, Question, Questions, Turned, affected_by, question_of
from policy.core.request import Request, parse_request
from policy.evaluation import reference
from tests.access_changes.traffic import document
from tests.access_changes.traffic import request as asked_of
from tests.cli.documents import request
from tests.examples import examples
from tests.policy.changes import Change
from tests.policy.test_changes_reported import LATEST, MOMENT, change_of, pool_of, thinned
from tests.policy.test_properties import WRITTEN, documents_of
from tests.policy.test_widening import group, role

CHANGES, LONG = 30, 100
PHASES = (Phase.explicit, Phase.generate)
Outcomes = dict[bytes, str]


def question(value: dict[str, Any]) -> Question:
    """What a request asks."""
    parsed = parse_request({**value, "time": None, "deadline": None})
    assert isinstance(parsed, Request)
    return question_of(parsed, CLAIMS)


def outcomes(snapshot: Snapshot, requests: list[dict[str, Any]], at: int) -> Outcomes:
    """What the reference evaluator answers at a moment, by question."""
    return {question(one).key: str(reference.decide(snapshot, {**one, "time": at})) for one in requests}


def turned(before: Outcomes, after: Outcomes) -> dict[bytes, tuple[str, str]]:
    """The questions that are answered otherwise."""
    return {key: (was, after[key]) for key, was in before.items() if was != after[key]}


def reported(found: list[Turned]) -> dict[bytes, tuple[str, str]]:
    """The same of what is reported; each once."""
    assert len({one.question.key for one in found}) == len(found)
    return {one.question.key: (one.before.outcome, one.after.outcome) for one in found}


def check(change: Change, requests: list[dict[str, Any]], seen: Counter[str]) -> None:
    """A change, and then the time that passes: what turns is reported, and nothing else."""
    name = change.system.name
    memory = Questions(change.before, MOMENT)
    for one in requests:
        assert memory.remember(question(one), MOMENT) == []
    before = outcomes(change.before, requests, MOMENT)
    for snapshot, affected, at in (
        (change.after, [affected_by(name, change.edits)], MOMENT),
        *((change.after, list[Affected](), moment) for moment in range(MOMENT + 1, LATEST + 1)),
    ):
        after = outcomes(snapshot, requests, at)
        expected = turned(before, after)
        assert reported(memory.follow(snapshot, affected, at)) == expected, (at, change.documents)
        seen.update(f"{was} → {now}" for was, now in expected.values())
        before = after


def look_at_changes(system: str, count: int) -> Counter[str]:
    """How many questions turned, from what to what, in so many changes."""
    pool, seen = pool_of(system), Counter[str]()

    @settings(max_examples=count, deadline=None, suppress_health_check=list(HealthCheck), phases=PHASES)
    @given(documents_of(system), documents_of(system), st.integers(0, 1 << 32))
    def each(old: list[Any], others: list[Any], seed: int) -> None:
        if not (old and others):
            return
        chance = random.Random(seed)
        old = thinned(chance, old)
        change = change_of(chance, system, old, others)
        seen["changes"] += 1
        check(change, chance.sample(pool, 60), seen)

    each()
    return seen


@pytest.mark.parametrize("system", WRITTEN)
def test_what_turns_is_what_the_reference_evaluator_answers_otherwise(system: str) -> None:
    assert look_at_changes(system, examples(CHANGES))["changes"] > 0


@pytest.mark.long
@pytest.mark.parametrize("system", WRITTEN)
def test_what_turns_in_a_hundred_changes(system: str) -> None:
    seen = look_at_changes(system, LONG)
    print(f"{system}: {dict(seen)}")
    assert len(seen) > 1


ROLE, MEMBER = role("r", "kafka:topic:prod/main/orders"), group("g", ["r"], "user:dana")
ASKED = question(request())


def changed(old: list[Any], new: list[Any]) -> Change:
    """Documents in place of others."""
    return Change("lenses6", old, new)


def test_a_revocation_is_reported_once_with_the_statements_before_and_after() -> None:
    change = changed([ROLE, MEMBER], [group("g", ["r"])])
    memory = Questions(change.before, 0)
    for _ in range(3):
        memory.remember(ASKED, 0)
    assert len(memory) == 1
    [found] = memory.follow(change.after, [affected_by("lenses6", change.edits)], 1)
    assert (found.before.outcome, found.after.outcome) == ("allow", "deny")
    assert [str(one) for one in found.before.statements] == ["lenses6/Role/r statement 0"]
    assert found.after == Answer("deny")
    assert memory.follow(change.after, [affected_by("lenses6", change.edits)], 2) == []


def test_time_bound_access_that_ends_is_reported_when_it_does() -> None:
    bound = {**MEMBER, "valid_until": 1000}
    snapshot = compile_documents([ROLE, bound])
    memory = Questions(snapshot, 0)
    memory.remember(ASKED, 0)
    assert memory.follow(snapshot, [], 999) == []
    [found] = memory.follow(snapshot, [], 1000)
    assert found.after.outcome == "deny"


def test_what_was_decided_before_a_change_and_is_remembered_after_it_is_reported_then() -> None:
    change = changed([ROLE, MEMBER], [group("g", ["r"])])
    memory = Questions(change.before, 0)
    memory.follow(change.after, [affected_by("lenses6", change.edits)], 1)
    [found] = memory.remember(ASKED, 0, 0)
    assert (found.before.outcome, found.after.outcome, found.state, found.at) == ("allow", "deny", 1, 1)
    assert memory.remember(ASKED, 0, 0) == []
    assert memory.remember(ASKED, 2) == []


def test_what_was_asked_earlier_than_is_known_is_reported_for_the_states_in_between_alone() -> None:
    change = changed([ROLE, MEMBER], [group("g", ["r"])])
    gone = [affected_by("lenses6", change.edits)]
    memory = Questions(change.before, 0)
    memory.follow(change.after, gone, 1)
    memory.follow(change.before, gone, 2)
    assert memory.remember(ASKED, 2, 2) == []
    memory.follow(change.after, gone, 3)
    found = memory.remember(ASKED, 0, 0)
    assert [(one.before.outcome, one.after.outcome, one.at) for one in found] == [
        ("allow", "deny", 1),
        ("deny", "allow", 2),
    ]
    assert memory.remember(ASKED, 0, 0) == []


def test_a_decision_that_has_not_seen_all_before_its_state_is_compared_with_it() -> None:
    change = changed([ROLE, MEMBER], [group("g", ["r"])])
    memory = Questions(change.before, 0)
    memory.follow(change.after, [affected_by("lenses6", change.edits)], 1)
    [found] = memory.remember(ASKED, 1, 1, Answer("allow"))
    assert (found.before.outcome, found.after.outcome, found.at) == ("allow", "deny", 1)
    assert memory.remember(ASKED, 1, 1, Answer("allow")) == []


def test_the_moments_at_which_something_begins_or_ends_are_known_beforehand() -> None:
    snapshot = compile_documents([ROLE, {**MEMBER, "valid_from": 500, "valid_until": 1000}])
    memory = Questions(snapshot, 0)
    assert memory.next_edge() == 500
    memory.follow(snapshot, [], 500)
    assert memory.next_edge() == 1000
    memory.follow(snapshot, [], 1000)
    assert memory.next_edge() is None


def test_of_too_many_questions_the_oldest_are_forgotten_and_counted() -> None:
    change = changed([ROLE, MEMBER], [group("g", ["r"])])
    memory = Questions(change.before, 0, most=2)
    memory.remember(ASKED, 0)
    for topic in ("a", "b"):
        memory.remember(question(request(topic=topic)), 1)
    assert (len(memory), memory.forgotten) == (2, 1)
    assert memory.follow(change.after, [affected_by("lenses6", change.edits)], 2) == []


def test_a_question_that_is_not_asked_for_long_is_forgotten_and_one_that_is_asked_again_is_kept() -> None:
    snapshot = compile_documents([ROLE, MEMBER])
    memory = Questions(snapshot, 0, kept_ms=100)
    memory.remember(ASKED, 0)
    memory.remember(question(request(topic="a")), 0)
    memory.remember(ASKED, 90)
    memory.follow(snapshot, [], 150)
    assert (len(memory), memory.forgotten) == (1, 0)


def test_what_is_noted_of_ends_is_bounded_by_the_questions() -> None:
    dated = {"system": "lenses5", "kind": "ConsumerGroup", "name": "c1", "effective_at": 10**6}
    snapshot = compile_documents([document("lenses5", 1, ["u"]), {**dated, "spec": {"connection": "k", "topics": []}}])
    memory = Questions(snapshot, 0)
    memory.remember(question(asked_of("lenses5", "u1", 1, of_consumers=True)), 0)
    reads = Affected("lenses5", lookups=frozenset({("name", "ConsumerGroup", "c1")}))
    for at in range(1, 50):
        memory.follow(snapshot, [reads], at)
    assert (memory.next_edge(), len(memory._ends)) == (10**6, pytest.approx(1, abs=1))


def test_a_change_evaluates_the_questions_of_those_whom_it_names_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    change = changed([ROLE, MEMBER, group("h", ["r"], "user:eve")], [group("h", [], "user:eve")])
    memory = Questions(change.before, 0)
    memory.remember(ASKED, 0)
    memory.remember(question(request("user:eve")), 0)
    evaluated: list[str] = []
    evaluate = Questions._evaluated

    def noting(self: Questions, one: Question, *arguments: Any) -> Any:
        evaluated.append(one.request.subject.id)
        return evaluate(self, one, *arguments)

    monkeypatch.setattr(Questions, "_evaluated", noting)
    assert len(memory.follow(change.after, [affected_by("lenses6", change.edits)], 1)) == 1
    assert evaluated == ["user:eve"]


def test_a_question_is_the_same_whatever_its_id_time_and_demanded_offsets() -> None:
    other = request(id="r-2", time=7, context={"min_policy_offsets": {"t": {"0": 1}}})
    assert question(other).key == ASKED.key
    assert question(request(system="cedar", context={"a": 1})).key != question(request(system="cedar")).key


def test_a_question_is_one_from_whatever_address_it_is_asked_unless_its_system_goes_by_that() -> None:
    """Else questions of one client with many addresses push out all others, and are reported as often."""
    addresses = [{"host": f"10.0.0.{number}", "min_policy_offsets": {}} for number in range(3)]
    for system, count in (("lenses6", 1), ("kafka-acls", 3), ("cedar", 3), ("unknown", 3)):
        asked = [{**request(), "system": system, "context": address} for address in addresses]
        assert len({question(one).key for one in asked}) == count, system
