"""Pages of a list: each entry is on one of them, also where many came at one moment."""

import time
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec

from policy import to_text
from streaming.console.listing import ROWS, listed

BEGIN = 1_795_258_800_000


class _Entry(msgspec.Struct, frozen=True):
    at: int
    number: int


def _page(entries: list[_Entry], since: str = "", until: str = "", **more: str) -> Any:
    return listed("/x", {"since": since, "until": until, **more}, entries, lambda one: one.number != 7, 0)


def test_each_entry_is_on_one_page() -> None:
    entries = [_Entry(BEGIN + number // 4, number) for number in reversed(range(500))]
    seen, until = list[int](), ""
    while True:
        page = _page(entries, until=until, author="a b")
        seen += [one.number for one in page.rows]
        if not page.older:
            break
        assert len(page.rows) >= ROWS
        assert parse_qs(urlsplit(page.older_address).query) == {"author": ["a b"], "until": [page.older]}
        until = page.older
    assert seen == [number for number in reversed(range(500)) if number != 7]


def test_moments_of_the_address_bound_it_and_what_is_none_is_said() -> None:
    entries = [_Entry(BEGIN + 2, 2), _Entry(BEGIN + 1, 1), _Entry(BEGIN, 0)]
    assert [one.number for one in _page(entries, to_text(BEGIN + 1), str(BEGIN + 2)).rows] == [1]
    wrong = _page(entries, "yesterday")
    assert (wrong.rows, bool(wrong.problem)) == ([], True)


def test_a_length_is_before_the_end_on_each_page_of_the_range() -> None:
    """That which the first page began with: its end moves from page to page."""
    now = time.time_ns() // 1_000_000
    entries = [_Entry(now - number * 60_000, number + 10) for number in range(200)]
    seen, fields = list[int](), {"since": "2h", "until": ""}
    while True:
        page = _page(entries, **fields)
        seen += [one.number for one in page.rows]
        if not page.older:
            break
        fields = {name: values[0] for name, values in parse_qs(urlsplit(page.older_address).query).items()}
    assert seen == list(range(10, 10 + len(seen)))
    assert len(seen) in (120, 121)
    ended = _page(entries, "30m", to_text(now - 60 * 60_000 + 1)).rows
    assert [one.number for one in ended][:: len(ended) - 1] in ([70, 99], [70, 100])
    for since, until in (("0h", ""), ("1x", ""), ("1h", "yesterday"), (str(BEGIN), str(BEGIN))):
        wrong = _page(entries, since, until)
        assert (wrong.rows, bool(wrong.problem), "--" in wrong.problem) == ([], True, False)
