"""Which grants decide, in numbers: the same as grant by grant."""

import contextlib
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policy import compile_documents
from policy.grants import Grants
from policy.model import Unanswerable
from policy.systems import all_systems
from policy.systems.lenses6.grammar import resource_name
from streaming import workload
from streaming.enforcer import matching
from streaming.enforcer.matching import HALF, NOTHING, UNKNOWN, Deciding, Growing, Pairs, Resources, each

REALM = compile_documents(workload.documents(60)).realms["lenses6"]
PRINCIPALS = st.lists(st.sampled_from(sorted(REALM.grants)), max_size=3)
PERMISSIONS = st.sampled_from([("kafka", "ReadTopicData"), ("schemas", "ListSchemas")])
RESOURCES = st.sampled_from([request["resource"]["id"] for request in workload.requests(workload.documents(60), 40)])


@settings(max_examples=300)
@given(st.lists(st.tuples(PRINCIPALS, PERMISSIONS, RESOURCES), max_size=8))
def test_the_grant_that_decides_is_the_first_of_those_that_match(
    asked: list[tuple[list[str], tuple[str, str], str]],
) -> None:
    resources = _resources()
    deciding = Deciding(resources)
    for principals, permission, id_ in asked:
        effective = REALM.index.effective(principals, permission, 0, 0)
        [state] = resources.numbers(pa.array([id_.encode()], pa.binary())).tolist()
        [number] = deciding.find(np.array([deciding.number(effective) << HALF | state]))
        expected = effective.on(resource_name(id_))
        assert (number == NOTHING) == (not expected)
        assert number == NOTHING or deciding.grants[number] is expected[0]


def test_the_same_effective_permissions_have_the_same_number() -> None:
    deciding, index = Deciding(_resources()), REALM.index
    one, other = (
        index.effective([principal], ("kafka", "ReadTopicData"), 0, 0) for principal in sorted(REALM.grants)[:2]
    )
    assert deciding.number(one) == deciding.number(one)
    assert deciding.number(one) != deciding.number(other)


def _resources() -> Resources:
    name_of = all_systems()["lenses6"].name_of_resource
    assert name_of is not None
    return Resources(name_of, REALM.index)


def test_resources_are_read_once_and_told_apart_by_the_patterns_that_match_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ids = [request["resource"]["id"] for request in workload.requests(list(workload.documents(60)), 300)]
    resources, name_of = _resources(), all_systems()["lenses6"].name_of_resource
    assert name_of is not None
    asked = pa.array([id_.encode() for id_ in ids], pa.binary())
    numbers = resources.numbers(asked)
    assert [resources.state(number) for number in numbers.tolist()] == [REALM.index.state(name_of(id_)) for id_ in ids]
    monkeypatch.setattr(Grants, "state", None)  # whoever looked again now would not know
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
            expected = REALM.index.state(name_of(id_)) if "/" in id_ else None
        assert (number == UNKNOWN) == (expected is None)
        if expected is not None:
            assert resources.state(number) is expected


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
