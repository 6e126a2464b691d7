"""What a registry's answer means for a schema: it is there, it is not, or the registry did not say."""

import json
import time

import pytest

import streaming.records.registry
from streaming.records.registry import Registry, RegistryDown, RegistryError, RegistryRefused
from streaming.records.schemas import read
from streaming.settings import SchemaRegistry
from tests.contracts.registry_server import RegistryServer
from tests.slow_server import slow_server

PATH = "/schemas/ids/7"


def _failure(status: int, body: bytes) -> RegistryError:
    with RegistryServer({PATH: [(status, body)]}) as server:
        registry = Registry(server.settings)
        try:
            with pytest.raises(RegistryError) as raised:
                registry.schema(7)
        finally:
            registry.close()
    return raised.value


def _error(code: int) -> bytes:
    return json.dumps({"error_code": code, "message": "no"}).encode()


def test_a_schema_is_read() -> None:
    body = json.dumps({"schema": read("avro/request.avsc")}).encode()
    with RegistryServer({PATH: [(200, body)]}) as server:
        registry = Registry(server.settings)
        assert registry.schema(7) == (read("avro/request.avsc"),)
        registry.close()


@pytest.mark.parametrize(("status", "code"), [(404, 40403), (404, 40401), (422, 42201), (409, 409)])
def test_what_the_registry_says_no_to_is_refused(status: int, code: int) -> None:
    assert isinstance(_failure(status, _error(code)), RegistryRefused)


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
def test_what_something_in_front_of_the_registry_answers_says_nothing_of_a_schema(status: int, body: bytes) -> None:
    """A gateway without a route to the registry: records must wait, and not become dead letters."""
    failure = _failure(status, body)
    assert isinstance(failure, RegistryDown), failure


def test_a_page_in_place_of_an_answer_is_not_repeated_at_length() -> None:
    assert len(str(_failure(404, b"<html>" + b"x" * 100_000))) < 500


def test_an_answer_of_a_byte_at_a_time_ends_and_the_next_one_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A timeout of the socket is for each byte: the job's driver would wait as long as they come."""
    monkeypatch.setattr(streaming.records.registry, "SECONDS", 0.5)
    body = json.dumps({"schema": read("avro/request.avsc")}).encode()
    answer = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)
    with slow_server(b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n", answer) as port:
        registry = Registry(SchemaRegistry(url=f"http://127.0.0.1:{port}"))
        began = time.monotonic()
        with pytest.raises(RegistryDown):
            registry.schema(7)
        assert time.monotonic() - began < 10
        assert registry.schema(7) == (read("avro/request.avsc"),)
        registry.close()
