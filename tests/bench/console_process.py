"""A process of `lockkeeper console` for its benchmark, asked over HTTP as a browser asks it."""

import contextlib
import os
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import yaml

from streaming.settings import Settings
from tests.bench.console_day import SYSTEM

START_SECONDS = 300.0
PAUSE_SECONDS = 0.1  # between two requests for a page that is being worked out


class Opened:
    """`lockkeeper console`, ready."""

    def __init__(self, url: str, pid: int) -> None:
        self.url, self._pid = url, pid

    def get(self, address: str) -> bytes:
        """A page."""
        asked = urllib.request.Request(self.url + address, headers={"accept": "text/html"})
        with urllib.request.urlopen(asked, timeout=60) as response:
            body: bytes = response.read()
            return body

    def milliseconds(self, address: str) -> float:
        """How long a page takes."""
        began = time.perf_counter()
        self.get(address)
        return (time.perf_counter() - began) * 1000

    def until_whole(self, address: str) -> tuple[float, float]:
        """How long it takes until there is an answer, and until that is the page itself, ms."""
        began, first = time.perf_counter(), 0.0
        while True:
            is_whole = b"data-reload" not in self.get(address)
            whole = (time.perf_counter() - began) * 1000
            first = first or whole
            if is_whole:
                return first, whole
            time.sleep(PAUSE_SECONDS)

    def first_link(self, page: str, prefix: str) -> str:
        """The first link of a page to one below."""
        found = self.get(page).decode().split(f'href="{prefix}', 1)[1].partition('"')[0]
        return prefix + found

    def post_draft(self, documents: str) -> tuple[float, float]:
        """How long it takes until an answer comes to a draft, and until that is the comparison, ms."""
        token = self.get("/draft").decode().split('name="token" value="', 1)[1].partition('"')[0]
        fields = {"token": token, "system": SYSTEM, "documents": documents}
        body = urllib.parse.urlencode(fields).encode()
        asked = urllib.request.Request(f"{self.url}/draft", body, {"origin": self.url, "accept": "text/html"})
        began, first = time.perf_counter(), 0.0
        while True:
            with urllib.request.urlopen(asked, timeout=60) as response:
                text = response.read()
            whole = (time.perf_counter() - began) * 1000
            first = first or whole
            if b"data-submit" not in text:
                break
            time.sleep(PAUSE_SECONDS)
        assert b"would be answered otherwise" in text, text[-2000:]
        return first, whole

    def cpu_seconds(self) -> float:
        """What the process has taken of the processors, without its children."""
        fields = Path(f"/proc/{self._pid}/stat").read_text().rpartition(") ")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory(self) -> dict[str, int]:
        """The resident set size of the process now and at most, and of its children, MiB."""
        tasks = Path(f"/proc/{self._pid}/task").iterdir()  # a child is that of the thread which started it
        children = [child for task in tasks for child in (task / "children").read_text().split()]
        return {
            "rss_mib": _mib(self._pid, "VmRSS:"),
            "most_mib": _mib(self._pid, "VmHWM:"),
            "children_mib": sum(_mib(int(child), "VmRSS:") for child in children),
        }


def _mib(pid: int, field: str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) >> 10


@contextlib.contextmanager
def opened(settings: Settings, folder: Path) -> Iterator[Opened]:
    """A process of the console, once it has read the policies. Raises TimeoutError."""
    config, log = folder / "lockkeeper.yaml", folder / "console.log"
    config.write_text(yaml.safe_dump({"bootstrap_servers": settings.bootstrap_servers, "job_name": settings.job_name}))
    command = [sys.executable, "-m", "streaming.cli", "console", "--no-browser", "--config", str(config)]
    with log.open("wb") as file:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file)
    try:
        yield Opened(_until_ready(process, log), process.pid)
    finally:
        process.terminate()
        process.wait(60)


def _until_ready(process: "subprocess.Popen[bytes]", log: Path) -> str:
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end and process.poll() is None:
        lines = [line for line in log.read_text().splitlines() if line.startswith("http://")]
        if lines:
            url = lines[0].removesuffix("/overview")
            with contextlib.suppress(urllib.error.URLError), urllib.request.urlopen(f"{url}/readyz", timeout=5):
                return url
        time.sleep(0.05)
    raise TimeoutError(f"the console was not ready within {START_SECONDS:g} s: {log.read_text()[-2000:]}")
