"""Counting names that clients choose: exact while there is room, bounded always, and honest about the rest."""

import collections
from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from streaming.report.untrusted import BoundedCounter, Newest, Row, shortened
from streaming.terminal import one_line

names = st.lists(st.sampled_from("abcdefghijkl"), max_size=200)


def counted(names: Iterable[str], capacity: int = 10) -> BoundedCounter:
    """A counter of names."""
    counter = BoundedCounter(capacity)
    for name in names:
        counter.add(name)
    return counter


def test_counts_are_exact_while_there_is_room_and_equal_ones_stand_by_name() -> None:
    ranking = counted("banana", capacity=3).top(2)
    assert ranking.rows == (Row("a", 3), Row("n", 2))
    assert (ranking.exact, ranking.names, ranking.missed) == (True, 3, 0)


@given(names, st.integers(1, 6))
def test_no_count_is_too_high_none_below_its_bound_and_no_frequent_name_is_lost(found: list[str], room: int) -> None:
    counter, truth = BoundedCounter(room), collections.Counter(found)
    for name in found:
        counter.add(name)
        assert len(counter) <= 2 * room
    ranking = counter.top(100)
    counts = {row.name: row.count for row in ranking.rows}
    assert all(truth[name] - ranking.missed <= counts.get(name, 0) <= truth[name] for name in truth)
    assert ranking.missed <= len(found) / (room + 1)
    assert ranking.exact == (counts == truth)


def test_a_million_rare_names_fill_no_memory_and_hide_no_frequent_one() -> None:
    counter = BoundedCounter(100)
    for number in range(100_000):
        counter.add(f"rare-{number}")
        if number % 10 == 0:
            counter.add("regular")
    ranking = counter.top(1)
    assert len(counter) <= 200
    assert ranking.rows[0].name == "regular"
    assert ranking.rows[0].count <= 10_000 <= ranking.rows[0].count + ranking.missed
    assert ranking.names is None


def test_long_names_are_kept_short_and_apart() -> None:
    """Two that begin alike are two; and each says how long it was."""
    counter = counted(["x" * 10_000 + "1", "x" * 10_000 + "2"])
    first, second = (row.name for row in counter.top(2).rows)
    assert first != second
    assert first.startswith("x" * 300 + "… (10,001 characters, sha256 ")
    assert len(first) < 400


def test_a_short_text_stays_as_it_is_and_a_long_one_says_so() -> None:
    assert shortened("x" * 300) == "x" * 300
    assert shortened("abc", 2).startswith("ab… (3 characters, sha256 ")


def test_unseen_characters_are_shown_as_their_codes() -> None:
    """Controls, direction overrides, zero-width ones, line separators, and surrogates that no file can hold."""
    assert one_line("a\x00\x1b\u202e\u200b\u2028\ud800é漢ש") == "a\\u0000\\u001b\\u202e\\u200b\\u2028\\ud800é漢ש"


def test_of_many_the_newest_are_kept_newest_first() -> None:
    newest = Newest[str](2)
    for moment in (5, 1, 9, 3):
        newest.add((moment, "topic", moment), f"at {moment}")
    assert newest.listed() == ("at 9", "at 5")
