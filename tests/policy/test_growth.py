"""Nothing grows faster than its input: work is counted at ten times the size (`tests.work`), time is not looked at."""

import contextlib
from collections.abc import Callable

import pytest

from policy.patterns import Glob, Part, Prefix, part_overlaps
from policy.texts import Unreadable, _object, read_json
from tests.work import Compared, comparisons, grows_with_its_input, work


def _look_for_twins(size: int) -> int:
    """A mapping whose last two keys are the same; they are compared, not looked up, as the parser's own text is."""
    pairs = [(Compared(f"key{number}"), 1) for number in range(size)]
    pairs.append((Compared(f"key{size - 1}"), 2))

    def read() -> None:
        with contextlib.suppress(ValueError):
            _object(list(pairs))

    return comparisons(read)


def test_a_late_duplicate_key_is_found_in_one_pass() -> None:
    assert grows_with_its_input(_look_for_twins, 100)


def test_of_several_duplicate_keys_the_first_is_named() -> None:
    with pytest.raises(Unreadable, match="'b' stands twice"):
        read_json('{"a": 1, "b": 2, "c": 3, "c": 4, "b": 5}')


@pytest.mark.parametrize(
    "pair",
    [
        lambda size: (Glob("a" * size + "*b"), Glob("a" * size + "*c*b")),
        lambda size: (Glob("a*" * size), Prefix("a" * size)),
        lambda size: (Glob("*a" * size + "*b"), Glob("*a" * size + "*c")),
        lambda size: (Glob("*a?" * size, single=True), Glob("a?" * 2 * size, single=True)),
    ],
    ids=["long heads", "with a prefix", "many stars", "without a star"],
)
def test_overlaps_of_long_globs(pair: Callable[[int], tuple[Part, Part]]) -> None:
    def measure(size: int) -> int:
        left, right = pair(size)
        return work(lambda: part_overlaps(left, right))

    assert grows_with_its_input(measure, 30)
