"""The overview in a browser: what does not come any more is not shown as live."""

import re
import threading
from collections.abc import Iterator

import msgspec
import pytest
from playwright.sync_api import Browser, expect

from streaming.console.console import LINKS
from streaming.console.guard import Guard
from streaming.console.in_force import InForce
from streaming.console.overview import Overview
from streaming.console.pages import Pages, StaticFiles
from streaming.console.pulse import Pulse
from streaming.console.server import application
from streaming.console.signing_in import Local, SignedIn
from streaming.kafka.clients import admin_client
from streaming.serve.authentication import LOCAL
from tests.console.conftest import served
from tests.console.test_in_force import SETTINGS, follower, in_force, site_of
from tests.console.visit import visit

__all__ = ["follower", "in_force"]  # fixtures

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]


@pytest.fixture
def pulse() -> Pulse:
    """One that does not look: what it sees is set."""
    return Pulse(SETTINGS, admin_client(SETTINGS), threading.Event())


@pytest.fixture
def site(pulse: Pulse, in_force: InForce) -> Iterator[str]:
    """The overview over it, without Kafka."""
    static, stop = StaticFiles(), threading.Event()
    pages = Pages(static, LINKS)
    overview = Overview(site_of(in_force, pages), pulse, stop)
    app = application(overview.routes, pages, static)
    with served(Guard(SignedIn(app, Local(), pages), LOCAL)) as address:
        yield address
        stop.set()


def test_an_overview_that_nothing_comes_for_says_so_until_something_comes(
    browser: Browser, pulse: Pulse, site: str
) -> None:
    with visit(browser, f"{site}/overview") as page:
        page.clock.install()
        page.goto(f"{site}/overview")
        hint = page.get_by_text("Not live: nothing has come for some time.")
        expect(page.get_by_role("button", name="Pause")).to_be_visible()
        expect(hint).to_be_hidden()
        expect(page.locator("time").last).to_have_text(re.compile(r"\d:\d\d:\d\d.* (UTC|GMT|[A-Z]{2,5})"))
        page.clock.fast_forward(20_000)
        expect(hint).to_be_visible()
        pulse.look = msgspec.structs.replace(pulse.look, number=1)
        page.clock.run_for(2000)
        expect(hint).to_be_hidden()
