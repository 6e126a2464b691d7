"""The examples of clients in deploy/examples/http: each prints `allow` for an allow alone."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.brokers import free_port
from tests.serve.test_ext_authz import TOKEN, running
from tests.serve.test_serve import Running

__all__ = ["running"]

FOLDER = Path(__file__).parents[2] / "deploy" / "examples" / "http"
COMMANDS = {
    "curl": ["sh", "evaluate.sh"],
    "node": ["node", "evaluate.mjs"],
    "java": ["java", "Evaluate.java"],
    "go": ["go", "run", "evaluate.go"],
}
SLOW = {"java", "go"}  # they compile


def test_each_example_is_run() -> None:
    assert {command[-1] for command in COMMANDS.values()} == {file.name for file in FOLDER.iterdir()}


@pytest.mark.stream
@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    "tool", [pytest.param(tool, marks=[pytest.mark.long] if tool in SLOW else []) for tool in COMMANDS]
)
def test_an_example_allows_what_the_policies_allow_and_nothing_else(tool: str, running: Running) -> None:
    if shutil.which(tool) is None:
        pytest.skip(f"no {tool} on this machine")
    url = f"http://127.0.0.1:{running.server.port}"
    assert _printed(tool, url, TOKEN, "user:dana") == (0, "allow\n")
    assert _printed(tool, url, TOKEN, "user:eve") == (1, "deny\n")
    assert _printed(tool, url, "wrong", "user:dana") == (1, "deny\n")
    assert _printed(tool, f"http://127.0.0.1:{free_port()}", TOKEN, "user:dana") == (1, "deny\n")


def _printed(tool: str, url: str, token: str, subject: str) -> tuple[int, str]:
    asked = [subject, "kafka:GetTopicDetails", "kafka:topic:prod/main/orders"]
    environment = {**os.environ, "PDP_URL": url, "PDP_TOKEN": token}
    ended = subprocess.run(
        [*COMMANDS[tool], *asked], cwd=FOLDER, env=environment, capture_output=True, text=True, timeout=120
    )
    return ended.returncode, ended.stdout
