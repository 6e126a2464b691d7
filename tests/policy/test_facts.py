"""Facts come in two layers: the policy topics win over the facts topic, also where they hold only a refusal."""

import pytest

from policy.core.fact_table import FactTable, FactVersion
from policy.core.facts import Facts
from policy.core.model import Fact, Unanswerable
from policy.core.times import ALWAYS, Window

KEY = ("Entity", "dataset:d")


def _table(body: str | None = None, refused: bool = False) -> FactTable:
    table = FactTable()
    facts = (Fact(*KEY, body, (("parent", "p"),)),) if body else ()
    table.put(KEY, FactVersion(facts=facts, refusals=((ALWAYS, "cdap/Entity/dataset:d"),) if refused else ()))
    return table


def test_the_upper_layer_wins() -> None:
    facts = Facts(_table("upper"), _table("lower"))
    assert facts.get(*KEY) == "upper"
    assert facts.find("Entity", "parent", "p") == {"dataset:d"}


def test_a_fact_that_only_the_lower_layer_has_is_found() -> None:
    assert Facts(_table(), _table("lower")).get(*KEY) == "lower"


def test_what_the_upper_layer_refused_is_an_error_whatever_the_lower_says() -> None:
    facts = Facts(_table(refused=True), _table("lower"))
    with pytest.raises(Unanswerable, match="was refused"):
        facts.get(*KEY)
    assert facts.broken("Entity") == ["dataset:d"]


def test_a_refusal_below_does_not_hide_a_good_document_above() -> None:
    facts = Facts(_table("upper"), _table(refused=True))
    assert facts.get(*KEY) == "upper"
    assert facts.broken("Entity") == []


def test_a_removed_fact_is_found_by_no_key() -> None:
    table = _table("body")
    table.put(KEY, FactVersion())
    assert table.find("Entity", "parent", "p") == frozenset()
    assert table.get(*KEY) is None


def _versions(*, refused: Window | None = None) -> Facts:
    """In force until 10 with one body and parent, from then with others."""
    old = Fact(*KEY, "old", (("parent", "p"),), window=Window(None, 10))
    new = Fact(*KEY, "new", (("parent", "q"),), window=Window(10, None))
    table = FactTable()
    if refused is None:
        table.put(KEY, FactVersion(facts=(old, new)))
    else:
        table.put(KEY, FactVersion(facts=(new,), refusals=((refused, "cdap/Entity/dataset:d"),)))
    return Facts(table, _table("lower"))


@pytest.mark.parametrize(("at", "body", "parent"), [(9, "old", "p"), (10, "new", "q")])
def test_at_a_moment_the_version_in_force_counts(at: int, body: str, parent: str) -> None:
    facts = _versions().at(at)
    assert facts.get(*KEY) == body
    assert {other for other in ("p", "q") if facts.find("Entity", "parent", other)} == {parent}
    assert _versions().edges() == {10}


def test_without_a_time_versions_cannot_be_distinguished() -> None:
    for facts in (_versions(), _versions().at(None)):
        with pytest.raises(Unanswerable, match="time"):
            facts.get(*KEY)
        with pytest.raises(Unanswerable, match="time"):
            facts.find("Entity", "parent", "p")
        assert facts.get("Entity", "dataset:other") is None
        assert facts.names("Entity") == ["dataset:d"]


def test_what_is_refused_for_a_time_is_an_error_for_that_time() -> None:
    facts = _versions(refused=Window(None, 10))
    with pytest.raises(Unanswerable, match="was refused"):
        facts.at(9).get(*KEY)
    assert facts.at(9).broken("Entity") == ["dataset:d"]
    assert facts.at(10).get(*KEY) == "new"
    assert facts.at(10).broken("Entity") == []


def test_an_event_does_not_count_before_it_happened() -> None:
    table = FactTable()
    table.put(("Session", "dana"), FactVersion(facts=(Fact("Session", "dana", 5, not_before=5),)))
    facts = Facts(table)
    assert [facts.at(moment).get("Session", "dana") for moment in (4, 5, None)] == [None, 5, 5]
