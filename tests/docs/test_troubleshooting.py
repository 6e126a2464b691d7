"""The page Troubleshooting has every message that ends a command or a job, and every reason code; and no others."""

import ast

from docs import generate
from streaming.alert_kinds import AlertKind
from streaming.report.page import REASONS
from tests.docs.messages import ENDING, quotes, raised, syntax_trees

QUOTED = [row["message"] for rows in generate.messages().values() for row in rows]
WITH_CODE = {"Reason": 0, "Unanswerable": 0, "finish_request": 0, "_error": 1, "Condition": 3}
"""What takes a reason's code, and as which argument; `code=` in all of them."""

NAMED = {"allowed", "denied", "fact", "no-longer-known", "not-recorded", "policies-stale"}
"""Codes that the code names in constants and defaults, or of the client alone."""


def test_every_message_is_on_the_page() -> None:
    """Those of `bench` and `demo` apart."""
    missing = {text: name for text, name in raised().items() if not any(quotes(message, text) for message in QUOTED)}
    assert missing == {}, "add them to docs/messages.yaml"
    assert len(raised()) > 80


def test_every_quoted_message_is_in_the_code() -> None:
    texts = list(raised())
    assert [message for message in QUOTED if not any(quotes(message, text) for text in texts)] == []


def test_every_class_of_error_has_a_message_on_the_page() -> None:
    named = {name for text, name in raised().items() if any(quotes(message, text) for message in QUOTED)}
    assert named == ENDING


def test_the_reason_codes_are_those_of_the_code() -> None:
    found = set(NAMED)
    for tree in syntax_trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                found |= _codes(node)
    assert found == REASONS.keys(), "correct streaming/records/reasons.yaml"


def _codes(call: ast.Call) -> set[str]:
    """The codes, as texts, among the arguments of a call."""
    name = getattr(call.func, "id", None) or getattr(call.func, "attr", "")  # of a function, or of a method
    place = WITH_CODE.get(name)
    if place is None:
        return set()
    given = [*call.args[place : place + 1], *(keyword.value for keyword in call.keywords if keyword.arg == "code")]
    return {str(one.value) for one in given if isinstance(one, ast.Constant)}


def test_every_reason_and_alert_is_on_the_page_with_what_to_do() -> None:
    page = generate.troubleshooting()
    for code, reason in REASONS.items():
        assert reason.keys() == {"words", "fix"}
        assert f"| `{code}` | " in page
    for kind in AlertKind:
        assert f"`{kind}`" in page


def test_a_quote_fits_only_what_it_shows() -> None:
    assert quotes("topic … does not exist", "topic … does not exist: run it")
    assert not quotes("topic … is new", "topic … does not exist")
    assert not quotes("exist … topic", "topic … does not exist")
