"""`lockkeeper serve` against a broker: it follows changes, bounds what callers send, and decides by no old policies."""

import contextlib
import gc
import http.client
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from confluent_kafka import Producer

from streaming.errors import TopicChanged
from streaming.serve.connections import Connections
from streaming.serve.server import Server
from streaming.settings import MetricsSettings, ServeSettings, Settings
from tests.brokers import TestBroker, free_port
from tests.java_archive import embedded_broker
from tests.stream.world import SYSTEM, World, group, role
from tests.waiting import wait_until

pytestmark = [pytest.mark.stream, pytest.mark.timeout(120)]

PATH = "/access/v1/evaluation"
ASKED = {
    "subject": {"type": "user", "id": "user:dana"},
    "action": {"name": "kafka:GetTopicDetails"},
    "resource": {"type": "lrn", "id": "kafka:topic:prod/main/orders"},
}


HEADERS_REFUSED = (b"HTTP/1.1 400 ", b"")
"""The connection is closed while the caller still sends: the response may be lost."""


class Running:
    """A server in this process."""

    def __init__(self, settings: Settings, connections: Connections | None = None) -> None:
        self.server = Server(settings, connections=connections)
        self.stop, self.failure = threading.Event(), list[Exception]()
        self._ready = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()
        wait_until(lambda: self._ready.is_set() or not self.thread.is_alive(), "the policies are read", 60)

    def _run(self) -> None:
        try:
            self.server.run(self.stop, self._ready.set)
        except Exception as failure:
            self.failure.append(failure)

    def ask(self, path: str, body: Any, method: str = "POST", **headers: str) -> tuple[int, Any, dict[str, str]]:
        """The status, the JSON and the headers of the response."""
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=30)
        with contextlib.closing(connection):
            sent = body if isinstance(body, bytes) else json.dumps(body).encode()
            given = {"content-type": "application/json", **{k.replace("_", "-"): v for k, v in headers.items()}}
            connection.request(method, path, sent, given)
            found = connection.getresponse()
            assert found.headers["content-type"] == "application/json"
            return found.status, json.loads(found.read()), {k.lower(): v for k, v in found.headers.items()}

    def decision(self, **context: Any) -> bool:
        """Whether dana may read the orders."""
        status, body, _ = self.ask(PATH, {**ASKED, "context": context} if context else ASKED)
        assert status == 200, body
        return bool(body["decision"])


@contextlib.contextmanager
def serving(settings: Settings, connections: Connections | None = None) -> Iterator[Running]:
    """A server that runs, and must end in order."""
    running = Running(settings, connections)
    try:
        yield running
    finally:
        running.stop.set()
        running.thread.join(30)
    assert not running.thread.is_alive()


def settings_of(world: World, **serve: Any) -> Settings:
    """The settings of a server for these topics."""
    chosen = ServeSettings(port=0, default_system=SYSTEM, record="none", **serve)
    return msgspec.structs.replace(world.settings, serve=chosen)


@pytest.fixture
def world(broker: TestBroker, fresh_name: Callable[[str], str], tmp_path: Path) -> World:
    """Topics with a role that dana has, and another user's."""
    made = World(broker, fresh_name("serve"), str(tmp_path / "checkpoint"))
    made.publish(role("readers", "kafka:topic:prod/main/orders"))
    made.publish(group("readers", "user:dana"))
    return made


def test_no_answer_waits_while_the_policies_are_searched_for_cycles(world: World) -> None:
    gc.unfreeze()
    try:
        with serving(settings_of(world)):
            assert gc.get_freeze_count() > len(gc.get_objects())
    finally:
        gc.unfreeze()


def test_a_change_is_in_force_and_an_acknowledged_one_at_once_where_asked_for(world: World) -> None:
    with serving(settings_of(world)) as running:
        assert running.decision() is True
        _, body, _ = running.ask(f"/{SYSTEM}{PATH}", ASKED)
        assert body["context"]["policy_offsets"][world.policies] == {"0": 1}
        assert body["context"]["freshness"]["kind"] == "bounded"

        world.publish(role("readers", "kafka:topic:prod/main/orders", effect="deny"))
        assert running.decision(freshness="full") is False
        offset = world.publish(role("readers", "kafka:topic:prod/main/orders"))
        assert running.decision(min_policy_offsets={world.policies: {"0": offset}}) is True
        _, body, _ = running.ask(
            PATH, {**ASKED, "context": {"min_policy_offsets": {world.policies: {"0": offset + 9}}}}
        )
        assert (body["decision"], body["context"]["reasons"][0]["code"]) == (False, "policies-behind")

        world.delete("Group/readers")
        wait_until(lambda: not running.decision(), "the deletion is in force")


def test_facts_are_followed(world: World) -> None:
    """A user's groups at login, without which StreamSets' requests are not answered."""
    with serving(settings_of(world)) as running:
        before = running.ask(PATH, ASKED)[1]["context"]["facts_offset"]
        session = {"system": "streamsets", "kind": "Session", "name": "dana", "spec": {"login_at": 1}}
        offset = world.publish_to(world.names.facts, "streamsets/Session/dana", session)
        full = running.ask(PATH, {**ASKED, "context": {"freshness": "full"}})[1]["context"]
        assert (before, full["facts_offset"]) == (-1, offset)


def test_requests_that_are_none_are_refused_in_json(world: World) -> None:
    limits = msgspec.structs.replace(world.settings.limits, record_in=2000)
    settings = msgspec.structs.replace(settings_of(world), limits=limits)
    with serving(settings, Connections(10, 2.0)) as running:
        port = running.server.port
        assert running.ask(PATH, b"{")[0] == 400
        assert running.ask(PATH, ASKED, content_type="text/plain")[0] == 400
        assert running.ask(PATH, ASKED, content_encoding="gzip")[0] == 415
        assert running.ask(PATH, b" " * 2001)[0] == 413
        assert running.ask("/nonesuch" + PATH, ASKED)[0] == 404
        assert running.ask(PATH, b"", "GET")[0] == 405
        assert _chunked(port, b" " * 2001) == 413
        status, body, headers = running.ask(PATH, ASKED, X_Request_ID="abc-1")
        assert (status, body["decision"], headers["x-request-id"]) == (200, True, "abc-1")
        assert len(running.ask(PATH, ASKED)[2]["x-request-id"]) == 32
        status, body, _ = running.ask(f"/.well-known/authzen-configuration/{SYSTEM}", b"", "GET")
        base = f"http://127.0.0.1:{port}/{SYSTEM}"
        found = running.ask(f"/{SYSTEM}/access/v1/search/subject", {**ASKED, "subject": {"type": "user"}})
        assert (found[0], found[1]["results"]) == (200, [ASKED["subject"]])
        assert (status, body["access_evaluation_endpoint"]) == (200, f"{base}{PATH}")
        # Slow callers: neither headers nor a body may be sent for as long as they like.
        assert _sent(port, b"POST /access") == b""
        half = b"POST %s HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{"
        assert _sent(port, half % PATH.encode()) == b""


def _sent(port: int, data: bytes) -> bytes:
    """What comes back until the server closes the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as one:
        with contextlib.suppress(ConnectionError):
            one.sendall(data)
        received = b""
        with contextlib.suppress(ConnectionError):
            while part := one.recv(65536):
                received += part
        return received


def _chunked(port: int, body: bytes) -> int:
    """The status for a body that does not say how long it is."""
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=20)) as connection:
        headers = {"content-type": "application/json"}
        connection.request("POST", PATH, iter([body[:1000], body[1000:]]), headers, encode_chunked=True)
        return connection.getresponse().status


def test_headers_and_connections_beyond_the_limits_are_refused(world: World) -> None:
    with serving(settings_of(world), Connections(2, 60.0)) as running:
        assert (
            _sent(running.server.port, b"GET / HTTP/1.1\r\nhost: x\r\na: " + b"b" * 2_000_000)[:13] in HEADERS_REFUSED
        )
        assert _sent(running.server.port, b"nonsense\r\n\r\n").startswith(b"HTTP/1.1 400 ")
        held = [socket.create_connection(("127.0.0.1", running.server.port)) for _ in range(2)]
        assert _sent(running.server.port, b"").startswith(b"HTTP/1.1 503 ")
        for one in held:
            one.close()
        wait_until(lambda: running.ask(PATH, ASKED)[0] == 200, "connections are free again")


def test_a_transaction_that_is_not_ended_makes_policies_stale(world: World) -> None:
    with serving(settings_of(world, max_staleness_seconds=2.0)) as running:
        wait_until(lambda: running.ask(PATH, ASKED)[0] == 200, "the policies are read")
        producer = Producer({"bootstrap.servers": world.broker.bootstrap_servers, "transactional.id": "open-one"})
        producer.init_transactions(30)
        producer.begin_transaction()
        producer.produce(world.policies, json.dumps(role("x", "*")).encode(), "Role/x")
        producer.flush(30)
        wait_until(lambda: "a transaction on their topics is not ended" in str(running.ask(PATH, ASKED)[1]), "noticed")
        assert running.ask(PATH, ASKED)[0] == 503
        producer.abort_transaction(30)
        wait_until(lambda: running.ask(PATH, ASKED)[0] == 200, "it is ended")


def test_a_topic_that_is_re_created_ends_the_server(world: World) -> None:
    with serving(settings_of(world)) as running:
        assert running.decision() is True
        world.recreate(world.policies)
        running.thread.join(30)
    [failure] = running.failure
    assert isinstance(failure, TopicChanged)
    assert world.policies in str(failure)


@pytest.mark.long  # with a broker of its own, which it stops
def test_the_command_decides_and_without_kafka_answers_503(fresh_name: Callable[[str], str], tmp_path: Path) -> None:
    """Policies applied, asked, changed, asked again; then the broker is stopped, and no old allow is given."""
    with embedded_broker() as embedded:
        world = World(TestBroker(embedded.bootstrap_servers), fresh_name("serve"), str(tmp_path / "c"))
        world.publish(role("readers", "kafka:topic:prod/main/orders"))
        world.publish(group("readers", "user:dana"))
        settings = msgspec.structs.replace(
            settings_of(world, max_staleness_seconds=5.0), metrics=MetricsSettings(free_port())
        )
        with _command(settings, tmp_path) as port:
            ask = Asking(port)
            assert ask()[1]["decision"] is True
            assert "lockkeeper_serve_decisions_total" in ask.text(settings.metrics.port, "/metrics")
            assert ask.text(settings.metrics.port, "/readyz") == "ready\n"
            world.publish(role("readers", "kafka:topic:prod/main/orders", effect="deny"))
            assert ask({"freshness": "full"})[1]["decision"] is False
            world.publish(role("readers", "kafka:topic:prod/main/orders"))
            assert ask({"freshness": "full"})[1]["decision"] is True
            embedded.stop()
            status, body = ask({"freshness": "full"})
            assert (status, body["decision"], body["context"]["outcome"]) == (503, False, "error")
            wait_until(lambda: ask()[0] == 503, "the policies are stale")
            assert ask()[1]["decision"] is False
            wait_until(lambda: ask.text(settings.metrics.port, "/readyz") != "ready\n", "it is not ready")


class Asking:
    """Asks a server in another process."""

    def __init__(self, port: int) -> None:
        self._port = port

    def __call__(self, context: dict[str, Any] | None = None) -> tuple[int, Any]:
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self._port, timeout=30)) as connection:
            body = json.dumps({**ASKED, "context": context or {}})
            connection.request("POST", PATH, body, {"content-type": "application/json"})
            found = connection.getresponse()
            return found.status, json.loads(found.read())

    def text(self, port: int, path: str) -> str:
        """What the endpoint of metrics says."""
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)) as connection:
            connection.request("GET", path)
            return connection.getresponse().read().decode()


@contextlib.contextmanager
def _command(settings: Settings, folder: Path) -> Iterator[int]:
    """`lockkeeper serve` with these settings; yields its port. It must end in order when asked to."""
    file = written(settings, folder)
    command = [sys.executable, "-m", "streaming.cli", "serve", "--config", str(file)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2])
    try:
        assert process.stderr is not None
        ready = next(line for line in process.stderr if line.startswith("ready: "))
        threading.Thread(target=process.stderr.read, daemon=True).start()
        yield int(ready.strip().rpartition(":")[2])
        process.terminate()
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait()


def written(settings: Settings, folder: Path) -> Path:
    """A file with these settings."""
    file = folder / "serve.json"
    plain = {
        name: msgspec.to_builtins(getattr(settings, name))
        for name in ("bootstrap_servers", "job_name", "topics", "serve", "metrics")
    }
    del plain["topics"]["systems"]
    file.write_text(json.dumps(plain))
    return file
