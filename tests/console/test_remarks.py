"""A row and a page of a decision say that it was not enforced, and which other answer its caller got."""

from typing import Any

import pytest

from streaming.console.console import LINKS, _row
from streaming.console.listing import Listing
from streaming.console.pages import Pages, StaticFiles
from streaming.console.viewer import EVERYTHING
from streaming.decision_log.search import Query
from streaming.history.span import Span

ASKED = {
    "subject": {"type": "user", "id": "user:dana"},
    "action": {"name": "kafka:GetTopicDetails"},
    "resource": {"type": "lrn", "id": "kafka:topic:a/b/c"},
}
ANSWERED = {"by": "pdp<7f>", "outcome": "allow", "time": "2026-11-21T10:00:00Z", "verified": True, "agrees": False}
OF_BATCH = {"evaluations": [{"outcome": "deny"}, {"outcome": "allow"}]}


def _decision(outcome: str, **more: Any) -> dict[str, Any]:
    context = {"outcome": outcome, "reasons": [], "request": ASKED}
    named = {"id": "d-1", "request_id": "r-1", "system": "lenses6", "time": "2026-11-21T10:00:00.000Z"}
    return {**named, "decision": outcome == "allow", "context": context, **more}


def _page(decision: dict[str, Any]) -> str:
    fields = dict.fromkeys(
        ("subject", "action", "resource", "exact", "outcome", "system", "document", "request_id", "since", "until"), ""
    )
    values = Listing([decision]).values(fields, _row)
    pages = Pages(StaticFiles(), LINKS)
    return pages.render("decisions.html.j2", here="/decisions", viewer=EVERYTHING, systems=[], **values)


@pytest.mark.parametrize("is_shadow", [False, True])
def test_a_decision_of_the_shadow_mode_is_no_plain_allow(is_shadow: bool) -> None:
    decision = _decision("allow")
    decision["context"] |= {"enforced": False} if is_shadow else {}
    assert ("not enforced (shadow mode)" in _page(decision)) == is_shadow


def test_a_denied_request_whose_caller_was_answered_allow_is_shown_as_such() -> None:
    assert "pdp&lt;7f&gt; answered allow: contradicted by the job" in _page(_decision("deny", answered=ANSWERED))
    assert "answered" not in _page(_decision("deny", answered={**ANSWERED, "outcome": "deny", "agrees": True}))


def test_a_request_is_found_by_the_answer_that_its_caller_got_and_by_what_the_job_says() -> None:
    contradicted = _decision("deny", answered=ANSWERED)
    items = [_decision("deny"), _decision("deny", context={"outcome": "deny", "request": {}})]
    batch = _decision("deny", evaluations=items, answered={**ANSWERED, "outcome": "deny", **OF_BATCH})
    for outcome, decision, fits in (
        ("allow", contradicted, True),
        ("deny", contradicted, True),
        ("error", contradicted, False),
        ("allow", _decision("deny"), False),
        ("allow", batch, True),
    ):
        assert Query(Span(0, 1), outcome=outcome).fits(decision) == fits, (outcome, decision)
    assert not Query(Span(0, 1), outcome="allow", subject="user:dana").fits(batch), "the item is of nobody"
