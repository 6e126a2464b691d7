"""OPA's own server, built from its module, with its decision log on: a line of JSON for each query, on its console."""

import contextlib
import re
import socket
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from tests.bench import load
from tests.bench.engines import Document, Request, roles_of, statements_of
from tests.bench.opa import SOURCE, Unavailable

MODULE = "github.com/open-policy-agent/opa"
START_SECONDS = 30.0
SINGLE, BATCH = "/v1/data/bench/allow", "/v1/data/bench/decisions"


def program() -> Path:
    """OPA's program, of the version in `go.mod`. Raises Unavailable."""
    found = re.search(rf"{MODULE} (v\S+)", (SOURCE / "go.mod").read_text())
    assert found is not None
    return load.install(MODULE, found[1])


def input_of(request: Request) -> dict[str, Any]:
    """A request as the rules take it."""
    return {
        "groups": request["subject"]["properties"].get("groups", []),
        "action": request["action"]["name"],
        "resource": request["resource"]["id"],
    }


def data_of(documents: Sequence[Document]) -> bytes:
    """The policies as the rules take them, JSON."""
    roles: dict[str, list[Any]] = {}
    for statement in statements_of(documents):
        roles.setdefault(statement.role, []).append(statement)
    return msgspec.json.encode({"groups": roles_of(documents), "roles": roles})


@contextlib.contextmanager
def serving(documents: Sequence[Document], folder: Path) -> Iterator[str]:
    """OPA's server with these policies; its URL. Raises Unavailable."""
    data = folder / "data.json"
    data.write_bytes(data_of(documents))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    rules = (SOURCE / name for name in ("policy.rego", "batch.rego"))
    logged = ("--log-level", "error", "--set", "decision_logs.console=true")
    command = [str(part) for part in (program(), "run", "--server", "--addr", address, *logged, *rules, data)]
    with (folder / "opa.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    try:
        if not load.answers(f"http://{address}/health", START_SECONDS, lambda: process.poll() is None):
            raise Unavailable(f"OPA does not answer: {(folder / 'opa.log').read_text()[-500:]}")
        yield f"http://{address}"
    finally:
        process.terminate()
        process.wait()
