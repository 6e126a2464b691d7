"""What changed in the policy topics: in which way, and what it says otherwise."""

from typing import Any

import pytest

from streaming.history.records import ConsumerRecord
from streaming.report.incidents import Change, ChangeTotals, SystemChanges, sum_up_changes
from streaming.settings import MIB
from tests.report.world import BEGIN, SPAN, group, record, role

ORDERS = "kafka:topic:prod/main/orders"


def _changes(*versions: tuple[int, str, Any]) -> ChangeTotals:
    """Of versions: time, key and value, in the order of their offsets."""
    records: list[ConsumerRecord] = [record("p", n, at, value, key) for n, (at, key, value) in enumerate(versions)]
    return sum_up_changes(records, {"p": "lenses6"}, MIB, SPAN)


def _only(*versions: tuple[int, str, Any]) -> Change:
    [change] = _changes(*versions).newest
    return change


def test_a_new_document_is_added_with_all_that_it_says() -> None:
    change = _only((BEGIN, "Role/r", role("r", ("allow", "kafka:Get*", ORDERS))))
    assert (change.manner, change.document, change.topic, change.offset) == ("added", "lenses6/Role/r", "p", 0)
    assert change.details == ("+ role:r allow kafka/Get* on kafka/topic/prod/main/orders",)


def test_a_changed_document_shows_what_was_removed_and_added() -> None:
    """The version before may lie before the range."""
    before, after = role("r", ("allow", "kafka:Get*", ORDERS)), role("r", ("deny", "kafka:Get*", ORDERS))
    change = _only((BEGIN - 1, "Role/r", before), (BEGIN, "Role/r", after))
    assert change.manner == "changed"
    assert [line[:12] for line in change.details] == ["− role:r all", "+ role:r den"]


def test_memberships_count_and_so_do_fields_that_are_neither() -> None:
    key, before = "Group/g", group("g", ["r"], "user:dana")
    change = _only((0, key, before), (BEGIN, key, group("g", ["r"], "user:eve")))
    assert change.details == ("− user:dana is group:g", "+ user:eve is group:g")
    described = {**before, "spec": {**before["spec"], "description": "new"}}
    assert _only((0, key, before), (BEGIN, key, described)).details == ('description: nothing → "new"',)


def test_a_deletion_shows_what_was_removed_and_a_second_one_is_no_change() -> None:
    first = (0, "Role/r", role("r", ("allow", "kafka:Get*", ORDERS)))
    totals = _changes(first, (BEGIN, "Role/r", b""), (BEGIN, "Role/r", b""))
    assert [change.manner for change in totals.newest] == ["deleted"]
    assert totals.newest[0].details[0].startswith("− role:r allow")
    assert totals.systems == (SystemChanges("lenses6", 0, 0, 1, 0, 1),)


def test_what_is_published_again_as_it_was_is_no_change() -> None:
    """`policy apply` publishes a whole folder each time."""
    same = role("r", ("allow", "kafka:Get*", ORDERS))
    totals = _changes((0, "Role/r", same), (BEGIN, "Role/r", same))
    assert (totals.total, totals.newest, totals.systems[0].same) == (0, (), 1)


def test_a_refused_document_says_why_and_the_next_good_one_is_compared_with_what_stayed() -> None:
    good = role("r", ("allow", "kafka:Get*", ORDERS))
    versions = [(0, "Role/r", good), (BEGIN, "Role/r", {**good, "enforcment": 1}), (BEGIN + 1, "Role/r", good)]
    totals = _changes(*versions, (BEGIN + 2, "nonsense", b"{}"), (BEGIN + 3, "Role/x", b"\xff"))
    assert [change.manner for change in totals.newest] == ["refused"] * 3
    assert "enforcment: unknown field" in totals.newest[2].details[0]
    assert (totals.refused, totals.systems[0].same) == (3, 1)


@pytest.mark.parametrize("key", ["Role/r", "nonsense"])
def test_the_deletion_of_a_refused_document_is_a_change(key: str) -> None:
    """It ends the errors of all principals that the document names: it counted as published again as it was."""
    refused = {**role("r", ("allow", "kafka:Get*", ORDERS)), "enforcment": 1}
    totals = _changes((BEGIN, key, refused), (BEGIN + 1, key, b""), (BEGIN + 2, key, b""))
    assert [change.manner for change in totals.newest] == ["deleted", "refused"]
    assert totals.systems == (SystemChanges("lenses6", 0, 0, 1, 1, 1),)


def test_a_large_change_is_shown_in_part() -> None:
    statements = [("allow", "kafka:Get*", f"kafka:topic:prod/main/{n}") for n in range(10)]
    change = _only((BEGIN, "Role/r", role("r", *statements)))
    assert (len(change.details), change.more) == (6, 4)


def test_changes_before_and_after_the_range_are_not_reported() -> None:
    totals = _changes(*((at, f"Role/{at}", role(str(at))) for at in (BEGIN - 1, BEGIN, SPAN.end)))
    assert [change.document for change in totals.newest] == [f"lenses6/Role/{BEGIN}"]


def test_of_many_changes_the_newest_are_listed_and_all_are_counted() -> None:
    totals = _changes(*((BEGIN + n, f"Role/{n}", role(str(n))) for n in range(150)))
    assert (totals.total, len(totals.newest), totals.newest[0].document) == (150, 100, "lenses6/Role/149")
