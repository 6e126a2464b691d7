"""Pictures of the pages for the documentation, from the demo as it runs: `python -m tests.console.pictures FOLDER`.

They need Chromium. The demo plays for real, so what they show is what a user sees after `lockkeeper demo --console`.
"""

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlencode

from playwright.sync_api import Page, sync_playwright

from streaming.console.live import console
from streaming.demo.play import play
from streaming.settings import Settings
from tests.console.conftest import served
from tests.report.browser import find_browser

ASKED = {
    "system": "lenses6",
    "subject": "user:dana",
    "action": "kafka:DeleteTopic",
    "resource": "kafka:topic:prod/main/x",
}
SIZE = {"width": 1280, "height": 860}
SECONDS, RATE = 16.0, 50.0


def _open_request(page: Page) -> None:
    page.locator('[data-state="pass"]').first.wait_for()
    page.locator(".answer >> nth=2").click()
    page.locator(".detail .tree").wait_for()


def _open_first(page: Page) -> None:
    page.locator("tbody a").first.click()
    page.locator("main h2").first.wait_for()


def _open_change(page: Page) -> None:
    page.get_by_role("row").filter(has_text="Role/").get_by_role("link").first.click()
    page.locator(".command").wait_for()


def _let_live(page: Page) -> None:
    page.locator(".chart").first.wait_for()


def _nothing(_page: Page) -> None:
    """The page is shown as it is loaded."""


PAGES: dict[str, tuple[str, Callable[[Page], None]]] = {
    "decision": ("/decisions?outcome=deny&system=lenses6", _open_first),
    "alert": ("/alerts?kind=privilege-escalation", _open_first),
    "change": ("/changes", _open_change),
    "ask": (f"/ask?{urlencode(ASKED)}", _nothing),
    "access": ("/access?subject=user:dana", _nothing),
    "playground": ("/playground", _open_request),
    "overview": ("/overview", _let_live),  # the last: decisions are counted from the console's start
}


def take(folder: Path, settings: Settings) -> list[Path]:
    """Write the pictures of the console of a cluster."""
    program = find_browser()
    assert program is not None, "no Chromium here: install one, or name it in LOCKKEEPER_TEST_BROWSER"
    folder.mkdir(parents=True, exist_ok=True)
    taken = []
    with console(settings, threading.Event()) as app, served(app) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        page = browser.new_context(color_scheme="light", viewport=SIZE).new_page()  # type: ignore[arg-type]
        for name, (path, opened) in PAGES.items():
            page.goto(address + path)
            opened(page)
            taken.append(folder / f"{name}-light.png")
            page.screenshot(path=taken[-1])
        browser.close()
    return taken


if __name__ == "__main__":
    if not play(SECONDS, RATE, True, lambda settings: print(*take(Path(sys.argv[1]), settings), sep="\n")):
        sys.exit("the demo does not hold")
