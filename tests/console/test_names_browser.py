"""Names that are made to be misread, in a browser: what is typed is what is asked, shown, and asked again."""

import contextlib
import time

import pytest
from playwright.sync_api import Browser, expect
from starlette.types import ASGIApp

from policy import compile_documents
from streaming.pdp.follower import Follower
from streaming.pdp.reading import Read
from streaming.terminal import one_line
from tests.console.conftest import served
from tests.console.test_answers_of_commands import NAMES, ORDERS, documents
from tests.console.test_in_force import follower, in_force, pages_alone
from tests.console.visit import DESK, PHONE, is_too_wide, violations, visit

__all__ = ["follower", "in_force", "pages_alone"]  # fixtures

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

HIDDEN = ("user:\u202enad", "user:a\u200db", "user:dana\u00a0", "user:a\u0085b")


@pytest.mark.parametrize("name", [*NAMES, *HIDDEN])
def test_a_name_that_is_typed_is_what_is_asked_and_shown(
    browser: Browser, follower: Follower, pages_alone: ASGIApp, name: str
) -> None:
    follower.read = Read(compile_documents(documents()), time.monotonic(), {}, -1, {})
    is_allowed = name.startswith("user:") and name not in HIDDEN
    with served(pages_alone) as site, visit(browser, f"{site}/ask?system=lenses6", PHONE) as page:
        page.get_by_label("Subject", exact=True).fill(name)
        page.get_by_label("Action", exact=True).fill("kafka:GetTopicDetails")
        page.get_by_label("Resource", exact=True).fill(ORDERS)
        page.get_by_role("button", name="Ask", exact=True).click()
        for _ in range(2):  # sent again as it stands there, it is the same name
            expect(page.locator("h2 .tag.allow")).to_have_count(int(is_allowed))
            assert page.locator("input[name=subject]").input_value() == name
            assert one_line(name) in page.locator(".tree").first.inner_text()
            assert not is_too_wide(page)
            assert violations(page) == []
            page.get_by_role("button", name="Ask", exact=True).click()
        page.get_by_role("link", name="Who else can?").click()
        expect(page.get_by_role("heading", name="Who can")).to_be_visible()
        assert page.locator("input[name=subject]").input_value() == name
        shown = page.locator(".names").inner_text()
        assert all(one in shown for one in NAMES if one.startswith("user:"))
        assert page.title() == "Ask · lockkeeper"


@pytest.mark.parametrize("size", [DESK, PHONE], ids=["desk", "phone"])
def test_a_box_stands_in_the_line_of_its_text(browser: Browser, pages_alone: ASGIApp, size: dict[str, int]) -> None:
    with served(pages_alone) as site, visit(browser, f"{site}/draft", size) as page:
        box = page.get_by_role("checkbox", name="Delete all other documents of the language")
        label = page.locator("label.check")
        of_box, of_label = box.bounding_box(), label.bounding_box()
        assert of_box is not None
        assert of_label is not None
        assert of_box["x"] - of_label["x"] < of_box["width"], "before the text"
        middle = of_label["y"] + of_label["height"] / 2
        assert of_box["y"] < middle < of_box["y"] + of_box["height"]


def test_a_form_that_one_comes_back_to_is_that_of_its_address(
    browser: Browser, follower: Follower, pages_alone: ASGIApp
) -> None:
    """Browsers keep what was chosen: "deny" stood above a list of all decisions."""
    follower.read = Read(compile_documents(documents()), time.monotonic(), {}, -1, {})
    with served(pages_alone) as site, visit(browser, f"{site}/ask") as page:
        first = page.get_by_label("Language").input_value()
        page.get_by_label("Language").select_option("streamsets")
        page.get_by_role("button", name="Ask", exact=True).click()
        page.wait_for_url("**system=streamsets**")
        page.go_back()
        expect(page.get_by_label("Language")).to_have_value(first)


def test_a_draft_that_is_not_answered_stays_where_it_was_typed(browser: Browser, pages_alone: ASGIApp) -> None:
    """Here Kafka is away. A page that is loaded again has it still, and one that is opened by a link has not."""
    with served(pages_alone) as site, contextlib.closing(browser.new_page()) as page:
        page.goto(f"{site}/draft")
        documents = page.get_by_label("Documents, as YAML")
        for _ in range(2):
            documents.fill("kind: Role")
            page.get_by_label("Delete all other documents of the language").check()
            page.get_by_role("button", name="Which decisions would differ?").click()
            expect(page.get_by_role("alert")).to_contain_text("Kafka does not answer")
            expect(page.locator("main")).to_be_focused()
            assert violations(page) == []
        page.reload()
        expect(page.get_by_role("alert")).to_contain_text("Kafka does not answer")
        expect(documents).to_have_value("kind: Role")
        expect(page.get_by_label("Delete all other documents of the language")).to_be_checked()
        page.get_by_role("link", name="Draft").click()
        expect(documents).to_have_value("")
        documents.fill("kind: Group")
        page.get_by_role("link", name="Ask").click()
        page.go_back()
        expect(documents).to_have_value("kind: Group")  # as it was typed, and not sent
        expect(page.get_by_role("alert")).to_have_count(0)
