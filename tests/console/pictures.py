"""Pictures of the pages for the documentation, from the demo's policies: `python -m tests.console.pictures FOLDER`.

They need Chromium, and neither Kafka nor a job: a page of decisions is not among them.
"""

import contextlib
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

from playwright.sync_api import sync_playwright
from starlette.types import ASGIApp

from policy import compile_documents, read_documents
from streaming.console.console import LINKS, Console
from streaming.console.guard import Guard, Tokens
from streaming.console.pages import Pages, StaticFiles
from streaming.console.playground import Playground
from streaming.console.records import Records
from streaming.console.sandbox import Sandbox
from streaming.console.server import application
from streaming.demo import traffic
from streaming.serve.authentication import LOCAL
from streaming.serve.authzen import Read
from streaming.settings import Settings
from tests.console.conftest import served
from tests.report.browser import find_browser

ASKED = {
    "system": "lenses6",
    "subject": "user:dana",
    "action": "kafka:DeleteTopic",
    "resource": "kafka:topic:prod/main/x",
}
PAGES = {
    "playground": ("/playground", ".answer >> nth=2"),
    "ask": (f"/ask?{urlencode(ASKED)}", ""),
    "access": ("/access?subject=user:dana", ""),
}
SIZE = {"width": 1280, "height": 860}


@contextlib.contextmanager
def pages_of_the_demo() -> Iterator[ASGIApp]:
    """The pages that need the policies alone."""
    documents = [document.value for document in read_documents(traffic.POLICIES)]
    read = Read(compile_documents(documents), time.monotonic(), {}, -1, {})
    static, sandbox = StaticFiles(), Sandbox()
    pages, settings = Pages(static, LINKS), Settings(systems=traffic.SYSTEMS)
    # The pages that are shown here ask Kafka for nothing.
    console = Console(pages, Records(settings, None), settings.systems, lambda: read)  # type: ignore[arg-type]
    try:
        routes = [*console.routes, *Playground(pages, Tokens(), sandbox).routes]
        yield Guard(application(routes, pages, static), LOCAL)
    finally:
        sandbox.close()


def take(folder: Path) -> list[Path]:
    """Write the pictures, light and dark."""
    program = find_browser()
    assert program is not None, "no Chromium here: install one, or name it in LOCKKEEPER_TEST_BROWSER"
    folder.mkdir(parents=True, exist_ok=True)
    taken = []
    with pages_of_the_demo() as app, served(app) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        for scheme in ("light", "dark"):
            page = browser.new_context(color_scheme=scheme, viewport=SIZE).new_page()  # type: ignore[arg-type]
            for name, (path, opened) in PAGES.items():
                page.goto(address + path, wait_until="networkidle")
                if opened:
                    page.locator('[data-state="pass"]').first.wait_for()
                    page.locator(opened).click()
                    page.locator(".detail .tree").wait_for()
                taken.append(folder / f"{name}-{scheme}.png")
                page.screenshot(path=taken[-1])
        browser.close()
    return taken


if __name__ == "__main__":
    for picture in take(Path(sys.argv[1])):
        print(picture)
