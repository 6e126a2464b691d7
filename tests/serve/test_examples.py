"""The examples of clients in deploy/examples/http: each prints `allow` for an allow alone."""

import contextlib
import http.server
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from streaming.pdp.reading import AnswerContext
from streaming.serve.authzen import answer, parse_evaluation
from tests.brokers import free_port
from tests.serve.test_authzen import ALLOWED, NOW, RULES, read_at
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


@pytest.fixture(params=[pytest.param(tool, marks=[pytest.mark.long] if tool in SLOW else []) for tool in COMMANDS])
def tool(request: pytest.FixtureRequest) -> str:
    """What runs an example; the test is skipped where it is not there."""
    if shutil.which(request.param) is None:
        pytest.skip(f"no {request.param} on this machine")
    return str(request.param)


def test_each_example_is_run() -> None:
    assert {command[-1] for command in COMMANDS.values()} == {file.name for file in FOLDER.iterdir()}


@pytest.mark.stream
@pytest.mark.timeout(240)
def test_an_example_allows_what_the_policies_allow_and_nothing_else(tool: str, running: Running) -> None:
    url = f"http://127.0.0.1:{running.server.port}"
    assert _printed(tool, url, TOKEN, "user:dana") == (0, "allow\n")
    assert _printed(tool, url, TOKEN, "user:eve") == (1, "deny\n")
    assert _printed(tool, url, "wrong", "user:dana") == (1, "deny\n")
    assert _printed(tool, f"http://127.0.0.1:{free_port()}", TOKEN, "user:dana") == (1, "deny\n")


@pytest.mark.timeout(240)
def test_an_example_allows_nothing_that_is_not_enforced(tool: str) -> None:
    """As in the client library: an answer in shadow mode says what would be decided, and allows nothing."""
    for enforced, expected in ((True, (0, "allow\n")), (False, (1, "deny\n"))):
        rules = msgspec.structs.replace(RULES, enforced=enforced)
        asked = parse_evaluation(msgspec.json.encode(ALLOWED), "r-1", "", rules)
        _, body = answer(asked, AnswerContext(read_at(41), NOW, "bounded", 0.012, 15.0, rules.trust), rules)
        with _answering(body) as url:
            assert _printed(tool, url, TOKEN, "user:dana") == expected


@pytest.mark.timeout(240)
def test_an_example_allows_nothing_that_comes_too_late(tool: str) -> None:
    """The head comes at once, and the allow in its body after three seconds: beyond any of their timeouts."""
    with _answering(ALLOW) as url:
        assert _printed(tool, url, TOKEN, "user:dana") == (0, "allow\n")
    with _answering(ALLOW, seconds=3) as url:
        assert _printed(tool, url, TOKEN, "user:dana") == (1, "deny\n")


@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl on this machine")
@pytest.mark.parametrize("subject", ['user:eve", "x": "', "user:eve\\", "user:eve\nuser:dana", "user:eve\x7f"])
def test_the_shell_example_asks_nothing_with_a_name_that_it_would_have_to_escape(subject: str) -> None:
    """Else a name could end its text in the JSON, and ask something else."""
    with _answering(ALLOW) as url:
        assert _printed("curl", url, TOKEN, subject) == (1, "deny\n")
        assert _printed("curl", url, TOKEN, "user:dana é-._~*/@") == (0, "allow\n")


ALLOW = b'{"decision":true,"context":{"outcome":"allow"}}'


@contextlib.contextmanager
def _answering(body: bytes, seconds: float = 0) -> Iterator[str]:
    """A server at an address of this machine with one answer to all, the body so long after the head."""
    ended = threading.Event()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            ended.wait(seconds)
            with contextlib.suppress(ConnectionError):
                self.wfile.write(body)

        def log_message(self, *_arguments: object) -> None:
            """Say nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            ended.set()
            server.shutdown()
            thread.join()


def _printed(tool: str, url: str, token: str, subject: str) -> tuple[int, str]:
    asked = [subject, "kafka:GetTopicDetails", "kafka:topic:prod/main/orders"]
    environment = {**os.environ, "PDP_URL": url, "PDP_TOKEN": token}
    ended = subprocess.run(
        [*COMMANDS[tool], *asked], cwd=FOLDER, env=environment, capture_output=True, text=True, timeout=120
    )
    return ended.returncode, ended.stdout
