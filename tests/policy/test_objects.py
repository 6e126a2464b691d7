"""The objects of grants, numbered: which match a name, and which grant decides among those on the same object."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

import policy.index
from policy import compile_documents
from policy.model import Grant
from policy.objects import Objects, decisive, index_of
from policy.patterns import Exact, Glob, Pattern, Prefix, matches
from streaming import workload

TEXTS = st.text("ab", max_size=2)
PARTS = st.one_of(st.builds(Exact, TEXTS), st.builds(Prefix, TEXTS), st.sampled_from([Glob("a*b"), Glob("*a*")]))
PATTERNS = st.builds(Pattern, st.lists(PARTS, max_size=3).map(tuple), st.booleans())
NAMES = st.lists(TEXTS, max_size=4).map(tuple)


@pytest.fixture(scope="module")
def some_grant() -> Grant:
    """Any grant, to make others from."""
    grants = compile_documents(workload.documents(10)).realms["lenses6"].grants
    return next(iter(grants.values()))[0]


def _on(grant: Grant, pattern: Pattern) -> Grant:
    return Grant(**{**{name: getattr(grant, name) for name in grant.__struct_fields__}, "object": pattern})


@given(st.lists(PATTERNS, max_size=8), st.lists(NAMES, max_size=5))
def test_the_objects_that_match_a_name_are_found(
    some_grant: Grant, patterns: list[Pattern], names: list[tuple[str, ...]]
) -> None:
    objects = Objects({"someone": [_on(some_grant, pattern) for pattern in patterns]})
    assert len(objects.numbers) == len(set(patterns))
    for name in names:
        expected = {number for pattern, number in objects.numbers.items() if matches(pattern, name)}
        found = objects.place(name).digest
        assert set(found) == expected
        assert list(found) == sorted(expected)


def test_what_the_index_forgets_is_found_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of places is bounded; a name leads to the same numbers before and after."""
    objects = compile_documents(workload.documents(300)).realms["lenses6"].objects
    names = [("kafka", "topic", f"env-{n % 12}", f"cluster-{n % 4}", f"orders-{n}") for n in range(200)]
    before = [objects.place(name).digest for name in names]
    objects._index.forget()
    monkeypatch.setattr(policy.index, "HELD", 3)
    assert [objects.place(name).digest for name in names] == before


def test_of_grants_on_one_object_the_decisive_one_is_told_by_its_number() -> None:
    realm = compile_documents(workload.documents(300)).realms["lenses6"]
    grants = [grant for held in realm.grants.values() for grant in held]
    told = index_of(grants).deciding(realm.objects)
    assert set(told) == set(realm.objects.numbers.values())
    several = 0
    for pattern, number in realm.objects.numbers.items():
        alike = [grant for grant in grants if grant.object == pattern]
        assert told[number] is decisive(alike)
        several += len(alike) > 1
    assert several > 0
