"""OPA embedded: a Go program beside this file, built with OPA's module from Go's proxy when it is first used."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from tests.bench.engines import Document, Request, roles_of, statements_of

SOURCE = Path(__file__).parent
FILES = ("main.go", "policy.rego", "go.mod", "go.sum")
BUILD_SECONDS = 1800


class Unavailable(Exception):
    """OPA cannot be run here; the message says why."""


class Pass(msgspec.Struct, frozen=True):
    """The requests once in order: the thread's time for each, and whether it is allowed."""

    nanoseconds: list[int]
    allowed: list[bool]


class Found(msgspec.Struct, frozen=True):
    """What the program prints."""

    prepare_seconds: float
    passes: list[Pass]


def build(folder: Path) -> Path:
    """The program, built into the folder unless it is there already. Raises Unavailable."""
    go, program = shutil.which("go"), folder / "lockkeeper-bench-opa"
    if go is None:
        raise Unavailable("OPA is left out: Go is not installed")
    newest = max((SOURCE / name).stat().st_mtime for name in FILES)
    if program.exists() and program.stat().st_mtime >= newest:
        return program
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as source:  # Go writes beside its sources
        for name in FILES:
            shutil.copy(SOURCE / name, source)
        command = [go, "build", "-trimpath", "-o", str(program), "."]
        built = subprocess.run(command, cwd=source, capture_output=True, text=True, timeout=BUILD_SECONDS)
    if built.returncode:
        raise Unavailable(f"OPA is left out: go build failed: {built.stderr.strip()[-500:]}")
    return program


def measure(
    program: Path, documents: Sequence[Document], requests: Sequence[Request], passes: int, seconds: float
) -> Found:
    """Decide the requests `passes` times, each for at most so many seconds."""
    roles: dict[str, list[Any]] = {}
    for statement in statements_of(documents):
        roles.setdefault(statement.role, []).append(statement)
    asked = [
        {
            "groups": request["subject"]["properties"].get("groups", []),
            "action": request["action"]["name"],
            "resource": request["resource"]["id"],
        }
        for request in requests
    ]
    work = {"groups": roles_of(documents), "roles": roles, "requests": asked, "passes": passes, "seconds": seconds}
    environment = {**os.environ, "GOMAXPROCS": "2"}
    done = subprocess.run(
        [program], input=msgspec.json.encode(work), stdout=subprocess.PIPE, env=environment, check=True
    )
    return msgspec.json.decode(done.stdout, type=Found)
