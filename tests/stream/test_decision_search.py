"""Searching past decisions: records that the job did not write are left out, whatever they are."""

import msgspec
import pytest

from streaming.decision_log.search import Decoder, Query
from streaming.history.records import ConsumerRecord
from streaming.history.span import Span
from streaming.settings import Settings
from tests.contracts import examples

SPAN = Span(0, 1 << 50)
QUERIES = (
    Query(SPAN, subject="*"),
    Query(SPAN, action="*", resource="*", outcome="*"),
    Query(SPAN, document="x", systems=frozenset({"lenses6"})),
)
STRAY = (
    {},
    {"context": None},
    {"context": []},
    {"context": {"outcome": {}}},
    {"context": {"outcome": "deny", "request": {"subject": "x"}}},
    {"context": {"outcome": "deny", "request": {"subject": {"id": 5}}}},
    {"context": {"outcome": "deny", "reasons": [1]}},
    {"context": {"outcome": "deny", "reasons": None}},
    {"context": {"outcome": "deny"}, "evaluations": None},
    {"context": {"outcome": "deny"}, "evaluations": [1]},
    {"context": {"outcome": "deny"}, "evaluations": [{"context": None}]},
    {"context": {"outcome": "deny"}, "system": {}},
)


def _record(value: bytes) -> ConsumerRecord:
    return ConsumerRecord("decisions", 0, 0, 0, b"", value)


@pytest.mark.parametrize("stray", STRAY, ids=repr)
def test_a_record_that_is_no_decision_ends_no_search(stray: dict[str, object]) -> None:
    decode = Decoder(Settings())
    assert decode(_record(msgspec.json.encode(stray))) is None
    assert decode.unreadable == 1


@pytest.mark.parametrize("query", QUERIES, ids=repr)
def test_every_decision_can_be_searched(query: Query) -> None:
    decode = Decoder(Settings())
    values = [*examples.decisions(), b'{"context":{"outcome":"deny","request":null}}']
    decisions = [decode(_record(value)) for value in values]
    assert all(decision is not None and query.fits(decision) in (True, False) for decision in decisions)
    assert decisions[:-1] == [msgspec.json.decode(value) for value in examples.decisions()]


def _decided(subject: str, action: str, resource: str) -> dict[str, object]:
    asked = {"subject": {"id": subject}, "action": {"name": action}, "resource": {"id": resource}}
    return {"context": {"outcome": "allow", "request": asked}}


STAR, PLAIN = _decided("user:*", "kafka:*", "a/*"), _decided("user:dana", "kafka:Get", "a/x")


@pytest.mark.parametrize(
    "names", [{"subject": "user:*"}, {"action": "kafka:*"}, {"resource": "a/*"}], ids=lambda names: next(iter(names))
)
@pytest.mark.parametrize(("exact", "found"), [(True, [True, False]), (False, [True, True])], ids=["exact", "pattern"])
def test_a_star_is_a_character_of_a_name_where_names_are_exact(
    names: dict[str, str], exact: bool, found: list[bool]
) -> None:
    query = Query(SPAN, **names, exact=exact)
    assert [query.fits(decision) for decision in (STAR, PLAIN)] == found
    assert [query.may_fit(msgspec.json.encode(decision)) for decision in (STAR, PLAIN)] == found


def test_a_document_is_found_by_a_pattern_as_other_names_are() -> None:
    reason = {"code": "granted", "message": "", "document": "lenses6/Role/a*"}
    decision = {"context": {"outcome": "allow", "reasons": [reason]}}
    value = msgspec.json.encode(decision)
    for document, exact, is_found in (
        ("lenses6/Role/*", False, True),
        ("lenses6/Group/*", False, False),
        ("lenses6/Role/*", True, False),
        ("lenses6/Role/a*", True, True),
    ):
        query = Query(Span(0, 1), document=document, exact=exact)
        assert (query.may_fit(value) and query.fits(decision)) == is_found, (document, exact)
