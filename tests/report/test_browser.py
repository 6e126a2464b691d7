"""The page in a real browser: no script runs, nothing is loaded, nothing sticks out; where Chromium is installed."""

import contextlib
import html
import re
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from streaming.report.page import render
from tests.report.browser import Browser, find_browser
from tests.report.hostile import HACKED, hostile_report
from tests.report.test_page import busy_world
from tests.report.world import World

PROGRAM = find_browser()
pytestmark = pytest.mark.skipif(
    PROGRAM is None, reason="no Chromium here: install one, or name it in LOCKKEEPER_TEST_BROWSER"
)
# Measures a page in a window of 800 pixels. Its own script runs; the page's could not, even without its policy.
FRAME = """
<!DOCTYPE html><body><output></output><iframe width="800" height="600" sandbox="allow-same-origin" srcdoc="{page}">
</iframe><script>
onload = () => {{
  const page = document.querySelector("iframe").contentDocument.documentElement;
  document.querySelector("output").textContent = page.scrollWidth + " of " + page.clientWidth;
}};
</script>
"""


class Listener:
    """A server that notes who connects."""

    def __init__(self) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._server.getsockname()[1]}"
        self.callers = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                self._server.accept()[0].close()
                self.callers += 1

    def close(self) -> None:
        """Listen no more."""
        self._server.close()


@pytest.fixture
def listener() -> Iterator[Listener]:
    """A server on this machine."""
    with contextlib.closing(Listener()) as made:
        yield made


@pytest.fixture
def browser(tmp_path: Path) -> Browser:
    """A browser."""
    assert PROGRAM is not None
    return Browser(PROGRAM, tmp_path / "profile")


def _file(folder: Path, content: str) -> Path:
    file = folder / "page.html"
    file.write_text(content, encoding="utf-8")
    return file


def _title(dom: str) -> str:
    found = re.search(r"<title>(.*?)</title>", dom, re.DOTALL)
    return found[1] if found else ""


def test_no_script_of_a_record_runs_and_nothing_is_loaded(browser: Browser, listener: Listener, tmp_path: Path) -> None:
    """The same texts in a page that does not escape them do both, or this test would show nothing."""
    dom = browser.dom(_file(tmp_path, render(hostile_report(listener.address))))
    assert _title(dom).startswith("Authorization report, 2026-11-21")
    assert listener.callers == 0
    careless = "<title>x</title>" + hostile_report(listener.address).job + f'<img src="http://{listener.address}/">'
    assert _title(browser.dom(_file(tmp_path, careless))) == HACKED
    assert listener.callers > 0


def test_the_policy_of_the_page_stops_what_escaping_would_let_through(
    browser: Browser, listener: Listener, tmp_path: Path
) -> None:
    """The second line: the page with a script and an image put into it unescaped."""
    injected = f'<script>document.title = "{HACKED}"</script><img src="http://{listener.address}/">'
    page = render(World().report()).replace("<main>", f"<main>{injected}")
    assert _title(browser.dom(_file(tmp_path, page))) != HACKED
    assert listener.callers == 0


def test_the_numbers_are_where_a_reader_looks(browser: Browser, tmp_path: Path) -> None:
    dom = browser.dom(_file(tmp_path, render(busy_world().report())))
    cards = re.findall(r'<dt>(.*?)</dt><dd class="big">(.*?)</dd>', dom)
    assert cards == [
        ("Decisions", "1,207"),
        ("Allowed", "1,200"),
        ("Denied", "7"),
        ("Errors", "0"),
        ("Alerts", "1"),
        ("Policy changes", "0"),
        ("Unused statements", "1"),
        ("Dead letters", "1"),
    ]
    assert dom.count("<svg") == 2


def test_nothing_sticks_out_of_a_window_of_800_pixels(browser: Browser, tmp_path: Path) -> None:
    """Not even what has no place to break."""
    dom = browser.dom(_file(tmp_path, FRAME.format(page=html.escape(render(hostile_report())))))
    measured = re.search(r"<output>(\d+) of (\d+)</output>", dom)
    assert measured is not None
    assert int(measured[1]) <= int(measured[2]) <= 800


def test_a_picture_of_it_can_be_taken(browser: Browser, tmp_path: Path) -> None:
    picture = browser.screenshot(_file(tmp_path, render(busy_world().report())), 800, 1200)
    assert struct.unpack(">II", picture[16:24]) == (800, 1200)
    assert len(picture) > 20_000, "an empty page is smaller"
