"""Load on HTTP servers of this machine: by one connection, and by vegeta, an open-source load generator.

Programs written in Go are built from their modules, each of a fixed version, into the virtual environment.
"""

import base64
import http.client
import os
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from tests.bench.opa import BUILD_SECONDS, Unavailable

VEGETA = ("github.com/tsenart/vegeta/v12", "v12.13.0")
FOLDER = Path(sys.prefix) / "lib" / "lockkeeper-bench"
TIMEOUT = 30.0
JSON = {"content-type": "application/json"}


class Attack(msgspec.Struct, frozen=True):
    """What vegeta found. `rate`: responses with a status of 200 a second; `failed`: how many were others."""

    rate: float
    p50_ms: float
    p99_ms: float
    requests: int
    failed: int


class _Report(msgspec.Struct):
    latencies: dict[str, int]
    throughput: float
    requests: int
    status_codes: dict[str, int]


def install(module: str, version: str) -> Path:
    """The program of a module such as `github.com/tsenart/vegeta/v12`. Raises Unavailable.

    Go fetches the module as it is configured to (`GOPROXY`), and checks it by its checksum database.
    """
    parts = module.split("/")
    name = parts[-2] if parts[-1].startswith("v") and parts[-1][1:].isdigit() else parts[-1]
    folder = FOLDER / f"{name}-{version}"
    program, go = folder / name, shutil.which("go")
    if program.exists():
        return program
    if go is None:
        raise Unavailable(
            f"{name} {version} is left out: Go, which builds it, is not installed. Install Go, 1.26 or newer"
        )
    print(f"building {name} {version} with Go, once: a few minutes", file=sys.stderr)
    command, environment = [go, "install", f"{module}@{version}"], {**os.environ, "GOBIN": str(folder)}
    built = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=BUILD_SECONDS)
    if built.returncode:
        why = built.stderr.strip()[-500:]
        raise Unavailable(f"{name} {version} is left out: go install {module}@{version} failed: {why}")
    return program


def vegeta() -> Path:
    """The load generator. Raises Unavailable."""
    return install(*VEGETA)


def answers(url: str, seconds: float, runs: Callable[[], bool]) -> bool:
    """Whether a server answers within so many seconds, while it runs."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and runs():
        try:
            urllib.request.urlopen(url, timeout=1).close()
        except urllib.error.HTTPError:
            return True
        except OSError:
            time.sleep(0.05)
        else:
            return True
    return False


class Connection:
    """A connection that is kept open."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=TIMEOUT)

    def post(self, path: str, body: Any) -> Any:
        """The response to a body, both JSON. Raises OSError for another status than 200."""
        self._connection.request("POST", path, msgspec.json.encode(body), JSON)
        response = self._connection.getresponse()
        value = response.read()
        if response.status != 200:
            raise OSError(f"{path}: status {response.status}: {value[:300].decode(errors='replace')}")
        return msgspec.json.decode(value)

    def close(self) -> None:
        """Close it."""
        self._connection.close()


def write_targets(path: Path, url: str, bodies: Iterable[Any]) -> Path:
    """A file with requests for `attack`, which sends them in turn."""
    with path.open("wb") as file:
        for body in bodies:
            encoded = base64.b64encode(msgspec.json.encode(body)).decode()
            header = {name: [value] for name, value in JSON.items()}
            file.write(msgspec.json.encode({"method": "POST", "url": url, "header": header, "body": encoded}) + b"\n")
    return path


def attack(targets: Path, seconds: float, rate: float, connections: int) -> Attack:
    """Send requests for so long: so many a second whatever comes back, or, with a rate of 0, each after the last."""
    results = targets.with_suffix(".results")
    limit = [f"-max-workers={connections}"] if not rate else [f"-workers={connections}", "-max-workers=1000"]
    command = [
        str(vegeta()),
        "attack",
        f"-rate={rate:g}",
        f"-duration={seconds:g}s",
        "-format=json",
        "-keepalive",
        *limit,
    ]
    subprocess.run([*command, f"-targets={targets}", f"-output={results}"], check=True)
    written = subprocess.run([vegeta(), "report", "-type=json", results], stdout=subprocess.PIPE, check=True).stdout
    report = msgspec.json.decode(written, type=_Report)
    p50, p99 = (round(report.latencies[name] / 1e6, 2) for name in ("50th", "99th"))
    failed = report.requests - report.status_codes.get("200", 0)
    return Attack(round(report.throughput, 1), p50, p99, report.requests, failed)
