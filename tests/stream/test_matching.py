"""Which grants decide, in numbers: the same as grant by grant."""

import contextlib
import gc
import weakref
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policy import compile_documents
from policy.model import Grant, Unanswerable
from policy.objects import Objects, decisive
from policy.systems import all_systems
from streaming import workload
from streaming.enforcer import matching
from streaming.enforcer.matching import HALF, NOTHING, UNKNOWN, Growing, Holdings, Pairs, Resources, each

REALM = compile_documents(workload.documents(60)).realms["lenses6"]
GRANTS = [grant for held in REALM.grants.values() for grant in held]
TABLES = st.dictionaries(st.integers(0, 6), st.sampled_from(GRANTS), max_size=5)
HOLDINGS = st.lists(TABLES, max_size=3).map(tuple)
OBJECTS = st.lists(st.integers(0, 6), max_size=4, unique=True).map(sorted)


@settings(max_examples=300)
@given(st.lists(HOLDINGS, min_size=1, max_size=4), st.lists(st.tuples(st.integers(0, 3), OBJECTS), max_size=8))
def test_the_grant_that_decides_is_the_decisive_one_of_all_that_are_held_on_the_objects(
    held: list[tuple[dict[int, Grant], ...]], asked: list[tuple[int, list[int]]]
) -> None:
    """Also when new ones are held from one batch to the next."""
    holdings = Holdings()
    for _ in range(2):
        numbers = [holdings.number(tables) for tables in held]
        which = [place % len(held) for place, _ in asked]
        objects = [number for _, members in asked for number in members]
        found = holdings.deciding(
            np.array([numbers[place] for place in which], np.int64),
            np.array(objects, np.int64),
            np.array([len(members) for _, members in asked], np.int64),
        )
        for place, (_, members), number in zip(which, asked, found.tolist(), strict=True):
            matching_ = [table[object_] for table in held[place] for object_ in members if object_ in table]
            told = None if number == NOTHING else holdings.grants[number]
            expected = decisive(matching_) if matching_ else None
            assert (told is None) == (expected is None)
            if told is not None and expected is not None:
                assert (told.effect, told.origin, told.holder) == (expected.effect, expected.origin, expected.holder)
        held = [*held, ({0: GRANTS[0]},)]


def test_who_holds_the_same_has_the_same_number() -> None:
    holdings, one, other = Holdings(), {0: GRANTS[0]}, {0: GRANTS[0]}
    assert holdings.number((one,)) == holdings.number((one,))
    assert holdings.number((one,)) != holdings.number((other,)), "known by what they are, not by what they say"
    assert len(holdings.grants) == 2


class Table(dict[int, Grant]):
    """One that can be seen to be let go of."""


def test_what_a_holding_is_known_by_is_kept() -> None:
    """Known by its id, which another could have once it is gone: what that one holds would be taken for this."""
    holdings, table = Holdings(), Table({0: GRANTS[0]})
    known = weakref.ref(table)
    holdings.number((table,))
    del table
    gc.collect()
    assert known() is not None


def _resources() -> Resources:
    name_of = all_systems()["lenses6"].name_of_resource
    assert name_of is not None
    return Resources(name_of, REALM.objects)


def test_resources_are_read_once_and_told_apart_by_the_objects_that_match_them(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = [request["resource"]["id"] for request in workload.requests(list(workload.documents(60)), 300)]
    resources, name_of = _resources(), all_systems()["lenses6"].name_of_resource
    assert name_of is not None
    asked = pa.array([id_.encode() for id_ in ids], pa.binary())
    numbers = resources.numbers(asked)
    members, counts = resources.members(numbers)
    parts = np.split(members, np.cumsum(counts)[:-1])
    assert [tuple(part.tolist()) for part in parts] == [REALM.objects.place(name_of(id_)).digest for id_ in ids]
    monkeypatch.setattr(Objects, "place", None)  # whoever looked again now would not know
    assert resources.numbers(asked).tolist() == numbers.tolist()


IDS = st.one_of(
    st.text("ab:/", max_size=12),
    st.builds(lambda head, rest: head + rest, st.sampled_from(["kafka:topic:", "kafka:topic:env-1/"]), st.text("a/ü:")),
)


@settings(max_examples=500)
@given(st.lists(IDS, max_size=8))
def test_an_id_without_a_name_or_slash_needs_more_care_and_others_get_what_their_name_matches(ids: list[str]) -> None:
    """In whatever order they come: what an id ends and begins with is known from others."""
    resources, name_of = _resources(), all_systems()["lenses6"].name_of_resource
    assert name_of is not None
    numbers = resources.numbers(pa.array([id_.encode() for id_ in ids], pa.binary())).tolist()
    for id_, number in zip(ids, numbers, strict=True):
        expected = None
        with contextlib.suppress(Unanswerable):
            expected = REALM.objects.place(name_of(id_)).digest if "/" in id_ else None
        assert (number == UNKNOWN) == (expected is None)
        if expected is not None:
            members, _ = resources.members(np.array([number]))
            assert tuple(members.tolist()) == expected


def test_resources_are_forgotten_when_there_are_too_many_and_get_the_same_numbers_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(matching, "RESOURCES_HELD", 2)
    resources = _resources()
    asked = pa.array([f"kafka:topic:env-1/cluster-1/t-{n}".encode() for n in range(5)], pa.binary())
    before = resources.numbers(asked).tolist()
    assert resources.make_room()
    assert not any(map(len, (resources._known, resources._beginnings, resources._endings)))
    assert resources.numbers(asked).tolist() == before


@given(st.lists(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)))))
def test_pairs_are_found_once_and_known_from_then_on(batches: list[list[tuple[int, int]]]) -> None:
    pairs, looked = Pairs(), list[int]()

    def find(new: Any) -> list[int]:
        looked.extend(new.tolist())
        return [-number for number in new.tolist()]

    for batch in batches:
        asked = [first << HALF | second for first, second in batch]
        assert pairs.numbers(np.array(asked, np.int64), find).tolist() == [-number for number in asked]
    everything = {first << HALF | second for batch in batches for first, second in batch}
    assert sorted(looked) == sorted(everything)
    assert len(pairs) == len(everything)


def test_each_distinct_value_is_looked_for_once() -> None:
    looked: list[Any] = []

    def find(value: bytes) -> int:
        looked.append(value)
        return 7

    assert each(pa.array([b"a", b"b", b"a", b"b"]), {b"a": 1}, find).tolist() == [1, 7, 1, 7]
    assert looked == [b"b"]


def test_growing_numbers_are_all_that_were_appended() -> None:
    numbers = Growing()
    assert numbers.array().tolist() == []
    for n in range(3):
        numbers.extend([n, n])
        assert len(numbers) == 2 * n + 2
    assert numbers.array().tolist() == [0, 0, 1, 1, 2, 2]
    numbers.extend([9])
    assert numbers.array().tolist()[-1] == 9
