"""A headless Chromium, where there is one: what it makes of a page, and what it looks like."""

import os
import shutil
import subprocess
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
BARE = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--hide-scrollbars")
SECONDS = 90


def find_browser() -> str | None:
    """The program that LOCKKEEPER_TEST_BROWSER names, else one of the usual names."""
    given = os.environ.get("LOCKKEEPER_TEST_BROWSER")
    return given or next((found for found in map(shutil.which, NAMES) if found), None)


class Browser:
    """Runs the program once for each question; its profile is its own, and thrown away."""

    def __init__(self, program: str, profile: Path) -> None:
        self._command = [program, *BARE, f"--user-data-dir={profile}"]

    def dom(self, page: Path, query: str = "") -> str:
        """The document as HTML, once it is loaded and whatever scripts it has have run. `query`: of its address."""
        return self._run("--virtual-time-budget=20000", "--dump-dom", page.as_uri() + query).decode()

    def screenshot(self, page: Path, width: int, height: int) -> bytes:
        """A picture (PNG) of the page in a window of that size."""
        picture = page.with_suffix(".png")
        self._run(f"--screenshot={picture}", f"--window-size={width},{height}", page.as_uri())
        return picture.read_bytes()

    def _run(self, *arguments: str) -> bytes:
        done = subprocess.run([*self._command, *arguments], capture_output=True, timeout=SECONDS, check=True)
        return done.stdout
