"""The console in a browser, over a real job, as its users go through it."""

import re

import pytest
from playwright.sync_api import Browser, expect
from starlette.testclient import TestClient

from tests.console.decided import (
    addresses_in,
    addresses_of,
    question_address,
)
from tests.console.visit import DESK, PHONE, is_too_wide, violations, visit
from tests.stream.world import SYSTEM

pytestmark = [pytest.mark.stream, pytest.mark.long, pytest.mark.timeout(600)]


def test_the_journey_from_a_deny_to_its_statement(browser: Browser, site_address: str) -> None:
    with visit(browser, f"{site_address}/decisions") as page:
        page.get_by_label("Subject").fill("user:dana")
        page.get_by_label("Outcome").select_option("deny")
        page.keyboard.press("Tab")
        page.get_by_role("button", name="Show").click()
        row = page.get_by_role("row").filter(has_text="audit")
        row.get_by_role("link").click()
        expect(page.get_by_role("heading", name="Determining")).to_contain_text(f"{SYSTEM}/Role/frozen statement 0")
        expect(page.locator("tr.decides")).to_contain_text("effect: deny")
        moment = page.locator("time").first
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT.*Z", moment.get_attribute("title") or "")
        assert moment.inner_text() != moment.get_attribute("title")
        page.get_by_role("link", name="Change it and ask again").click()
        expect(page.get_by_role("heading", name="now")).to_contain_text("allow")
        page.get_by_role("link", name="Who else can?").click()
        expect(page.get_by_role("heading", name="Who can")).to_be_visible()


def test_the_journey_from_an_alert_to_the_change_that_opened_it(browser: Browser, site_address: str) -> None:
    with visit(browser, f"{site_address}/alerts") as page:
        page.get_by_label("Kind").select_option("privilege-escalation")
        page.get_by_role("button", name="Show").click()
        page.get_by_role("row").filter(has_text="Role/root").get_by_role("link").click()
        page.get_by_role("link", name="the change", exact=True).first.click()
        expect(page.get_by_role("heading", name="Who gained and lost")).to_be_visible()
        expect(page.get_by_role("region", name="Grants, memberships and facts")).to_contain_text("user:trent")
        expect(page.locator("tr.plus").first).to_be_visible()
        expect(page.locator(".command")).to_contain_text("lockkeeper policy rollback")
        page.get_by_role("link", name="Decide them by the policies before and after").click()
        expect(page.locator("#turned ~ .note")).to_contain_text("of the newest")


def test_the_journey_from_a_draft_to_the_decisions_that_would_differ(browser: Browser, site_address: str) -> None:
    with visit(browser, f"{site_address}/decisions") as page:
        page.get_by_label("Request id").fill("r-1")
        page.get_by_role("button", name="Show").click()
        page.get_by_role("row").filter(has_text="orders").get_by_role("link").click()
        page.get_by_role("link", name="Draft another version of it").click()
        documents = page.get_by_label("Documents, as YAML")
        expect(documents).to_have_value(re.compile("effect: allow"))
        documents.fill(documents.input_value().replace("effect: allow", "effect: deny"))
        page.get_by_role("button", name="Which decisions would differ?").click()
        turned = page.get_by_role("region", name="Requests that are answered otherwise")
        row = turned.get_by_role("row").filter(has_text="user:dana").filter(has_text="orders").first
        expect(row).to_contain_text("allow")
        expect(row).to_contain_text("deny")
        expect(page.get_by_role("region", name="Grants, memberships and facts")).to_contain_text("user:dana")
        assert violations(page) == []
        row.get_by_role("link").click()
        expect(page.get_by_role("heading", name="And today?")).to_be_visible()
        page.go_back()  # Chromium: ERR_CACHE_MISS, where the page was the answer to a POST
        expect(page.get_by_label("Documents, as YAML")).to_have_value(re.compile("effect: deny"))
        expect(turned).to_be_visible()
        page.get_by_role("link", name="Draft").click()
        expect(page.get_by_label("Documents, as YAML")).to_have_value("")


@pytest.mark.parametrize(("size", "scheme"), [(DESK, "light"), (PHONE, "dark")], ids=["desk-light", "phone-dark"])
def test_axe_finds_nothing_and_no_page_scrolls_sideways(
    browser: Browser, site_address: str, client: TestClient, size: dict[str, int], scheme: str
) -> None:
    first = addresses_in(client.get("/decisions", params={"request_id": "r-2"}).text)
    batch = addresses_in(client.get("/decisions", params={"request_id": "batch"}).text)
    strange = addresses_of(client, "decisions")
    others = [
        *addresses_of(client, "alerts"),
        *addresses_of(client, "changes")[:2],
        *addresses_of(client, "changes")[-1:],
    ]
    pages = [
        "/decisions",
        "/decisions?subject=nobody",
        *first,
        *batch,
        *strange[:1],
        question_address("erik", "orders"),
        "/access?subject=user:dana",
        f"/access?system={SYSTEM}",
        "/access?resource=kafka:topic:prod/main/orders",
        f"/draft?document={SYSTEM}/Role/readers",
        "/overview",
        "/alerts",
        "/changes",
        *others,
    ]
    with visit(browser, site_address + "/access", size, scheme) as page:
        for address in pages:
            page.goto(site_address + address)
            assert violations(page) == [], address
            assert not is_too_wide(page), address
            assert page.title().endswith("lockkeeper")


def test_a_printed_page_is_no_wider_than_its_paper_and_has_what_was_asked_for(
    browser: Browser, site_address: str
) -> None:
    with visit(browser, f"{site_address}/decisions?request_id=r-1", {"width": 718, "height": 1000}) as page:
        page.emulate_media(media="print")
        expect(page.get_by_role("row").filter(has_text="orders")).to_be_visible()
        assert not is_too_wide(page)
        assert page.get_by_label("Request id").input_value() == "r-1"
        for name, is_printed in (("Request id", True), ("Subject", False), ("Outcome", False), ("Exactly", False)):
            expect(page.get_by_label(name)).to_be_visible(visible=is_printed)
        expect(page.get_by_role("button", name="Show")).to_be_hidden()
        page.goto(f"{site_address}/access?system={SYSTEM}&subject=user:dana")
        expect(page.get_by_role("textbox", name="Subject")).to_be_visible()
        expect(page.locator("input[name=resource]")).to_be_hidden()
        expect(page.get_by_label("Language")).to_have_count(2)
        expect(page.get_by_label("Language").locator("visible=true")).to_have_count(1)
        page.goto(f"{site_address}/overview")
        expect(page.get_by_role("columnheader", name="Median latency")).to_be_visible()
        assert not is_too_wide(page)


def test_a_list_on_a_phone_shows_who_was_denied(browser: Browser, site_address: str) -> None:
    """Without scrolling sideways, for one row is like the other else."""
    with visit(browser, f"{site_address}/decisions?request_id=r-2", PHONE) as page:
        box = page.get_by_text("user:dana", exact=True).bounding_box()
        assert box is not None
        assert box["x"] + box["width"] < PHONE["width"]
