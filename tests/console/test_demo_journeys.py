"""What people come for, clicked in a browser over the demo as it runs: the real job, its policies and its alerts."""

import json
import re
import statistics
import threading
import time
from collections.abc import Iterator
from urllib.parse import urlencode

import pytest
from playwright.sync_api import Browser, Page, expect
from starlette.testclient import TestClient

from streaming.console.live import console
from streaming.demo.play import play
from streaming.settings import Settings
from tests.console.conftest import served
from tests.console.decided import addresses_in, client_of
from tests.console.visit import violations, visit
from tests.waiting import wait_until

pytestmark = [pytest.mark.stream, pytest.mark.long, pytest.mark.timeout(600)]

SECONDS, RATE = 10.0, 20.0
ROUNDS = 3
ASKED = {
    "system": "lenses6",
    "subject": "user:dana",
    "action": "kafka:DeleteTopic",
    "resource": "kafka:topic:prod/main/x",
}


def test_the_journeys_over_the_data_of_the_demo(browser: Browser) -> None:
    """What each page takes is printed. The demo's own checks hold, too."""
    journeys = [_from_a_deny_to_its_statement, _from_an_alert_to_its_change, _from_a_draft_to_decisions]
    seen = list[str]()

    def show(settings: Settings) -> None:
        with console(settings, threading.Event()) as app, served(app) as address:
            client = client_of(app)
            wait_until(lambda: client.get("/readyz").status_code == 200, "the policies are read")
            for journey in journeys:
                with visit(browser, f"{address}/overview") as page:
                    journey(page)
                    assert violations(page) == []
                seen.append(journey.__name__)
            times = dict(_times(client))
        print(json.dumps({"page_ms": times}))

    assert play(SECONDS, RATE, True, show)
    assert len(seen) == len(journeys)


def _from_a_deny_to_its_statement(page: Page) -> None:
    page.get_by_role("navigation").get_by_role("link", name="Decisions").click()
    page.get_by_label("Subject").fill("user:dana")
    page.get_by_label("Outcome").select_option("deny")
    page.get_by_role("button", name="Show").click()
    page.get_by_role("row").nth(1).get_by_role("link").click()
    expect(page.get_by_role("heading", name="And today?")).to_be_visible()
    expect(page.get_by_role("heading", name=re.compile("Determining|Nearest")).first).to_be_visible()
    expect(page.locator(".tree").first).to_contain_text("user:dana")


def _from_an_alert_to_its_change(page: Page) -> None:
    page.get_by_role("navigation").get_by_role("link", name="Alerts").click()
    page.get_by_label("Kind").select_option("privilege-escalation")
    page.get_by_role("button", name="Show").click()
    page.get_by_role("row").nth(1).get_by_role("link").click()
    page.get_by_role("link", name="the change", exact=True).first.click()
    expect(page.get_by_role("region", name="Grants, memberships and facts")).to_be_visible()
    expect(page.locator("tr.plus").first).to_be_visible()
    expect(page.locator(".command")).to_contain_text("lockkeeper policy rollback")
    page.get_by_role("link", name="Decide them by the policies before and after").click()
    expect(page.locator("#turned ~ .note")).to_contain_text("of the newest")


def _from_a_draft_to_decisions(page: Page) -> None:
    page.get_by_role("navigation").get_by_role("link", name="Decisions").click()
    page.get_by_label("Outcome").select_option("allow")
    page.get_by_label("Language").select_option("lenses6")
    page.get_by_role("button", name="Show").click()
    page.get_by_role("row").nth(1).get_by_role("link").click()
    page.get_by_role("link", name="Draft another version of it").first.click()
    documents = page.get_by_label("Documents, as YAML")
    documents.fill(documents.input_value().replace("effect: allow", "effect: deny"))
    page.get_by_role("button", name="Which decisions would differ?").click()
    turned = page.get_by_role("region", name="Requests that are answered otherwise")
    expect(turned.get_by_role("row").nth(1)).to_contain_text("deny")
    turned.get_by_role("row").nth(1).get_by_role("link").click()
    expect(page.get_by_role("heading", name="And today?")).to_be_visible()


def _times(client: TestClient) -> Iterator[tuple[str, int]]:
    """The median of each page, ms."""
    pages = [
        *("/overview", "/decisions", "/decisions?outcome=deny&subject=user:dana", "/alerts", "/changes", "/draft"),
        *(addresses_in(client.get(f"/{name}").text, name)[0] for name in ("decisions", "alerts", "changes")),
        f"{addresses_in(client.get('/changes').text, 'changes')[0]}?compare=1",
        f"/ask?{urlencode(ASKED)}",
        "/access?subject=user:dana",
        "/access?system=lenses6",
        "/access?resource=kafka:topic:prod/main/orders",
        "/playground",
    ]
    for address in pages:
        yield re.sub(r"(?<=/)(?:[\w-]{22,}).*", "…", address), round(statistics.median(_answers(client, address)))


def _answers(client: TestClient, address: str) -> Iterator[float]:
    for _ in range(ROUNDS):
        began = time.perf_counter()
        assert client.get(address).status_code == 200
        yield (time.perf_counter() - began) * 1000
