"""A browser for the pages, and a server that it asks."""

import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, sync_playwright
from starlette.types import ASGIApp

from streaming.console.server import playground, serve
from streaming.serve.server import bind
from tests.report.browser import find_browser
from tests.waiting import wait_until

PROGRAM = find_browser()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Debian's Chromium, or the one that LOCKKEEPER_TEST_BROWSER names.

    Of one file's tests: until it ends, Playwright's event loop runs in this thread, where others have theirs.
    """
    if PROGRAM is None:
        pytest.skip("no Chromium here: install one, or name it in LOCKKEEPER_TEST_BROWSER")
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=PROGRAM, args=["--no-sandbox"])
        yield found
        found.close()


@contextlib.contextmanager
def served(app: ASGIApp) -> Iterator[str]:
    """An application at an address of this machine."""
    stop, ready = threading.Event(), threading.Event()
    with contextlib.closing(bind("127.0.0.1", 0)) as bound:
        thread = threading.Thread(target=serve, args=(app, bound, stop, ready.set))
        thread.start()
        port = bound.getsockname()[1]
        wait_until(lambda: _answers(port), "the server answers")
        yield f"http://localhost:{port}"
        stop.set()
        thread.join()


def _answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """The playground alone."""
    with playground() as app, served(app) as found:
        yield f"{found}/playground"
