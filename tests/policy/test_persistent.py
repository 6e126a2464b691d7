"""A persistent mapping is a mapping, and its copies do not change with it."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policy.core import persistent
from policy.core.persistent import Names, PersistentMap

WRITES = st.lists(st.tuples(st.integers(0, 40), st.none() | st.integers()), max_size=200)


@settings(max_examples=100, deadline=None)
@given(st.lists(WRITES, max_size=5))
def test_every_copy_stays_what_it_was(rounds: list[list[tuple[int, int | None]]]) -> None:
    """In shards of four, so that there are many."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(persistent, "FULL", 4)
        found, model = PersistentMap[int, int](), dict[int, int]()
        copies: list[tuple[PersistentMap[int, int], dict[int, int]]] = []
        for writes in rounds:
            for key, value in writes:
                if value is None:
                    found.discard(key)
                    model.pop(key, None)
                else:
                    found[key] = model[key] = value
            copies.append((found.copy(), dict(model)))
        for copy, then in copies:
            assert dict(copy.items()) == then
            assert (len(copy), set(copy)) == (len(then), set(then))
            assert all(copy.get(key) == then.get(key) and (key in copy) == (key in then) for key in range(41))


def test_a_copy_shares_all_but_what_is_written_after_it() -> None:
    """Whatever its size, so a change of one fact among a million costs as much as among a thousand."""
    found = PersistentMap({number: number for number in range(100_000)})
    copy = found.copy()
    for number in range(10):
        found[number] = -1
    shared = sum(one is another for one, another in zip(found._shards, copy._shards, strict=True))
    assert len(found._shards) - shared <= 10
    assert max(map(len, found._shards)) < 1000
    assert [copy.get(number) for number in range(10)] == list(range(10))


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.sampled_from("ab"), st.integers(0, 200)), max_size=300))
def test_names_by_key_are_sets_large_or_small(changes: list[tuple[bool, str, int]]) -> None:
    names, model, copies = Names(), dict[str, set[str]](a=set(), b=set()), list[tuple[Names, dict[str, Any]]]()
    for number, (add, key, name) in enumerate(changes):
        (names.add if add else names.discard)(("k", key, ""), str(name))
        (model[key].add if add else model[key].discard)(str(name))
        if number % 20 == 0:
            copies.append((names.copy(), {key: frozenset(held) for key, held in model.items()}))
    for copy, then in [*copies, (names, model)]:
        assert {key: copy.find(("k", key, "")) for key in "ab"} == then


def test_a_set_of_many_names_is_not_copied_for_one_more() -> None:
    names, key = Names(), ("Entity", "parent", "namespace:n")
    for number in range(20_000):
        names.add(key, str(number))
    copy = names.copy()
    names.add(key, "one more")
    large, before = names._sets.get(key), copy._sets.get(key)
    assert isinstance(large, PersistentMap)
    assert isinstance(before, PersistentMap)
    assert sum(one is not another for one, another in zip(large._shards, before._shards, strict=True)) == 1
    assert len(copy.find(key)) == 20_000
