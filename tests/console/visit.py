"""A page as somebody sees it in a browser: any error that the browser reports fails the test."""

import contextlib
from collections.abc import Iterator
from typing import Any

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

PHONE = {"width": 360, "height": 740}
DESK = {"width": 1400, "height": 950}
SECONDS = 30_000  # ms, for what a busy machine takes
expect.set_options(timeout=SECONDS)


@contextlib.contextmanager
def visit(browser: Browser, address: str, size: dict[str, int] = DESK, scheme: str = "light") -> Iterator[Page]:
    """A page, opened. No console error, no failed request and no error of a script may have come at the end."""
    context = browser.new_context(
        color_scheme=scheme,  # type: ignore[arg-type]
        viewport=size,  # type: ignore[arg-type]
        accept_downloads=True,
    )
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    page, errors = context.new_page(), list[str]()
    page.set_default_timeout(SECONDS)
    page.on("console", lambda message: errors.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    try:
        page.goto(address)
        yield page
        assert errors == []
    finally:
        context.close()


def violations(page: Page) -> list[str]:
    """What axe finds: rule, and the elements."""
    found: dict[str, Any] = Axe().run(page, options={"resultTypes": ["violations"]}).response
    return [
        f"{one['id']}: {', '.join(str(node['target']) for node in one['nodes'][:3])}" for one in found["violations"]
    ]


def is_too_wide(page: Page) -> bool:
    """Whether the page scrolls sideways."""
    return bool(page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth"))
