"""A draft of policies in the console: which of the decisions of a real job would differ, and who may ask."""

import html
from typing import Any

import pytest
from starlette.testclient import TestClient
from starlette.types import ASGIApp

from tests.console.decided import (
    DRAFT,
    HOSTILE,
    addresses_in,
    client_of,
    draft_token,
    post_draft,
)
from tests.console.site import ORIGIN
from tests.stream.world import SYSTEM

pytestmark = [pytest.mark.stream, pytest.mark.timeout(600)]


@pytest.mark.long
def test_a_draft_leads_to_the_decisions_that_would_differ(app: ASGIApp, client: TestClient) -> None:
    page = post_draft(app, DRAFT.replace("\n", "\r\n")).text
    rows = [row for row in page.split("<tr") if "✘ deny" in row and "user:dana" in row]
    assert rows
    decisions = {address for row in rows for address in addresses_in(row)}
    known = set(addresses_in(client.get("/decisions", params={"subject": "user:dana"}).text))
    assert decisions <= known
    assert all(client.get(address).status_code == 200 for address in decisions)
    assert "user:dana" in page.split('id="gave"')[1]
    assert DRAFT.splitlines()[-1] in html.unescape(page.split("<textarea")[1].split("</textarea>")[0])
    whole = post_draft(app, DRAFT, prune="1").text
    assert whole.count("<tr") >= page.count("<tr")


def test_a_draft_begins_with_the_document_of_its_address(client: TestClient) -> None:
    page = client.get("/draft", params={"document": f"{SYSTEM}/Role/readers"}).text
    assert "resource:" in page.split("<textarea")[1]
    for none in ("lenses6/Role/none", "nothing/Role/r", HOSTILE):
        text = client.get("/draft", params={"document": none}).text.split("<textarea")[1]
        assert text.split(">")[1].strip() == "</textarea"


def test_a_draft_that_cannot_be_compared_says_why(app: ASGIApp) -> None:
    assert "line 2" in post_draft(app, "kind: Role\nname: [").text
    assert "would be refused" in post_draft(app, "kind: Role\nname: r\nspec: {statements: 5}\n").text
    assert "choose a language" in post_draft(app, DRAFT, system="none").text
    assert post_draft(app, "#" * 300_000).status_code == 413
    assert post_draft(app, "#" * 2_000_000).status_code == 413


def test_a_draft_of_another_page_is_refused(app: ASGIApp) -> None:
    client = client_of(app)
    token, same = draft_token(client), {"origin": ORIGIN, "sec-fetch-site": "same-origin"}
    fields = {"system": SYSTEM, "documents": DRAFT, "token": token}
    assert client.post("/draft", data=fields, headers=same).status_code == 200
    for headers in (
        {},
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {**same, "sec-fetch-site": "cross-site"},
    ):
        assert client.post("/draft", data=fields, headers=headers).status_code == 403, headers
    for wrong in ("", "0" * 64, "ä"):
        refused = client.post("/draft", data={**fields, "token": wrong}, headers=same)
        assert refused.status_code == 403
        # What was typed in an earlier session is not lost, and the next press of the button is of this one.
        assert DRAFT.splitlines()[-1] in html.unescape(refused.text.split("<textarea")[1].split("</textarea>")[0])
        assert f'value="{token}"' in refused.text
        assert 'id="gave"' not in refused.text


def test_every_route_that_takes_a_post_is_tested(app: Any) -> None:
    routes = app._app._app.routes
    posts = {route.path for route in routes if "POST" in (getattr(route, "methods", None) or ())}
    assert posts == {"/draft", *(f"/playground/{name}" for name in ("evaluate", "open", "save"))}
