"""Fields of an address: what a page answers is about the very names that were asked for."""

from collections.abc import Callable
from urllib.parse import urlencode

import pytest
from starlette.exceptions import HTTPException
from starlette.requests import Request

from policy.testing import DraftRequest, short_form_of
from streaming.console.addresses import MOST_TEXT, address, decisions_address, fields_of

NAMES = ("subject", "action", "resource", "since")


def _fields(**fields: str) -> dict[str, str]:
    return fields_of(Request({"type": "http", "query_string": urlencode(fields).encode()}), NAMES)


@pytest.mark.parametrize("name", [" user:dana", "user:dana ", "user:dana\n", "user:dana\u00a0", " ", "ü\u0308"])
def test_names_are_taken_as_they_are(name: str) -> None:
    """A name with a blank is another one, or none: the job refuses it where the one without is allowed."""
    fields = _fields(subject=name, action=name, resource=name)
    assert [fields[field] for field in NAMES] == [name, name, name, ""]
    asked = short_form_of(DraftRequest(fields["subject"], "", fields["action"], fields["resource"]))
    assert asked == {"subject": name, "action": name, "resource": name}


def test_a_moment_may_stand_between_blanks() -> None:
    assert _fields(since=" 1h\n")["since"] == "1h"


@pytest.mark.parametrize("name", ["subject", "action", "resource"])
def test_a_link_to_the_decisions_about_a_name_with_a_star_is_about_that_name(name: str) -> None:
    assert decisions_address({name: "a*"}) == f"/decisions?{name}=a%2A&exact=1"
    assert decisions_address({name: "a", "since": "*"}) == f"/decisions?{name}=a&since=%2A"


def test_a_text_that_is_too_long_is_refused_rather_than_cut() -> None:
    assert _fields(resource="x" * MOST_TEXT)["resource"] == "x" * MOST_TEXT
    with pytest.raises(HTTPException, match=f"resource: more than {MOST_TEXT} characters") as refused:
        _fields(resource="x" * MOST_TEXT + "y")
    assert refused.value.status_code == 400


@pytest.mark.parametrize("link", [address, lambda _path, fields: decisions_address(fields)])
def test_no_link_leads_to_what_would_be_refused(link: Callable[[str, dict[str, str]], str]) -> None:
    assert link("/decisions", {"subject": "ü" * MOST_TEXT}).startswith("/decisions?subject=%C3%BC")
    assert link("/decisions", {"subject": "ü" * MOST_TEXT + "y"}) == ""
