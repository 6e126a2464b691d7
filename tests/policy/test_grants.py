"""The one index of all grants finds what every grant says by itself, for any subject and its groups."""

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import policy.matching.grants
import policy.matching.index
from policy import compile_documents
from policy.core.caching import BUDGET
from policy.core.model import ALLOW, DENY, Grant, StatementId, Unanswerable
from policy.core.pattern import ANY, EVERYTHING, Exact, Glob, Name, Pattern, Prefix, matches
from policy.core.times import ALWAYS, Window
from policy.evaluation.evaluate import deny_overrides
from policy.matching.grants import Grants, without
from tests.bench import workload
from tests.examples import examples
from tests.work import work

checked = settings(max_examples=examples(100))
TEXTS = st.text("ab", max_size=2)
PARTS = st.one_of(st.builds(Exact, TEXTS), st.builds(Prefix, TEXTS), st.sampled_from([Glob("a*b"), Glob("*a*")]))
PATTERNS = st.builds(Pattern, st.lists(PARTS, max_size=3).map(tuple), st.booleans())
NAMES = st.lists(TEXTS, max_size=4).map(tuple)
PRINCIPALS = ("user:a", "role:b", "role:c")
WINDOWS = st.sampled_from([ALWAYS, Window(10, 20), Window(None, 15)])
GRANTS = st.builds(
    Grant,
    st.sampled_from(PRINCIPALS),
    st.sampled_from([ALLOW, DENY]),
    PATTERNS,
    PATTERNS,
    st.builds(StatementId, st.sampled_from(["lenses6/Role/x", "lenses6/Role/y"]), st.integers(0, 3)),
    WINDOWS,
)


def _index(*grants: Grant) -> Grants:
    return Grants().with_changes([], grants)


def _one_by_one(grants: Sequence[Grant], principals: Sequence[str], names: tuple[Name, Name], at: int) -> list[Grant]:
    permission, resource = names
    return [
        grant
        for grant in grants
        if grant.principal in principals
        and matches(grant.permission, permission)
        and matches(grant.object, resource)
        and grant.window.holds(at)
    ]


ASKED = st.lists(
    st.tuples(st.sets(st.sampled_from(PRINCIPALS)), NAMES, NAMES, st.sampled_from([5, 12, 17, 30])), max_size=6
)


@checked
@given(st.lists(GRANTS, max_size=10), ASKED)
def test_what_is_found_is_what_each_grant_says_by_itself(
    grants: list[Grant], asked: list[tuple[set[str], Name, Name, int]]
) -> None:
    """By the resource's name and by the state of the trie; again, as states are made at the first time."""
    _check(_index(*grants), grants, asked)


@checked
@given(st.lists(st.lists(GRANTS, max_size=8), max_size=5), ASKED, st.data())
def test_after_each_change_it_is_what_the_grants_say_that_are_left(
    rounds: list[list[Grant]], asked: list[tuple[set[str], Name, Name, int]], data: st.DataObject
) -> None:
    """An index does not change with those that are made of it."""
    grants, index, earlier = list[Grant](), Grants(), list[tuple[Grants, list[Grant]]]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(policy.matching.grants, "LISTED", 2)
        for added in rounds:
            removed = [grant for grant in grants if data.draw(st.booleans())]
            grants = [*without(grants, removed), *added]
            index = index.with_changes(removed, added)
            earlier.append((index, grants))
        for index, grants in earlier:
            _check(index, grants, asked)


def _check(index: Grants, grants: list[Grant], asked: list[tuple[set[str], Name, Name, int]]) -> None:
    for principals, permission, resource, at in (*asked, *asked):
        effective = index.effective(dict.fromkeys(sorted(principals)), permission, at)
        found = effective.on(resource)
        assert Counter(effective.at(index.state(resource))) == Counter(found)
        expected = _one_by_one(grants, sorted(principals), (permission, resource), at)
        assert Counter(found) == Counter(expected)


def _grant(principal: str, resource: Pattern = EVERYTHING, effect: str = ALLOW, **fields: object) -> Grant:
    return Grant(principal, effect, EVERYTHING, resource, StatementId("lenses6/Role/x", 0), **fields)  # type: ignore[arg-type]


def test_what_matches_for_a_time_only_cannot_be_answered_without_a_time() -> None:
    index = _index(_grant("a", window=Window(10, 20)), _grant("b", Pattern((Exact("x"),))))
    with pytest.raises(Unanswerable):
        index.effective({"a": None, "b": None}, ("p",), None).on(("x",))
    assert index.effective({"b": None}, ("p",), None).on(("x",))


def test_what_is_forgotten_is_found_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of answers and of states is bounded; nothing else changes."""
    documents = workload.documents(150)
    requests = list(workload.requests(documents, 100))
    before = [policy.decide(compile_documents(documents), request) for request in requests]
    monkeypatch.setattr(BUDGET, "most", 3000)
    monkeypatch.setattr(policy.matching.index, "STATES_KEPT", 3)
    snapshot = compile_documents(documents)
    assert [policy.decide(snapshot, request) for request in (*requests, *requests)] == [*before, *before]


def _prefixes(count: int) -> Iterable[Pattern]:
    return (Pattern((Exact("kafka"), Prefix(f"{number}-")), open=True) for number in range(count))


SHAPES = {
    "many principals with a lone *": lambda size: [_grant(f"role:{n}") for n in range(size)],
    "one role with many resources": lambda size: [_grant("role:0", each) for each in _prefixes(size)],
    "many roles, a resource each": lambda size: [_grant(f"role:{n}", each) for n, each in enumerate(_prefixes(size))],
    "many permissions on one resource": lambda size: [
        Grant("role:0", ALLOW, Pattern((Exact(f"p{n}"), ANY)), EVERYTHING, StatementId("lenses6/Role/x", n))
        for n in range(size)
    ],
}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_decision_costs_the_same_whatever_the_number_of_grants(shape: str) -> None:
    """The first one of a subject, too: no subject has an index of its own."""
    steps = []
    for size in (100, 10_000):
        index = _index(*SHAPES[shape](size))
        index.effective({"user:z": None}, ("p1", "x"), 0).on(
            ("kafka", "other")
        )  # the trie's first states are made once

        def first_of_a_subject(index: Grants = index) -> None:
            principals = dict.fromkeys(["user:a", *(f"role:{number}" for number in range(10))])
            assert index.effective(principals, ("p1", "x"), 0).on(("kafka", "1-orders"))

        steps.append(work(first_of_a_subject))
    assert steps[1] <= 2 * steps[0], steps


def test_the_denies_determine_a_decision_sorted_by_statement_else_the_allows() -> None:
    """Whatever the order in which they match: the first one is the reason that is given."""
    grants = [
        Grant("r", effect, EVERYTHING, EVERYTHING, StatementId("lenses6/Role/x", number))
        for number, effect in enumerate((ALLOW, DENY, DENY, ALLOW))
    ]
    for order in itertools.permutations(grants):
        allows = [grant for grant in order if grant.effect == ALLOW]
        assert [grant.statement_id.statement for grant in deny_overrides(order)] == [1, 2]
        assert [grant.statement_id.statement for grant in deny_overrides(allows)] == [0, 3]
    assert deny_overrides([]) == ()
