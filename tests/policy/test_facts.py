"""Facts come in two layers: the policy topics win over the facts topic, also where they hold only a refusal."""

import pytest

from policy.facts import Facts, FactTable
from policy.model import Fact, Unanswerable

KEY = ("Entity", "dataset:d")


def _table(body: str | None = None, refused: bool = False) -> FactTable:
    facts = [Fact(*KEY, body, (("parent", "p"),))] if body else []
    return FactTable(facts, {KEY: "cdap/Entity/dataset:d"} if refused else None)


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
    table.remove(*KEY)
    assert table.find("Entity", "parent", "p") == frozenset()
    assert table.get(*KEY) is None
