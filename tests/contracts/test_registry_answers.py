"""What a registry's answer means for a schema: it is there, it is not, or the registry did not say."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from streaming.records.registry import Registry, RegistryDown, RegistryError, RegistryRefused
from streaming.records.schemas import read
from streaming.settings import SchemaRegistry


class _Answers(ThreadingHTTPServer):
    """Gives one answer to each request."""

    daemon_threads = True
    status, body, headers = 200, b"", dict[str, str]()


class _Handler(BaseHTTPRequestHandler):
    server: _Answers

    def do_GET(self) -> None:
        self.send_response(self.server.status)
        for name, value in self.server.headers.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(self.server.body)))
        self.end_headers()
        self.wfile.write(self.server.body)

    def log_message(self, *_arguments: Any) -> None:
        """Nothing."""


@pytest.fixture
def answers() -> Iterator[_Answers]:
    with _Answers(("localhost", 0), _Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def _failure(answers: _Answers, status: int, body: bytes, headers: dict[str, str] | None = None) -> RegistryError:
    answers.status, answers.body, answers.headers = status, body, headers or {}
    registry = Registry(SchemaRegistry(url=f"http://localhost:{answers.server_port}"))
    try:
        with pytest.raises(RegistryError) as raised:
            registry.schema(7)
    finally:
        registry.close()
    return raised.value


def _error(code: int) -> bytes:
    return json.dumps({"error_code": code, "message": "no"}).encode()


def test_a_schema_is_read(answers: _Answers) -> None:
    answers.body = json.dumps({"schema": read("avro/request.avsc")}).encode()
    registry = Registry(SchemaRegistry(url=f"http://localhost:{answers.server_port}"))
    assert registry.schema(7) == (read("avro/request.avsc"),)
    registry.close()


@pytest.mark.parametrize(("status", "code"), [(404, 40403), (404, 40401), (422, 42201), (409, 409)])
def test_what_the_registry_says_no_to_is_refused(answers: _Answers, status: int, code: int) -> None:
    assert isinstance(_failure(answers, status, _error(code)), RegistryRefused)


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (404, b"<html>no route</html>"),
        (404, b'{"message": "no Route matched with those values"}'),
        (404, _error(404)),
        (404, b""),
        (400, b"<html>Bad Request</html>"),
        (301, b""),
        (408, _error(408)),
        (429, _error(429)),
        (500, _error(50001)),
        (503, b"<html>"),
        (401, _error(40101)),
        (200, b"<html>sign in</html>"),
        (200, b"{}"),
        (200, b"[]"),
    ],
)
def test_what_something_in_front_of_the_registry_answers_says_nothing_of_a_schema(
    answers: _Answers, status: int, body: bytes
) -> None:
    """A gateway without a route to the registry: records must wait, and not become dead letters."""
    failure = _failure(answers, status, body, {"location": "http://localhost:1/"} if status == 301 else {})
    assert isinstance(failure, RegistryDown), failure


def test_a_page_in_place_of_an_answer_is_not_repeated_at_length(answers: _Answers) -> None:
    assert len(str(_failure(answers, 404, b"<html>" + b"x" * 100_000))) < 500
