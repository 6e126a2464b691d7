"""The algebra of patterns, each law held to what brute force over small names finds."""

import itertools
from collections import Counter
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import policy.matching.index
from policy.core.pattern import Exact, Glob, Name, Part, Pattern, Prefix, covers, matches, meet, overlaps, wildcard
from policy.evaluation import reference
from policy.matching.index import PatternIndex
from tests.examples import examples
from tests.work import work

TEXTS = [""] + ["".join(marks) for size in (1, 2, 3) for marks in itertools.product("abc", repeat=size)]
NAMES: list[Name] = [(), *((text,) for text in TEXTS), *itertools.product(TEXTS, repeat=2)]

checked = settings(max_examples=examples(100))
unhurried = settings(checked, deadline=None)
words = st.text(alphabet="ab", max_size=2)
globs = st.builds(Glob, st.text(alphabet="ab*?", max_size=3), st.booleans())
simple_parts: st.SearchStrategy[Part] = st.one_of(words.map(Exact), words.map(Prefix))
parts: st.SearchStrategy[Part] = st.one_of(simple_parts, globs)


def patterns(of: st.SearchStrategy[Part]) -> st.SearchStrategy[Pattern]:
    """Patterns of up to two parts."""
    return st.builds(Pattern, st.lists(of, max_size=2).map(tuple), st.booleans())


def matched(pattern: Pattern) -> set[Name]:
    """The small names that match."""
    return {name for name in NAMES if matches(pattern, name)}


@checked
@given(patterns(parts), st.sampled_from(NAMES))
def test_matching_is_what_the_reference_does_character_by_character(pattern: Pattern, name: Name) -> None:
    """`matches` and the reference's naive matcher agree."""
    assert matches(pattern, name) is reference._matches(pattern, name)


@settings(max_examples=examples(500))
@given(st.text(alphabet="ab*?", max_size=8), st.booleans(), st.text(alphabet="ab?\n", max_size=9))
def test_a_glob_of_many_pieces_is_what_the_reference_does(text: str, single: bool, probe: str) -> None:
    pattern, name = Pattern((Glob(text, single),)), (probe,)
    assert matches(pattern, name) is reference._matches(pattern, name)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("glob", ["*a" * 20 + "*b", "*.*.*_raw", "*-eu-*-log", "?*a?*a?b"])
def test_a_text_that_almost_matches_is_reported_at_once(glob: str) -> None:
    """The caller chooses it; a regular expression would try every place for every star, for hours."""
    for text in ("a" * 200_000, "." * 200_000, "-eu-" * 50_000):
        assert not matches(Pattern((Glob(glob, single=True),)), (text,))


@checked
@given(patterns(parts), patterns(parts))
def test_patterns_that_share_a_name_overlap(left: Pattern, right: Pattern) -> None:
    """A shared name proves an overlap, from both sides."""
    assert overlaps(left, right) is overlaps(right, left)
    if matched(left) & matched(right):
        assert overlaps(left, right)


@checked
@given(patterns(simple_parts), patterns(simple_parts))
def test_patterns_of_text_and_closing_wildcards_overlap_only_with_a_shared_name(left: Pattern, right: Pattern) -> None:
    """Without inner wildcards a shared name is short, so none among the small ones means none at all."""
    assert overlaps(left, right) is bool(matched(left) & matched(right))


@checked
@given(st.builds(Pattern, st.tuples(parts), st.booleans()), st.builds(Pattern, st.tuples(parts), st.booleans()))
def test_overlapping_globs_share_a_name(left: Pattern, right: Pattern) -> None:
    """With up to three marks a side, a shared text of at most six marks exists where an overlap is claimed."""
    texts = ("".join(marks) for size in range(7) for marks in itertools.product("ab*?", repeat=size))
    if overlaps(left, right):
        assert any(matches(left, (text,)) and matches(right, (text,)) for text in texts)


@checked
@given(patterns(parts), patterns(parts))
def test_covering_is_never_claimed_wrongly(wide: Pattern, narrow: Pattern) -> None:
    """A caller that relies on `covers` loses no name."""
    if covers(wide, narrow):
        assert matched(narrow) <= matched(wide)
        assert overlaps(wide, narrow)


@checked
@given(patterns(simple_parts), patterns(simple_parts))
def test_covering_is_found_where_only_closing_wildcards_are(wide: Pattern, narrow: Pattern) -> None:
    """For text and closing wildcards `covers` is exact: a mark no pattern names shows the difference."""
    probes = [(*name, "c") for name in NAMES] + NAMES
    within = all(matches(wide, name) for name in probes if matches(narrow, name))
    assert covers(wide, narrow) is within


@checked
@given(patterns(parts))
def test_every_pattern_covers_and_overlaps_itself(pattern: Pattern) -> None:
    """Both are reflexive."""
    assert covers(pattern, pattern)
    assert overlaps(pattern, pattern)


def filed_in(index: PatternIndex[Any]) -> Iterator[tuple[Pattern, Any]]:
    """All values with their patterns, read from the tree itself."""
    todo: list[tuple[tuple[Part, ...], Any]] = [((), index._root)]
    for parts, node in todo:  # grows meanwhile
        assert not parts or not node.is_empty
        values = ((True, node.open), (False, node.closed))
        yield from ((Pattern(parts, is_open), value) for is_open, value in values if value is not None)
        todo += (((*parts, Exact(text)), child) for text, child in node.exact.items())
        if node.wild is not None:
            assert node.wild.lengths == Counter(map(len, [*node.wild.prefixes, *node.wild.globs]))
            todo += (((*parts, part), child) for part, child in node.wild.children())


@checked
@given(st.lists(patterns(parts), max_size=12, unique=True), st.sampled_from(NAMES))
def test_the_index_finds_what_a_loop_finds(filed: list[Pattern], name: Name) -> None:
    """Nothing is missed, nothing is found twice, whatever else is filed."""
    index: PatternIndex[int] = PatternIndex()
    for number, pattern in enumerate(filed):
        index.put(pattern, number)
    assert sorted(index.find(name)) == [number for number, pattern in enumerate(filed) if matches(pattern, name)]


def test_of_many_globs_at_one_node_those_that_do_not_match_cost_next_to_nothing() -> None:
    index: PatternIndex[int] = PatternIndex()
    for number in range(1000):
        index.put(Pattern((Exact("a"), Glob(f"*-{number:04}-*?", single=True))), number)
    assert work(lambda: index.find(("a", "x-0007-y"))) < 4 * 1000
    assert list(index.find(("a", "x-0007-y"))) == [7]


@unhurried
@given(st.lists(patterns(parts), max_size=12, unique=True), patterns(parts))
def test_the_index_finds_every_pattern_that_overlaps(filed: list[Pattern], asked: Pattern) -> None:
    """As a loop does."""
    index: PatternIndex[int] = PatternIndex()
    for number, pattern in enumerate(filed):
        index.put(pattern, number)
    assert sorted(index.meeting(asked)) == [n for n, pattern in enumerate(filed) if overlaps(pattern, asked)]


@unhurried
@given(st.lists(st.lists(st.tuples(patterns(parts), st.none() | st.integers(0, 5)), max_size=6), max_size=5), st.data())
def test_every_copy_of_an_index_stays_what_it_was(
    rounds: list[list[tuple[Pattern, int | None]]], data: st.DataObject
) -> None:
    """Values come, are replaced and go, in copies of copies: each finds what a loop finds among its own."""
    filed, index = dict[Pattern, int](), PatternIndex[int]()
    copies: list[tuple[PatternIndex[int], dict[Pattern, int]]] = []
    for values in rounds:
        for pattern, value in values:
            index.change(pattern, lambda _, value=value: value)
            filed.pop(pattern, None)
            filed |= {} if value is None else {pattern: value}
        copies.append((index, dict(filed)))
        index = index.copy()
    for earlier, then in copies:
        name = data.draw(st.sampled_from(NAMES))
        assert sorted(earlier.find(name)) == sorted(value for pattern, value in then.items() if matches(pattern, name))
        assert all(earlier.get(pattern) == then.get(pattern) for pattern in filed)
        assert dict(filed_in(earlier)) == then, "what is empty is removed"


@unhurried
@given(patterns(simple_parts), patterns(simple_parts))
def test_what_two_patterns_have_in_common_is_what_both_match(left: Pattern, right: Pattern) -> None:
    """Exactly, where only closing wildcards are."""
    common = meet(left, right)
    assert (matched(common) if common is not None else set()) == matched(left) & matched(right)


@unhurried
@given(patterns(parts), patterns(parts))
def test_what_two_patterns_have_in_common_is_never_too_little(left: Pattern, right: Pattern) -> None:
    """Where globs cross it may be too much, but no more than one of the two."""
    common = meet(left, right)
    assert (common is None) is not overlaps(left, right)
    if common is not None:
        assert matched(left) & matched(right) <= matched(common)
        assert covers(left, common) or covers(right, common) or len(common.parts) == 2


LONG_NAMES = st.lists(st.sampled_from(TEXTS), max_size=6).map(tuple)


@checked
@given(
    st.lists(patterns(parts), max_size=12, unique=True),
    st.lists(LONG_NAMES, max_size=12),
    st.sampled_from([0, 5, 50_000]),
)
def test_what_an_index_remembers_of_names_changes_nothing(filed: list[Pattern], names: list[Name], held: int) -> None:
    """One name after another, also when what is remembered is forgotten all the time, and after an addition."""
    with mock.patch.object(policy.matching.index, "STATES_KEPT", held):
        index: PatternIndex[int] = PatternIndex()
        for number, pattern in enumerate(filed):
            index.put(pattern, number)
            for name in names:
                found = [other for other, pattern in enumerate(filed[: number + 1]) if matches(pattern, name)]
                assert sorted(index.find(name)) == found


@checked
@given(st.text(alphabet="ab*?", max_size=4), st.booleans(), st.sampled_from(TEXTS))
def test_the_narrowest_form_of_a_wildcard_means_the_same(text: str, single: bool, probe: str) -> None:
    """`wildcard` picks a cheaper form, never another meaning."""
    assert matches(Pattern((wildcard(text, single),)), (probe,)) is matches(Pattern((Glob(text, single),)), (probe,))
